#include "aqt/quant/tensor/qtensor_ops.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/tensor/qtensor_internal.h"

namespace aqt {
namespace {

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

std::string Text(absl::Span<const int64_t> list) { return absl::StrCat("[", absl::StrJoin(list, ","), "]"); }

absl::Status CheckFull(const char* call, const QTensor& x) {
  if (x.IsFull()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the tensor has no qvalue"));
}

absl::Status CheckScaleDType(const char* call, const char* what, DType dtype) {
  if (internal::IsArithmeticFloat(dtype)) return absl::OkStatus();
  return Invalid(call, ": ", what, " is ", ToString(dtype), ", expected f32, bf16 or f16");
}

// Checks for a full tensor without tiling whose arrays fit each other.
absl::Status CheckPlain(const char* call, const QTensor& x) {
  AQT_RETURN_IF_ERROR(CheckFull(call, x));
  if (x.tiling_state.has_value()) {
    return Invalid(call, ": the tensor is tiled as ", x.qvalue->shape().ToString(),
                   "; drop its tiling_state to work on the tiled axes");
  }
  return Annotate(internal::CheckAffine(x, x.qvalue->shape()), call);
}

absl::Status CheckNoBias(const char* call, const QTensor& x) {
  if (x.bias.empty()) return absl::OkStatus();
  return Invalid(call, ": a tensor with a bias has no slices; dequantize it");
}

Array Filled(DType dtype, const Shape& shape, float value) {
  return Cast(ArrayRef(DType::kF32, shape, Strides(shape.rank(), 0), &value), dtype);
}

// The window of x at `start`, as a view. Along axes where x has extent 1 and `whole` a larger one, x is shared and the
// window is the whole axis.
ArrayRef Window(const ArrayRef& x, const Shape& whole, absl::Span<const int64_t> start,
                absl::Span<const int64_t> sizes) {
  int64_t offset = 0;
  ArrayRef window = x;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    if (x.shape[axis] != whole[axis]) continue;
    offset += start[axis] * x.strides[axis];
    window.shape[axis] = sizes[axis];
  }
  window.data = static_cast<const char*>(x.data) + offset * SizeOf(x.dtype);
  return window;
}

absl::Status CheckWindow(const char* call, const Shape& shape, absl::Span<const int64_t> start,
                         absl::Span<const int64_t> sizes) {
  const size_t rank = static_cast<size_t>(shape.rank());
  if (start.size() != rank || sizes.size() != rank) {
    return Invalid(call, ": start ", Text(start), " and sizes ", Text(sizes),
                   " do not have one number for each axis of ", shape.ToString());
  }
  for (size_t axis = 0; axis < rank; ++axis) {
    const int64_t extent = shape[static_cast<int64_t>(axis)];
    if (start[axis] >= 0 && sizes[axis] >= 0 && sizes[axis] <= extent && start[axis] <= extent - sizes[axis]) continue;
    return Invalid(call, ": the window at ", Text(start), " of sizes ", Text(sizes), " does not lie inside ",
                   shape.ToString(), " along axis ", axis);
  }
  return absl::OkStatus();
}

// `x` with `part` written over its window at `start`.
absl::StatusOr<Array> Written(const Array& x, const ArrayRef& part, absl::Span<const int64_t> start) {
  ArrayBuilder result(x.aval());
  AQT_RETURN_IF_ERROR(CopyArray(x, result.ref()));
  int64_t offset = 0;
  MutableArrayRef window = result.ref();
  for (int64_t axis = 0; axis < x.shape().rank(); ++axis) {
    // A shared axis is written entirely.
    offset += (x.shape()[axis] == part.shape[axis] ? 0 : start[axis]) * window.strides[axis];
  }
  window.shape = part.shape;
  window.data = static_cast<char*>(window.data) + offset * SizeOf(x.dtype());
  AQT_RETURN_IF_ERROR(CopyArray(part, window));
  return std::move(result).Build();
}

// x[index] along axis 0; x[0] where x shares one element along it.
Array Row(const Array& x, int64_t index) {
  const ArrayRef all = x;
  ArrayRef row;
  row.dtype = all.dtype;
  for (int64_t axis = 1; axis < all.shape.rank(); ++axis) {
    row.shape.push_back(all.shape[axis]);
    row.strides.push_back(all.strides[axis]);
  }
  const int64_t at = all.shape[0] == 1 ? 0 : index;
  row.data = static_cast<const char*>(all.data) + at * all.strides[0] * SizeOf(all.dtype);
  return Array::CopyOf(row);
}

absl::Status CheckIndex(const char* call, const Shape& shape, int64_t index) {
  if (shape.rank() == 0) return Invalid(call, ": a tensor of rank 0 has no axis to index");
  if (index >= 0 && index < shape[0]) return absl::OkStatus();
  return Invalid(call, ": index ", index, " is out of range for ", shape.ToString(), ", expected 0 to ", shape[0] - 1);
}

}  // namespace

absl::StatusOr<QTensor> ZeroQTensor(const Shape& shape, DType container, DType dequant_dtype) {
  AQT_RETURN_IF_ERROR(CheckScaleDType("ZeroQTensor", "dequant_dtype", dequant_dtype));
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(shape), "ZeroQTensor"));
  return QTensor{.qvalue = Array::Zeros(container, shape), .dequant_dtype = dequant_dtype};
}

