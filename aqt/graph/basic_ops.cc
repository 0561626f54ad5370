#include "aqt/graph/basic_ops.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/checked_extents.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/trace.h"

namespace aqt {

Value ValueOrNumber::As(DType dtype) const {
  return number_.has_value() ? Value(aqt::Cast(Array::Scalar(*number_), dtype)) : value_;
}

namespace {

using kernels::BinaryKind;
using kernels::CompareKind;
using kernels::ReduceKind;
using kernels::UnaryKind;

Value Unary(UnaryKind kind, const ValueOrNumber& x) { return BindOne(UnaryOp{kind}, {x.As(DType::kF32)}, x.where()); }

// Axes of x become the last axes of the result.
Value BroadcastToLast(const Value& x, const Shape& shape, const SourceLine& where) {
  if (x.shape() == shape) return x;
  BroadcastOp op{shape, {}};
  const int64_t added = shape.rank() - x.rank();
  for (int64_t i = 0; i < x.rank(); ++i) op.axes.push_back(added + i);
  return BindOne(op, {x}, where);
}

// The shape to which all operands are broadcast.
absl::StatusOr<Shape> CommonShape(absl::Span<const Value> values) {
  Shape common;
  for (const Value& value : values) {
    const Shape& shape = value.shape();
    const int64_t rank = std::max(common.rank(), shape.rank());
    Shape next;
    for (int64_t i = 0; i < rank; ++i) {
      const int64_t a = i < rank - common.rank() ? 1 : common[i - (rank - common.rank())];
      const int64_t b = i < rank - shape.rank() ? 1 : shape[i - (rank - shape.rank())];
      if (a != b && a != 1 && b != 1)
        return absl::InvalidArgumentError("the shapes cannot be broadcast to a common shape");
      next.push_back(a == 1 ? b : a);
    }
    common = std::move(next);
  }
  return common;
}

// Broadcasts all operands to one shape and binds.
Value BindBroadcast(const Op& op, std::vector<Value> operands, const SourceLine& where) {
  absl::StatusOr<Shape> shape = CommonShape(operands);
  const bool poisoned =
      std::any_of(operands.begin(), operands.end(), [](const Value& value) { return !value.status().ok(); });
  if (!poisoned) {
    if (!shape.ok()) return Refuse(shape.status(), OpName(op), operands, where);
    for (Value& operand : operands) operand = BroadcastToLast(operand, *shape, where);
  }
  return BindOne(op, operands, where);
}

// The dtype of the first operand that is not a plain number.
DType DTypeOf(std::initializer_list<const ValueOrNumber*> operands) {
  for (const ValueOrNumber* operand : operands) {
    if (!operand->is_number()) return operand->value().dtype();
  }
  return DType::kF32;
}

Value Elementwise2(const Op& op, const ValueOrNumber& a, const ValueOrNumber& b) {
  const DType dtype = DTypeOf({&a, &b});
  return BindBroadcast(op, {a.As(dtype), b.As(dtype)}, a.where());
}

Value Binary(BinaryKind kind, const ValueOrNumber& a, const ValueOrNumber& b) {
  return Elementwise2(BinaryOp{kind}, a, b);
}
Value Compare(CompareKind kind, const ValueOrNumber& a, const ValueOrNumber& b) {
  return Elementwise2(CompareOp{kind}, a, b);
}

Value Reduce(ReduceKind kind, const ValueOrNumber& x, const Axes& axes, bool keepdims) {
  const Value value = x.As(DType::kF32);
  ReduceOp op{kind, {}, keepdims};
  absl::StatusOr<Axes> normalized = NormalizeAxes(axes, value.rank());
  if (!normalized.ok()) return Refuse(normalized.status(), OpName(op), {value}, x.where());
  if (normalized->empty()) return value;
  op.axes = *std::move(normalized);
  std::sort(op.axes.begin(), op.axes.end());
  return BindOne(op, {value}, x.where());
}

// A negative axis counts from the end.
int64_t FromEnd(int64_t axis, const Value& x) { return axis < 0 ? axis + x.rank() : axis; }

Value ArgReduce(kernels::ArgKind kind, const ValueOrNumber& x, int64_t axis) {
  const Value value = x.As(DType::kF32);
  return BindOne(ArgReduceOp{kind, FromEnd(axis, value)}, {value}, x.where());
}

WindowDims WithDefaults(WindowDims dims, int64_t rank) {
  if (dims.stride.empty()) dims.stride.assign(rank, 1);
  if (dims.low.empty()) dims.low.assign(rank, 0);
  if (dims.high.empty()) dims.high.assign(rank, 0);
  return dims;
}

Value ReduceWindow(ReduceKind kind, const ValueOrNumber& x, const WindowDims& dims) {
  const Value value = x.As(DType::kF32);
  return BindOne(ReduceWindowOp{kind, WithDefaults(dims, value.rank())}, {value}, x.where());
}

Value ArgReduceWindow(kernels::ArgKind kind, const ValueOrNumber& x, const WindowDims& dims) {
  const Value value = x.As(DType::kF32);
  return BindOne(ArgReduceWindowOp{kind, WithDefaults(dims, value.rank())}, {value}, x.where());
}

Value ReduceAll(ReduceKind kind, const ValueOrNumber& x) {
  Axes all(x.is_number() ? 0 : x.value().rank());
  std::iota(all.begin(), all.end(), 0);
  return Reduce(kind, x, all, /*keepdims=*/false);
}

}  // namespace

Value operator+(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kAdd, a, b); }
Value operator-(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kSub, a, b); }
Value operator*(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kMul, a, b); }
Value operator/(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kDiv, a, b); }
Value operator-(const ValueOrNumber& x) { return Unary(UnaryKind::kNeg, x); }

