#ifndef AQT_QUANT_NUMERICS_NUMERICS_ROWS_H_
#define AQT_QUANT_NUMERICS_NUMERICS_ROWS_H_

// The numerics of numerics.h on pieces of scaled values held as floats (row_ops.h). Internal.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {

// Where the random numbers of a piece come from: element i has number `first + i * stride`.
struct Draws {
  const kernels::RandomNumbers* numbers = nullptr;  // null: no randomness
  int64_t first = 0, stride = 0;
  kernels::Target target = kernels::Target::kScalar;
};

// y, of dtype `dtype`, becomes the qvalue before its conversion to the container, which StoreRow does. n <= kPiece.
void QuantizeRow(const Numerics& numerics, DType dtype, const Draws& draws, float* y, int64_t n);

// clip_gradient: the largest |y| of scaled values of `dtype`, before noise, whose gradient passes; null if every
// gradient does. For Fp it is the largest that does not become NaN: AQT compares the *rounded* value with its bound.
std::optional<float> GradientBound(const Numerics& numerics, DType dtype);
// mask[i] = 1 where |y| is at most `bound`, 0 elsewhere and for NaN.
void ClipMaskRow(float bound, DType dtype, const float* y, int64_t n, int8_t* mask);

// The shape of the random numbers for a tensor of `shape`: `shape` with 1 along noise sharing axes; null if the
// numerics draw none. InvalidArgument for a sharing axis out of range, and for 8-bit floats drawn for f16 values.
absl::StatusOr<std::optional<Shape>> DrawsShape(const Numerics& numerics, const Shape& shape, DType scaled);

// Random numbers for a tensor.
struct TensorDraws {
  Key key;
  PrngLayout layout = PrngLayout::kPartitionable;
  Shape shape;  // of DrawsShape
};

// The noise of one kind, and what numerics draw for scaled values of dtype `scaled`.
kernels::RandomNumbers NoiseNumbers(NoiseKind kind, const TensorDraws& draws);
kernels::RandomNumbers NumbersOf(const Numerics& numerics, DType scaled, const TensorDraws& draws);

// Where whole tensors are worked on. Neither changes a bit.
struct Execution {
  kernels::Target target = kernels::BestTarget();
  Executor* executor = nullptr;
};

// q = the qvalue of x scaled by `affine`; mask, if not null, is dense and gets ClipMaskRow(GradientBound). `draws`
// is needed where DrawsShape is not null. q is dense and has the shape of x.
void QuantizeInto(const Numerics& numerics, const ArrayRef& x, const Affine& affine,
                  const std::optional<TensorDraws>& draws, const MutableArrayRef& q, int8_t* mask,
                  const Execution& execution = {});

// The noise that QuantizeInto adds, f32, dense in draws.shape.
void NoiseInto(NoiseKind kind, const TensorDraws& draws, float* out, kernels::Target target = kernels::BestTarget());

// Whether clipping chooses between the gradient and +0, or multiplies by 1 or 0: like XLA on CPU it chooses in f32 and
// f16 and multiplies in bf16; kIeee multiplies.
bool ClipMaskChooses(DType dtype, Arithmetic arithmetic);

// out = g with zeros where mask (dense, g's shape) is 0. Where ClipMaskChooses, the gradient of a clipped value is +0
// whatever g is; a product, rounded to the dtype of g, gives NaN where g is infinite or NaN. `out` may be g.
void ApplyClipMask(const ArrayRef& g, const int8_t* mask, Arithmetic arithmetic, const MutableArrayRef& out);

}  // namespace aqt::internal

#endif  // AQT_QUANT_NUMERICS_NUMERICS_ROWS_H_
