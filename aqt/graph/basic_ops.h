#ifndef AQT_GRAPH_BASIC_OPS_H_
#define AQT_GRAPH_BASIC_OPS_H_

// The basic operations as functions of Values, in namespace aqt::ops, and `+ - * /`. A call either runs at once or is
// recorded (trace.h). op.h defines what each operation computes. These functions add:
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

// A Value or a number, with the source line of the call. Arguments convert to it; callers need not name it.
class ValueOrNumber {
 public:
  ValueOrNumber(Value value, const std::source_location& where = std::source_location::current())  // NOLINT
      : value_(std::move(value)), where_(where) {}
  ValueOrNumber(double number, const std::source_location& where = std::source_location::current())  // NOLINT
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

Value operator+(const ValueOrNumber& a, const ValueOrNumber& b);
Value operator-(const ValueOrNumber& a, const ValueOrNumber& b);
Value operator*(const ValueOrNumber& a, const ValueOrNumber& b);
Value operator/(const ValueOrNumber& a, const ValueOrNumber& b);
Value operator-(const ValueOrNumber& x);

namespace ops {

Value Neg(const ValueOrNumber& x);    // -x
Value Abs(const ValueOrNumber& x);    // |x|
Value Sign(const ValueOrNumber& x);   // -1, 0 or 1; zeros and NaN stay
Value Round(const ValueOrNumber& x);  // to an integer, ties to even
Value Floor(const ValueOrNumber& x);  // the largest integer <= x
Value Ceil(const ValueOrNumber& x);   // the smallest integer >= x
// Subnormals of f32 and bf16 become zero of the same sign.
Value Flush(const ValueOrNumber& x);
Value Sqrt(const ValueOrNumber& x);      // correctly rounded; NaN below 0
Value Rsqrt(const ValueOrNumber& x);     // 1 / sqrt(x)
Value Cbrt(const ValueOrNumber& x);      // the cube root, with x's sign
Value Exp(const ValueOrNumber& x);       // e^x
Value Expm1(const ValueOrNumber& x);     // e^x - 1
Value Log(const ValueOrNumber& x);       // ln(x)
Value Log1p(const ValueOrNumber& x);     // ln(1 + x)
Value Sin(const ValueOrNumber& x);       // the sine; x in radians
Value Cos(const ValueOrNumber& x);       // the cosine; x in radians
Value Tanh(const ValueOrNumber& x);      // the hyperbolic tangent
Value Logistic(const ValueOrNumber& x);  // 1 / (1 + e^-x)
Value Erf(const ValueOrNumber& x);       // the error function

Value Add(const ValueOrNumber& a, const ValueOrNumber& b);  // a + b
Value Sub(const ValueOrNumber& a, const ValueOrNumber& b);  // a - b
Value Mul(const ValueOrNumber& a, const ValueOrNumber& b);  // a * b
Value Div(const ValueOrNumber& a, const ValueOrNumber& b);  // a / b; s32 rounds toward zero
Value Max(const ValueOrNumber& a, const ValueOrNumber& b);  // the larger one; NaN if either is NaN
Value Min(const ValueOrNumber& a, const ValueOrNumber& b);  // the smaller one; NaN if either is NaN

Value Pow(const ValueOrNumber& a, const ValueOrNumber& b);  // a^b, for floats
// min(max(x, low), high). low <= high is not checked: where it fails, the result is high.
Value Clamp(const ValueOrNumber& low, const ValueOrNumber& x, const ValueOrNumber& high);
Value IntegerPow(const ValueOrNumber& x, int64_t exponent);  // x^exponent, by repeated multiplication
// x rounded to a float format with these exponent and mantissa bits, in its own dtype; see kernels::ReducePrecision.
Value ReducePrecision(const ValueOrNumber& x, int exponent_bits, int mantissa_bits);

Value And(const ValueOrNumber& a, const ValueOrNumber& b);  // logical and of bool
Value Or(const ValueOrNumber& a, const ValueOrNumber& b);   // logical or of bool
Value Not(const ValueOrNumber& x);                          // logical not of bool
Value IsFinite(const ValueOrNumber& x);                     // neither infinite nor NaN; the result is bool

Value Equal(const ValueOrNumber& a, const ValueOrNumber& b);         // a == b; the result is bool
Value NotEqual(const ValueOrNumber& a, const ValueOrNumber& b);      // a != b; the only comparison that holds for NaN
Value Less(const ValueOrNumber& a, const ValueOrNumber& b);          // a < b
Value LessEqual(const ValueOrNumber& a, const ValueOrNumber& b);     // a <= b
Value Greater(const ValueOrNumber& a, const ValueOrNumber& b);       // a > b
Value GreaterEqual(const ValueOrNumber& a, const ValueOrNumber& b);  // a >= b

// pred ? a : b, all three broadcast to one shape.
Value Select(const ValueOrNumber& pred, const ValueOrNumber& a, const ValueOrNumber& b);

// x converted to `dtype`, rounded once; x itself if it already has the dtype.
Value Cast(const ValueOrNumber& x, DType dtype);
// The bits of x as another dtype of equal width; x itself if it already has the dtype. No gradient flows back.
Value Bitcast(const Value& x, DType dtype, const std::source_location& where = std::source_location::current());
Value StopGradient(const ValueOrNumber& x);  // x; no gradient flows back

// The sum over all axes, as a scalar.
Value ReduceSum(const ValueOrNumber& x);
Value ReduceMax(const ValueOrNumber& x);   // the maximum over all axes
Value ReduceMin(const ValueOrNumber& x);   // the minimum over all axes
Value ReduceProd(const ValueOrNumber& x);  // the product over all axes
// Over these axes; with keepdims they are kept with extent 1. x itself if `axes` is empty.
Value ReduceSum(const ValueOrNumber& x, const Axes& axes, bool keepdims = false);
Value ReduceMax(const ValueOrNumber& x, const Axes& axes, bool keepdims = false);
Value ReduceMin(const ValueOrNumber& x, const Axes& axes, bool keepdims = false);
Value ReduceProd(const ValueOrNumber& x, const Axes& axes, bool keepdims = false);
// The s32 index of the first maximum along `axis`; NaN wins. The result does not have the axis.
Value ArgMax(const ValueOrNumber& x, int64_t axis);
// The s32 index of the first minimum, otherwise as ArgMax.
Value ArgMin(const ValueOrNumber& x, int64_t axis);
// Sums of the elements up to and including each one along `axis`; with `reverse`, from each one on.
Value CumulativeSum(const ValueOrNumber& x, int64_t axis, bool reverse = false);

// The sum of each window of x. An empty `stride` means ones; an empty `low` or `high` means zeros.
Value ReduceWindowSum(const ValueOrNumber& x, const WindowDims& dims);
Value ReduceWindowMax(const ValueOrNumber& x, const WindowDims& dims);  // the maximum of each window
Value ReduceWindowMin(const ValueOrNumber& x, const WindowDims& dims);  // the minimum of each window
// The row-major index in x, s32, of the first maximum of each window.
Value WindowArgMax(const ValueOrNumber& x, const WindowDims& dims);
Value WindowArgMin(const ValueOrNumber& x, const WindowDims& dims);  // the same for the first minimum

// x's axes become the last axes of `shape`; extent 1 is stretched. x itself if it already has the shape.
Value BroadcastTo(const ValueOrNumber& x, const Shape& shape);
// Axis i of x becomes axis axes[i] (ascending) of `shape`.
Value BroadcastInDim(const ValueOrNumber& x, const Shape& shape, const Axes& axes);
// x with another shape and the same row-major order; x itself if it already has the shape. One extent may be -1: it is
// inferred.
Value Reshape(const ValueOrNumber& x, const Shape& shape);
// Axis i of the result is axis permutation[i] of x.
Value Transpose(const ValueOrNumber& x, const Axes& permutation);
// Elements start, start + stride, ... below limit, for each axis. The stride defaults to 1.
Value Slice(const ValueOrNumber& x, const PerAxis& start, const PerAxis& limit, const PerAxis& stride = {});
// Adds elements of `value`: `interior` between neighbours, `low` before and `high` after. A negative `low` or `high`
// removes elements.
Value Pad(const ValueOrNumber& x, const PerAxis& low, const PerAxis& high, const PerAxis& interior = {},
          double value = 0);
// The elements along each of these axes in reverse order.
Value Reverse(const ValueOrNumber& x, const Axes& axes);
// The parts joined along `axis`; their other extents are equal.
Value Concatenate(absl::Span<const Value> parts, int64_t axis,
                  const std::source_location& where = std::source_location::current());

// Slices of x along `axis`, selected by index; the axes of `indices` replace `axis`. Indices are clamped to the valid
// range; negative ones do not count from the end.
Value Take(const ValueOrNumber& x, const ValueOrNumber& indices, int64_t axis = 0);
// Zeros of extent `extent` along `axis`, to which the updates are added. The axes of `indices` take the place of `axis`
// in `updates`.
Value ScatterAdd(const ValueOrNumber& indices, const ValueOrNumber& updates, int64_t extent, int64_t axis = 0);

// The index along `axis`: 0, 1, 2, ...
Value Iota(DType dtype, const Shape& shape, int64_t axis,
           const std::source_location& where = std::source_location::current());
// 32 random bits per element, u32, from a key u32[2].
Value RandomBits(const ValueOrNumber& key, const Shape& shape);

// The contraction of lhs and rhs, see DotGeneralOp. `out` defaults to the dtype of lhs, or to s32 for integers.
// Operands have one dtype, or both are integers, or lhs is f16, bf16 or f32 and rhs is s8, s4 or s2; the sums of the
// last kind are those of aqt/kernels/digits/digits.h.
Value DotGeneral(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const DotDims& dims,
                 std::optional<DType> out = std::nullopt);
// Contracts lhs's last axis with rhs's first: [..., K] x [K, ...].
Value MatMul(const ValueOrNumber& lhs, const ValueOrNumber& rhs);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_GRAPH_BASIC_OPS_H_
