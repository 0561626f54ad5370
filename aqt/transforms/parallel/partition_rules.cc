// Cuts each operation along the batch when an operand is divided.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/transforms/parallel/partition.h"

namespace aqt::internal {
namespace {

using In = absl::Span<const Part>;
using Result = std::optional<Part>;

// The operation on the given values, its result divided along `axis`.
Part Divided(const Op& op, absl::Span<const Value> operands, const Aval& out, int64_t axis) {
  return {BindOne(op, operands), out, axis};
}

// The position of the first operand that is divided.
size_t FirstDivided(In in) {
  return std::find_if(in.begin(), in.end(), [](const Part& part) { return part.axis.has_value(); }) - in.begin();
}

bool Contains(absl::Span<const int64_t> axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

int64_t PositionOf(absl::Span<const int64_t> axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) - axes.begin();
}

// The dtype in which partial sums of f16 and bf16 are added.
DType SumDType(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype; }

// The sum of the processes' sums, replicated, in out's dtype.
Part SumOverProcesses(const Partition& partition, const Value& sums, const Aval& out) {
  return {ops::Cast(partition.AllReduce(AllReduceKind::kSum, sums), out.dtype), out};
}

Result ByElement(const Partition& partition, const Op& op, In in, const Aval& out) {
  const int64_t axis = *in[FirstDivided(in)].axis;
  std::vector<Value> parts;
  for (const Part& part : in) parts.push_back(partition.Cut(part, axis));
  return Divided(op, parts, out, axis);
}

Result Rule(const Partition& partition, const ReduceOp& op, In in, const Aval& out) {
  const int64_t axis = *in[0].axis;
  if (!Contains(op.axes, axis)) {
    const auto before = std::count_if(op.axes.begin(), op.axes.end(), [&](int64_t reduced) { return reduced < axis; });
    return Divided(op, {in[0].value}, out, op.keepdims ? axis : axis - before);
  }
  switch (op.kind) {
    case kernels::ReduceKind::kMax:
      return Part{partition.AllReduce(AllReduceKind::kMax, BindOne(op, {in[0].value})), out};
    case kernels::ReduceKind::kMin:
      return Part{partition.AllReduce(AllReduceKind::kMin, BindOne(op, {in[0].value})), out};
    case kernels::ReduceKind::kSum:
      if (!partition.Reduces(out.dtype)) return std::nullopt;
      return SumOverProcesses(partition, BindOne(op, {ops::Cast(in[0].value, SumDType(out.dtype))}), out);
    default: return std::nullopt;
  }
}

Result Rule(const Partition& partition, const BroadcastOp& op, In in, const Aval& out) {
  const int64_t axis = op.axes[*in[0].axis];
  return Divided(BroadcastOp{partition.AvalOfPart(out, axis).shape, op.axes}, {in[0].value}, out, axis);
}

// For each index of the axes before the divided one, the processes have equal, contiguous ranges of the elements. They
// have the same ranges of an axis of the result that is preceded by as many elements, if the number of processes
// divides its extent.
Result Rule(const Partition& partition, const ReshapeOp&, In in, const Aval& out) {
  int64_t before = 1, before_new = 1;
  for (int64_t i = 0; i < *in[0].axis; ++i) before *= in[0].whole.shape[i];
  for (int64_t axis = 0; axis < out.shape.rank() && before_new <= before; ++axis) {
    if (before_new == before && out.shape[axis] > 1 && out.shape[axis] % partition.processes() == 0) {
      return Divided(ReshapeOp{partition.AvalOfPart(out, axis).shape}, {in[0].value}, out, axis);
    }
    before_new *= out.shape[axis];
  }
  return std::nullopt;
}

Result Rule(const Partition&, const TransposeOp& op, In in, const Aval& out) {
  return Divided(op, {in[0].value}, out, PositionOf(op.permutation, *in[0].axis));
}

Result Rule(const Partition& partition, const SliceOp& op, In in, const Aval& out) {
  const int64_t axis = *in[0].axis, extent = in[0].whole.shape[axis];
  if (op.start[axis] != 0 || op.limit[axis] != extent || op.stride[axis] != 1) return std::nullopt;
  SliceOp part = op;
  part.limit[axis] = extent / partition.processes();
  return Divided(part, {in[0].value}, out, axis);
}

Result Rule(const Partition&, const PadOp& op, In in, const Aval& out) {
  const int64_t axis = *in[0].axis;
  if (op.low[axis] != 0 || op.high[axis] != 0 || op.interior[axis] != 0) return std::nullopt;
  return Divided(op, {in[0].value}, out, axis);
}

Result Rule(const Partition&, const ReverseOp& op, In in, const Aval& out) {
  if (Contains(op.axes, *in[0].axis)) return std::nullopt;
  return Divided(op, {in[0].value}, out, *in[0].axis);
}

Result Rule(const Partition&, const ArgReduceOp& op, In in, const Aval& out) {
  const int64_t axis = *in[0].axis;
  if (axis == op.axis) return std::nullopt;
  return Divided(op, {in[0].value}, out, axis < op.axis ? axis : axis - 1);
}

Result Rule(const Partition&, const CumulativeSumOp& op, In in, const Aval& out) {
  if (op.axis == *in[0].axis) return std::nullopt;
  return Divided(op, {in[0].value}, out, *in[0].axis);
}

Result Rule(const Partition& partition, const TakeOp& op, In in, const Aval& out) {
  const Part &x = in[0], &indices = in[1];
  if (x.axis.has_value() && *x.axis != op.axis) {
    const int64_t axis = *x.axis < op.axis ? *x.axis : *x.axis + indices.whole.shape.rank() - 1;
    return Divided(op, {x.value, partition.Whole(indices)}, out, axis);
  }
  if (!indices.axis.has_value()) return std::nullopt;
  return Divided(op, {partition.Whole(x), indices.value}, out, op.axis + *indices.axis);
}

Result Rule(const Partition& partition, const ScatterAddOp& op, In in, const Aval& out) {
  const Part &indices = in[0], &updates = in[1];
  const int64_t places = indices.whole.shape.rank();
  if (updates.axis.has_value() && (*updates.axis < op.axis || *updates.axis >= op.axis + places)) {
    const int64_t axis = *updates.axis < op.axis ? *updates.axis : *updates.axis - places + 1;
    return Divided(op, {partition.Whole(indices), updates.value}, out, axis);
  }
  if (!partition.Reduces(out.dtype)) return std::nullopt;
  const int64_t axis = indices.axis.has_value() ? *indices.axis : *updates.axis - op.axis;
  const Value part = ops::Cast(partition.Cut(updates, op.axis + axis), SumDType(out.dtype));
  return SumOverProcesses(partition, BindOne(op, {partition.Cut(indices, axis), part}), out);
}

// Whether each window has one index along the axis, and each index has a window.
bool PassesAxis(const WindowDims& dims, int64_t axis) { return dims.window[axis] == 1 && dims.stride[axis] == 1; }

Result Rule(const Partition&, const ReduceWindowOp& op, In in, const Aval& out) {
  if (!PassesAxis(op.dims, *in[0].axis)) return std::nullopt;
  return Divided(op, {in[0].value}, out, *in[0].axis);
}

// Element numbers count from the first row of the batch.
Result Rule(const Partition& partition, const ArgReduceWindowOp& op, In in, const Aval& out) {
  if (*in[0].axis != 0 || !PassesAxis(op.dims, 0)) return std::nullopt;
  const int64_t first = partition.rank() * (in[0].whole.shape.num_elements() / partition.processes());
  return Part{BindOne(op, {in[0].value}) + static_cast<double>(first), out, 0};
}

Result Rule(const Partition& partition, const ConcatenateOp& op, In in, const Aval& out) {
  if (*in[FirstDivided(in)].axis == op.axis) return std::nullopt;
  return ByElement(partition, op, in, out);
}

// A product whose operands are both divided along a batch axis or a contracted axis, or one of them along a remaining
// axis.
class DotCut {
 public:
  DotCut(const Partition& partition, const DotGeneralOp& op, In in, const Aval& out)
      : partition_(partition), op_(op), lhs_(in[0]), rhs_(in[1]), out_(out) {}

