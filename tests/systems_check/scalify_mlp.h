#ifndef AQT_TESTS_SYSTEMS_CHECK_SCALIFY_MLP_H_
#define AQT_TESTS_SYSTEMS_CHECK_SCALIFY_MLP_H_

#include "absl/status/statusor.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {

// Training steps of a classifier, scaled or not, for the cases mlp/*.
absl::StatusOr<SystemValue::Dict> RunScalifyMlp(const SystemCase& system_case);

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SCALIFY_MLP_H_
