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

Value Neg(const Operand& x);    // -x
Value Abs(const Operand& x);    // |x|
Value Sign(const Operand& x);   // -1, 0 or 1; zeros and NaN stay
Value Round(const Operand& x);  // to an integer, ties to even
Value Floor(const Operand& x);  // the largest integer <= x
Value Ceil(const Operand& x);   // the smallest integer >= x
// Subnormals of f32 and bf16 become zero of the same sign.
Value Flush(const Operand& x);
Value Sqrt(const Operand& x);      // correctly rounded; NaN below 0
Value Rsqrt(const Operand& x);     // 1 / sqrt(x)
Value Cbrt(const Operand& x);      // the cube root, with x's sign
Value Exp(const Operand& x);       // e^x
Value Expm1(const Operand& x);     // e^x - 1
Value Log(const Operand& x);       // ln(x)
Value Log1p(const Operand& x);     // ln(1 + x)
Value Sin(const Operand& x);       // the sine; x in radians
Value Cos(const Operand& x);       // the cosine; x in radians
Value Tanh(const Operand& x);      // the hyperbolic tangent
Value Logistic(const Operand& x);  // 1 / (1 + e^-x)
Value Erf(const Operand& x);       // the error function

Value Add(const Operand& a, const Operand& b);  // a + b
Value Sub(const Operand& a, const Operand& b);  // a - b
Value Mul(const Operand& a, const Operand& b);  // a * b
Value Div(const Operand& a, const Operand& b);  // a / b; s32 rounds toward zero
Value Max(const Operand& a, const Operand& b);  // the larger one; NaN if either is NaN
Value Min(const Operand& a, const Operand& b);  // the smaller one; NaN if either is NaN

Value Pow(const Operand& a, const Operand& b);  // a^b, for floats
// min(max(x, low), high). low <= high is not checked: where it fails, the result is high.
Value Clamp(const Operand& low, const Operand& x, const Operand& high);
Value IntegerPow(const Operand& x, int64_t exponent);  // x^exponent, by repeated multiplication
// x rounded to a float format with these exponent and mantissa bits, in its own dtype; see kernels::ReducePrecision.
Value ReducePrecision(const Operand& x, int exponent_bits, int mantissa_bits);

Value And(const Operand& a, const Operand& b);  // logical and of bool
Value Or(const Operand& a, const Operand& b);   // logical or of bool
Value Not(const Operand& x);                    // logical not of bool
Value IsFinite(const Operand& x);               // neither infinite nor NaN; the result is bool

Value Equal(const Operand& a, const Operand& b);         // a == b; the result is bool
Value NotEqual(const Operand& a, const Operand& b);      // a != b; the only comparison that holds for NaN
Value Less(const Operand& a, const Operand& b);          // a < b
Value LessEqual(const Operand& a, const Operand& b);     // a <= b
Value Greater(const Operand& a, const Operand& b);       // a > b
Value GreaterEqual(const Operand& a, const Operand& b);  // a >= b

// pred ? a : b, all three broadcast to one shape.
Value Select(const Operand& pred, const Operand& a, const Operand& b);

// x converted to `dtype`, rounded once; x itself if it already has the dtype.
Value Cast(const Operand& x, DType dtype);
// The bits of x as another dtype of equal width; x itself if it already has the dtype. No gradient flows back.
Value Bitcast(const Value& x, DType dtype, const std::source_location& where = std::source_location::current());
Value StopGradient(const Operand& x);  // x; no gradient flows back

