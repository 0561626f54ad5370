#ifndef AQT_KERNELS_REDUCE_XLA_WINDOWS_H_
#define AQT_KERNELS_REDUCE_XLA_WINDOWS_H_

// How XLA on CPU splits an axis that it sums into windows of 32 elements, whose sums it adds in the same way. If n
// elements do not fill c windows, half of the missing elements, rounded down, are missing from the first window and the
// rest from the last window.

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"

namespace aqt::kernels {

inline constexpr int64_t kXlaWindow = 32;

// The number of windows; at least 1.
inline int64_t NumXlaWindows(int64_t n) { return std::max<int64_t>(1, CeilDiv(n, kXlaWindow)); }

// The number of elements missing from the first window of n elements.
inline int64_t XlaWindowsLack(int64_t n) { return (NumXlaWindows(n) * kXlaWindow - n) / 2; }

// The window that contains element i of n.
inline int64_t XlaWindowOf(int64_t n, int64_t i) { return (i + XlaWindowsLack(n)) / kXlaWindow; }

// The first element of window w out of n elements; n for the window after the last.
inline int64_t XlaWindowBegin(int64_t n, int64_t w) {
  return std::clamp<int64_t>(w * kXlaWindow - XlaWindowsLack(n), 0, n);
}

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_XLA_WINDOWS_H_
