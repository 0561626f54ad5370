#ifndef AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_
#define AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_

// Recomputes recorded cases through the public API and compares.

#include <ostream>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "tests/golden_check/golden_case.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {

enum class Verdict { kPassed, kFailed, kNotSupported };

struct CaseResult {
  Verdict verdict;
  std::string reason;  // of kFailed: "TENSOR [INDEX]: got X, want Y"; of kNotSupported: what is missing
};

using Runner = absl::FunctionRef<absl::StatusOr<Tensors>(const GoldenCase&, const Environment&, Given&)>;

// Passed when every expected tensor is within its tolerance. Not supported when the configuration or the runner says
// Unimplemented and no tensor is wrong; failed at every other error, or when an expected tensor does not come out.
// Tensors that are to be computed from given ones get a run of their own.
CaseResult CheckCase(const GoldenCase& golden_case, const Environment& environment, Runner runner = RunCase);

// golden_check --golden_dir=DIR [--families=a,b] [--verbose]
//
// To `out`: a line per failing case, with --verbose also one per case that is not supported; then per family and in
// total `passed N, failed N, not supported N`. Returns 1 when a case failed, 0 when none did; 2, with a message to
// `err`, when the arguments or the directory are bad.
int GoldenCheckMain(const io::FileSystem& fs, const std::vector<std::string>& arguments, std::ostream& out,
                    std::ostream& err);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_H_