absl::StatusOr<QTensor> ZeroQTensorWithScale(const Shape& shape, absl::Span<const int64_t> shared_axes, DType container,
                                             std::optional<DType> scale_dtype, DType dequant_dtype) {
  const DType dtype = scale_dtype.value_or(dequant_dtype);
  AQT_RETURN_IF_ERROR(CheckScaleDType("ZeroQTensorWithScale", "scale_dtype", dtype));
  AQT_ASSIGN_OR_RETURN(QTensor zeros, ZeroQTensor(shape, container, dequant_dtype));
  const absl::StatusOr<Axes> axes = NormalizeAxes(shared_axes, shape.rank());
  if (!axes.ok()) return Annotate(axes.status(), "ZeroQTensorWithScale: shared axes");
  Shape scale = shape;
  for (const int64_t axis : *axes) scale[axis] = 1;
  zeros.scale.push_back(Filled(dtype, scale, 1));
  return zeros;
}

absl::StatusOr<QTensor> ZerosLike(const QTensor& like) {
  AQT_RETURN_IF_ERROR(CheckFull("ZerosLike", like));
  QTensor zeros{.qvalue = Array::Zeros(like.qvalue->dtype(), like.qvalue->shape()),
                .dequant_dtype = like.dequant_dtype,
                .tiling_state = like.tiling_state};
  for (const Array& scale : like.scale) zeros.scale.push_back(Filled(scale.dtype(), scale.shape(), 1));
  for (const Array& bias : like.bias) zeros.bias.push_back(Array::Zeros(bias.dtype(), bias.shape()));
  if (like.sparsity_mask.has_value()) {
    zeros.sparsity_mask = Filled(like.sparsity_mask->dtype(), like.sparsity_mask->shape(), 1);
  }
  return zeros;
}

absl::StatusOr<QTensor> At(const QTensor& x, int64_t index) {
  AQT_RETURN_IF_ERROR(CheckPlain("At", x));
  AQT_RETURN_IF_ERROR(CheckIndex("At", x.qvalue->shape(), index));
  QTensor row{.qvalue = Row(*x.qvalue, index), .dequant_dtype = x.dequant_dtype};
  for (const Array& scale : x.scale) row.scale.push_back(Row(scale, index));
  for (const Array& bias : x.bias) row.bias.push_back(Row(bias, index));
  if (x.sparsity_mask.has_value()) row.sparsity_mask = Row(*x.sparsity_mask, index);
  return row;
}

