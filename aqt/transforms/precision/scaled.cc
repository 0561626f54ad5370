#include "aqt/transforms/precision/scaled.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/quant/numerics/arith.h"

namespace aqt {

ScalifyCompat ScalifyCompat::Original() {
  return {.select_divides_by_zero_scale = true,
          .exp_keeps_zero = true,
          .min_max_compare_raw_data = true,
          .missing_rules_are_errors = true,
          .dot_has_one_contracting_axis = true,
          .plain_arrays_do_not_mix = true,
          .degenerate_scales = true};
}

namespace scaled {
namespace {

using ::aqt::internal::Promote;

Value Number(double number, DType dtype) { return ValueOrNumber(number).As(dtype); }

// a / b, or 0 where b is 0.
Value SafeDiv(const Value& a, const Value& b) { return ops::Select(ops::Equal(b, 0.0), 0.0, a / b); }

// Both values in their common dtype.
std::pair<Value, Value> Unified(const Value& a, const Value& b) {
  const DType dtype = Promote(a.dtype(), b.dtype());
  return {ops::Cast(a, dtype), ops::Cast(b, dtype)};
}

// The dtype in which data are multiplied by their scale.
DType Wide(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

// The exponents of the powers of two in the range of a scale dtype. Subnormal numbers of f32 and bf16 count as zero.
struct Exponents {
  int64_t least, largest;
};
Exponents ExponentsOf(DType dtype) {
  const int64_t largest = std::min<int64_t>(std::ilogb(MaxFinite(dtype)), 127);
  switch (dtype) {
    case DType::kF16: return {-24, largest};
    case DType::kE5M2: return {-16, largest};
    case DType::kE4M3FN: return {-9, largest};
    default: return {-126, largest};
  }
}
// The exponents for the scale of a number. The product of two such scales is finite, and a number combined with a large
// one is not lost.
Exponents ExponentsOfNumbers(DType dtype) {
  const Exponents range = ExponentsOf(dtype);
  return {std::max<int64_t>(range.least, -63), std::min<int64_t>(range.largest, 63)};
}
Value Limited(const Value& scale, const Exponents& range) {
  return ops::Min(ops::Max(scale, std::ldexp(1.0, static_cast<int>(range.least))),
                  std::ldexp(1.0, static_cast<int>(range.largest)));
}

// Replaces an infinite scale by the largest finite one. Quotients of scales by it are then numbers, and multiplying
// data by an infinite quotient gives the right result.
Value Finite(const Value& scale, const ScalifyRules& rules) {
  return rules.compat.degenerate_scales ? scale : ops::Min(scale, MaxFinite(scale.dtype()));
}

// The power of two at or below |x|, f32.
Value FloorPow2(const Value& x) {
  const Value magnitude = ops::Abs(x);
  // The nearest power of two, which may be infinite.
  const Value nearest = ops::Min(ops::ReducePrecision(magnitude, 8, 0), 0x1p127);
  const Value power = ops::Flush(ops::Select(ops::Greater(nearest, magnitude), nearest * 0.5, nearest));
  return ops::Select(ops::IsFinite(x), power, static_cast<double>(INFINITY));
}

// x with this scale: the data are multiplied by the quotient of the scales, in their own dtype.
ScaledValue MovedTo(const ScaledValue& x, const Value& scale) {
  const auto [own, wanted] = Unified(x.scale, scale);
  return {x.data * ops::Cast(SafeDiv(own, wanted), x.data.dtype()), scale};
}

enum class Norm { kMax, kL1, kL2 };

ScaledValue DynamicRescale(const ScaledValue& x, Norm kind, const ScalifyRules& rules) {
  constexpr double kLeast = 0x1p-14;  // the power of two below 1e-4
  const DType scale_dtype = x.scale.dtype();
  Value norm;
  if (kind == Norm::kMax) {
    norm = Pow2Round(ops::ReduceMax(ops::Abs(x.data)), ScaleRounding::kDown);
    norm = ops::Max(ops::Cast(norm, scale_dtype), kLeast);
  } else {
    const Value data = ops::Cast(x.data, DType::kF32);
    const double count = static_cast<double>(x.data.shape().num_elements());
    norm = kind == Norm::kL1 ? ops::ReduceSum(ops::Abs(data)) / count : ops::Sqrt(ops::ReduceSum(data * data) / count);
    norm = ops::Cast(ops::Max(Pow2Round(norm, ScaleRounding::kDown), kLeast), scale_dtype);
  }
  if (rules.compat.degenerate_scales) return Rebalance(x, norm, rules);
  const Value scale = Limited(x.scale * norm, ExponentsOf(scale_dtype));
  return MovedTo(x, ops::Select(ops::And(ops::IsFinite(norm), ops::Greater(x.scale, 0.0)), scale, x.scale));
}

double LargestScale(DType dtype, ScaleRounding rounding) {
  if (rounding == ScaleRounding::kNone) return MaxFinite(dtype);
  return std::ldexp(1.0, static_cast<int>(ExponentsOf(dtype).largest));
}

enum class Sum { kAdd, kSub };

ScaledValue AddOrSub(Sum kind, const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules) {
  const auto [sx, sy] = Unified(x.scale, y.scale);
  const auto [dx, dy] = Unified(x.data, y.data);
  const Value largest = Finite(ops::Max(sx, sy), rules), ratio = SafeDiv(ops::Min(sx, sy), largest);
  Value scale = Pow2Round(largest * ops::Sqrt(ratio * ratio + 1.0), rules.rounding);
  if (!rules.compat.degenerate_scales) scale = ops::Min(scale, LargestScale(scale.dtype(), rules.rounding));
  const Value is_zero = ops::Equal(scale, 0.0);
  const auto ratio_of = [&](const Value& own) { return ops::Cast(ops::Select(is_zero, 0.0, own / scale), dx.dtype()); };
  const Value a = ratio_of(sx) * dx, b = ratio_of(sy) * dy;
  return {kind == Sum::kAdd ? a + b : a - b, scale};
}

// Whether an array holds only zeros and infinities. In the original it suffices that its scale does.
bool FitsAnyScale(const ScaledValue& x, const ScalifyCompat& compat) {
  const auto all = [](const Value& value) {
    if (!value.is_array()) return false;
    const Array numbers = Cast(*value.array(), DType::kF64);
    const absl::Span<const double> view = numbers.View<double>();
    return std::all_of(view.begin(), view.end(), [](double v) { return v == 0 || std::isinf(v); });
  };
  return all(x.data) || (compat.min_max_compare_raw_data && all(x.scale));
}

template <class F>
ScaledValue MaxOrMin(const F& op, const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules,
                     std::optional<bool> x_fits, std::optional<bool> y_fits) {
  const auto [dx, dy] = Unified(x.data, y.data);
  if (x_fits.value_or(FitsAnyScale(x, rules.compat))) return {op(dx, dy), y.scale};
  if (y_fits.value_or(FitsAnyScale(y, rules.compat))) return {op(dx, dy), x.scale};
  const auto [sx, sy] = Unified(x.scale, y.scale);
  const Value scale = Finite(ops::Max(sx, sy), rules);
  return {op(dx * ops::Cast(SafeDiv(sx, scale), dx.dtype()), dy * ops::Cast(SafeDiv(sy, scale), dx.dtype())), scale};
}

// The square root of a count as a scale of this dtype; 1 for no elements, whose sum is 0.
Value RootOf(int64_t count, DType dtype, const ScalifyRules& rules) {
  const Value root(Cast(Array::Scalar(std::sqrt(static_cast<double>(std::max<int64_t>(count, 1)))), dtype));
  return Pow2Round(root, rules.rounding);
}

// x / root. A root that is a power of two has an exact inverse, and multiplication is faster.
Value DividedByRoot(const Value& x, const Value& root, const ScalifyRules& rules) {
  const Value own = ops::Cast(root, x.dtype());
  return rules.rounding == ScaleRounding::kNone ? x / own : x * (Number(1, x.dtype()) / own);
}

int64_t CountOf(const Shape& shape, const Axes& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= shape[axis];
  return count;
}

// x with a scale whose power with this exponent is finite and not 0.
ScaledValue WithPower(const ScaledValue& x, int64_t exponent, const ScalifyRules& rules) {
  if (rules.compat.degenerate_scales || exponent == 0) return x;
  const Exponents range = ExponentsOf(x.scale.dtype());
  const int64_t times = std::abs(exponent);
  const int64_t largest = std::min((exponent > 0 ? range.largest : -range.least) / times, range.largest);
  const int64_t least = std::max(-((exponent > 0 ? -range.least : range.largest) / times), range.least);
  return MovedTo(x, Limited(x.scale, {least, largest}));
}

ScaledValue WithUnitScale(const Value& data, const ScaledValue& like) { return {data, Number(1, like.scale.dtype())}; }

}  // namespace

Pow2Parts Pow2Decompose(const Value& x, std::optional<DType> scale_dtype) {
  const Value number = ops::Cast(x, DType::kF32), power = FloorPow2(number);
  const Value usable = ops::And(ops::IsFinite(power), ops::NotEqual(power, 0.0));
  const Value mantissa = number / ops::Select(usable, power, 0x1p-126);
  return {ops::Cast(power, scale_dtype.value_or(x.dtype())), ops::Cast(mantissa, x.dtype())};
}

Value Pow2Round(const Value& x, ScaleRounding rounding) {
  if (rounding == ScaleRounding::kNone) return x;
  const Value power = ops::Cast(FloorPow2(ops::Cast(x, DType::kF32)), x.dtype());
  return rounding == ScaleRounding::kDown ? power : power * 2.0;
}

Value Pow2Truncate(const Value& x) {
  const Value number = ops::Cast(x, DType::kF32), power = FloorPow2(number);
  // A NaN also keeps its exponent, which gives an infinity.
  const Value truncated = ops::Select(ops::Less(number, 0.0), -power, power);
  const double smallest_normal = x.dtype() == DType::kF16 ? 0x1p-14 : 0x1p-126;
  const Value signed_zero = number * 0.0;
  return ops::Cast(ops::Select(ops::Less(ops::Abs(number), smallest_normal), signed_zero, truncated), x.dtype());
}

Value AsE8M0(const Value& x) {
  const Value number = ops::Max(ops::Cast(x, DType::kF32), 0.0), power = FloorPow2(number);
  const Value exponent = ops::Round(ops::Log(ops::Cast(power, DType::kF64)) * (1 / std::log(2.0))) + 127.0;
  const Value finite = ops::Select(ops::Equal(power, 0.0), 0.0, exponent);
  return ops::Cast(ops::Select(ops::IsFinite(power), finite, 255.0), DType::kU8);
}

Value FromE8M0(const Value& bytes, DType dtype) {
  const Value exponent = ops::Cast(bytes, DType::kF64) - 127.0;
  const Value power = ops::Pow(ops::BroadcastTo(Number(2, DType::kF64), exponent.shape()), exponent);
  return ops::Cast(ops::Select(ops::Equal(exponent, 128.0), static_cast<double>(INFINITY), power), dtype);
}

ScaledValue MakeScaledScalar(const Value& x, std::optional<DType> scale_dtype, const ScalifyRules& rules,
                             const std::optional<Value>& otherwise) {
  if (rules.compat.degenerate_scales) {
    const Pow2Parts parts = Pow2Decompose(x, scale_dtype);
    return {parts.mantissa, parts.scale};
  }
  const DType dtype = scale_dtype.value_or(x.dtype()), wide = Wide(x.dtype());
  // Infinite for numbers beyond f32.
  const Value power = FloorPow2(ops::Cast(x, DType::kF32)), is_finite = ops::IsFinite(power);
  const Value limited = Limited(power, ExponentsOfNumbers(dtype));
  const Value divisor = ops::Select(is_finite, limited, 1.0);
  const Value data = ops::Cast(ops::Cast(x, wide) / ops::Cast(divisor, wide), x.dtype());
  const Value scale = ops::Cast(ops::Select(ops::Equal(x, 0.0), 0.0, limited), dtype);
  const Value other = otherwise.has_value() ? ops::Cast(*otherwise, dtype) : Number(1, dtype);
  return {data, ops::Select(is_finite, scale, other)};
}

ScaledValue AsScaled(const Value& x, const std::optional<Value>& scale, const ScalifyRules& rules) {
  const bool is_one =
      !scale.has_value() || (scale->is_array() && Cast(*scale->array(), DType::kF64).View<double>()[0] == 1);
  if (is_one && x.rank() == 0) return MakeScaledScalar(x, std::nullopt, rules);
  if (!scale.has_value()) return {x, Number(1, x.dtype())};
  if (is_one) return {x, *scale};
  const DType dtype = rules.compat.degenerate_scales ? x.dtype() : Wide(x.dtype());
  return {ops::Cast(ops::Cast(x, dtype) / ops::Cast(*scale, dtype), x.dtype()), *scale};
}

Value ToArray(const ScaledValue& x, std::optional<DType> dtype, const ScalifyRules& rules) {
  const DType own = dtype.value_or(x.data.dtype());
  const DType wide = rules.compat.degenerate_scales ? own : Wide(Promote(own, x.data.dtype()));
  return ops::Cast(ops::Cast(x.data, wide) * ops::Cast(x.scale, wide), own);
}

ScaledValue SetScaling(const ScaledValue& x, const Value& scale, const ScalifyRules& rules) {
  if (rules.compat.degenerate_scales) return MovedTo(x, scale);
  const DType wide = Wide(x.data.dtype());
  const ScaledValue moved = MovedTo({ops::Cast(x.data, wide), ops::Cast(x.scale, wide)}, ops::Cast(scale, wide));
  return {ops::Cast(moved.data, x.data.dtype()), scale};
}

ScaledValue SetScaling(const Value& plain, const Value& scale, const ScalifyRules& rules) {
  const DType dtype = rules.compat.degenerate_scales ? plain.dtype() : Wide(plain.dtype());
  const Value factor = SafeDiv(Number(1, dtype), ops::Cast(scale, dtype));
  return {ops::Cast(ops::Cast(plain, dtype) * factor, plain.dtype()), scale};
}

ScaledValue Rebalance(const ScaledValue& x, const Value& factor, const ScalifyRules& rules) {
  return SetScaling(x, x.scale * ops::Cast(factor, x.scale.dtype()), rules);
}

ScaledValue DynamicRescaleMax(const ScaledValue& x, const ScalifyRules& rules) {
  return DynamicRescale(x, Norm::kMax, rules);
}
ScaledValue DynamicRescaleL1(const ScaledValue& x, const ScalifyRules& rules) {
  return DynamicRescale(x, Norm::kL1, rules);
}
ScaledValue DynamicRescaleL2(const ScaledValue& x, const ScalifyRules& rules) {
  return DynamicRescale(x, Norm::kL2, rules);
}

ScaledValue Add(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules) {
  return AddOrSub(Sum::kAdd, x, y, rules);
}
ScaledValue Sub(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules) {
  return AddOrSub(Sum::kSub, x, y, rules);
}

ScaledValue Mul(const ScaledValue& x, const ScaledValue& y) {
  const auto [dx, dy] = Unified(x.data, y.data);
  const auto [sx, sy] = Unified(x.scale, y.scale);
  return {dx * dy, sx * sy};
}

ScaledValue Div(const ScaledValue& x, const ScaledValue& y) {
  const auto [dx, dy] = Unified(x.data, y.data);
  const auto [sx, sy] = Unified(x.scale, y.scale);
  return {dx / dy, sx / sy};
}

ScaledValue Max(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules, std::optional<bool> x_fits,
                std::optional<bool> y_fits) {
  return MaxOrMin([](const Value& a, const Value& b) { return ops::Max(a, b); }, x, y, rules, x_fits, y_fits);
}
ScaledValue Min(const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules, std::optional<bool> x_fits,
                std::optional<bool> y_fits) {
  return MaxOrMin([](const Value& a, const Value& b) { return ops::Min(a, b); }, x, y, rules, x_fits, y_fits);
}

Value Compare(kernels::CompareKind kind, const ScaledValue& x, const ScaledValue& y) {
  const DType wide = Wide(Promote(x.data.dtype(), y.data.dtype()));
  const Value a = ToArray(x, wide), b = ToArray(y, wide);
  switch (kind) {
    case kernels::CompareKind::kEq: return ops::Equal(a, b);
    case kernels::CompareKind::kNe: return ops::NotEqual(a, b);
    case kernels::CompareKind::kLt: return ops::Less(a, b);
    case kernels::CompareKind::kLe: return ops::LessEqual(a, b);
    case kernels::CompareKind::kGt: return ops::Greater(a, b);
    case kernels::CompareKind::kGe: return ops::GreaterEqual(a, b);
  }
  return Value();
}

ScaledValue Concatenate(absl::Span<const ScaledValue> parts, int64_t axis, const ScalifyRules& rules) {
  DType data_dtype = parts[0].data.dtype(), scale_dtype = parts[0].scale.dtype();
  for (const ScaledValue& part : parts) {
    data_dtype = Promote(data_dtype, part.data.dtype());
    scale_dtype = Promote(scale_dtype, part.scale.dtype());
  }
  Value scale = ops::Cast(parts[0].scale, scale_dtype);
  for (const ScaledValue& part : parts.subspan(1)) scale = ops::Max(scale, ops::Cast(part.scale, scale_dtype));
  scale = Finite(scale, rules);
  std::vector<Value> data;
  for (const ScaledValue& part : parts) {
    const Value factor = ops::Cast(SafeDiv(ops::Cast(part.scale, scale_dtype), scale), data_dtype);
    data.push_back(ops::Cast(part.data, data_dtype) * factor);
  }
  return {ops::Concatenate(data, axis), scale};
}

ScaledValue Select(const Value& pred, const ScaledValue& x, const ScaledValue& y, const ScalifyRules& rules) {
  const auto [dx, dy] = Unified(x.data, y.data);
  const auto [sx, sy] = Unified(x.scale, y.scale);
  const Value scale = Finite(ops::Max(sx, sy), rules);
  const auto ratio = [&](const Value& own) {
    const Value quotient = rules.compat.select_divides_by_zero_scale ? own / scale : SafeDiv(own, scale);
    return ops::Cast(quotient, dx.dtype());
  };
  return {ops::Select(pred, dx * ratio(sx), dy * ratio(sy)), scale};
}

ScaledValue SumsOfProducts(const Value& sums, absl::Span<const Value> scales, std::optional<int64_t> terms,
                           const ScalifyRules& rules) {
  Value scale = scales[0];
  for (const Value& other : scales.subspan(1)) {
    const auto [a, b] = Unified(scale, other);
    scale = a * b;
  }
  if (!terms.has_value()) return {sums, scale};
  const Value root = RootOf(*terms, scale.dtype(), rules);
  return {DividedByRoot(sums, root, rules), scale * root};
}

ScaledValue DotGeneral(const ScaledValue& x, const ScaledValue& y, const DotDims& dims, DType out,
                       const ScalifyRules& rules) {
  // 8-bit floats are multiplied as bf16, which holds all of their numbers.
  const auto operand = [](const Value& data) {
    const bool is_float8 = data.dtype() == DType::kE4M3FN || data.dtype() == DType::kE5M2;
    return is_float8 ? ops::Cast(data, DType::kBF16) : data;
  };
  const auto [dx, dy] = Unified(operand(x.data), operand(y.data));
  const int64_t terms = CountOf(x.data.shape(), dims.lhs_contracting);
  return SumsOfProducts(ops::DotGeneral(dx, dy, dims, out), {x.scale, y.scale}, terms, rules);
}

ScaledValue ReduceSum(const ScaledValue& x, const Axes& axes, bool keepdims, const ScalifyRules& rules) {
  return SumsOfProducts(ops::ReduceSum(x.data, axes, keepdims), {x.scale}, CountOf(x.data.shape(), axes), rules);
}

ScaledValue ReduceProd(const ScaledValue& operand, const Axes& axes, bool keepdims, const ScalifyRules& rules) {
  const int64_t count = CountOf(operand.data.shape(), axes);
  const ScaledValue x = WithPower(operand, count, rules);
  return {ops::ReduceProd(x.data, axes, keepdims), ops::IntegerPow(x.scale, count)};
}

ScaledValue IntegerPow(const ScaledValue& operand, int64_t exponent, const ScalifyRules& rules) {
  const ScaledValue x = WithPower(operand, exponent, rules);
  return {ops::IntegerPow(x.data, exponent), ops::IntegerPow(x.scale, exponent)};
}

ScaledValue Sqrt(const ScaledValue& x) { return {ops::Sqrt(x.data), ops::Sqrt(x.scale)}; }
ScaledValue Sign(const ScaledValue& x) { return WithUnitScale(ops::Sign(x.data), x); }

Value IsFinite(const ScaledValue& x) {
  const Value data = ops::IsFinite(x.data);
  if (!IsFloat(x.scale.dtype())) return data;
  return ops::And(data, ops::BroadcastTo(ops::IsFinite(x.scale), x.data.shape()));
}

ScaledValue Exp(const ScaledValue& x) {
  return WithUnitScale(ops::Exp(ops::Cast(ToArray(x, Wide(x.data.dtype())), x.data.dtype())), x);
}
ScaledValue Log(const ScaledValue& x) {
  return WithUnitScale(ops::Log(x.data) + ops::Cast(ops::Log(x.scale), x.data.dtype()), x);
}

}  // namespace scaled
}  // namespace aqt
