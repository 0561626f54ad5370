#include "aqt/graph/interpret/vjp.h"

#include <algorithm>
#include <numbers>
#include <utility>

#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/basic_ops.h"

namespace aqt::internal {
namespace {

using Cotangents = std::vector<std::optional<Value>>;

// Arguments of a rule: operands x, output y, its cotangent ct, and which operands want one.
struct Call {
  absl::Span<const Value> x;
  const Value& y;
  const Value& ct;
  absl::Span<const bool> wanted;
};

constexpr double kTwoOverRootPi = 2 * std::numbers::inv_sqrtpi;

// sum(ct), which adds elements. 8-bit floats, which have no arithmetic, are added in f32 and the result is rounded.
template <class F>
Value Summed(const Value& ct, F sum) {
  const DType dtype = ct.dtype();
  if (kernels::IsArithmetic(dtype)) return sum(ct);
  return ops::Cast(sum(ops::Cast(ct, DType::kF32)), dtype);
}

Cotangents Rule(const UnaryOp& op, const Call& call) {
  const Value &x = call.x[0], &y = call.y, &ct = call.ct;
  switch (op.kind) {
    case kernels::UnaryKind::kNeg: return {-ct};
    case kernels::UnaryKind::kAbs:
      return {ops::Select(ops::Greater(x, 0.0), ct, ops::Select(ops::Less(x, 0.0), -ct, 0.0))};
    case kernels::UnaryKind::kSign:
    case kernels::UnaryKind::kRound:
    case kernels::UnaryKind::kFloor:
    case kernels::UnaryKind::kCeil:
    case kernels::UnaryKind::kNot: return {std::nullopt};
    case kernels::UnaryKind::kFlush: return {ct};
    case kernels::UnaryKind::kSqrt: return {ct * (0.5 / y)};
    case kernels::UnaryKind::kRsqrt: return {ct * (-0.5 * (y / x))};
    case kernels::UnaryKind::kCbrt: return {ct * (ops::IntegerPow(y, -2) * (1.0 / 3.0))};
    case kernels::UnaryKind::kExp: return {ct * y};
    case kernels::UnaryKind::kExpm1: return {ct * (y + 1.0)};
    case kernels::UnaryKind::kLog: return {ct / x};
    case kernels::UnaryKind::kLog1p: return {ct / (x + 1.0)};
    case kernels::UnaryKind::kSin: return {ct * ops::Cos(x)};
    case kernels::UnaryKind::kCos: return {-(ct * ops::Sin(x))};
    case kernels::UnaryKind::kTanh: return {(ct + ct * y) * (1.0 - y)};
    case kernels::UnaryKind::kLogistic: return {ct * (y * (1.0 - y))};
    case kernels::UnaryKind::kErf: return {kTwoOverRootPi * (ct * ops::Exp(-(x * x)))};
  }
  return {std::nullopt};
}

// ct where a wins, half of it at ties: for max, a > b; for min, a < b.
Value Winner(const Value& a_wins, const Value& tie, const Value& ct) {
  return ops::Select(a_wins, ct, ops::Select(tie, ct * 0.5, 0.0));
}

Cotangents Rule(const BinaryOp& op, const Call& call) {
  const Value &a = call.x[0], &b = call.x[1], &ct = call.ct;
  Cotangents out(2);
  const bool da = call.wanted[0], db = call.wanted[1];
  switch (op.kind) {
    case kernels::BinaryKind::kAdd:
      if (da) out[0] = ct;
      if (db) out[1] = ct;
      break;
    case kernels::BinaryKind::kSub:
      if (da) out[0] = ct;
      if (db) out[1] = -ct;
      break;
    case kernels::BinaryKind::kMul:
      if (da) out[0] = ct * b;
      if (db) out[1] = ct * a;
      break;
    case kernels::BinaryKind::kDiv:
      if (da) out[0] = ct / b;
      if (db) out[1] = -(ct * call.y / b);
      break;
    case kernels::BinaryKind::kMax:
    case kernels::BinaryKind::kMin: {
      const bool max = op.kind == kernels::BinaryKind::kMax;
      const Value tie = ops::Equal(a, b);
      if (da) out[0] = Winner(max ? ops::Greater(a, b) : ops::Less(a, b), tie, ct);
      if (db) out[1] = Winner(max ? ops::Greater(b, a) : ops::Less(b, a), tie, ct);
      break;
    }
    case kernels::BinaryKind::kPow:
      if (da) out[0] = ct * (b * ops::Pow(a, b - 1.0));
      if (db) out[1] = ct * (ops::Log(ops::Select(ops::Equal(a, 0.0), 1.0, a)) * call.y);
      break;
    case kernels::BinaryKind::kAnd:
    case kernels::BinaryKind::kOr: break;
  }
  return out;
}

Cotangents Rule(const CompareOp&, const Call&) { return {std::nullopt, std::nullopt}; }

Cotangents Rule(const SelectOp&, const Call& call) {
  Cotangents out(3);
  if (call.wanted[1]) out[1] = ops::Select(call.x[0], call.ct, 0.0);
  if (call.wanted[2]) out[2] = ops::Select(call.x[0], 0.0, call.ct);
  return out;
}

Cotangents Rule(const CastOp&, const Call& call) { return {ops::Cast(call.ct, call.x[0].dtype())}; }

Cotangents Rule(const BitcastOp&, const Call&) { return {std::nullopt}; }

// The operand changes the result only strictly between the ends.
Cotangents Rule(const ClampOp&, const Call& call) {
  const Value &low = call.x[0], &x = call.x[1], &high = call.x[2];
  Cotangents out(3);
  if (call.wanted[0]) out[0] = ops::Select(ops::And(ops::Greater(low, x), ops::Less(low, high)), call.ct, 0.0);
  if (call.wanted[1]) out[1] = ops::Select(ops::And(ops::Greater(x, low), ops::Less(x, high)), call.ct, 0.0);
  if (call.wanted[2]) out[2] = ops::Select(ops::Less(high, x), call.ct, 0.0);
  return out;
}

Cotangents Rule(const IsFiniteOp&, const Call&) { return {std::nullopt}; }

Cotangents Rule(const IntegerPowOp& op, const Call& call) {
  if (op.exponent == 0) return {std::nullopt};
  if (op.exponent == 1) return {call.ct};
  return {call.ct * (ops::IntegerPow(call.x[0], op.exponent - 1) * static_cast<double>(op.exponent))};
}

// Linear, as in JAX: the cotangent is also rounded.
Cotangents Rule(const ReducePrecisionOp& op, const Call& call) {
  return {ops::ReducePrecision(call.ct, op.precision.exponent_bits, op.precision.mantissa_bits)};
}

// `reduced`, the result of a reduction, stretched back to the operand's shape.
Value Spread(const ReduceOp& op, const Value& reduced, const Shape& shape) {
  if (op.keepdims) return ops::BroadcastTo(reduced, shape);
  Axes kept;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (std::find(op.axes.begin(), op.axes.end(), axis) == op.axes.end()) kept.push_back(axis);
  }
  return ops::BroadcastInDim(reduced, shape, kept);
}

// For each element the product of all other elements reduced with it; a division fails where there are zeros.
Value OthersProduct(const ReduceOp& op, const Value& x) {
  // As [kept, n].
  Axes permutation, inverse(x.rank());
  int64_t n = 1;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (std::find(op.axes.begin(), op.axes.end(), axis) == op.axes.end()) permutation.push_back(axis);
  }
  for (const int64_t axis : op.axes) {
    permutation.push_back(axis);
    n *= x.shape()[axis];
  }
  if (x.shape().num_elements() == 0) return x;
  for (size_t i = 0; i < permutation.size(); ++i) inverse[permutation[i]] = static_cast<int64_t>(i);
  const Value moved = ops::Transpose(x, permutation);
  const int64_t kept = x.shape().num_elements() / n;
  const Value rows = ops::Reshape(moved, {kept, n});
  // Shifts the rows by `places`; ones come in.
  const auto shift = [&](const Value& value, int64_t places) {
    const int64_t left = std::max<int64_t>(-places, 0), right = std::max<int64_t>(places, 0);
    return ops::Pad(ops::Slice(value, {0, left}, {kept, n - right}), {0, right}, {0, left}, {}, 1);
  };
  // The products of all elements before, and of all after: step s covers 2^s neighbours.
  Value before = shift(rows, 1), behind = shift(rows, -1);
  for (int64_t reach = 1; reach < n; reach *= 2) {
    before = before * shift(before, reach);
    behind = behind * shift(behind, -reach);
  }
  return ops::Transpose(ops::Reshape(before * behind, moved.shape()), inverse);
}

