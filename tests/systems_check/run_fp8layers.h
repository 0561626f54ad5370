#ifndef AQT_TESTS_SYSTEMS_CHECK_RUN_FP8LAYERS_H_
#define AQT_TESTS_SYSTEMS_CHECK_RUN_FP8LAYERS_H_

#include "absl/status/statusor.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// The outputs of a case of the area fp8layers, through the public API. Unimplemented for an unknown group or option.
absl::StatusOr<SystemValue::Dict> RunFp8Layers(const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_RUN_FP8LAYERS_H_
