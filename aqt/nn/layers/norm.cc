#include "aqt/nn/layers/norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"

namespace aqt::nn {
namespace {

// The dtype in which statistics of `dtype` are computed.
DType WideDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

absl::Status CheckEpsilon(double epsilon) {
  if (std::isfinite(epsilon) && epsilon >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("epsilon = ", epsilon, ", expected a number from 0 on"));
}

// Parameters of a norm over `axes` of x (ascending), ready to be multiplied with or added to x.
struct Affine {
  Shape shape;      // of the parameter
  Shape broadcast;  // the same with extent 1 for every axis from the first of `axes` that is not in `axes`

  Affine(const Value& x, const Axes& axes) {
    for (int64_t axis = axes.empty() ? x.rank() : axes[0]; axis < x.rank(); ++axis) {
      const bool mine = std::find(axes.begin(), axes.end(), axis) != axes.end();
      if (mine) shape.push_back(x.shape()[axis]);
      broadcast.push_back(mine ? x.shape()[axis] : 1);
    }
  }
  Value Get(absl::string_view name, DType dtype, DType wide, const Initializer& init,
            const std::source_location& where) const {
    return ops::Reshape(ops::Cast(Parameter(name, {dtype, shape}, init, where), wide), broadcast);
  }
};

// The axes of a norm, or an error.
absl::StatusOr<Axes> NormAxes(const Value& x, const Axes& axes, double epsilon,
                              const std::optional<LowPrecision>& precision) {
  if (absl::Status status = CheckEpsilon(epsilon); !status.ok()) return status;
  if (precision.has_value()) {
    AQT_RETURN_IF_ERROR(Validate(precision->steps));
    if (precision->sums.has_value()) AQT_RETURN_IF_ERROR(Validate(*precision->sums));
    if (x.dtype() == DType::kF64) return absl::InvalidArgumentError("low_precision is not for f64");
  }
  if (axes.empty()) return absl::InvalidArgumentError("there are no axes");
  absl::StatusOr<Axes> normalized = NormalizeAxes(axes, x.rank());
  if (normalized.ok()) std::sort(normalized->begin(), normalized->end());
  return normalized;
}

// A norm with rounded steps: the formula of LayerNormOptions, for f32 numbers.
class LowPrecisionNorm {
 public:
  LowPrecisionNorm(const Value& x, const Axes& axes, double epsilon, const LowPrecision& precision)
      : axes_(axes), precision_(precision) {
    float n = 1;
    for (const int64_t axis : axes) n *= static_cast<float>(x.dim(axis));
    const SmallFloat& format = precision.steps;
    epsilon_ = format.Round(static_cast<float>(std::max(epsilon, format.min())));
    reciprocal_ = format.Round(1 / format.Round(n));
    if (reciprocal_ == 0) reciprocal_ = epsilon_;
  }
  Value Round(const Value& x) const { return ops::RoundToSmallFloat(x, precision_.steps); }
  Value Mean(const Value& rounded) const {
    const Value sum = precision_.sums.has_value()
                          ? ops::LowPrecisionSum(rounded, axes_, *precision_.sums, /*keepdims=*/true)
                          : ops::ReduceSum(rounded, axes_, /*keepdims=*/true);
    return Round(Round(sum) * reciprocal_);
  }
  // c / sqrt(mean(c^2) + epsilon), times the scale if there is one.
  Value Normalized(const Value& c, const std::optional<Value>& scale) const {
    const Value variance = Mean(Round(c * c));
    Value factor = Round(ops::Rsqrt(Round(variance + epsilon_)));
    if (scale.has_value()) factor = Round(factor * Round(*scale));
    return Round(c * factor);
  }