// The sum over all axes, as a scalar.
Value ReduceSum(const Operand& x);
Value ReduceMax(const Operand& x);   // the maximum over all axes
Value ReduceMin(const Operand& x);   // the minimum over all axes
Value ReduceProd(const Operand& x);  // the product over all axes
// Over these axes; with keepdims they are kept with extent 1. x itself if `axes` is empty.
Value ReduceSum(const Operand& x, const Axes& axes, bool keepdims = false);
Value ReduceMax(const Operand& x, const Axes& axes, bool keepdims = false);
Value ReduceMin(const Operand& x, const Axes& axes, bool keepdims = false);
Value ReduceProd(const Operand& x, const Axes& axes, bool keepdims = false);
// The s32 index of the first maximum along `axis`; NaN wins. The result does not have the axis.
Value ArgMax(const Operand& x, int64_t axis);
// The s32 index of the first minimum, otherwise as ArgMax.
Value ArgMin(const Operand& x, int64_t axis);
// Sums of the elements up to and including each one along `axis`; with `reverse`, from each one on.
Value CumulativeSum(const Operand& x, int64_t axis, bool reverse = false);

// The sum of each window of x. An empty `stride` means ones; an empty `low` or `high` means zeros.
Value ReduceWindowSum(const Operand& x, const WindowDims& dims);
Value ReduceWindowMax(const Operand& x, const WindowDims& dims);  // the maximum of each window
Value ReduceWindowMin(const Operand& x, const WindowDims& dims);  // the minimum of each window
// The row-major index in x, s32, of the first maximum of each window.
Value WindowArgMax(const Operand& x, const WindowDims& dims);
Value WindowArgMin(const Operand& x, const WindowDims& dims);  // the same for the first minimum

// x's axes become the last axes of `shape`; extent 1 is stretched. x itself if it already has the shape.
Value BroadcastTo(const Operand& x, const Shape& shape);
// Axis i of x becomes axis axes[i] (ascending) of `shape`.
Value BroadcastInDim(const Operand& x, const Shape& shape, const Axes& axes);
// x with another shape and the same row-major order; x itself if it already has the shape. One extent may be -1: it is
// inferred.
Value Reshape(const Operand& x, const Shape& shape);
// Axis i of the result is axis permutation[i] of x.
Value Transpose(const Operand& x, const Axes& permutation);
// Elements start, start + stride, ... below limit, for each axis. The stride defaults to 1.
Value Slice(const Operand& x, const PerAxis& start, const PerAxis& limit, const PerAxis& stride = {});
// Adds elements of `value`: `interior` between neighbours, `low` before and `high` after. A negative `low` or `high`
// removes elements.
Value Pad(const Operand& x, const PerAxis& low, const PerAxis& high, const PerAxis& interior = {}, double value = 0);
// The elements along each of these axes in reverse order.
Value Reverse(const Operand& x, const Axes& axes);
// The parts joined along `axis`; their other extents are equal.
Value Concatenate(absl::Span<const Value> parts, int64_t axis,
                  const std::source_location& where = std::source_location::current());

// Slices of x along `axis`, selected by index; the axes of `indices` replace `axis`. Indices are clamped to the valid
// range; negative ones do not count from the end.
Value Take(const Operand& x, const Operand& indices, int64_t axis = 0);
// Zeros of extent `extent` along `axis`, to which the updates are added. The axes of `indices` take the place of `axis`
// in `updates`.
Value ScatterAdd(const Operand& indices, const Operand& updates, int64_t extent, int64_t axis = 0);

// The index along `axis`: 0, 1, 2, ...
Value Iota(DType dtype, const Shape& shape, int64_t axis,
           const std::source_location& where = std::source_location::current());
// 32 random bits per element, u32, from a key u32[2].
Value RandomBits(const Operand& key, const Shape& shape);

// The contraction of lhs and rhs, see DotGeneralOp. `out` defaults to the dtype of lhs, or to s32 for integers.
// Operands have one dtype, or both are integers, or lhs is f16, bf16 or f32 and rhs is s8, s4 or s2; the sums of the
// last kind are those of aqt/kernels/digits/digits.h.
Value DotGeneral(const Operand& lhs, const Operand& rhs, const DotDims& dims, std::optional<DType> out = std::nullopt);
// Contracts lhs's last axis with rhs's first: [..., K] x [K, ...].
Value MatMul(const Operand& lhs, const Operand& rhs);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_GRAPH_BASIC_OPS_H_