namespace ops {

Value Neg(const ValueOrNumber& x) { return Unary(UnaryKind::kNeg, x); }
Value Abs(const ValueOrNumber& x) { return Unary(UnaryKind::kAbs, x); }
Value Sign(const ValueOrNumber& x) { return Unary(UnaryKind::kSign, x); }
Value Round(const ValueOrNumber& x) { return Unary(UnaryKind::kRound, x); }
Value Floor(const ValueOrNumber& x) { return Unary(UnaryKind::kFloor, x); }
Value Ceil(const ValueOrNumber& x) { return Unary(UnaryKind::kCeil, x); }
Value Flush(const ValueOrNumber& x) { return Unary(UnaryKind::kFlush, x); }
Value Sqrt(const ValueOrNumber& x) { return Unary(UnaryKind::kSqrt, x); }
Value Rsqrt(const ValueOrNumber& x) { return Unary(UnaryKind::kRsqrt, x); }
Value Cbrt(const ValueOrNumber& x) { return Unary(UnaryKind::kCbrt, x); }
Value Exp(const ValueOrNumber& x) { return Unary(UnaryKind::kExp, x); }
Value Expm1(const ValueOrNumber& x) { return Unary(UnaryKind::kExpm1, x); }
Value Log(const ValueOrNumber& x) { return Unary(UnaryKind::kLog, x); }
Value Log1p(const ValueOrNumber& x) { return Unary(UnaryKind::kLog1p, x); }
Value Sin(const ValueOrNumber& x) { return Unary(UnaryKind::kSin, x); }
Value Cos(const ValueOrNumber& x) { return Unary(UnaryKind::kCos, x); }
Value Tanh(const ValueOrNumber& x) { return Unary(UnaryKind::kTanh, x); }
Value Logistic(const ValueOrNumber& x) { return Unary(UnaryKind::kLogistic, x); }
Value Erf(const ValueOrNumber& x) { return Unary(UnaryKind::kErf, x); }

Value Add(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kAdd, a, b); }
Value Sub(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kSub, a, b); }
Value Mul(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kMul, a, b); }
Value Div(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kDiv, a, b); }
Value Max(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kMax, a, b); }
Value Min(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kMin, a, b); }
Value Pow(const ValueOrNumber& a, const ValueOrNumber& b) { return Binary(BinaryKind::kPow, a, b); }

Value Clamp(const ValueOrNumber& low, const ValueOrNumber& x, const ValueOrNumber& high) {
  const DType dtype = DTypeOf({&x, &low, &high});
  return BindBroadcast(ClampOp{}, {low.As(dtype), x.As(dtype), high.As(dtype)}, x.where());
}

Value IntegerPow(const ValueOrNumber& x, int64_t exponent) {
  return BindOne(IntegerPowOp{exponent}, {x.As(DType::kF32)}, x.where());
}

Value ReducePrecision(const ValueOrNumber& x, int exponent_bits, int mantissa_bits) {
  return BindOne(ReducePrecisionOp{{exponent_bits, mantissa_bits}}, {x.As(DType::kF32)}, x.where());
}

Value And(const ValueOrNumber& a, const ValueOrNumber& b) {
  return BindBroadcast(BinaryOp{BinaryKind::kAnd}, {a.As(DType::kBool), b.As(DType::kBool)}, a.where());
}
Value Or(const ValueOrNumber& a, const ValueOrNumber& b) {
  return BindBroadcast(BinaryOp{BinaryKind::kOr}, {a.As(DType::kBool), b.As(DType::kBool)}, a.where());
}
Value Not(const ValueOrNumber& x) { return BindOne(UnaryOp{UnaryKind::kNot}, {x.As(DType::kBool)}, x.where()); }
Value IsFinite(const ValueOrNumber& x) { return BindOne(IsFiniteOp{}, {x.As(DType::kF32)}, x.where()); }