absl::StatusOr<QTensor> DynamicSlice(const QTensor& x, absl::Span<const int64_t> start,
                                     absl::Span<const int64_t> sizes) {
  AQT_RETURN_IF_ERROR(CheckPlain("DynamicSlice", x));
  AQT_RETURN_IF_ERROR(CheckNoBias("DynamicSlice", x));
  const Shape& shape = x.qvalue->shape();
  AQT_RETURN_IF_ERROR(CheckWindow("DynamicSlice", shape, start, sizes));
  const auto window = [&](const Array& array) { return Array::CopyOf(Window(array, shape, start, sizes)); };
  QTensor slice{.qvalue = window(*x.qvalue), .dequant_dtype = x.dequant_dtype};
  for (const Array& scale : x.scale) slice.scale.push_back(window(scale));
  if (x.sparsity_mask.has_value()) slice.sparsity_mask = window(*x.sparsity_mask);
  return slice;
}

absl::StatusOr<QTensor> DynamicUpdateSlice(const QTensor& x, const QTensor& update, absl::Span<const int64_t> start) {
  constexpr char kCall[] = "DynamicUpdateSlice";
  for (const QTensor* tensor : {&x, &update}) {
    AQT_RETURN_IF_ERROR(CheckPlain(kCall, *tensor));
    AQT_RETURN_IF_ERROR(CheckNoBias(kCall, *tensor));
    if (tensor->sparsity_mask.has_value()) return Invalid(kCall, ": a tensor with a sparsity mask cannot be updated");
  }
  const Shape &shape = x.qvalue->shape(), &window = update.qvalue->shape();
  if (x.qvalue->dtype() != update.qvalue->dtype() || x.dequant_dtype != update.dequant_dtype) {
    return Invalid(kCall, ": the update is ", ToString(update.qvalue->dtype()), " for ", ToString(update.dequant_dtype),
                   ", but the tensor ", ToString(x.qvalue->dtype()), " for ", ToString(x.dequant_dtype));
  }
  AQT_RETURN_IF_ERROR(CheckWindow(kCall, shape, start, window.extents()));
  if (x.scale.size() != update.scale.size()) {
    return Invalid(kCall, ": the update has ", update.scale.size(), " scales, the tensor ", x.scale.size());
  }
  for (size_t i = 0; i < x.scale.size(); ++i) {
    const Array &scale = x.scale[i], &part = update.scale[i];
    if (scale.dtype() != part.dtype()) {
      return Invalid(kCall, ": the update has a scale of ", ToString(part.dtype()), ", the tensor one of ",
                     ToString(scale.dtype()));
    }
    for (int64_t axis = 0; axis < shape.rank(); ++axis) {
      const bool shared = scale.shape()[axis] == 1 && shape[axis] != 1;
      if (shared && window[axis] != shape[axis]) {
        return Invalid(kCall, ": scales of ", scale.aval().ToString(), " are shared along axis ", axis,
                       ", so an update must span it: ", window.ToString(), " in ", shape.ToString());
      }
      if (part.shape()[axis] != (shared ? 1 : window[axis])) {
        return Invalid(kCall, ": the update's scale ", part.aval().ToString(), " is not shared along the same axes as ",
                       scale.aval().ToString(), " (axis ", axis, ")");
      }
    }
  }
  QTensor result{.dequant_dtype = x.dequant_dtype};
  AQT_ASSIGN_OR_RETURN(result.qvalue, Written(*x.qvalue, *update.qvalue, start));
  for (size_t i = 0; i < x.scale.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(Array scale, Written(x.scale[i], update.scale[i], start));
    result.scale.push_back(std::move(scale));
  }
  return result;
}

