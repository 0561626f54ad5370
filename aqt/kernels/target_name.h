#ifndef AQT_KERNELS_TARGET_NAME_H_
#define AQT_KERNELS_TARGET_NAME_H_

// Targets from text; apart from target.h, which every kernel includes.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

// The target with this name. InvalidArgument, listing the names, for any other text.
absl::StatusOr<Target> TargetFromString(absl::string_view text);

// The environment variable AQT_MAX_TARGET, read once: the highest target that BestTarget() may return, kAvx512Vnni if
// it is unset or empty. InvalidArgument if its text is not the name of a target; programs call this when they start, to
// report the mistake.
absl::StatusOr<Target> MaxTargetFromEnvironment();

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_TARGET_NAME_H_
