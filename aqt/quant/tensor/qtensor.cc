#include "aqt/quant/tensor/qtensor.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/tensor/qtensor_internal.h"

namespace aqt {
namespace {

absl::Status CheckBroadcast(const char* what, const Array& array, const Shape& target) {
  bool fits = array.shape().rank() == target.rank();
  for (int64_t axis = 0; fits && axis < target.rank(); ++axis) {
    fits = array.shape()[axis] == 1 || array.shape()[axis] == target[axis];
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("QTensor: ", what, " ", array.aval().ToString(),
                                                 " does not broadcast to the values' shape ", target.ToString()));
}

}  // namespace

namespace internal {

absl::Status CheckAffine(const QTensor& qtensor, const Shape& shape) {
  for (const Array& scale : qtensor.scale) {
    if (!IsArithmeticFloat(scale.dtype())) {
      return absl::InvalidArgumentError(
          absl::StrCat("QTensor: a scale has dtype ", ToString(scale.dtype()), ", expected f32, bf16 or f16"));
    }
    AQT_RETURN_IF_ERROR(CheckBroadcast("scale", scale, shape));
  }
  for (const Array& bias : qtensor.bias) {
    if (!IsArithmeticFloat(bias.dtype())) {
      return absl::InvalidArgumentError(
          absl::StrCat("QTensor: a bias has dtype ", ToString(bias.dtype()), ", expected f32, bf16 or f16"));
    }
    AQT_RETURN_IF_ERROR(CheckBroadcast("bias", bias, shape));
  }
  if (!qtensor.sparsity_mask.has_value()) return absl::OkStatus();
  if (const DType dtype = qtensor.sparsity_mask->dtype(); SizeOf(dtype) > 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("QTensor: the mask has dtype ", ToString(dtype), ", expected one of at most 32 bits"));
  }
  return CheckBroadcast("mask", *qtensor.sparsity_mask, shape);
}

absl::StatusOr<ArrayRef> TiledView(const QTensor& qtensor, const ArrayRef& x) {
  if (!qtensor.tiling_state.has_value()) return x;
  if (x.shape != qtensor.tiling_state->untiled_shape) {
    return absl::InvalidArgumentError(absl::StrCat("QTensor: the tensor has shape ", x.shape.ToString(),
                                                   ", its tiling is for ",
                                                   qtensor.tiling_state->untiled_shape.ToString()));
  }
  return qtensor.tiling_state->Tile(x);
}

absl::StatusOr<Array> ScaledValue(const QTensor& qtensor, const ArrayRef& x, ScaleRule rule) {
  if (!IsArithmeticFloat(x.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("QTensor: values have dtype ", ToString(x.dtype), ", expected f32, bf16 or f16"));
  }
  AQT_ASSIGN_OR_RETURN(const ArrayRef tiled, TiledView(qtensor, x));
  AQT_RETURN_IF_ERROR(CheckAffine(qtensor, tiled.shape));
  const AffineOf views(qtensor);
  Affine affine = views.get();
  affine.rule = rule;
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({ScaledDType(x.dtype, affine), tiled.shape});
  ForEachScaledPiece(tiled, affine, tiled.strides, [&](float* y, int64_t n, int64_t linear, int64_t) {
    StoreRow(builder.aval().dtype, y, n, builder.data(), linear, 1);
  });
  return std::move(builder).Build();
}

}  // namespace internal

absl::StatusOr<Array> QTensor::ScaledValue(const ArrayRef& x) const {
  return internal::ScaledValue(*this, x, internal::ScaleRule::kInverse);
}

absl::StatusOr<Array> QTensor::Dequantize() const {
  if (!qvalue.has_value()) {
    return absl::FailedPreconditionError(
        "QTensor: no qvalue to dequantize; it is only calibrated (see CalculateQvalue)");
  }
  if (!internal::IsArithmeticFloat(dequant_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("QTensor: dequant_dtype is ", ToString(dequant_dtype), ", expected f32, bf16 or f16"));
  }
  if (tiling_state.has_value() && tiling_state->tiled_shape != qvalue->shape()) {
    return absl::InvalidArgumentError(absl::StrCat("QTensor: the qvalue has shape ", qvalue->shape().ToString(),
                                                   ", its tiling gives ", tiling_state->tiled_shape.ToString()));
  }
  AQT_RETURN_IF_ERROR(internal::CheckAffine(*this, qvalue->shape()));
  const internal::AffineOf affine(*this);
  // The array is dense, so the elements have the same order tiled and untiled.
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(
      {dequant_dtype, tiling_state.has_value() ? tiling_state->untiled_shape : qvalue->shape()});
  internal::DequantizeInto(*qvalue, affine.get(), dequant_dtype,
                           MutableArrayRef(dequant_dtype, qvalue->shape(), builder.data()));
  return std::move(builder).Build();
}

}  // namespace aqt
