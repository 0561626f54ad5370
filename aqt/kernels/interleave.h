#ifndef AQT_KERNELS_INTERLEAVE_H_
#define AQT_KERNELS_INTERLEAVE_H_

// Permutes small dense blocks into panels.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/kernels/panel_format.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels::internal {

// dst[c * dst_stride + r] = src[r * src_stride + c] for r < rows, c < cols; strides in elements. rows and cols are
// multiples of 16.
void Transpose(Target target, const int8_t* src, int64_t src_stride, int64_t rows, int64_t cols, int8_t* dst,
               int64_t dst_stride);
void Transpose(Target target, const BFloat16* src, int64_t src_stride, int64_t rows, int64_t cols, BFloat16* dst,
               int64_t dst_stride);
void Transpose(Target target, const float* src, int64_t src_stride, int64_t rows, int64_t cols, float* dst,
               int64_t dst_stride);

// Writes the part [k0, k1) of one panel along k: element (r, k) for r < format.width comes from
// block[r * row_stride + (k - k0) * k_stride]. One of the strides is 1; for the layout kRowSteps it is k_stride. k0 is
// a multiple of a step (16 groups); the block is padded with zeros from k1 to the next whole step. Blocks are s8 for
// the integer formats, bf16 for kBF16 and f32 for kF32. The correction, if there is one, starts at k0 = 0 and
// accumulates over calls. The width is a multiple of 16 for the layout kInterleaved, and at most 64.
void Interleave(Target target, const PanelFormat& format, const int8_t* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel);
void Interleave(Target target, const PanelFormat& format, const BFloat16* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel);
void Interleave(Target target, const PanelFormat& format, const float* block, int64_t row_stride, int64_t k_stride,
                int64_t k0, int64_t k1, char* panel);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_INTERLEAVE_H_
