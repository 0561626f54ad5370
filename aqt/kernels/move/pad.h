#ifndef AQT_KERNELS_MOVE_PAD_H_
#define AQT_KERNELS_MOVE_PAD_H_

// Adds zeros around and between the elements of an array.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/executor.h"

namespace aqt::kernels {

// One axis: element i of the source goes to index i * dilation + low, out of `padded`. Elements with a negative index
// or an index beyond the end are cut off.
struct PadAxis {
  int64_t size = 0;      // of the source
  int64_t stride = 0;    // of the source, in elements
  int64_t dilation = 1;  // >= 1
  int64_t low = 0;
  int64_t padded = 0;
  bool operator==(const PadAxis&) const = default;
};

// The source elements that are not cut off: begin <= i < end; begin == end if there are none.
struct KeptRange {
  int64_t begin = 0, end = 0;
};
// The range that `axis` keeps. Precondition: padded - low does not overflow.
KeptRange KeptElements(const PadAxis& axis);

// Fills `out`, which is dense with the padded sizes, with the source's elements and zeros (all bytes 0). Elements have
// `element_bytes` bytes. The two arrays must not overlap. There is at least one axis. The bytes are the same for any
// executor.
void Pad(const void* source, int64_t element_bytes, absl::Span<const PadAxis> axes, void* out, Executor* executor);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_MOVE_PAD_H_
