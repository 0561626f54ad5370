#ifndef AQT_CORE_MACHINE_VERBOSE_H_
#define AQT_CORE_MACHINE_VERBOSE_H_

// Reports of the matrix kernels (gemm.h; not digits.h) on standard error, controlled by the environment variable
// AQT_VERBOSE:
//
//   AQT_VERBOSE=dispatch   one line per product: aqt: s8_amx 1 x 512 x 4096 x 1024
//                          (the kernel; batch x rows x columns x k)
//   AQT_VERBOSE=profile    the same and its time: aqt: s8_amx 1 x 512 x 4096 x 1024 1130.4 us 3799 GOP/s

#include <cstdint>

#include "absl/status/statusor.h"

namespace aqt::kernels {

// The values of AQT_VERBOSE.
enum class Verbosity : uint8_t { kOff, kDispatch, kProfile };

// AQT_VERBOSE, read once: kOff if it is unset or empty. InvalidArgument, listing the values, for any other text, which
// the kernels treat as kOff. Programs call this at startup to report the mistake.
absl::StatusOr<Verbosity> VerbosityFromEnvironment();

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_VERBOSE_H_
