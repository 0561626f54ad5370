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
  // Of kFailed: "TENSOR [INDEX]: got X, want Y". Unless all runs of the case fail so, their names stand before it: "as
  // a plan, from the text: ", "as a program: ", "as a prepared program: ". Of kNotSupported: what is missing.
  std::string reason;
  // Elements of the compared tensors that are zeros of the other sign. They never fail a case.
  int64_t signed_zeros = 0;
  // What programs refuse on purpose though the plan computes it: "as a program: TENSOR, TENSOR: REASON".
  std::vector<std::string> refused = {};
};

using Runner = absl::FunctionRef<absl::StatusOr<Computed>(const GoldenCase&, const Semantics&, Given&, Way)>;

struct CheckOptions {
  Runner runner = RunCase;
  TextWriter to_text = ToText;
  std::vector<Way> ways = AllWays();
  // Not null: these tensors must differ from the recorded ones, and be as listed.
  const FixedCase* fixed = nullptr;
};

// Runs the case in its ways, and the first of them twice: with the library's own structs and with what is read from
// their text (ThroughText). Passed if each time every expected tensor that the way shows is within its tolerance, and
// the bits are the same. Not supported if the configuration, or the runner in the first way, says Unimplemented and no
// tensor is wrong; failed at every other error, or if an expected tensor is missing. Tensors that are to be computed
// from given ones get a run of their own. The case must have one of options.ways.
CaseResult CheckCase(const GoldenCase& golden_case, const Semantics& semantics, const CheckOptions& options = {});

// The first of its ways in which the library accepts a case that the original refuses; null if it refuses it, too.
std::optional<Way> AcceptedIn(const GoldenCase& golden_case, const Semantics& semantics,
                              const std::vector<Way>& ways = AllWays());

// See kUsage in golden_check.cc, or golden_check --help.
//
// To `out`: a line per failing case and for all that programs refuse on purpose, with --verbose also one per case that
// is not supported or that is accepted here though the original refuses it; then per family and in total
// `passed N, failed N, not supported N`, and how many of the cases that the original refuses are refused. Returns 1 if
// a case failed, 0 if none did; 2, with a message to `err`, if the arguments or the directory are bad. A run of more
// than some seconds reports its progress to `err`.
int GoldenCheckMain(const io::FileSystem& fs, const std::vector<std::string>& arguments, std::ostream& out,
                    std::ostream& err);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_
