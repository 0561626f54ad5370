#include "aqt/ops/scaling/low_precision.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

std::string ToText(const SmallFloat& format) {
  return absl::StrCat("exponents ", format.min_exponent, " to ", format.max_exponent, ", ", format.mantissa_bits,
                      " mantissa bits");
}

absl::Status CheckOperand(const Aval& x, const SmallFloat& format) {
  AQT_RETURN_IF_ERROR(Validate(format));
  if (x.dtype == DType::kF32 || x.dtype == DType::kBF16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("takes f32 or bf16, got ", ToString(x.dtype)));
}

// [rows, n] -> [rows]: sums along the rows, rounded after each addition.
class SumOp : public CompositeOf<SmallFloat> {
 public:
  using CompositeOf::CompositeOf;

  std::string Name() const override { return "low_precision_sum"; }
  std::string Attributes() const override { return ToText(fields_); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 1 || in[0].shape.rank() != 2) return absl::InvalidArgumentError("takes one matrix");
    AQT_RETURN_IF_ERROR(CheckOperand(in[0], fields_));
    return std::vector<Aval>{{in[0].dtype, {in[0].shape[0]}}};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const int64_t rows = in[0].dim(0), n = in[0].dim(1);
    Value sum = ops::BroadcastTo(ValueOrNumber(0.0).As(in[0].dtype()), {rows});
    for (int64_t i = 0; i < n; ++i) {
      sum = ops::RoundToSmallFloat(sum + ops::Reshape(ops::Slice(in[0], {0, i}, {rows, i + 1}), {rows}), fields_);
    }
    return {sum};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    const int64_t rows = in[0].shape()[0], n = in[0].shape()[1];
    const Array wide = Cast(in[0], DType::kF32);
    const float* const x = wide.View<float>().data();
    const bool is_bf16 = in[0].dtype() == DType::kBF16;
    ArrayBuilder sums(DType::kF32, {rows});
    for (int64_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        sum += x[row * n + i];
        if (is_bf16) sum = ToFloat(RoundToBFloat16(sum));
        sum = fields_.Round(sum);
        if (is_bf16) sum = ToFloat(RoundToBFloat16(sum));
      }
      sums.Mutable<float>()[static_cast<size_t>(row)] = sum;
    }
    return std::vector<Array>{Cast(std::move(sums).Build(), in[0].dtype())};
  }

  bool has_gradient() const override { return true; }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    return {ops::BroadcastInDim(cotangents[0], residuals[0].shape(), {0})};
  }
};

// The value of y with the gradient of x, which is finite or NaN: the added term is 0.
Value WithGradientOf(const Value& y, const Value& x) { return ops::StopGradient(y) + (x - ops::StopGradient(x)); }

// clamp(x, low, high) as jnp.clip: the gradient is 1/2 at the bounds.
Value Clip(const Value& x, double low, double high) { return ops::Min(ops::Max(x, low), high); }

Value Refused(const absl::Status& status, absl::string_view op, const ValueOrNumber& x) {
  return Refuse(status, op, {x.As(DType::kF32)}, x.where());
}

absl::Status Validate(const SoftmaxApproximation& a) {
  const auto check = [](bool ok, absl::string_view field, double value, absl::string_view expected) {
    if (ok) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ", expected ", expected));
  };
  const double slope = a.exp_slope.value_or(1), inverse = a.reciprocal_slope.value_or(1);
  const double low = a.exp_low.value_or(-1), high = a.sum_high.value_or(1);
  AQT_RETURN_IF_ERROR(check(slope > 0 && std::isfinite(slope), "exp_slope", slope, "a positive number"));
  AQT_RETURN_IF_ERROR(check(low < 0 && std::isfinite(low), "exp_low", low, "a negative number"));
  AQT_RETURN_IF_ERROR(check(high >= 1 && std::isfinite(high), "sum_high", high, "a number from 1 on"));
  AQT_RETURN_IF_ERROR(check(inverse > 0 && std::isfinite(inverse), "reciprocal_slope", inverse, "a positive number"));
  return check(a.reciprocal_low >= 0 && a.reciprocal_low <= 1, "reciprocal_low", a.reciprocal_low,
               "a number in [0, 1]");
}

}  // namespace

namespace internal {

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const SmallFloat& format) {
  AQT_RETURN_IF_ERROR(Validate(format));
  return std::make_shared<SumOp>(format);
}

}  // namespace internal

double SmallFloat::max() const { return std::ldexp(2 - std::ldexp(1.0, -mantissa_bits), max_exponent); }
double SmallFloat::min() const { return std::ldexp(1.0, min_exponent); }

absl::Status Validate(const SmallFloat& format) {
  if (format.mantissa_bits < 1 || format.mantissa_bits > 22) {
    return absl::InvalidArgumentError(absl::StrCat("mantissa_bits = ", format.mantissa_bits, ", expected 1 to 22"));
  }
  if (-126 <= format.min_exponent && format.min_exponent <= format.max_exponent && format.max_exponent <= 127) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("min_exponent = ", format.min_exponent, " and max_exponent = ",
                                                 format.max_exponent, ", expected -126 <= min <= max <= 127"));
}

