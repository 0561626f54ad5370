#ifndef AQT_QUANT_TENSOR_QTENSOR_INTERNAL_H_
#define AQT_QUANT_TENSOR_QTENSOR_INTERNAL_H_

// A QTensor as the operands of row_ops.h. Internal.

#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/shape.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::internal {

// Views of the scales, biases and mask of a QTensor, which must outlive this object.
class AffineOf {
 public:
  explicit AffineOf(const QTensor& qtensor) {
    for (const Array& bias : qtensor.bias) bias_.push_back(bias);
    for (const Array& scale : qtensor.scale) scale_.push_back(scale);
    if (qtensor.sparsity_mask.has_value()) mask_ = *qtensor.sparsity_mask;
  }
  Affine get() const { return {.bias = bias_, .mask = mask_.has_value() ? &*mask_ : nullptr, .scale = scale_}; }

 private:
  absl::InlinedVector<ArrayRef, 1> bias_;
  absl::InlinedVector<ArrayRef, 1> scale_;
  std::optional<ArrayRef> mask_;
};

// InvalidArgument unless scales, biases and mask broadcast to `shape` and have float dtypes.
absl::Status CheckAffine(const QTensor& qtensor, const Shape& shape);

// x in the tiled shape, if there is one. InvalidArgument when the tiling is for another shape.
absl::StatusOr<ArrayRef> TiledView(const QTensor& qtensor, const ArrayRef& x);

// QTensor::ScaledValue by a rule.
absl::StatusOr<Array> ScaledValue(const QTensor& qtensor, const ArrayRef& x, ScaleRule rule);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TENSOR_QTENSOR_INTERNAL_H_
