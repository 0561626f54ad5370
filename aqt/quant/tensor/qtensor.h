#ifndef AQT_QUANT_TENSOR_QTENSOR_H_
#define AQT_QUANT_TENSOR_QTENSOR_H_

// A quantized tensor: x ~ qvalue * scale[0] * scale[1] * ... * mask - bias[0] - ...

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/tiling.h"

namespace aqt {

// The parts of a quantized tensor. Scales, biases and the mask have the rank of the qvalue, with extent 1 (or the
// qvalue's) along each axis.
struct QTensor {
  std::optional<Array> qvalue = std::nullopt;  // null: only calibrated so far
  std::vector<Array> scale = {};               // f32, bf16 or f16 each
  std::vector<Array> bias = {};
  std::optional<Array> sparsity_mask = std::nullopt;
  DType dequant_dtype = DType::kF32;
  std::optional<TilingState> tiling_state = std::nullopt;  // qvalue and scales then have the tiled shape

  bool IsFull() const { return qvalue.has_value(); }

  // The scaled real values, in the tiled shape if there is a tiling state. Their dtype is the widest of x, the biases,
  // the mask and the scales; each operation uses the widest dtype so far:
  //   y = x + bias...;  y = y * mask;  for each scale: r = 1 / s (exactly rounded; 1 where infinite), y = y * r
  // each operation rounded. InvalidArgument when shapes do not fit or x is not f32, bf16 or f16.
  absl::StatusOr<Array> ScaledValue(const ArrayRef& x) const;

  // The inverse, in dequant_dtype and the untiled shape:
  //   y = cast(qvalue, dequant_dtype);  for each scale: y = y * s;  y = y * mask;  y = y - bias...
  // each operation rounded, one rounding to dequant_dtype at the end (scales may be wider).
  // FailedPrecondition without a qvalue.
  absl::StatusOr<Array> Dequantize() const;
};

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_QTENSOR_H_