  Result Run() const {
    const DotDims& d = op_.dims;
    for (const bool of_lhs : {true, false}) {
      if (const auto at = Position(of_lhs, of_lhs ? d.lhs_batch : d.rhs_batch)) {
        return Divided(op_, {Cut(true, d.lhs_batch[*at]), Cut(false, d.rhs_batch[*at])}, out_, *at);
      }
    }
    const auto lhs_sum = Position(true, d.lhs_contracting), rhs_sum = Position(false, d.rhs_contracting);
    if (lhs_.axis.has_value() && !lhs_sum.has_value()) return Remaining(true);
    if (rhs_.axis.has_value() && !rhs_sum.has_value()) return Remaining(false);
    if (!partition_.Reduces(out_.dtype)) return std::nullopt;
    const int64_t at = lhs_sum.has_value() ? *lhs_sum : *rhs_sum;
    const DotGeneralOp part{d, SumDType(op_.out)};
    return SumOverProcesses(partition_,
                            BindOne(part, {Cut(true, d.lhs_contracting[at]), Cut(false, d.rhs_contracting[at])}), out_);
  }

 private:
  const Part& Of(bool lhs) const { return lhs ? lhs_ : rhs_; }
  Value Cut(bool lhs, int64_t axis) const { return partition_.Cut(Of(lhs), axis); }

