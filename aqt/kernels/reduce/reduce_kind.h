#ifndef AQT_KERNELS_REDUCE_REDUCE_KIND_H_
#define AQT_KERNELS_REDUCE_REDUCE_KIND_H_

// The kinds of reductions.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace aqt::kernels {

// The reduction of numbers to one number.
enum class ReduceKind : uint8_t { kSum, kMax, kMin, kProd };
inline constexpr int kNumReduceKinds = 4;

// The index of the first maximum or minimum.
enum class ArgKind : uint8_t { kMax, kMin };

absl::string_view ToString(ReduceKind kind);  // "sum", "max", "min", "prod"
absl::string_view ToString(ArgKind kind);     // "max", "min"

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_REDUCE_KIND_H_
