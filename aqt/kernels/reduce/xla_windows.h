#ifndef AQT_KERNELS_REDUCE_XLA_WINDOWS_H_
#define AQT_KERNELS_REDUCE_XLA_WINDOWS_H_

// How XLA on CPU cuts an axis that it sums into windows of 32 elements, whose sums it adds in the same way. Where n
// elements do not fill c windows, the first window lacks half of the missing ones, rounded down, and the last window
// lacks the others.

#include <algorithm>
#include <cstdint>

namespace aqt::kernels {

inline constexpr int64_t kXlaWindow = 32;

// At least one.
inline int64_t NumXlaWindows(int64_t n) { return std::max<int64_t>(1, (n + kXlaWindow - 1) / kXlaWindow); }

// How many elements the first window of n elements lacks.
inline int64_t XlaWindowsLack(int64_t n) { return (NumXlaWindows(n) * kXlaWindow - n) / 2; }

// The window of element i of n.
inline int64_t XlaWindowOf(int64_t n, int64_t i) { return (i + XlaWindowsLack(n)) / kXlaWindow; }

// The first element of window w of n elements; n for the window after the last.
inline int64_t XlaWindowBegin(int64_t n, int64_t w) {
  return std::clamp<int64_t>(w * kXlaWindow - XlaWindowsLack(n), 0, n);
}

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_REDUCE_XLA_WINDOWS_H_
