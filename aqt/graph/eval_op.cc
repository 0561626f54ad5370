#include "aqt/graph/eval_op.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/elementwise/elementwise.h"
#include "aqt/kernels/move/gather.h"
#include "aqt/kernels/move/pad.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/kernels/reduce/cumulative.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/kernels/reduce/reduce_window.h"

namespace aqt {
namespace {

using Arrays = absl::Span<const Array>;

// Copies the view `from` (any strides) into a new dense array.
Array Dense(const ArrayRef& from) { return Array::CopyOf(from); }

// x with another shape and strides, starting `offset` elements later.
ArrayRef View(const Array& x, const Shape& shape, const Strides& strides, int64_t offset = 0) {
  const char* data = static_cast<const char*>(x.data());
  return ArrayRef(x.dtype(), shape, strides, data == nullptr ? nullptr : data + offset * SizeOf(x.dtype()));
}

MutableArrayRef Window(ArrayBuilder& x, const Shape& shape, const Strides& strides, int64_t offset) {
  return MutableArrayRef(x.aval().dtype, shape, strides,
                         static_cast<char*>(x.data()) + offset * SizeOf(x.aval().dtype));
}

Array Eval(const UnaryOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Unary(op.kind, out.dtype, in[0].data(), in[0].num_elements(), builder.data());
  return std::move(builder).Build();
}

Array Eval(const BinaryOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Binary(op.kind, out.dtype, in[0].data(), in[1].data(), in[0].num_elements(), builder.data());
  return std::move(builder).Build();
}

Array Eval(const CompareOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Compare(op.kind, in[0].dtype(), in[0].data(), in[1].data(), in[0].num_elements(),
                   builder.Mutable<bool>().data());
  return std::move(builder).Build();
}

Array Eval(const SelectOp&, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Select(out.dtype, in[0].View<bool>().data(), in[1].data(), in[2].data(), in[1].num_elements(),
                  builder.data());
  return std::move(builder).Build();
}

Array Eval(const CastOp& op, Arrays in, const Aval&) {
  return op.dtype == in[0].dtype() ? in[0] : Cast(in[0], op.dtype);
}

Array Eval(const BitcastOp&, Arrays in, const Aval& out) { return Array(out, in[0].buffer()); }

Array Eval(const ClampOp&, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Clamp(out.dtype, in[0].data(), in[1].data(), in[2].data(), in[1].num_elements(), builder.data());
  return std::move(builder).Build();
}

Array Eval(const IsFiniteOp&, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::IsFinite(in[0].dtype(), in[0].data(), in[0].num_elements(), builder.Mutable<bool>().data());
  return std::move(builder).Build();
}

Array Eval(const IntegerPowOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::IntegerPow(out.dtype, op.exponent, in[0].data(), in[0].num_elements(), builder.data());
  return std::move(builder).Build();
}

Array Eval(const ReducePrecisionOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::ReducePrecision(out.dtype, op.precision, in[0].data(), in[0].num_elements(), builder.data());
  return std::move(builder).Build();
}

Array Eval(const ReduceOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Reduce(op.kind, in[0], op.axes, builder.data());
  return std::move(builder).Build();
}

Array Eval(const BroadcastOp& op, Arrays in, const Aval& out) {
  const Strides from = DenseStrides(in[0].shape());
  Strides strides(op.shape.rank(), 0);
  for (int64_t i = 0; i < in[0].shape().rank(); ++i) {
    if (in[0].shape()[i] == op.shape[op.axes[i]]) strides[op.axes[i]] = from[i];
  }
  return Dense(View(in[0], out.shape, strides));
}

Array Eval(const ReshapeOp&, Arrays in, const Aval& out) { return Array(out, in[0].buffer()); }

Array Eval(const TransposeOp& op, Arrays in, const Aval& out) {
  const Strides from = DenseStrides(in[0].shape());
  Strides strides;
  for (int64_t axis : op.permutation) strides.push_back(from[axis]);
  return Dense(View(in[0], out.shape, strides));
}

Array Eval(const SliceOp& op, Arrays in, const Aval& out) {
  if (out.shape.num_elements() == 0) return Array::Zeros(out.dtype, out.shape);
  Strides strides = DenseStrides(in[0].shape());
  int64_t offset = 0;
  for (int64_t i = 0; i < out.shape.rank(); ++i) {
    offset += op.start[i] * strides[i];
    if (out.shape[i] > 1) strides[i] *= op.stride[i];  // the stride of a single element is irrelevant
  }
  return Dense(View(in[0], out.shape, strides, offset));
}

Array Eval(const PadOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder(op.value == 0 ? ArrayBuilder(out) : ArrayBuilder::ForOverwrite(out));  // zeros
  if (op.value != 0) {
    const Array value = Cast(Array::Scalar(op.value), out.dtype);
    AQT_CHECK(CopyArray(View(value, out.shape, Strides(out.shape.rank(), 0)), builder.ref()).ok());
  }
  const Strides from_strides = DenseStrides(in[0].shape());
  Strides strides = DenseStrides(out.shape);
  Shape kept;
  int64_t from = 0, to = 0;
  for (int64_t i = 0; i < out.shape.rank(); ++i) {
    const kernels::PadAxis axis = PadAxisOf(op, i, in[0].shape()[i], out.shape[i]);
    const kernels::KeptRange range = kernels::KeptElements(axis);
    kept.push_back(range.end - range.begin);
    if (kept[i] == 0) break;
    from += range.begin * from_strides[i];
    to += (axis.low + range.begin * axis.dilation) * strides[i];
    if (kept[i] > 1) strides[i] *= axis.dilation;  // the stride of a single element is irrelevant
  }
  if (kept.num_elements() > 0) {
    AQT_CHECK(CopyArray(View(in[0], kept, from_strides, from), Window(builder, kept, strides, to)).ok());
  }
  return std::move(builder).Build();
}

Array Eval(const ReverseOp& op, Arrays in, const Aval& out) {
  if (out.shape.num_elements() == 0) return in[0];
  Strides strides = DenseStrides(out.shape);
  int64_t offset = 0;
  for (const int64_t axis : op.axes) {
    offset += (out.shape[axis] - 1) * strides[axis];
    strides[axis] = -strides[axis];
  }
  return Dense(View(in[0], out.shape, strides, offset));
}

Array Eval(const IotaOp& op, Arrays, const Aval& out) {
  if (out.shape.num_elements() == 0) return Array::Zeros(out.dtype, out.shape);
  ArrayBuilder numbers = ArrayBuilder::ForOverwrite({DType::kS64, {op.shape[op.axis]}});
  const absl::Span<int64_t> counted = numbers.Mutable<int64_t>();
  std::iota(counted.begin(), counted.end(), 0);
  Strides strides(out.shape.rank(), 0);
  strides[op.axis] = 1;
  return Dense(View(Cast(std::move(numbers).Build(), out.dtype), out.shape, strides));
}

// A dense array as [outer, axis, inner].
struct AroundAxis {
  AroundAxis(const Shape& shape, int64_t axis) {
    for (int64_t i = 0; i < axis; ++i) outer *= shape[i];
    for (int64_t i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
  int64_t outer = 1, inner = 1;
};

Array Eval(const ArgReduceOp& op, Arrays in, const Aval& out) {
  const AroundAxis around(in[0].shape(), op.axis);
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::ArgReduce(op.kind, in[0].dtype(), in[0].data(), around.outer, in[0].shape()[op.axis], around.inner,
                     builder.Mutable<int32_t>().data());
  return std::move(builder).Build();
}

Array Eval(const CumulativeSumOp& op, Arrays in, const Aval& out) {
  const AroundAxis around(out.shape, op.axis);
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::CumulativeSum(out.dtype, in[0].data(), around.outer, out.shape[op.axis], around.inner, op.reverse,
                         builder.data());
  return std::move(builder).Build();
}

Array Eval(const TakeOp& op, Arrays in, const Aval& out) {
  const AroundAxis around(in[0].shape(), op.axis);
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::TakeRows(out.dtype, in[0].data(), around.outer, in[0].shape()[op.axis], around.inner, in[1].View<int32_t>(),
                    builder.data());
  return std::move(builder).Build();
}

Array Eval(const ScatterAddOp& op, Arrays in, const Aval& out) {
  const AroundAxis around(out.shape, op.axis);
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::ScatterAddRows(out.dtype, in[1].data(), around.outer, op.extent, around.inner, in[0].View<int32_t>(),
                          builder.data());
  return std::move(builder).Build();
}

absl::InlinedVector<kernels::WindowAxis, kInlineRank> WindowAxes(const WindowDims& dims, const Shape& shape,
                                                                 const Shape& out) {
  absl::InlinedVector<kernels::WindowAxis, kInlineRank> axes;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    axes.push_back({shape[i], dims.window[i], dims.stride[i], dims.low[i], out[i]});
  }
  return axes;
}

Array Eval(const ReduceWindowOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::ReduceWindow(op.kind, out.dtype, WindowAxes(op.dims, in[0].shape(), out.shape), in[0].data(),
                        builder.data());
  return std::move(builder).Build();
}

Array Eval(const ArgReduceWindowOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::ArgReduceWindow(op.kind, in[0].dtype(), WindowAxes(op.dims, in[0].shape(), out.shape), in[0].data(),
                           builder.Mutable<int32_t>().data());
  return std::move(builder).Build();
}

Array Eval(const RandomBitsOp&, Arrays in, const Aval& out) {
  const absl::Span<const uint32_t> words = in[0].View<uint32_t>();
  const int64_t n = out.shape.num_elements();
  const RandomBits bits({words[0], words[1]}, n);
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::FillRandom(kernels::RandomNumbers::Bits32(bits), 0, 1, n, builder.Mutable<uint32_t>().data());
  return std::move(builder).Build();
}

Array Eval(const ConcatenateOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  const Strides strides = DenseStrides(out.shape);
  int64_t offset = 0;
  for (const Array& part : in) {
    if (part.num_elements() > 0) AQT_CHECK(CopyArray(part, Window(builder, part.shape(), strides, offset)).ok());
    offset += part.shape()[op.axis] * strides[op.axis];
  }
  return std::move(builder).Build();
}

Array Eval(const DotGeneralOp& op, Arrays in, const Aval& out) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out);
  kernels::Contract(op.dims, in[0], in[1], builder.ref(), CurrentExecutor());
  return std::move(builder).Build();
}

Array Eval(const StopGradientOp&, Arrays in, const Aval&) { return in[0]; }

absl::StatusOr<std::vector<Array>> EvalComposite(const Composite& composite, Arrays in, absl::Span<const Aval> avals,
                                                 absl::Span<const bool> needed) {
  const absl::InlinedVector<bool, 4> all(avals.size(), true);
  if (needed.empty()) needed = all;
  AQT_ASSIGN_OR_RETURN(std::vector<Array> out, composite.Eval(in, needed));
  if (out.size() != avals.size()) {
    return absl::InternalError(absl::StrCat("evaluation gave ", out.size(), " outputs instead of ", avals.size()));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (needed[i] && out[i].aval() != avals[i]) {
      return absl::InternalError(absl::StrCat("evaluation gave ", out[i].aval().ToString(), " for output ", i,
                                              " instead of ", avals[i].ToString()));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<Array>> EvalOp(const Op& op, absl::Span<const Array> operands,
                                          absl::Span<const bool> needed) {
  const SuspendTrace suspend;
  absl::InlinedVector<Aval, 3> avals;
  for (const Array& operand : operands) avals.push_back(operand.aval());
  AQT_ASSIGN_OR_RETURN(const std::vector<Aval> out, InferOp(op, avals));
  return std::visit(
      [&]<class O>(const O& o) -> absl::StatusOr<std::vector<Array>> {
        if constexpr (std::is_same_v<O, CompositeOp>) return EvalComposite(*o.impl, operands, out, needed);
        else return std::vector<Array>{Eval(o, operands, out[0])};
      },
      op);
}

}  // namespace aqt