Value Equal(const ValueOrNumber& a, const ValueOrNumber& b) { return Compare(CompareKind::kEq, a, b); }
Value NotEqual(const ValueOrNumber& a, const ValueOrNumber& b) { return Compare(CompareKind::kNe, a, b); }
Value Less(const ValueOrNumber& a, const ValueOrNumber& b) { return Compare(CompareKind::kLt, a, b); }
Value LessEqual(const ValueOrNumber& a, const ValueOrNumber& b) { return Compare(CompareKind::kLe, a, b); }
Value Greater(const ValueOrNumber& a, const ValueOrNumber& b) { return Compare(CompareKind::kGt, a, b); }
Value GreaterEqual(const ValueOrNumber& a, const ValueOrNumber& b) { return Compare(CompareKind::kGe, a, b); }

Value Select(const ValueOrNumber& pred, const ValueOrNumber& a, const ValueOrNumber& b) {
  const DType dtype = DTypeOf({&a, &b});
  return BindBroadcast(SelectOp{}, {pred.As(DType::kBool), a.As(dtype), b.As(dtype)}, pred.where());
}

Value Cast(const ValueOrNumber& x, DType dtype) {
  const Value value = x.As(dtype);
  return value.dtype() == dtype ? value : BindOne(CastOp{dtype}, {value}, x.where());
}

Value Bitcast(const Value& x, DType dtype, const std::source_location& where) {
  return x.dtype() == dtype ? x : BindOne(BitcastOp{dtype}, {x}, where);
}

Value StopGradient(const ValueOrNumber& x) { return BindOne(StopGradientOp{}, {x.As(DType::kF32)}, x.where()); }

Value ReduceSum(const ValueOrNumber& x) { return ReduceAll(ReduceKind::kSum, x); }
Value ReduceMax(const ValueOrNumber& x) { return ReduceAll(ReduceKind::kMax, x); }
Value ReduceMin(const ValueOrNumber& x) { return ReduceAll(ReduceKind::kMin, x); }
Value ReduceProd(const ValueOrNumber& x) { return ReduceAll(ReduceKind::kProd, x); }
Value ReduceSum(const ValueOrNumber& x, const Axes& axes, bool keepdims) {
  return Reduce(ReduceKind::kSum, x, axes, keepdims);
}
Value ReduceMax(const ValueOrNumber& x, const Axes& axes, bool keepdims) {
  return Reduce(ReduceKind::kMax, x, axes, keepdims);
}
Value ReduceMin(const ValueOrNumber& x, const Axes& axes, bool keepdims) {
  return Reduce(ReduceKind::kMin, x, axes, keepdims);
}
Value ReduceProd(const ValueOrNumber& x, const Axes& axes, bool keepdims) {
  return Reduce(ReduceKind::kProd, x, axes, keepdims);
}
Value ArgMax(const ValueOrNumber& x, int64_t axis) { return ArgReduce(kernels::ArgKind::kMax, x, axis); }
Value ArgMin(const ValueOrNumber& x, int64_t axis) { return ArgReduce(kernels::ArgKind::kMin, x, axis); }

Value CumulativeSum(const ValueOrNumber& x, int64_t axis, bool reverse) {
  const Value value = x.As(DType::kF32);
  return BindOne(CumulativeSumOp{FromEnd(axis, value), reverse}, {value}, x.where());
}

Value ReduceWindowSum(const ValueOrNumber& x, const WindowDims& dims) {
  return ReduceWindow(ReduceKind::kSum, x, dims);
}
Value ReduceWindowMax(const ValueOrNumber& x, const WindowDims& dims) {
  return ReduceWindow(ReduceKind::kMax, x, dims);
}
Value ReduceWindowMin(const ValueOrNumber& x, const WindowDims& dims) {
  return ReduceWindow(ReduceKind::kMin, x, dims);
}
Value WindowArgMax(const ValueOrNumber& x, const WindowDims& dims) {
  return ArgReduceWindow(kernels::ArgKind::kMax, x, dims);
}
Value WindowArgMin(const ValueOrNumber& x, const WindowDims& dims) {
  return ArgReduceWindow(kernels::ArgKind::kMin, x, dims);
}

Value BroadcastTo(const ValueOrNumber& x, const Shape& shape) {
  return BroadcastToLast(x.As(DType::kF32), shape, x.where());
}

