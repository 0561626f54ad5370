#ifndef AQT_GRAPH_BASIC_OPS_H_
#define AQT_GRAPH_BASIC_OPS_H_

// The basic operations as functions of Values, in namespace aqt::ops, and `+ - * /`. A call either runs at once or is
// recorded (trace.h). op.h says what each operation computes. In addition, here
//   - a number becomes a constant of the other operand's dtype (f32 if both are numbers), rounded once;
//   - operands of different shapes are broadcast: aligned at their last axes, missing axes added in front, extent 1
//     stretched. Dtypes are never converted: the error asks for a Cast;
//   - negative axes count from the end.
// Errors poison the result (value.h); their messages name the caller's line.

#include <optional>
#include <source_location>

#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"

namespace aqt {

// A Value or a number, with the line of the call. Arguments convert to it; callers need not name it.
class Operand {
 public:
  Operand(Value value, const std::source_location& where = std::source_location::current())  // NOLINT
      : value_(std::move(value)), where_(where) {}
  Operand(double number, const std::source_location& where = std::source_location::current())  // NOLINT
      : number_(number), where_(where) {}

  bool is_number() const { return number_.has_value(); }
  // The value; a number becomes a constant of `dtype`.
  Value As(DType dtype) const;
  const Value& value() const { return value_; }
  const SourceLine& where() const { return where_; }