  // The position in `axes` of a side's divided axis.
  std::optional<int64_t> Position(bool lhs, absl::Span<const int64_t> axes) const {
    const Part& part = Of(lhs);
    if (!part.axis.has_value() || !Contains(axes, *part.axis)) return std::nullopt;
    return PositionOf(axes, *part.axis);
  }

  // One side is divided along an axis that the product keeps; the other side is replicated.
  Result Remaining(bool lhs) const {
    const DotDims own = lhs ? op_.dims : op_.dims.Swapped();
    const Part &mine = Of(lhs), &other = Of(!lhs);
    const Axes axes = RemainingAxes(mine.whole.shape.rank(), own.lhs_contracting, own.lhs_batch);
    const int64_t batch = static_cast<int64_t>(own.lhs_batch.size());
    const int64_t contracting = static_cast<int64_t>(own.lhs_contracting.size());
    const int64_t first = lhs ? batch : other.whole.shape.rank() - contracting;
    const Value whole = partition_.Whole(other);
    return Divided(op_, {lhs ? mine.value : whole, lhs ? whole : mine.value}, out_,
                   first + PositionOf(axes, *mine.axis));
  }

  const Partition& partition_;
  const DotGeneralOp& op_;
  const Part &lhs_, &rhs_;
  const Aval& out_;
};

Result Rule(const Partition& partition, const DotGeneralOp& op, In in, const Aval& out) {
  return DotCut(partition, op, in, out).Run();
}

Result Rule(const Partition& partition, const CompositeOp& op, In in, const Aval& out) {
  return CutComposite(partition, op, in, out);
}

template <class O>
constexpr bool kWorksByElement =
    std::is_same_v<O, UnaryOp> || std::is_same_v<O, BinaryOp> || std::is_same_v<O, CompareOp> ||
    std::is_same_v<O, SelectOp> || std::is_same_v<O, CastOp> || std::is_same_v<O, BitcastOp> ||
    std::is_same_v<O, ClampOp> || std::is_same_v<O, IsFiniteOp> || std::is_same_v<O, IntegerPowOp> ||
    std::is_same_v<O, ReducePrecisionOp> || std::is_same_v<O, StopGradientOp>;

}  // namespace

bool WorksByElement(const Op& op) {
  return std::visit([]<class O>(const O&) { return kWorksByElement<O>; }, op);
}

std::optional<Part> CutOperation(const Partition& partition, const Op& op, absl::Span<const Part> in, const Aval& out) {
  return std::visit(
      [&]<class O>(const O& o) -> Result {
        if constexpr (kWorksByElement<O>) {
          return ByElement(partition, op, in, out);
        } else if constexpr (std::is_same_v<O, IotaOp> || std::is_same_v<O, RandomBitsOp>) {
          return std::nullopt;  // nothing is divided
        } else {
          return Rule(partition, o, in, out);
        }
      },
      op);
}

}  // namespace aqt::internal