 private:
  const Axes& axes_;
  const LowPrecision& precision_;
  float epsilon_, reciprocal_;
};

}  // namespace

Value LayerNorm(const Value& x, absl::string_view name, const LayerNormOptions& options,
                const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const absl::StatusOr<Axes> axes = NormAxes(x, options.axes, options.epsilon, options.low_precision);
  if (!axes.ok()) return Refuse(axes.status(), "layer_norm", {x}, where);
  const DType wide = WideDType(x.dtype());
  const Affine affine(x, *axes);
  const Value numbers = ops::Cast(x, wide);
  const auto scale = [&] { return affine.Get("scale", x.dtype(), wide, Ones(), where); };
  const auto bias = [&] { return affine.Get("bias", x.dtype(), wide, Zeros(), where); };
  if (options.low_precision.has_value()) {
    const LowPrecisionNorm norm(x, *axes, options.epsilon, *options.low_precision);
    const Value centred = norm.Round(numbers - norm.Mean(norm.Round(numbers)));
    Value y = norm.Normalized(centred, options.use_scale ? std::optional<Value>(scale()) : std::nullopt);
    if (options.use_bias) y = norm.Round(y + norm.Round(bias()));
    return ops::Cast(y, x.dtype());
  }
  const Value centred = numbers - ops::Mean(numbers, *axes, /*keepdims=*/true);
  const Value variance = ops::Mean(centred * centred, *axes, /*keepdims=*/true);
  Value y = centred * ops::Rsqrt(variance + options.epsilon);
  if (options.use_scale) y = y * scale();
  if (options.use_bias) y = y + bias();
  return ops::Cast(y, x.dtype());
}

Value RmsNorm(const Value& x, absl::string_view name, const RmsNormOptions& options,
              const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const absl::StatusOr<Axes> axes = NormAxes(x, options.axes, options.epsilon, options.low_precision);
  if (!axes.ok()) return Refuse(axes.status(), "rms_norm", {x}, where);
  const DType wide = WideDType(x.dtype());
  const Value numbers = ops::Cast(x, wide);
  const auto scale = [&] { return Affine(x, *axes).Get("scale", x.dtype(), wide, Ones(), where); };
  if (options.low_precision.has_value()) {
    const LowPrecisionNorm norm(x, *axes, options.epsilon, *options.low_precision);
    return ops::Cast(
        norm.Normalized(norm.Round(numbers), options.use_scale ? std::optional<Value>(scale()) : std::nullopt),
        x.dtype());
  }
  Value y = numbers * ops::Rsqrt(ops::Mean(numbers * numbers, *axes, /*keepdims=*/true) + options.epsilon);
  if (options.use_scale) y = y * scale();
  return ops::Cast(y, x.dtype());
}

Value BatchNorm(const Value& x, absl::string_view name, const BatchNormOptions& options,
                const std::source_location& where) {
  const CallSite site(where);
  const NamedScope scope(name);
  if (!x.status().ok()) return x;
  const auto refuse = [&](const absl::Status& status) { return Refuse(status, "batch_norm", {x}, where); };
  if (absl::Status status = CheckEpsilon(options.epsilon); !status.ok()) return refuse(status);
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    return refuse(
        absl::InvalidArgumentError(absl::StrCat("momentum = ", options.momentum, ", expected a number in [0, 1)")));
  }
  if (x.rank() == 0) return refuse(absl::InvalidArgumentError("takes an array with at least one axis"));
  const DType wide = WideDType(x.dtype());
  const Shape channels = {x.dim(-1)};
  const Aval statistic{DType::kF32, channels};
  const Value numbers = ops::Cast(x, wide);
  const Value running_mean = Statistic("mean", statistic, Zeros(), where);
  const Value running_variance = Statistic("var", statistic, Ones(), where);
  Value mean = ops::Cast(running_mean, wide), variance = ops::Cast(running_variance, wide);
  if (options.train) {
    Axes others;
    for (int64_t axis = 0; axis + 1 < x.rank(); ++axis) others.push_back(axis);
    mean = ops::Mean(numbers, others);
    const Value centred = numbers - mean;
    variance = ops::Mean(centred * centred, others);
    const auto moved = [&](const Value& running, const Value& now) {
      return running * options.momentum + ops::Cast(ops::StopGradient(now), DType::kF32) * (1 - options.momentum);
    };
    WriteStatistic("mean", moved(running_mean, mean), where);
    WriteStatistic("var", moved(running_variance, variance), where);
  }
  const auto parameter = [&](absl::string_view parameter_name, const Initializer& init) {
    return ops::Cast(Parameter(parameter_name, {x.dtype(), channels}, init, where), wide);
  };
  Value factor = ops::Rsqrt(variance + options.epsilon);
  if (options.use_scale) factor = factor * parameter("scale", Ones());
  Value y = (numbers - mean) * factor;
  if (options.use_bias) y = y + parameter("bias", Zeros());
  return ops::Cast(y, x.dtype());
}

}  // namespace aqt::nn
