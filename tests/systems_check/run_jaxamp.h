#ifndef AQT_TESTS_SYSTEMS_CHECK_RUN_JAXAMP_H_
#define AQT_TESTS_SYSTEMS_CHECK_RUN_JAXAMP_H_

#include "absl/status/statusor.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// The outputs of a case of the area jaxamp, through the public API. Unimplemented for an unknown group or function.
absl::StatusOr<SystemValue::Dict> RunJaxamp(const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_RUN_JAXAMP_H_
