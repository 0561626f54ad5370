#ifndef AQT_TRANSFORMS_PRECISION_SCALED_H_
#define AQT_TRANSFORMS_PRECISION_SCALED_H_

// Scaled arrays and what operations do with them (after jax-scalify): a value is data * scale, where scale is a scalar
// that may have a dtype of its own. The transform Scalify (scalify.h) applies these rules to a program. Everything here
// works at once and in a trace.

#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/kernels/elementwise/elementwise.h"

namespace aqt {

struct ScaledValue {
  Value data, scale;
};

// How a scale becomes a power of two.
enum class ScaleRounding {
  kNone,  // not at all
  kDown,
  kUp,  // twice the power of two at or below: an exact power of two is doubled
};

// jax-scalify's behaviour where ours differs; all false by default. docs/differences-from-scalify.md explains each.
struct ScalifyCompat {
  bool select_divides_by_zero_scale = false;  // trap 3
  bool exp_keeps_zero = false;                // trap 4
  bool min_max_compare_raw_data = false;      // trap 5
  bool missing_rules_are_errors = false;      // tanh, logistic, erf, rsqrt, pow, take, clamp, cumulative sum
  bool dot_has_one_contracting_axis = false;  // and no batch axes
  bool plain_arrays_do_not_mix = false;       // add, sub and div of a scaled and a plain array
  // Zeros, numbers that are not finite, powers, sums and rescalings give scales of 0 and infinity to values that are
  // neither.
  bool degenerate_scales = false;
  static ScalifyCompat Original();
};

// What becomes of the scales of a quantized contraction's operands (ops/aqt_dot_general.h).
enum class ScalePolicy {
  // The data are quantized, and the scales are multiplied behind the product; the same in both gradients. An operand
  // whose range does not follow it is unscaled first: one with a fixed range, with statistics, with po2_scale, with
  // mid alphas, or given with a scale of its own.
  kPropagate,
  // All operands are unscaled first, and results have no scale.
  kUnscale,
};

struct ScalifyRules {
  ScaleRounding rounding = ScaleRounding::kDown;  // of add, sub, dot_general and reduce_sum
  // Of constants that become scaled; null: their own.
  std::optional<DType> scale_dtype = std::nullopt;
  ScalifyCompat compat = {};
  ScalePolicy quantized = ScalePolicy::kPropagate;
};

namespace scaled {

// ---- powers of two

// x = scale * mantissa. scale, of scale_dtype (null: that of x), is the power of two at or below |x|: 0 of 0 and of a
// subnormal f32, infinite of an infinity or a NaN. The mantissa, of x's dtype, has a magnitude in [1, 2), or is
// x / 2^-126 where the scale is 0 or infinite.
struct Pow2Parts {
  Value scale, mantissa;
};
Pow2Parts Pow2Decompose(const Value& x, std::optional<DType> scale_dtype = std::nullopt);
// In x's dtype.
Value Pow2Round(const Value& x, ScaleRounding rounding);
// The sign and the exponent of x: the power of two at or below |x| with x's sign; a zero of a subnormal.
Value Pow2Truncate(const Value& x);
// The biased exponent of max(x, 0) as a byte; 255 for an infinity and NaN, 0 for what is below 2^-126.
Value AsE8M0(const Value& x);
// 2^(byte - 127); infinite for 255.
Value FromE8M0(const Value& bytes, DType dtype);

// ---- making and reading

// A scalar as mantissa and power of two. The power is within the range of its dtype, and 0 for 0. What is not finite
// keeps its data, with the scale `otherwise`, or 1.
ScaledValue MakeScaledScalar(const Value& x, std::optional<DType> scale_dtype = std::nullopt,
                             const ScalifyRules& rules = {}, const std::optional<Value>& otherwise = std::nullopt);
// x as a scaled value: divided by `scale`; without one a scalar is split (MakeScaledScalar) and others get the scale 1.
ScaledValue AsScaled(const Value& x, const std::optional<Value>& scale = std::nullopt, const ScalifyRules& rules = {});
// data * scale in this dtype (null: that of the data), rounded once if the scale is a power of two. The original
// converts both before it multiplies, so that a scale which the dtype does not hold is 0 or infinite.
Value ToArray(const ScaledValue& x, std::optional<DType> dtype = std::nullopt, const ScalifyRules& rules = {});

// The same value with another scale; data 0 if that is 0.
ScaledValue SetScaling(const ScaledValue& x, const Value& scale, const ScalifyRules& rules = {});
ScaledValue SetScaling(const Value& plain, const Value& scale, const ScalifyRules& rules = {});
// SetScaling with scale * factor.
ScaledValue Rebalance(const ScaledValue& x, const Value& factor, const ScalifyRules& rules = {});
// With a scale such that the largest magnitude, the mean magnitude or the root mean square of the data is about 1:
// Rebalance by that norm, a power of two and at least 2^-14. The scale stays within the range of its dtype, and is kept
// where the norm is not finite.
ScaledValue DynamicRescaleMax(const ScaledValue& x, const ScalifyRules& rules = {});
ScaledValue DynamicRescaleL1(const ScaledValue& x, const ScalifyRules& rules = {});
ScaledValue DynamicRescaleL2(const ScaledValue& x, const ScalifyRules& rules = {});

// ---- rules of operations. The scales of sums, choices and powers stay finite.

ScaledValue Add(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {});
ScaledValue Sub(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {});
ScaledValue Mul(const ScaledValue& x, const ScaledValue& y);
ScaledValue Div(const ScaledValue& x, const ScaledValue& y);
// `x_fits`, `y_fits`: whether an operand is known to hold only zeros and infinities, so that its data can be compared
// with any other data. The default: whether an array shows it.
ScaledValue Max(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {},
                std::optional<bool> x_fits = std::nullopt, std::optional<bool> y_fits = std::nullopt);
ScaledValue Min(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {},
                std::optional<bool> x_fits = std::nullopt, std::optional<bool> y_fits = std::nullopt);
// A plain bool, by the values in f32.
Value Compare(kernels::CompareKind kind, const ScaledValue& x, const ScaledValue& y);
ScaledValue Concatenate(absl::Span<const ScaledValue> parts, int64_t axis, const ScalifyRules& rules = {});
// pred ? x : y
ScaledValue Select(const Value& pred, const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {});
// Sums of products of data that have these scales: the scale is their product. With `terms`, the number of products in
// a sum, sums are divided by its root, rounded as the rules say, and the scale is multiplied by it.
ScaledValue SumsOfProducts(const Value& sums, absl::Span<const Value> scales, std::optional<int64_t> terms,
                           const ScalifyRules& rules = {});
// Sums of data are divided by the root of their number, rounded as the rules say.
ScaledValue DotGeneral(const ScaledValue& x, const ScaledValue& y, const DotDims& dims, DType out,
                       const ScalifyRules& rules = {});
ScaledValue ReduceSum(const ScaledValue& x, const Axes& axes, bool keepdims, const ScalifyRules& rules = {});
// The scale of the operand is first limited to the powers of two whose n-th power its dtype holds.
ScaledValue ReduceProd(const ScaledValue& x, const Axes& axes, bool keepdims, const ScalifyRules& rules = {});
ScaledValue IntegerPow(const ScaledValue& x, int64_t exponent, const ScalifyRules& rules = {});
ScaledValue Sqrt(const ScaledValue& x);
ScaledValue Sign(const ScaledValue& x);
Value IsFinite(const ScaledValue& x);
ScaledValue Exp(const ScaledValue& x);  // scale 1
ScaledValue Log(const ScaledValue& x);  // scale 1

}  // namespace scaled
}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_SCALED_H_
