#ifndef AQT_TRANSFORMS_PRECISION_SCALED_H_
#define AQT_TRANSFORMS_PRECISION_SCALED_H_

// Scaled arrays and the operations on them (after jax-scalify): a value is data * scale, where scale is a scalar that
// may have its own dtype. The transform Scalify (scalify.h) applies these rules to a program. All functions work both
// eagerly and in a trace.

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

// The value data * scale; the scale is a scalar.
struct ScaledValue {
  Value data, scale;
};

// How a scale is rounded to a power of two.
enum class ScaleRounding {
  kNone,  // not rounded
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
  // Zeros, non-finite numbers, powers, sums and rescalings give scales of 0 and infinity to values that are neither.
  bool degenerate_scales = false;
  static ScalifyCompat Original();
};

// How the scales of a quantized contraction's operands are treated (ops/contraction/aqt_dot_general.h).
enum class ScalePolicy {
  // The data are quantized, and the scales are multiplied onto the product; the same in both gradients. An operand
  // whose range does not follow its scale is unscaled first: one with a fixed range, statistics, po2_scale, mid alphas,
  // or a given scale.
  kPropagate,
  // All operands are unscaled first, and results have no scale.
  kUnscale,
};

// The settings that all rules share.
struct ScalifyRules {
  ScaleRounding rounding = ScaleRounding::kDown;  // for add, sub, dot_general and reduce_sum
  // The dtype of scales of constants that become scaled; null: the constant's dtype.
  std::optional<DType> scale_dtype = std::nullopt;
  ScalifyCompat compat = {};
  ScalePolicy quantized = ScalePolicy::kPropagate;
};