Cotangents Rule(const ReduceOp& op, const Call& call) {
  const Value& x = call.x[0];
  switch (op.kind) {
    case kernels::ReduceKind::kSum: return {Spread(op, call.ct, x.shape())};
    case kernels::ReduceKind::kProd: return {OthersProduct(op, x) * Spread(op, call.ct, x.shape())};
    case kernels::ReduceKind::kMax:
    case kernels::ReduceKind::kMin: {
      const Value wins = ops::Cast(ops::Equal(x, Spread(op, call.y, x.shape())), x.dtype());
      const Value share = call.ct / ops::ReduceSum(wins, op.axes, op.keepdims);
      return {wins * Spread(op, share, x.shape())};
    }
  }
  return {std::nullopt};
}

Cotangents Rule(const BroadcastOp& op, const Call& call) {
  const Shape& shape = call.x[0].shape();
  Axes summed;
  for (int64_t axis = 0; axis < op.shape.rank(); ++axis) {
    const auto it = std::find(op.axes.begin(), op.axes.end(), axis);
    const bool kept = it != op.axes.end() && shape[it - op.axes.begin()] == op.shape[axis];
    if (!kept) summed.push_back(axis);
  }
  const auto sum = [&](const Value& ct) { return ops::ReduceSum(ct, summed); };
  return {ops::Reshape(summed.empty() ? call.ct : Summed(call.ct, sum), shape)};
}

