#ifndef AQT_TESTS_SYSTEMS_CHECK_RUN_SCALIFY_H_
#define AQT_TESTS_SYSTEMS_CHECK_RUN_SCALIFY_H_

#include "absl/status/statusor.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// The outputs of a case of the area scalify, through the public API, with the case's behaviour. Unimplemented for an
// unknown group or function.
absl::StatusOr<SystemValue::Dict> RunScalify(const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_RUN_SCALIFY_H_
