#ifndef AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_
#define AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_

// Recomputes recorded cases through the public API and compares.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/text/config_proto.h"
#include "tests/golden_check/fixed_list.h"
#include "tests/golden_check/golden_case.h"
#include "tests/golden_check/run_case.h"
#include "tests/golden_check/through_text.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {

enum class Verdict { kPassed, kFailed, kNotSupported };

struct CaseResult {
  Verdict verdict;
  // For kFailed: "TENSOR [INDEX]: got X, want Y", after the names of the failed runs unless all fail in the same way:
  // "as a plan, from the text: ", "as a program: ", "as a prepared program: ". For kNotSupported: the missing feature.
  std::string reason;
  // The number of zeros with the other sign in the compared tensors. They never fail a case.
  int64_t signed_zeros = 0;
  // Tensors that programs refuse on purpose although the plan computes them: "as a program: TENSOR, TENSOR: REASON".
  std::vector<std::string> refused = {};
};

using Runner = absl::FunctionRef<absl::StatusOr<Computed>(const GoldenCase&, const Semantics&, Given&, Way)>;

struct CheckOptions {
  Runner runner = RunCase;
  TextWriter to_text = ToText;
  std::vector<Way> ways = AllWays();
  // If not null: these tensors must differ from the recorded ones, and equal the list.
  const FixedCase* fixed = nullptr;
};

// Runs the case in its ways, and the first way twice: with the library's own structs and with those read from their
// text (ThroughText). The verdict is passed if in each run every expected tensor of the way is within its tolerance,
// and the bits are the same. It is not supported if the configuration, or the runner in the first way, returns
// Unimplemented and no tensor is wrong. It is failed for every other error, or if an expected tensor is missing.
// Tensors that are computed from given ones get a separate run. The case must have one of options.ways.
CaseResult CheckCase(const GoldenCase& golden_case, const Semantics& semantics, const CheckOptions& options = {});

// The first way in which the library accepts a case that the original refuses; null if the library refuses it, too.
std::optional<Way> AcceptedIn(const GoldenCase& golden_case, const Semantics& semantics,
                              const std::vector<Way>& ways = AllWays());

// See kUsage in golden_check.cc, or golden_check --help. Writes to `out` a line per failing case and per intended
// refusal of programs. With --verbose it also writes a line per case that is not supported, or that is accepted here
// although the original refuses it. Then it writes `passed N, failed N, not supported N` per family and in total, and
// the number of refused cases among those that the original refuses. Returns 1 if a case failed, 0 if none did; 2, with
// a message to `err`, if the arguments or the directory are invalid. A run of more than a few seconds reports its
// progress to `err`.
int GoldenCheckMain(const io::FileSystem& fs, const std::vector<std::string>& arguments, std::ostream& out,
                    std::ostream& err);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_
