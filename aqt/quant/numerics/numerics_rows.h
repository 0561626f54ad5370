#ifndef AQT_QUANT_NUMERICS_NUMERICS_ROWS_H_
#define AQT_QUANT_NUMERICS_NUMERICS_ROWS_H_

// The numerics of numerics.h on pieces of scaled values held as floats (row_ops.h). Internal.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {

// The random numbers of a piece: element i uses number `first + i * stride`.
struct Draws {
  const kernels::RandomNumbers* numbers = nullptr;  // null: no randomness
  int64_t first = 0, stride = 0;
  kernels::Target target = kernels::Target::kScalar;
};

// Replaces y, of dtype `dtype`, by the qvalue before its conversion to the container, which StoreRow does. n <= kPiece.
void QuantizeRow(const Numerics& numerics, const Compat& compat, DType dtype, const Draws& draws, float* y, int64_t n);

// The range to which integers are clipped, rounded to `dtype`.
struct ClipRange {
  float lo, hi;
};
ClipRange ClipRangeOf(const IntSymmetric& numerics, const Compat& compat, DType dtype);

// How the scaled values of a plan with these semantics are computed.
ScaleRule ScaleRuleOf(const Semantics& semantics);

// clip_gradient: the largest |y| of scaled values of `dtype`, before noise, whose gradient passes; null if every
// gradient does. For Fp it is the largest that does not become NaN: AQT compares the *rounded* value with its bound.
std::optional<float> GradientBound(const Numerics& numerics, DType dtype);
// mask[i] = 1 where |y| is at most `bound`, 0 elsewhere and for NaN.
void ClipMaskRow(float bound, DType dtype, const float* y, int64_t n, int8_t* mask);

// The shape of the random numbers for a tensor of `shape`: `shape` with 1 along noise sharing axes; null if the
// numerics draw none. InvalidArgument for a sharing axis out of range, and for stochastic rounding of f16 values to
// 8-bit floats.
absl::StatusOr<std::optional<Shape>> DrawsShape(const Numerics& numerics, const Shape& shape, DType scaled);

// Random numbers for a tensor.
struct TensorDraws {
  Key key;
  PrngLayout layout = PrngLayout::kPartitionable;
  Shape shape;  // of DrawsShape
};

// The random numbers for noise of one kind, and those that numerics draw for scaled values of dtype `scaled`.
kernels::RandomNumbers NoiseNumbers(NoiseKind kind, const TensorDraws& draws);
kernels::RandomNumbers NumbersOf(const Numerics& numerics, DType scaled, const TensorDraws& draws);

// Where operations on whole tensors run. Neither field changes bits.
struct Execution {
  kernels::Target target = kernels::BestTarget();
  Executor* executor = nullptr;
};

// q = the qvalue of x scaled by `affine`; mask, if not null, is dense and gets ClipMaskRow(GradientBound). `draws` is
// needed if DrawsShape is not null. q is dense and has the shape of x.
void QuantizeInto(const Numerics& numerics, const Compat& compat, const ArrayRef& x, const Affine& affine,
                  const std::optional<TensorDraws>& draws, const MutableArrayRef& q, int8_t* mask,
                  const Execution& execution = {});

// The noise that QuantizeInto adds, f32, dense in draws.shape.
void NoiseInto(NoiseKind kind, const TensorDraws& draws, float* out, kernels::Target target = kernels::BestTarget());

// Whether clipping selects between the gradient and +0 instead of multiplying by 1 or 0. As in XLA on CPU it selects in
// f32 and f16 and multiplies in bf16; kIeee always multiplies. With clip_gradient_at_bound it always selects.
bool ClipMaskChooses(DType dtype, const Semantics& semantics);

// out = g with zeros where mask (dense, g's shape) is 0. Where ClipMaskChooses, the gradient of a clipped value is +0
// for any g; otherwise it is a product, rounded to the dtype of g, which is NaN where g is infinite or NaN. `out` may
// be g.
void ApplyClipMask(const ArrayRef& g, const int8_t* mask, const Semantics& semantics, const MutableArrayRef& out);

}  // namespace aqt::internal

#endif  // AQT_QUANT_NUMERICS_NUMERICS_ROWS_H_