namespace scaled {

// ---- powers of two

// The parts of x = scale * mantissa.
struct Pow2Parts {
  Value scale, mantissa;
};
// x as a power-of-two scale and a mantissa. The scale, of scale_dtype (null: that of x), is the power of two at or
// below |x|: 0 for 0 and for a subnormal f32, infinite for an infinity or a NaN. The mantissa, of x's dtype, has a
// magnitude in [1, 2), or is x / 2^-126 where the scale is 0 or infinite.
Pow2Parts Pow2Decompose(const Value& x, std::optional<DType> scale_dtype = std::nullopt);
// x rounded to a power of two, in x's dtype.
Value Pow2Round(const Value& x, ScaleRounding rounding);
// The sign and the exponent of x: the power of two at or below |x| with x's sign; a signed zero for a subnormal.
Value Pow2Truncate(const Value& x);
// The biased exponent of max(x, 0) as a byte; 255 for an infinity and NaN, 0 for numbers below 2^-126.
Value AsE8M0(const Value& x);
// 2^(byte - 127); infinite for 255.
Value FromE8M0(const Value& bytes, DType dtype);

// ---- creating and converting

// A scalar as mantissa and power of two. The power is within the range of its dtype, and 0 for 0. A non-finite number
// keeps its data, with the scale `otherwise`, or 1.
ScaledValue MakeScaledScalar(const Value& x, std::optional<DType> scale_dtype = std::nullopt,
                             const ScalifyRules& rules = {}, const std::optional<Value>& otherwise = std::nullopt);
// x as a scaled value: divided by `scale`. Without `scale`, a scalar is split (MakeScaledScalar) and others get the
// scale 1.
ScaledValue AsScaled(const Value& x, const std::optional<Value>& scale = std::nullopt, const ScalifyRules& rules = {});
// data * scale in this dtype (null: that of the data), rounded once if the scale is a power of two. The original
// converts both before it multiplies, so a scale outside of the dtype's range becomes 0 or infinite.
Value ToArray(const ScaledValue& x, std::optional<DType> dtype = std::nullopt, const ScalifyRules& rules = {});

// The same value with another scale; the data become 0 if that scale is 0.
ScaledValue SetScaling(const ScaledValue& x, const Value& scale, const ScalifyRules& rules = {});
ScaledValue SetScaling(const Value& plain, const Value& scale, const ScalifyRules& rules = {});
// SetScaling with scale * factor.
ScaledValue Rebalance(const ScaledValue& x, const Value& factor, const ScalifyRules& rules = {});
// Rebalances x by the largest magnitude of the data, so that it becomes about 1. The factor is a power of two and at
// least 2^-14. The scale stays within the range of its dtype, and is kept if the factor is not finite.
ScaledValue DynamicRescaleMax(const ScaledValue& x, const ScalifyRules& rules = {});
// As DynamicRescaleMax, by the mean magnitude.
ScaledValue DynamicRescaleL1(const ScaledValue& x, const ScalifyRules& rules = {});
// As DynamicRescaleMax, by the root mean square.
ScaledValue DynamicRescaleL2(const ScaledValue& x, const ScalifyRules& rules = {});

// ---- rules of operations. The scales of sums, choices and powers stay finite.

// x + y, with the scale sqrt(x.scale^2 + y.scale^2), rounded as the rules say.
ScaledValue Add(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {});
// x - y, with the scale of Add.
ScaledValue Sub(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {});
// x * y; the scales are multiplied.
ScaledValue Mul(const ScaledValue& x, const ScaledValue& y);
// x / y; the scales are divided.
ScaledValue Div(const ScaledValue& x, const ScaledValue& y);
// max(x, y), with the larger scale. `x_fits`, `y_fits`: whether an operand is known to hold only zeros and infinities,
// so that its data can be compared with any other data; then the other scale is used. By default this is read from the
// operand if it is an array.
ScaledValue Max(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {},
                std::optional<bool> x_fits = std::nullopt, std::optional<bool> y_fits = std::nullopt);
// min(x, y); otherwise as Max.
ScaledValue Min(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {},
                std::optional<bool> x_fits = std::nullopt, std::optional<bool> y_fits = std::nullopt);
// x compared with y, by their values in f32 (f64 for f64 data): a plain bool array.
Value Compare(kernels::CompareKind kind, const ScaledValue& x, const ScaledValue& y);
// The parts in order along `axis`, with their largest scale.
ScaledValue Concatenate(absl::Span<const ScaledValue> parts, int64_t axis, const ScalifyRules& rules = {});
// pred ? x : y, with the larger scale.
ScaledValue Select(const Value& pred, const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules = {});
// For sums of products of data with these scales, the scale is their product. With `terms`, the number of products in a
// sum, the sums are divided by its square root, rounded as the rules say, and the scale is multiplied by it.
ScaledValue SumsOfProducts(const Value& sums, absl::Span<const Value> scales, std::optional<int64_t> terms,
                           const ScalifyRules& rules = {});
// A dot_general of scaled operands. The sums of the data are divided by the square root of the number of terms, rounded
// as the rules say.
ScaledValue DotGeneral(const ScaledValue& x, const ScaledValue& y, const DotDims& dims, DType out,
                       const ScalifyRules& rules = {});
// The sum over `axes`. The sums are divided and scaled as in DotGeneral.
ScaledValue ReduceSum(const ScaledValue& x, const Axes& axes, bool keepdims, const ScalifyRules& rules = {});
// The product over `axes`; the scale is that of x to the power of the number of factors. The scale of the operand is
// first limited to the powers of two whose n-th power its dtype holds.
ScaledValue ReduceProd(const ScaledValue& x, const Axes& axes, bool keepdims, const ScalifyRules& rules = {});
// x^exponent, for data and scale. The scale is limited as in ReduceProd.
ScaledValue IntegerPow(const ScaledValue& x, int64_t exponent, const ScalifyRules& rules = {});
// The square roots of the data and of the scale.
ScaledValue Sqrt(const ScaledValue& x);
// The signs of the data, with scale 1.
ScaledValue Sign(const ScaledValue& x);
// A plain bool array: whether both the element and the scale are finite.
Value IsFinite(const ScaledValue& x);
ScaledValue Exp(const ScaledValue& x);  // e^x, with scale 1
ScaledValue Log(const ScaledValue& x);  // ln x, with scale 1

}  // namespace scaled
}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_SCALED_H_
