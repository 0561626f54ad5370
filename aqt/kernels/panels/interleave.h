#ifndef AQT_KERNELS_PANELS_INTERLEAVE_H_
#define AQT_KERNELS_PANELS_INTERLEAVE_H_

// Permutes small dense blocks into panels.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels::internal {

// Consecutive panels, `bytes` apart.
struct Panels {
  char* first;
  int64_t count;
  int64_t bytes;
};

// Writes the part [k0, k1) of some panels along k: element (r, k) for r < panels.count * format.width comes from
// block[r * row_stride + (k - k0) * k_stride]. One of the strides is 1. k0 is a multiple of a step (16 groups). From k1
// to the end of its step the block is padded with zeros; the other stride leaves room for a multiple of 16 elements.
// Blocks are s8 (for kS4 of 4 bits, at most 24 KiB of a panel) for the integer formats, bf16 for kBF16 and f32 for
// kF32. The correction, if there is one, starts at k0 = 0 and accumulates over calls. With the layout kInterleaved the
// width is a multiple of 16 up to 64.
// With subnormals_are_zero, a subnormal number becomes a zero of its sign. This is supported only for the layout
// kRowSteps and a block that is contiguous along k.
void Interleave(Target target, const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, const Panels& panels, bool subnormals_are_zero = false);
void Interleave(Target target, const PanelFormat& format, const BFloat16* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, const Panels& panels, bool subnormals_are_zero = false);
void Interleave(Target target, const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, const Panels& panels, bool subnormals_are_zero = false);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_PANELS_INTERLEAVE_H_
