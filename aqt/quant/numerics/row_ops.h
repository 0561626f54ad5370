#ifndef AQT_QUANT_NUMERICS_ROW_OPS_H_
#define AQT_QUANT_NUMERICS_ROW_OPS_H_

// Elementwise work on strided arrays, in pieces of at most kPiece elements of the last axis held as floats. Internal.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/shape.h"

namespace aqt::internal {

inline constexpr int64_t kPiece = 256;

// out[i] = element offset + i * stride, exactly (any dtype of at most 24 significant bits; s32 is rounded to f32).
void LoadRow(DType dtype, const void* data, int64_t offset, int64_t stride, int64_t n, float* out);
// Converts as ConvertElement does: one rounding to a float dtype; truncation, saturation and NaN -> 0 to an integer.
void StoreRow(DType dtype, const float* in, int64_t n, void* data, int64_t offset, int64_t stride);

// Rounds to a float dtype (f32, bf16, f16; no flush of subnormals).
void RoundRow(DType dtype, float* y, int64_t n);
// Flushes subnormals to zero, except those of f16.
void FlushRow(DType dtype, float* y, int64_t n);

// y = y op x, rounded to dtype; x has one element if x_stride is 0, otherwise n.
void MulRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n);
void AddRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n);
void SubRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n);
void DivRow(DType dtype, const float* x, int64_t x_stride, float* y, int64_t n);
// y = y / c if `divide`, else y * (1 / c), as XLA on CPU divides several numbers by a constant.
void OverConstantRow(DType dtype, float c, bool divide, float* y, int64_t n);
// x = 1 / x, or 1 where that is infinite.
void InvertScaleRow(DType dtype, float* x, int64_t n);
// x = Reciprocal(x) (arith.h).
void ReciprocalRow(DType dtype, float* x, int64_t n);

// The strides with which an array of `shape` and `strides` is viewed in `target`: 0 along axes where shape has extent
// 1. Ranks are equal.
Strides BroadcastStrides(const Shape& shape, absl::Span<const int64_t> strides, const Shape& target);
// `x` viewed in the shape `target`.
ArrayRef BroadcastTo(const ArrayRef& x, const Shape& target);

using StridesSpan = absl::Span<const int64_t>;

// Calls f(offsets, n, linear) for the pieces of `shape` in row-major order: offsets[j] is the element offset of the
// piece under strides[j], whose stride within the piece is InnerStride(strides[j]); linear counts the elements before
// it.
void ForEachPiece(const Shape& shape, absl::Span<const StridesSpan> strides,
                  absl::FunctionRef<void(const int64_t* offsets, int64_t n, int64_t linear)> f);
inline int64_t InnerStride(StridesSpan strides) { return strides.empty() ? 0 : strides.back(); }

// ---- whole arrays

// How y / scale is computed. R is the rounding to the dtype of the result, Rs that to the dtype of the scale.
enum class ScaleRule {
  kInverse,      // AQT: R(y * Rs(1 / scale)), with 1 in place of an infinite reciprocal
  kXlaQuotient,  // a quotient in XLA on CPU: R(y * (1 / scale)), with the reciprocal in f32 (f16: rounded), or
                 // R(y / scale) if each element has its own scale
  kQuotient,     // R(y / scale)
};

// How a tensor and its qvalue are related: y = (x + bias...) * mask / scale... Each array broadcasts to x.
struct Affine {
  absl::Span<const ArrayRef> bias = {};
  const ArrayRef* mask = nullptr;
  absl::Span<const ArrayRef> scale = {};
  ScaleRule rule = ScaleRule::kInverse;
};

// The dtype of the scaled values of x.
DType ScaledDType(DType x, const Affine& affine);

// absmax[i], over dense `groups_shape` (extent 1 along shared axes): max |x|; NaN if any x is NaN; 0 for subnormals of
// f32 and bf16 and for empty groups.
void AbsMaxInto(const ArrayRef& x, const Shape& groups_shape, float* absmax);

// Reads x piece by piece as scaled values y in ScaledDType(x): f(y, n, linear, offset), where `offset` is the element
// offset of the piece under `extra_strides` (of x's rank). f may overwrite y. With an executor the pieces of a large x
// are read in any order, on any thread.
void ForEachScaledPiece(const ArrayRef& x, const Affine& affine, StridesSpan extra_strides,
                        absl::FunctionRef<void(float* y, int64_t n, int64_t linear, int64_t offset)> f,
                        Executor* executor = nullptr);

// out = the dequantized q: cast to `dtype`, scaled, masked, minus bias, cast to the dtype of out. Shapes are equal.
void DequantizeInto(const ArrayRef& q, const Affine& affine, DType dtype, const MutableArrayRef& out,
                    Executor* executor = nullptr);

// out = the sum of x, dense, over its first `num_axes` axes, from +0 in row-major order in f32, each sum rounded
// (subnormals are zero); one rounding to the dtype of out at the end.
void SumLeadingInto(const ArrayRef& x, int64_t num_axes, const MutableArrayRef& out);

// out = zeros.
void FillZeros(const MutableArrayRef& out);

// out = R(a * b), or R(a / b), in `dtype`, stored in the dtype of out. b, rounded to `dtype`, broadcasts to a; a and
// out have the same shape.
void MultiplyInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out,
                  Executor* executor = nullptr);
void DivideInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out);
// out = R(a * Reciprocal(b)) (arith.h).
void DivideByBroadcastInto(const ArrayRef& a, const ArrayRef& b, DType dtype, const MutableArrayRef& out);

}  // namespace aqt::internal

#endif  // AQT_QUANT_NUMERICS_ROW_OPS_H_