 private:
  Value value_;
  std::optional<double> number_;
  SourceLine where_;
};

Value operator+(const Operand& a, const Operand& b);
Value operator-(const Operand& a, const Operand& b);
Value operator*(const Operand& a, const Operand& b);
Value operator/(const Operand& a, const Operand& b);
Value operator-(const Operand& x);

namespace ops {

Value Neg(const Operand& x);
Value Abs(const Operand& x);
Value Sign(const Operand& x);
Value Round(const Operand& x);
Value Floor(const Operand& x);
Value Ceil(const Operand& x);
// Subnormals of f32 and bf16 become zero.
Value Flush(const Operand& x);
Value Sqrt(const Operand& x);
Value Rsqrt(const Operand& x);
Value Cbrt(const Operand& x);
Value Exp(const Operand& x);
Value Expm1(const Operand& x);
Value Log(const Operand& x);
Value Log1p(const Operand& x);
Value Sin(const Operand& x);
Value Cos(const Operand& x);
Value Tanh(const Operand& x);
Value Logistic(const Operand& x);
Value Erf(const Operand& x);

Value Add(const Operand& a, const Operand& b);
Value Sub(const Operand& a, const Operand& b);
Value Mul(const Operand& a, const Operand& b);
Value Div(const Operand& a, const Operand& b);
Value Max(const Operand& a, const Operand& b);
Value Min(const Operand& a, const Operand& b);

Value Pow(const Operand& a, const Operand& b);
// low <= high is not checked: where it fails, the result is high.
Value Clamp(const Operand& low, const Operand& x, const Operand& high);
Value IntegerPow(const Operand& x, int64_t exponent);
// x rounded to floats with so many bits, in its own dtype; see kernels::ReducePrecision.
Value ReducePrecision(const Operand& x, int exponent_bits, int mantissa_bits);

Value And(const Operand& a, const Operand& b);
Value Or(const Operand& a, const Operand& b);
Value Not(const Operand& x);
Value IsFinite(const Operand& x);

Value Equal(const Operand& a, const Operand& b);
Value NotEqual(const Operand& a, const Operand& b);
Value Less(const Operand& a, const Operand& b);
Value LessEqual(const Operand& a, const Operand& b);
Value Greater(const Operand& a, const Operand& b);
Value GreaterEqual(const Operand& a, const Operand& b);

// pred ? a : b, all three broadcast to one shape.
Value Select(const Operand& pred, const Operand& a, const Operand& b);

// x itself if it already has the dtype.
Value Cast(const Operand& x, DType dtype);
// The bits of x as another dtype of equal width; no gradient flows back. x itself if it already has the dtype.
Value Bitcast(const Value& x, DType dtype, const std::source_location& where = std::source_location::current());
Value StopGradient(const Operand& x);

// Over all axes, to a scalar.
Value ReduceSum(const Operand& x);
Value ReduceMax(const Operand& x);
Value ReduceMin(const Operand& x);
Value ReduceProd(const Operand& x);
// Over these axes; with keepdims they are kept with extent 1. x itself if `axes` is empty.
Value ReduceSum(const Operand& x, const Axes& axes, bool keepdims = false);
Value ReduceMax(const Operand& x, const Axes& axes, bool keepdims = false);
Value ReduceMin(const Operand& x, const Axes& axes, bool keepdims = false);
Value ReduceProd(const Operand& x, const Axes& axes, bool keepdims = false);
// The s32 numbers of the first maxima and minima along `axis`, which the result does not have; NaN wins.
Value ArgMax(const Operand& x, int64_t axis);
Value ArgMin(const Operand& x, int64_t axis);
Value CumulativeSum(const Operand& x, int64_t axis, bool reverse = false);

// Windows of x. Empty `stride`, `low` and `high` are ones and zeros.
Value ReduceWindowSum(const Operand& x, const WindowDims& dims);
Value ReduceWindowMax(const Operand& x, const WindowDims& dims);
Value ReduceWindowMin(const Operand& x, const WindowDims& dims);
// The row-major numbers in x, s32, of the first maxima and minima of its windows.
Value WindowArgMax(const Operand& x, const WindowDims& dims);
Value WindowArgMin(const Operand& x, const WindowDims& dims);

// x's axes become the last axes of `shape`; extent 1 is stretched. x itself if it already has the shape.
Value BroadcastTo(const Operand& x, const Shape& shape);
// Axis i of x becomes axis axes[i] (ascending) of `shape`.
Value BroadcastInDim(const Operand& x, const Shape& shape, const Axes& axes);
// x itself if it already has the shape. One extent may be -1: it is inferred.
Value Reshape(const Operand& x, const Shape& shape);
Value Transpose(const Operand& x, const Axes& permutation);
// Stride 1 by default.
Value Slice(const Operand& x, const PerAxis& start, const PerAxis& limit, const PerAxis& stride = {});
Value Pad(const Operand& x, const PerAxis& low, const PerAxis& high, const PerAxis& interior = {}, double value = 0);
Value Reverse(const Operand& x, const Axes& axes);
Value Concatenate(absl::Span<const Value> parts, int64_t axis,
                  const std::source_location& where = std::source_location::current());

// Slices of x along `axis` by number; the axes of `indices` take the place of `axis`. Indices out of range count as the
// nearest one in range; they do not count from the end.
Value Take(const Operand& x, const Operand& indices, int64_t axis = 0);
// Zeros with `extent` places along `axis`, to which the updates are added; updates' axes from `axis` on are those of
// `indices`.
Value ScatterAdd(const Operand& indices, const Operand& updates, int64_t extent, int64_t axis = 0);

// 0, 1, 2, ... along `axis`.
Value Iota(DType dtype, const Shape& shape, int64_t axis,
           const std::source_location& where = std::source_location::current());
// 32 random bits per element, u32, from a key u32[2].
Value RandomBits(const Operand& key, const Shape& shape);

// `out` defaults to the dtype of lhs, or s32 for integers. Operands have one dtype, or are both integers, or lhs is
// f16, bf16 or f32 and rhs s8, s4 or s2: their sums are those of aqt/kernels/digits/digits.h.
Value DotGeneral(const Operand& lhs, const Operand& rhs, const DotDims& dims, std::optional<DType> out = std::nullopt);
// Contracts lhs's last axis with rhs's first: [..., K] x [K, ...].
Value MatMul(const Operand& lhs, const Operand& rhs);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_GRAPH_BASIC_OPS_H_
