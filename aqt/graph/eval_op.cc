#include "aqt/graph/eval_op.h"

#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
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

using Refs = absl::Span<const ArrayRef>;

// x with another shape and strides, starting `offset` elements later.
ArrayRef View(const ArrayRef& x, const Shape& shape, const Strides& strides, int64_t offset = 0) {
  const char* data = static_cast<const char*>(x.data);
  return ArrayRef(x.dtype, shape, strides, data == nullptr ? nullptr : data + offset * SizeOf(x.dtype));
}

MutableArrayRef Window(const MutableArrayRef& x, const Shape& shape, const Strides& strides, int64_t offset) {
  return MutableArrayRef(x.dtype, shape, strides, static_cast<char*>(x.data) + offset * SizeOf(x.dtype));
}

// Dense, of the shape of `from`, which has any strides.
void Copy(const ArrayRef& from, const MutableArrayRef& out) { AQT_CHECK(CopyArray(from, out).ok()); }

int64_t Count(const ArrayRef& x) { return x.shape.num_elements(); }

void Run(const UnaryOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::Unary(op.kind, out.dtype, in[0].data, Count(in[0]), out.data);
}

void Run(const BinaryOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::Binary(op.kind, out.dtype, in[0].data, in[1].data, Count(in[0]), out.data);
}

void Run(const CompareOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::Compare(op.kind, in[0].dtype, in[0].data, in[1].data, Count(in[0]), out.As<bool>());
}

void Run(const SelectOp&, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::Select(out.dtype, in[0].As<bool>(), in[1].data, in[2].data, Count(in[1]), out.data);
}

void Run(const CastOp&, Refs in, const MutableArrayRef& out, Executor*) { AQT_CHECK(CastArray(in[0], out).ok()); }

void Run(const BitcastOp&, Refs in, const MutableArrayRef& out, Executor*) {
  Copy(ArrayRef(out.dtype, out.shape, in[0].data), out);
}

void Run(const ClampOp&, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::Clamp(out.dtype, in[0].data, in[1].data, in[2].data, Count(in[1]), out.data);
}

void Run(const IsFiniteOp&, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::IsFinite(in[0].dtype, in[0].data, Count(in[0]), out.As<bool>());
}

void Run(const IntegerPowOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::IntegerPow(out.dtype, op.exponent, in[0].data, Count(in[0]), out.data);
}

void Run(const ReducePrecisionOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::ReducePrecision(out.dtype, op.precision, in[0].data, Count(in[0]), out.data);
}

void Run(const ReduceOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::Reduce(op.kind, in[0], op.axes, out.data);
}

void Run(const BroadcastOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  const Strides& from = in[0].strides;
  Strides strides(op.shape.rank(), 0);
  for (int64_t i = 0; i < in[0].shape.rank(); ++i) {
    if (in[0].shape[i] == op.shape[op.axes[i]]) strides[op.axes[i]] = from[i];
  }
  Copy(View(in[0], out.shape, strides), out);
}

void Run(const ReshapeOp&, Refs in, const MutableArrayRef& out, Executor*) {
  Copy(ArrayRef(out.dtype, out.shape, in[0].data), out);
}

void Run(const TransposeOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  Strides strides;
  for (int64_t axis : op.permutation) strides.push_back(in[0].strides[axis]);
  Copy(View(in[0], out.shape, strides), out);
}

void Run(const SliceOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  if (out.shape.num_elements() == 0) return;
  Strides strides = in[0].strides;
  int64_t offset = 0;
  for (int64_t i = 0; i < out.shape.rank(); ++i) {
    offset += op.start[i] * strides[i];
    if (out.shape[i] > 1) strides[i] *= op.stride[i];  // the stride of a single element is irrelevant
  }
  Copy(View(in[0], out.shape, strides, offset), out);
}

void Run(const PadOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  if (op.value == 0) {
    if (const size_t bytes = out.aval().num_bytes(); bytes > 0) std::memset(out.data, 0, bytes);
  } else {
    Copy(View(Cast(Array::Scalar(op.value), out.dtype), out.shape, Strides(out.shape.rank(), 0)), out);
  }
  Strides strides = out.strides;
  Shape kept;
  int64_t from = 0, to = 0;
  for (int64_t i = 0; i < out.shape.rank(); ++i) {
    const kernels::PadAxis axis = PadAxisOf(op, i, in[0].shape[i], out.shape[i]);
    const kernels::KeptRange range = kernels::KeptElements(axis);
    kept.push_back(range.end - range.begin);
    if (kept[i] == 0) break;
    from += range.begin * in[0].strides[i];
    to += (axis.low + range.begin * axis.dilation) * strides[i];
    if (kept[i] > 1) strides[i] *= axis.dilation;  // the stride of a single element is irrelevant
  }
  if (kept.num_elements() > 0) Copy(View(in[0], kept, in[0].strides, from), Window(out, kept, strides, to));
}

void Run(const ReverseOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  if (out.shape.num_elements() == 0) return;
  Strides strides = in[0].strides;
  int64_t offset = 0;
  for (const int64_t axis : op.axes) {
    offset += (out.shape[axis] - 1) * strides[axis];
    strides[axis] = -strides[axis];
  }
  Copy(View(in[0], out.shape, strides, offset), out);
}

