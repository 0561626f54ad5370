#ifndef AQT_QUANT_TENSOR_QTENSOR_OPS_H_
#define AQT_QUANT_TENSOR_QTENSOR_OPS_H_

// Slices and updates of quantized tensors without dequantizing, for key-value caches and stacks of layers.
//
//   QTensor cache = *ZeroQTensorWithScale({16, 1024, 64}, /*shared_axes=*/{2}, DType::kS8);
//   cache = *DynamicUpdateSlice(cache, *Quantize(q, keys, {2}), {0, position, 0});
//   absl::StatusOr<QTensor> head = At(cache, 3);
//
// Along an axis where a scale has extent 1 and the qvalue more, one scale is shared: slices keep it. Functions return
// new tensors; data is copied. Errors are InvalidArgument unless said otherwise; a tensor with a tiling_state is
// rejected, because axes would be ambiguous (drop the tiling_state to work in the tiled shape).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// A tensor of zeros without a scale.
absl::StatusOr<QTensor> ZeroQTensor(const Shape& shape, DType container, DType dequant_dtype = DType::kBF16);
// A tensor of zeros with one scale of ones, shared along `shared_axes` (negative ones count from the end); scale_dtype
// null: dequant_dtype. InvalidArgument for axes out of range and scale dtypes other than f32, bf16 and f16.
absl::StatusOr<QTensor> ZeroQTensorWithScale(const Shape& shape, absl::Span<const int64_t> shared_axes, DType container,
                                             std::optional<DType> scale_dtype = std::nullopt,
                                             DType dequant_dtype = DType::kBF16);
// A tensor with the dtypes and shapes of `like`: qvalue and biases are zero, scales and the mask are one. A tiling is
// kept. FailedPrecondition without a qvalue.
absl::StatusOr<QTensor> ZerosLike(const QTensor& like);

// x[index] along axis 0, which is dropped; index in 0 .. extent-1. An array that shares one element along axis 0 gives
// that element.
absl::StatusOr<QTensor> At(const QTensor& x, int64_t index);

// The elements start .. start+size-1 of each axis; a window that is not inside the tensor is rejected. x must not have
// a bias.
absl::StatusOr<QTensor> DynamicSlice(const QTensor& x, absl::Span<const int64_t> start,
                                     absl::Span<const int64_t> sizes);

// x with the window at `start` replaced by `update`, qvalues and scales. Along an axis whose scale is shared the window
// is the whole axis. Both tensors need equal dtypes (dequant_dtype, too) and the same number of scales with the same
// shared axes, and no bias or mask.
absl::StatusOr<QTensor> DynamicUpdateSlice(const QTensor& x, const QTensor& update, absl::Span<const int64_t> start);

// x with x[index] replaced by `frame`, which has one axis less: qvalue, scales and biases. x may share none of these
// along axis 0.
absl::StatusOr<QTensor> UpdateFrame(const QTensor& x, int64_t index, const QTensor& frame);

// x with another dequant_dtype (f32, bf16 or f16); nothing else changes.
absl::StatusOr<QTensor> AsType(QTensor x, DType dequant_dtype);
// x with its qvalue converted as by ConvertElement (rounded to float dtypes; saturated to integers). FailedPrecondition
// without one.
absl::StatusOr<QTensor> QvalueAsType(QTensor x, DType container);
// x without its qvalue.
QTensor WithoutQvalue(QTensor x);

// The untiled shape, which is that of the dequantized tensor. FailedPrecondition with neither a qvalue nor a tiling.
absl::StatusOr<Shape> ShapeOf(const QTensor& x);

// A name per axis, for instance that of the mesh axis that shards it (null: not sharded).
using AxisNames = std::vector<std::optional<std::string>>;
// Axis names for all arrays of a tensor.
struct QTensorAxisNames {
  AxisNames qvalue = {};
  std::vector<AxisNames> scale = {}, bias = {};
  bool operator==(const QTensorAxisNames&) const = default;
};
// The names for all arrays of x, given those of the qvalue's axes: an array keeps a name if it has the axis, and gets
// null if it shares one element along it. FailedPrecondition without a qvalue; InvalidArgument unless the qvalue has
// one name per axis. A tiled tensor takes names for the tiled axes.
absl::StatusOr<QTensorAxisNames> AxisNamesOf(const QTensor& x, const AxisNames& names);

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_QTENSOR_OPS_H_
