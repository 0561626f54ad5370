#ifndef AQT_TESTS_SYSTEMS_CHECK_SCALIFY_PROGRAM_H_
#define AQT_TESTS_SYSTEMS_CHECK_SCALIFY_PROGRAM_H_

// Programs of recorded cases: traced, scaled if the case's inputs are, and run.

#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/graph/value.h"
#include "aqt/transforms/precision/scaled.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

absl::StatusOr<ScaleRounding> RoundingOf(const std::string& mode);
// The rules named in the config, with the case's behaviour.
absl::StatusOr<ScalifyRules> RulesOf(const SystemCase& system_case);

absl::StatusOr<ScaledValue> ScaledInput(const SystemCase& system_case, absl::string_view name);
absl::StatusOr<SystemValue> ToSystemValue(const ScaledValue& value);

// Values by name, plain or scaled.
using NamedValues = std::vector<std::pair<std::string, SystemValue>>;

using ScaledFunction = absl::FunctionRef<absl::StatusOr<std::vector<Value>>(absl::Span<const Value>)>;
// Scalify(fn)(inputs), with outputs of these names.
absl::StatusOr<SystemValue::Dict> RunScaled(const NamedValues& inputs, const std::vector<std::string>& outputs,
                                            const ScalifyRules& rules, ScaledFunction fn);
// The same with inputs of the case.
absl::StatusOr<SystemValue::Dict> RunScaledProgram(const SystemCase& system_case,
                                                   const std::vector<std::string>& inputs,
                                                   const std::vector<std::string>& outputs, ScaledFunction fn);

// Inside a trace: the vector-Jacobian product of `step`, one operation, at x for this cotangent.
absl::StatusOr<Value> CotangentOf(const std::function<Value(const Value&)>& step, const Value& x,
                                  const Value& cotangent);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SCALIFY_PROGRAM_H_
