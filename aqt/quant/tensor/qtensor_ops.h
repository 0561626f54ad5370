#ifndef AQT_QUANT_TENSOR_QTENSOR_OPS_H_
#define AQT_QUANT_TENSOR_QTENSOR_OPS_H_

// Parts of quantized tensors, without dequantizing, as a key-value cache or a stack of layers needs them.
//
//   QTensor cache = *ZeroQTensorWithScale({16, 1024, 64}, /*shared_axes=*/{2}, DType::kS8);
//   cache = *DynamicUpdateSlice(cache, *Quantize(q, keys, {2}), {0, position, 0});
//   absl::StatusOr<QTensor> head = At(cache, 3);
//
// Along an axis where a scale has extent 1 and the qvalue more, one scale is shared: slices keep it. Functions return
// new tensors; data is copied. Errors are InvalidArgument unless said otherwise; a tensor with a tiling_state is
// refused, because axes would be ambiguous (drop the tiling_state to work in the tiled shape).

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

// All zero and without a scale.
absl::StatusOr<QTensor> ZeroQTensor(const Shape& shape, DType container, DType dequant_dtype = DType::kBF16);
// All zero with one scale of ones, shared along `shared_axes` (negative ones count from the end); scale_dtype null:
// dequant_dtype. InvalidArgument for axes out of range and scale dtypes other than f32, bf16 and f16.
absl::StatusOr<QTensor> ZeroQTensorWithScale(const Shape& shape, absl::Span<const int64_t> shared_axes, DType container,
                                             std::optional<DType> scale_dtype = std::nullopt,
                                             DType dequant_dtype = DType::kBF16);
// Dtypes and shapes of `like`; qvalue and biases zero, scales and the mask one. A tiling is kept. FailedPrecondition
// without a qvalue.
absl::StatusOr<QTensor> ZerosLike(const QTensor& like);

// x[index] along axis 0, which is dropped; index in 0 .. extent-1. An array that shares one element along axis 0 gives
// that element.
absl::StatusOr<QTensor> At(const QTensor& x, int64_t index);

// The elements start .. start+size-1 of each axis; a window that does not lie inside the tensor is refused. No bias.
absl::StatusOr<QTensor> DynamicSlice(const QTensor& x, absl::Span<const int64_t> start,
                                     absl::Span<const int64_t> sizes);

// x with `update` in place of the window at `start`, qvalues and scales. Along an axis whose scale is shared the window
// is the whole axis. Equal dtypes (dequant_dtype, too) and equally many scales with the same shared axes; no bias, no
// mask.
absl::StatusOr<QTensor> DynamicUpdateSlice(const QTensor& x, const QTensor& update, absl::Span<const int64_t> start);

// x with `frame`, of one axis less, in place of x[index]: qvalue, scales and biases, none of which x may share along
// axis 0.
absl::StatusOr<QTensor> UpdateFrame(const QTensor& x, int64_t index, const QTensor& frame);

// Another dtype to dequantize to (f32, bf16 or f16); nothing else changes.
absl::StatusOr<QTensor> AsType(QTensor x, DType dequant_dtype);
// The qvalue converted as ConvertElement does (rounded to float dtypes; saturated to integers). FailedPrecondition
// without one.
absl::StatusOr<QTensor> QvalueAsType(QTensor x, DType container);
// x without its qvalue.
QTensor WithoutQvalue(QTensor x);

// The untiled shape, which the dequantized tensor has. FailedPrecondition with neither a qvalue nor a tiling.
absl::StatusOr<Shape> ShapeOf(const QTensor& x);

// Names of axes (for instance of the mesh axes that they are sharded over; null: not sharded) for all arrays of a
// tensor, given those of the qvalue's axes: an array keeps a name if it has the axis, and gets null if it shares one
// element.
using AxisNames = std::vector<std::optional<std::string>>;
struct QTensorAxisNames {
  AxisNames qvalue = {};
  std::vector<AxisNames> scale = {}, bias = {};
  bool operator==(const QTensorAxisNames&) const = default;
};
// FailedPrecondition without a qvalue; InvalidArgument unless there is one name per axis of it. A tiled tensor takes
// names for the tiled axes.
absl::StatusOr<QTensorAxisNames> AxisNamesOf(const QTensor& x, const AxisNames& names);

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_QTENSOR_OPS_H_