float SmallFloat::Round(float x) const {
  constexpr uint32_t kMantissa = 0x007fffff, kExponent = 0x7f800000, kOne = 0x3f800000;
  const uint32_t bits = std::bit_cast<uint32_t>(x), exponent = bits & kExponent;
  if (exponent == kExponent) return x;
  // In [1, 2) a unit of the format is one unit in the last place of 1 + offset.
  const float offset = std::ldexp(1.0f, 23 - mantissa_bits);
  const float mantissa = (std::bit_cast<float>((bits & kMantissa) | kOne) + offset) - offset;
  const float magnitude = std::min(mantissa * std::bit_cast<float>(exponent), static_cast<float>(max()));
  return magnitude < static_cast<float>(min()) ? 0.0f : std::copysign(magnitude, x);
}

namespace ops {

Value RoundToSmallFloat(const ValueOrNumber& x, const SmallFloat& format) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  if (!value.status().ok()) return value;
  if (absl::Status status = CheckOperand(value.aval(), format); !status.ok()) {
    return Refused(status, "round_to_small_float", value);
  }
  const Value magnitude = Min(ReducePrecision(Flush(Abs(value)), 8, format.mantissa_bits), format.max());
  const Value kept = Select(Less(magnitude, format.min()), 0.0, magnitude);
  const Value rounded = Select(IsFinite(value), Select(Less(value, 0.0), -kept, kept), value);
  return WithGradientOf(rounded, Clip(value, -format.max(), format.max()));
}

Value LowPrecisionSum(const ValueOrNumber& x, const Axes& axes, const SmallFloat& format, bool keepdims) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  if (!value.status().ok()) return value;
  absl::StatusOr<Axes> summed = NormalizeAxes(axes, value.rank());
  if (!summed.ok()) return Refused(summed.status(), "low_precision_sum", value);
  std::sort(summed->begin(), summed->end());
  Axes order;
  Shape kept, with_ones;
  int64_t rows = 1;
  for (int64_t axis = 0; axis < value.rank(); ++axis) {
    const bool sums = std::binary_search(summed->begin(), summed->end(), axis);
    with_ones.push_back(sums ? 1 : value.dim(axis));
    if (sums) continue;
    order.push_back(axis);
    kept.push_back(value.dim(axis));
    rows *= value.dim(axis);
  }
  int64_t terms = 1;
  for (const int64_t axis : *summed) {
    order.push_back(axis);
    terms *= value.dim(axis);
  }
  const Value matrix = Reshape(Transpose(value, order), {rows, terms});
  const Value sums = BindOne(CompositeOp{std::make_shared<SumOp>(format)}, {matrix}, x.where());
  return Reshape(sums, keepdims ? with_ones : kept);
}

Value LowPrecisionSoftmax(const ValueOrNumber& x, const LowPrecision& precision, int64_t axis) {
  const CallSite site(x.where());
  const auto q = [&](const Value& v) { return RoundToSmallFloat(v, precision.steps); };
  const Value argument = q(x.As(DType::kF32));
  const Value powers = q(Exp(q(argument - ReduceMax(argument, {axis}, /*keepdims=*/true))));
  const Value sum = precision.sums.has_value() ? LowPrecisionSum(powers, {axis}, *precision.sums, /*keepdims=*/true)
                                               : ReduceSum(powers, {axis}, /*keepdims=*/true);
  return q(powers * q(1.0 / q(sum)));
}

Value ApproximateSoftmax(const ValueOrNumber& x, const SoftmaxApproximation& a, int64_t axis) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  if (!value.status().ok()) return value;
  if (absl::Status status = Validate(a); !status.ok()) return Refused(status, "approximate_softmax", value);
  const Value maximum = ReduceMax(value, {axis}, /*keepdims=*/true);
  Value powers = value - Select(IsFinite(maximum), maximum, 0.0);
  if (a.exp_low.has_value()) powers = Clip(powers, *a.exp_low, 0);
  powers = a.exp_slope.has_value() ? Clip(powers * *a.exp_slope + 1.0, 0, 1) : Exp(powers);
  Value sum = ReduceSum(powers, {axis}, /*keepdims=*/true);
  if (a.sum_high.has_value()) sum = Clip(sum, 1, *a.sum_high);
  if (!a.reciprocal_slope.has_value()) return powers * (1.0 / sum);
  return powers * Clip((1 + *a.reciprocal_slope) - sum * *a.reciprocal_slope, a.reciprocal_low, 1);
}

Value RoundRowsToIntegers(const ValueOrNumber& x, int bits, bool half_shift) {
  const CallSite site(x.where());
  const Value value = x.As(DType::kF32);
  if (!value.status().ok()) return value;
  if (bits < 1 || bits > 24) {
    return Refused(absl::InvalidArgumentError(absl::StrCat("bits = ", bits, ", expected 1 to 24")),
                   "round_rows_to_integers", value);
  }
  const double bound = half_shift ? std::ldexp(1.0, bits - 1) : bits == 1 ? 0.25 : std::ldexp(1.0, bits - 1) - 1;
  const Value rows = Cast(value, DType::kF32);
  const Value largest = ReduceMax(Abs(rows), {-1}, /*keepdims=*/true);
  const Value scale = StopGradient(bound / (largest + 0x1p-23));
  const double limit = half_shift ? bound - 0x1p-7 : bound;
  const Value clipped = Clip(rows * scale, -limit, limit);
  const Value y =
      half_shift ? WithGradientOf(Floor(clipped), clipped) + 0.5 : WithGradientOf(Floor(clipped + 0.5), clipped);
  return Cast(y / scale, value.dtype());
}

}  // namespace ops
}  // namespace aqt