void Run(const IotaOp& op, Refs, const MutableArrayRef& out, Executor*) {
  if (out.shape.num_elements() == 0) return;
  ArrayBuilder numbers = ArrayBuilder::ForOverwrite({DType::kS64, {op.shape[op.axis]}});
  const absl::Span<int64_t> counted = numbers.Mutable<int64_t>();
  std::iota(counted.begin(), counted.end(), 0);
  Strides strides(out.shape.rank(), 0);
  strides[op.axis] = 1;
  Copy(View(Cast(std::move(numbers).Build(), out.dtype), out.shape, strides), out);
}

// A dense array as [outer, axis, inner].
struct AroundAxis {
  AroundAxis(const Shape& shape, int64_t axis) {
    for (int64_t i = 0; i < axis; ++i) outer *= shape[i];
    for (int64_t i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
  int64_t outer = 1, inner = 1;
};

absl::Span<const int32_t> Indices(const ArrayRef& x) { return absl::MakeConstSpan(x.As<int32_t>(), Count(x)); }

void Run(const ArgReduceOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  const AroundAxis around(in[0].shape, op.axis);
  kernels::ArgReduce(op.kind, in[0].dtype, in[0].data, around.outer, in[0].shape[op.axis], around.inner,
                     out.As<int32_t>());
}

void Run(const CumulativeSumOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  const AroundAxis around(out.shape, op.axis);
  kernels::CumulativeSum(out.dtype, in[0].data, around.outer, out.shape[op.axis], around.inner, op.reverse, out.data);
}

void Run(const TakeOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  const AroundAxis around(in[0].shape, op.axis);
  kernels::TakeRows(out.dtype, in[0].data, around.outer, in[0].shape[op.axis], around.inner, Indices(in[1]), out.data);
}

void Run(const ScatterAddOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  const AroundAxis around(out.shape, op.axis);
  kernels::ScatterAddRows(out.dtype, in[1].data, around.outer, op.extent, around.inner, Indices(in[0]), out.data);
}

absl::InlinedVector<kernels::WindowAxis, kInlineRank> WindowAxes(const WindowDims& dims, const Shape& shape,
                                                                 const Shape& out) {
  absl::InlinedVector<kernels::WindowAxis, kInlineRank> axes;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    axes.push_back({shape[i], dims.window[i], dims.stride[i], dims.low[i], out[i]});
  }
  return axes;
}

void Run(const ReduceWindowOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::ReduceWindow(op.kind, out.dtype, WindowAxes(op.dims, in[0].shape, out.shape), in[0].data, out.data);
}

void Run(const ArgReduceWindowOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  kernels::ArgReduceWindow(op.kind, in[0].dtype, WindowAxes(op.dims, in[0].shape, out.shape), in[0].data,
                           out.As<int32_t>());
}

void Run(const RandomBitsOp&, Refs in, const MutableArrayRef& out, Executor*) {
  const uint32_t* const words = in[0].As<uint32_t>();
  const int64_t n = out.shape.num_elements();
  const RandomBits bits({words[0], words[1]}, n);
  kernels::FillRandom(kernels::RandomNumbers::Bits32(bits), 0, 1, n, out.As<uint32_t>());
}

void Run(const ConcatenateOp& op, Refs in, const MutableArrayRef& out, Executor*) {
  int64_t offset = 0;
  for (const ArrayRef& part : in) {
    if (Count(part) > 0) Copy(part, Window(out, part.shape, out.strides, offset));
    offset += part.shape[op.axis] * out.strides[op.axis];
  }
}

void Run(const DotGeneralOp& op, Refs in, const MutableArrayRef& out, Executor* executor) {
  kernels::Contract(op.dims, in[0], in[1], out, executor);
}

void Run(const StopGradientOp&, Refs in, const MutableArrayRef& out, Executor*) { Copy(in[0], out); }

// Whether the result is the operand's memory under another aval.
bool IsOperand(const Op& op, absl::Span<const Array> in, const Aval& out) {
  if (std::holds_alternative<CastOp>(op)) return in[0].dtype() == out.dtype;
  return std::holds_alternative<ReshapeOp>(op) || std::holds_alternative<BitcastOp>(op) ||
         std::holds_alternative<StopGradientOp>(op);
}

absl::StatusOr<std::vector<Array>> EvalComposite(const Composite& composite, absl::Span<const Array> in,
                                                 absl::Span<const Aval> avals, absl::Span<const bool> needed) {
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
  if (const auto* composite = std::get_if<CompositeOp>(&op)) {
    return EvalComposite(*composite->impl, operands, out, needed);
  }
  if (IsOperand(op, operands, out[0])) return std::vector<Array>{Array(out[0], operands[0].buffer())};
  const absl::InlinedVector<ArrayRef, 3> refs(operands.begin(), operands.end());
  ArrayBuilder builder = ArrayBuilder::ForOverwrite(out[0]);
  EvalOpInto(op, refs, builder.ref(), CurrentExecutor());
  return std::vector<Array>{std::move(builder).Build()};
}

void EvalOpInto(const Op& op, absl::Span<const ArrayRef> operands, const MutableArrayRef& out, Executor* executor) {
  std::visit(
      [&]<class O>(const O& o) {
        if constexpr (std::is_same_v<O, CompositeOp>) AQT_CHECK(!"a composite has a kernel of its own");
        else Run(o, operands, out, executor);
      },
      op);
}

}  // namespace aqt