Cotangents Rule(const ReshapeOp&, const Call& call) { return {ops::Reshape(call.ct, call.x[0].shape())}; }

Cotangents Rule(const TransposeOp& op, const Call& call) {
  Axes inverse(op.permutation.size());
  for (size_t i = 0; i < inverse.size(); ++i) inverse[op.permutation[i]] = static_cast<int64_t>(i);
  return {ops::Transpose(call.ct, inverse)};
}

Cotangents Rule(const SliceOp& op, const Call& call) {
  const Shape &shape = call.x[0].shape(), &out = call.y.shape();
  PadOp pad{op.start, {}, {}};
  for (int64_t i = 0; i < shape.rank(); ++i) {
    // The distance from the first to the last element taken, inclusive.
    const int64_t span = out[i] == 0 ? 0 : (out[i] - 1) * op.stride[i] + 1;
    pad.high.push_back(shape[i] - op.start[i] - span);
    pad.interior.push_back(op.stride[i] - 1);
  }
  return {ops::Pad(call.ct, pad.low, pad.high, pad.interior)};
}

Cotangents Rule(const PadOp& op, const Call& call) {
  const Shape& shape = call.x[0].shape();
  SliceOp slice;
  PerAxis before, behind;  // elements that were cut off
  bool all = true;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    const kernels::PadAxis axis = PadAxisOf(op, i, shape[i], call.y.shape()[i]);
    const auto [begin, end] = kernels::KeptElements(axis);
    const bool none = begin == end;
    slice.stride.push_back(end - begin > 1 ? axis.dilation : 1);
    slice.start.push_back(none ? 0 : axis.low + begin * axis.dilation);
    slice.limit.push_back(none ? 0 : axis.low + (end - 1) * axis.dilation + 1);
    before.push_back(begin);
    behind.push_back(shape[i] - end);
    all &= end - begin == shape[i];
  }
  const Value kept = ops::Slice(call.ct, slice.start, slice.limit, slice.stride);
  return {all ? kept : ops::Pad(kept, before, behind)};
}

Cotangents Rule(const ReverseOp& op, const Call& call) { return {ops::Reverse(call.ct, op.axes)}; }

Cotangents Rule(const IotaOp&, const Call&) { return {}; }

Cotangents Rule(const ArgReduceOp&, const Call&) { return {std::nullopt}; }

Cotangents Rule(const CumulativeSumOp& op, const Call& call) {
  return {ops::CumulativeSum(call.ct, op.axis, !op.reverse)};
}

Cotangents Rule(const TakeOp& op, const Call& call) {
  const auto scatter = [&](const Value& ct) {
    return ops::ScatterAdd(call.x[1], ct, call.x[0].shape()[op.axis], op.axis);
  };
  return {Summed(call.ct, scatter), std::nullopt};
}