absl::StatusOr<QTensor> UpdateFrame(const QTensor& x, int64_t index, const QTensor& frame) {
  constexpr char kCall[] = "UpdateFrame";
  AQT_RETURN_IF_ERROR(CheckPlain(kCall, x));
  AQT_RETURN_IF_ERROR(CheckPlain(kCall, frame));
  AQT_RETURN_IF_ERROR(CheckIndex(kCall, x.qvalue->shape(), index));
  if (x.sparsity_mask.has_value() || frame.sparsity_mask.has_value()) {
    return Invalid(kCall, ": a tensor with a sparsity mask cannot be updated");
  }
  if (x.dequant_dtype != frame.dequant_dtype) {
    return Invalid(kCall, ": the frame is for ", ToString(frame.dequant_dtype), ", the tensor for ",
                   ToString(x.dequant_dtype));
  }
  if (x.scale.size() != frame.scale.size() || x.bias.size() != frame.bias.size()) {
    return Invalid(kCall, ": the frame has ", frame.scale.size(), " scales and ", frame.bias.size(),
                   " biases, the tensor ", x.scale.size(), " and ", x.bias.size());
  }
  const int64_t extent = x.qvalue->shape()[0];
  const auto write = [&](const char* what, const Array& to, const Array& part) -> absl::StatusOr<Array> {
    if (to.shape()[0] != extent) {
      return Invalid(kCall, ": the ", what, " ", to.aval().ToString(),
                     " is shared along axis 0, so no frame has its own");
    }
    Shape shape{1};
    for (const int64_t e : part.shape()) shape.push_back(e);
    Shape one = to.shape();
    one[0] = 1;
    if (shape != one || to.dtype() != part.dtype()) {
      return Invalid(kCall, ": the frame's ", what, " is ", part.aval().ToString(), ", but the tensor's is ",
                     to.aval().ToString());
    }
    Axes start(to.shape().rank(), 0);
    start[0] = index;
    return Written(to, ArrayRef(part.dtype(), shape, part.data()), start);
  };
  QTensor result{.dequant_dtype = x.dequant_dtype};
  AQT_ASSIGN_OR_RETURN(result.qvalue, write("qvalue", *x.qvalue, *frame.qvalue));
  for (size_t i = 0; i < x.scale.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(Array scale, write("scale", x.scale[i], frame.scale[i]));
    result.scale.push_back(std::move(scale));
  }
  for (size_t i = 0; i < x.bias.size(); ++i) {
    AQT_ASSIGN_OR_RETURN(Array bias, write("bias", x.bias[i], frame.bias[i]));
    result.bias.push_back(std::move(bias));
  }
  return result;
}

absl::StatusOr<QTensor> AsType(QTensor x, DType dequant_dtype) {
  AQT_RETURN_IF_ERROR(CheckScaleDType("AsType", "dequant_dtype", dequant_dtype));
  x.dequant_dtype = dequant_dtype;
  return x;
}

absl::StatusOr<QTensor> QvalueAsType(QTensor x, DType container) {
  AQT_RETURN_IF_ERROR(CheckFull("QvalueAsType", x));
  x.qvalue = Cast(*x.qvalue, container);
  return x;
}

QTensor WithoutQvalue(QTensor x) {
  x.qvalue.reset();
  return x;
}

absl::StatusOr<Shape> ShapeOf(const QTensor& x) {
  if (x.tiling_state.has_value()) return x.tiling_state->untiled_shape;
  AQT_RETURN_IF_ERROR(CheckFull("ShapeOf", x));
  return x.qvalue->shape();
}

absl::StatusOr<QTensorAxisNames> AxisNamesOf(const QTensor& x, const AxisNames& names) {
  AQT_RETURN_IF_ERROR(CheckFull("AxisNamesOf", x));
  const Shape& shape = x.qvalue->shape();
  AQT_RETURN_IF_ERROR(Annotate(internal::CheckAffine(x, shape), "AxisNamesOf"));
  if (static_cast<int64_t>(names.size()) != shape.rank()) {
    return Invalid("AxisNamesOf: ", names.size(), " names for the axes of ", shape.ToString(), ", expected ",
                   shape.rank());
  }
  const auto names_of = [&](const Array& array) {
    AxisNames result = names;
    for (int64_t axis = 0; axis < shape.rank(); ++axis) {
      if (array.shape()[axis] == 1) result[axis].reset();
    }
    return result;
  };
  QTensorAxisNames result{.qvalue = names};
  for (const Array& scale : x.scale) result.scale.push_back(names_of(scale));
  for (const Array& bias : x.bias) result.bias.push_back(names_of(bias));
  return result;
}

}  // namespace aqt
