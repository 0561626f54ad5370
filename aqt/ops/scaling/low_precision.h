#ifndef AQT_OPS_SCALING_LOW_PRECISION_H_
#define AQT_OPS_SCALING_LOW_PRECISION_H_

// Functions that round every step to a small float format, cheap approximations of the softmax, and rows of integers,
// as in AQT's older layers (jax_legacy). They simulate: all numbers are held in f32 or bf16. The layers of aqt/nn offer
// them as options.

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/value.h"

namespace aqt {

// A float format with values +-2^e * (1 + i / 2^mantissa_bits), e from min_exponent to max_exponent, and 0. It has no
// infinities, NaN or subnormal numbers. Legal: -126 <= min_exponent <= max_exponent <= 127, 1 to 22 mantissa bits.
struct SmallFloat {
  int min_exponent = -6, max_exponent = 8, mantissa_bits = 3;
  static constexpr const char* kFieldNames[] = {"min_exponent", "max_exponent", "mantissa_bits"};
  bool operator==(const SmallFloat&) const = default;

  double max() const;  // 2^max_exponent * (2 - 2^-mantissa_bits)
  double min() const;  // 2^min_exponent
  // x in the format: the mantissa is rounded to nearest, ties to even; then the result is at most max(), and +0 below
  // min(). A subnormal number counts as 0; an infinity and NaN stay. Precondition: the format is legal.
  float Round(float x) const;
};

// InvalidArgument, naming the field, if the format is not legal.
absl::Status Validate(const SmallFloat& format);

namespace internal {

// The operation low_precision_sum, whose fields are its format (graph/composite_fields.h). InvalidArgument as Validate.
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const SmallFloat& format);

}  // namespace internal

// The format of a function's steps, and of each addition in its sums; null: sums are those of ReduceSum.
struct LowPrecision {
  SmallFloat steps = {};
  std::optional<SmallFloat> sums = std::nullopt;
};

// A softmax of straight lines. With x the argument minus its maximum (0 if the maximum is not finite):
//   e = clamp(1 + exp_slope * x, 0, 1), or exp(x) without a slope; x is first clamped to [exp_low, 0], if given
//   s = sum(e), clamped to [1, sum_high], if given
//   r = clamp(1 + reciprocal_slope - reciprocal_slope * s, reciprocal_low, 1), or 1 / s without a slope
//   y = e * r
// Slopes are positive, exp_low is negative, sum_high at least 1, reciprocal_low in [0, 1].
struct SoftmaxApproximation {
  std::optional<double> exp_slope = std::nullopt, exp_low = std::nullopt, sum_high = std::nullopt;
  std::optional<double> reciprocal_slope = std::nullopt;
  double reciprocal_low = 0;
};

namespace ops {

// SmallFloat::Round of each element of x, f32 or bf16. The gradient is that of clamp(x, -max, max), 1/2 at the bounds.
// Poisoned, like all functions below: InvalidArgument for another dtype or an illegal format.
Value RoundToSmallFloat(const ValueOrNumber& x, const SmallFloat& format);

// 0 + x_0 + x_1 + ..., rounded to `format` after each addition, over `axes`, in row-major order. The gradient is that
// of an ordinary sum.
Value LowPrecisionSum(const ValueOrNumber& x, const Axes& axes, const SmallFloat& format, bool keepdims = false);

// With q rounding to precision.steps, over one axis:
//   d = q(q(x) - max(q(x))), e = q(exp(d)), y = q(e * q(1 / q(sum(e))))
// The gradient is that of these steps, with the gradients of the two functions above; it includes the maximum.
Value LowPrecisionSoftmax(const ValueOrNumber& x, const LowPrecision& precision, int64_t axis = -1);

// The softmax of SoftmaxApproximation over one axis. Any arithmetic float type.
Value ApproximateSoftmax(const ValueOrNumber& x, const SoftmaxApproximation& approximation, int64_t axis = -1);

// x rounded to rows of `bits`-bit integers with one scale per row, and converted back, in f32: with B = 2^(bits-1) - 1
// (1/4 for one bit) and
//   scale = B / (max|x| + 2^-23) over the last axis
//   y = floor(clamp(x * scale, -B, B) + 1/2) / scale
// With half_shift B = 2^(bits-1), and y = (floor(clamp(x * scale, -b, b)) + 1/2) / scale with b = B - 2^-7: the values
// are the odd halves. The result is rounded to the dtype of x. No gradient flows through the scale, and it passes
// straight through floor. 1 to 24 bits.
Value RoundRowsToIntegers(const ValueOrNumber& x, int bits, bool half_shift = false);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_SCALING_LOW_PRECISION_H_
