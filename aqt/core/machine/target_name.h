#ifndef AQT_CORE_MACHINE_TARGET_NAME_H_
#define AQT_CORE_MACHINE_TARGET_NAME_H_

// Parses targets; separate from target.h, which every kernel includes.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// The named target minus the capabilities listed after it: "amx", "amx,-amx_bf16", "avx512_vnni". Capabilities that
// depend on a removed one are removed too. InvalidArgument, listing the names, for any other text.
absl::StatusOr<Target> TargetFromString(absl::string_view text);

// The target that the environment variable AQT_MAX_TARGET allows, parsed by TargetFromString. Without a name
// ("-amx_bf16") it is everything except the removed capabilities; if the variable is unset or empty, it is everything.
// Read once. InvalidArgument if it cannot be parsed; programs call this at startup to report the mistake.
absl::StatusOr<Target> MaxTargetFromEnvironment();

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_TARGET_NAME_H_