Cotangents Rule(const ScatterAddOp& op, const Call& call) {
  return {std::nullopt, ops::Take(call.ct, call.x[0], op.axis)};
}

// For a sum: element i is in the windows (i + low - k) / stride for 0 <= k < window, so its cotangent is the sum of a
// window of the spread cotangents. For a maximum or minimum, as in JAX, the first element gets the full cotangent.
Cotangents Rule(const ReduceWindowOp& op, const Call& call) {
  const Value& x = call.x[0];
  const Shape &shape = x.shape(), &windows = call.y.shape();
  const WindowDims& dims = op.dims;
  if (windows.num_elements() == 0 || shape.num_elements() == 0) return {std::nullopt};
  if (op.kind != kernels::ReduceKind::kSum) {
    const Value winners =
        op.kind == kernels::ReduceKind::kMax ? ops::WindowArgMax(x, dims) : ops::WindowArgMin(x, dims);
    const Value sums = ops::ScatterAdd(ops::Reshape(winners, {-1}), ops::Reshape(call.ct, {-1}), shape.num_elements());
    return {ops::Reshape(sums, shape)};
  }
  PadOp pad;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    const int64_t span = (windows[i] - 1) * dims.stride[i] + 1;
    pad.low.push_back(dims.window[i] - 1 - dims.low[i]);
    pad.high.push_back(shape[i] + dims.low[i] - span);
    pad.interior.push_back(dims.stride[i] - 1);
  }
  const PerAxis ones(shape.rank(), 1), none(shape.rank(), 0);
  return {ops::ReduceWindowSum(ops::Pad(call.ct, pad.low, pad.high, pad.interior), {dims.window, ones, none, none})};
}

Cotangents Rule(const ArgReduceWindowOp&, const Call&) { return {std::nullopt}; }

Cotangents Rule(const RandomBitsOp&, const Call&) { return {std::nullopt}; }

Cotangents Rule(const ConcatenateOp& op, const Call& call) {
  Cotangents out(call.x.size());
  PerAxis start(call.y.rank(), 0), limit(call.y.shape().begin(), call.y.shape().end());
  for (size_t i = 0; i < call.x.size(); ++i) {
    limit[op.axis] = start[op.axis] + call.x[i].shape()[op.axis];
    if (call.wanted[i]) out[i] = ops::Slice(call.ct, start, limit);
    start[op.axis] = limit[op.axis];
  }
  return out;
}

// The product is computed in the wider of the output's and the operands' dtypes, so that an f32 cotangent of bf16
// operands is not rounded before it is used.
Cotangents Rule(const DotGeneralOp& op, const Call& call) {
  Cotangents out(2);
  const DType dtype = BitWidth(op.out) > BitWidth(call.x[0].dtype()) ? op.out : call.x[0].dtype();
  for (int i = 0; i < 2; ++i) {
    if (!call.wanted[i]) continue;
    const BackwardDotDims backward =
        MakeBackwardDotDims(op.dims, call.x[0].rank(), call.x[1].rank(), i == 0 ? Side::kLhs : Side::kRhs);
    const Value product = ops::DotGeneral(ops::Cast(call.ct, dtype), ops::Cast(call.x[1 - i], dtype), backward.dims);
    // Axis j of the product is axis to_operand[j] of the operand.
    Axes permutation(backward.to_operand.size());
    for (size_t j = 0; j < permutation.size(); ++j) permutation[backward.to_operand[j]] = static_cast<int64_t>(j);
    const bool in_order = std::is_sorted(permutation.begin(), permutation.end());
    out[i] = ops::Cast(in_order ? product : ops::Transpose(product, permutation), call.x[i].dtype());
  }
  return out;
}

Cotangents Rule(const StopGradientOp&, const Call&) { return {std::nullopt}; }

Cotangents Rule(const CompositeOp&, const Call&) { AQT_CHECK(!"composites have rules of their own"); }

}  // namespace

std::vector<std::optional<Value>> Vjp(const Op& op, absl::Span<const Value> operands, const Value& output,
                                      const Value& cotangent, absl::Span<const bool> wanted) {
  const Call call{operands, output, cotangent, wanted};
  return std::visit([&](const auto& o) { return Rule(o, call); }, op);
}

Value AddCotangents(const Value& a, const Value& b) {
  return Summed(a, [&](const Value& x) { return x + ops::Cast(b, x.dtype()); });
}

}  // namespace aqt::internal
