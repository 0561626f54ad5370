#ifndef AQT_TESTS_SYSTEMS_CHECK_FP8LAYERS_MODELS_H_
#define AQT_TESTS_SYSTEMS_CHECK_FP8LAYERS_MODELS_H_

// The groups of the area fp8layers that train a model: dense, mlp and transformer.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// Element `step` of an input with a value for each step: a list of arrays, or one array whose first axis is the steps.
absl::StatusOr<Array> StepOf(const SystemCase& system_case, const std::string& input, int64_t step);
// The number of steps of such an input.
absl::StatusOr<int64_t> StepsOf(const SystemCase& system_case, const std::string& input);
// Stacks arrays of one shape along a new first axis.
absl::StatusOr<SystemValue> Stacked(absl::Span<const Array> arrays);
// The dtype that a field of the config names; `absent` if it is null or missing.
absl::StatusOr<DType> DTypeIn(const SystemCase& system_case, const char* field, DType absent);

absl::StatusOr<SystemValue::Dict> RunFp8Dense(const SystemCase& system_case);
absl::StatusOr<SystemValue::Dict> RunFp8Mlp(const SystemCase& system_case);
absl::StatusOr<SystemValue::Dict> RunFp8Transformer(const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_FP8LAYERS_MODELS_H_
