#ifndef AQT_CORE_MACHINE_TARGET_NAME_H_
#define AQT_CORE_MACHINE_TARGET_NAME_H_

// Targets from text; apart from target.h, which every kernel includes.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// The target with this name, without the capabilities that follow it: "amx", "amx,-amx_bf16", "avx512_vnni". What needs
// a removed capability goes with it. InvalidArgument, listing the names, for any other text.
absl::StatusOr<Target> TargetFromString(absl::string_view text);

// What the environment variable AQT_MAX_TARGET allows, as TargetFromString reads it; without a name ("-amx_bf16")
// everything but the removed capabilities, and everything if it is unset or empty. Read once. InvalidArgument if it
// cannot be read; programs call this when they start, to report the mistake.
absl::StatusOr<Target> MaxTargetFromEnvironment();

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_TARGET_NAME_H_
