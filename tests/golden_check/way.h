#ifndef AQT_TESTS_GOLDEN_CHECK_WAY_H_
#define AQT_TESTS_GOLDEN_CHECK_WAY_H_

// The ways in which a case is computed.

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/golden_check/golden_case.h"

namespace aqt::golden {

enum class Way {
  kPlan,      // by functions and plans of the library
  kProgram,   // traced as a program without quantization, quantized by rules, evaluated
  kPrepared,  // the same programs, prepared with the fixed values (aqt/runtime/prepared_program.h)
};

// "plan", "program", "prepared".
absl::string_view ToString(Way way);
std::vector<Way> AllWays();
// The ways in a comma-separated list. InvalidArgument for an unknown or repeated name.
absl::StatusOr<std::vector<Way>> ParseWays(absl::string_view list);

// The ways of a case, in the order above: all for a contraction, programs for a model, kPlan for anything else.
std::vector<Way> WaysOf(const GoldenCase& golden_case);

// Whether a way computes the tensor. Programs have outputs and gradients, and freeze the scale and the qvalue of an
// operand. Only the observer of a plan sees other values inside a contraction (its accumulator, noise, the operands of
// its gradients).
bool IsShown(const GoldenCase& golden_case, Way way, absl::string_view tensor);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_WAY_H_