Value BroadcastInDim(const ValueOrNumber& x, const Shape& shape, const Axes& axes) {
  return BindOne(BroadcastOp{shape, axes}, {x.As(DType::kF32)}, x.where());
}

Value Reshape(const ValueOrNumber& x, const Shape& shape) {
  const Value value = x.As(DType::kF32);
  Shape full = shape, known;
  std::optional<int64_t> open;
  for (int64_t i = 0; i < shape.rank(); ++i) {
    if (shape[i] != -1) known.push_back(shape[i]);
    else if (!open.has_value()) open = i;  // a second -1 stays and is then refused
  }
  if (!value.status().ok()) return value;
  if (absl::Status status = CheckShape(known); !status.ok()) return Refuse(status, "reshape", {value}, x.where());
  const int64_t per_open = known.num_elements();
  if (open.has_value() && per_open > 0) full[*open] = value.shape().num_elements() / per_open;
  return value.shape() == full ? value : BindOne(ReshapeOp{full}, {value}, x.where());
}

Value Transpose(const ValueOrNumber& x, const Axes& permutation) {
  const Value value = x.As(DType::kF32);
  absl::StatusOr<Axes> normalized = NormalizeAxes(permutation, value.rank());
  if (!normalized.ok()) return Refuse(normalized.status(), "transpose", {value}, x.where());
  return BindOne(TransposeOp{*std::move(normalized)}, {value}, x.where());
}

Value Slice(const ValueOrNumber& x, const PerAxis& start, const PerAxis& limit, const PerAxis& stride) {
  const Value value = x.As(DType::kF32);
  SliceOp op{start, limit, stride};
  if (stride.empty()) op.stride.assign(value.rank(), 1);
  return BindOne(op, {value}, x.where());
}

Value Pad(const ValueOrNumber& x, const PerAxis& low, const PerAxis& high, const PerAxis& interior, double value) {
  const Value operand = x.As(DType::kF32);
  PadOp op{low, high, interior, value};
  if (interior.empty()) op.interior.assign(operand.rank(), 0);
  return BindOne(op, {operand}, x.where());
}

Value Reverse(const ValueOrNumber& x, const Axes& axes) {
  const Value value = x.As(DType::kF32);
  absl::StatusOr<Axes> normalized = NormalizeAxes(axes, value.rank());
  if (!normalized.ok()) return Refuse(normalized.status(), "reverse", {value}, x.where());
  std::sort(normalized->begin(), normalized->end());
  return BindOne(ReverseOp{*std::move(normalized)}, {value}, x.where());
}

Value Take(const ValueOrNumber& x, const ValueOrNumber& indices, int64_t axis) {
  const Value value = x.As(DType::kF32);
  return BindOne(TakeOp{FromEnd(axis, value)}, {value, indices.As(DType::kS32)}, x.where());
}

Value ScatterAdd(const ValueOrNumber& indices, const ValueOrNumber& updates, int64_t extent, int64_t axis) {
  const Value numbers = indices.As(DType::kS32), values = updates.As(DType::kF32);
  // The result has one axis in place of the axes of the indices.
  const int64_t rank = values.rank() - numbers.rank() + 1;
  return BindOne(ScatterAddOp{axis < 0 ? axis + rank : axis, extent}, {numbers, values}, indices.where());
}

Value Iota(DType dtype, const Shape& shape, int64_t axis, const std::source_location& where) {
  return BindOne(IotaOp{dtype, shape, axis < 0 ? axis + shape.rank() : axis}, {}, where);
}

Value RandomBits(const ValueOrNumber& key, const Shape& shape) {
  return BindOne(RandomBitsOp{shape}, {key.As(DType::kU32)}, key.where());
}

Value Concatenate(absl::Span<const Value> parts, int64_t axis, const std::source_location& where) {
  const int64_t rank = parts.empty() ? 0 : parts[0].rank();
  return BindOne(ConcatenateOp{axis < 0 ? axis + rank : axis}, parts, where);
}

Value DotGeneral(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const DotDims& dims, std::optional<DType> out) {
  const Value a = lhs.As(DType::kF32), b = rhs.As(DType::kF32);
  return BindOne(DotGeneralOp{dims, out.value_or(IsFloat(a.dtype()) ? a.dtype() : DType::kS32)}, {a, b}, lhs.where());
}

Value MatMul(const ValueOrNumber& lhs, const ValueOrNumber& rhs) {
  DotDims dims;
  dims.lhs_contracting = {lhs.value().rank() - 1};
  dims.rhs_contracting = {0};
  return DotGeneral(lhs, rhs, dims);
}

}  // namespace ops
}  // namespace aqt
