#ifndef AQT_NN_LAYERS_NORM_H_
#define AQT_NN_LAYERS_NORM_H_

// Normalization. Each layer has its own scope `name` and parameters in the dtype of x. f16 and bf16 are computed in
// f32, and the result is rounded once.

#include <optional>
#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/scaling/low_precision.h"

namespace aqt::nn {

// The options of LayerNorm.
struct LayerNormOptions {
  Axes axes = {-1};  // the axes over which mean and variance are computed
  double epsilon = 1e-6;
  bool use_scale = true, use_bias = true;
  // Every step is rounded to a small float format, in f32, as AQT's older LayerNormAqt does. q rounds to
  // low_precision.steps, and sums are computed as low_precision says. For n elements:
  //   r = q(1 / q(n)), e = q(max(epsilon, steps.min())); r = e if r is 0
  //   mean = q(q(sum(q(x))) * r), c = q(x - mean), variance = q(q(sum(q(c^2))) * r)
  //   m = q(q(1 / sqrt(q(variance + e))) * q(scale)), y = q(q(c * m) + q(bias))
  // A parameter that is not used adds no step. Not for f64.
  std::optional<LowPrecision> low_precision = std::nullopt;
};

// y = (x - mean) / sqrt(variance + epsilon) * scale + bias (Ba, Kiros and Hinton 2016), where variance is the mean of
// (x - mean)^2. scale and bias have the shape of `axes`; they start as ones and zeros. Poisoned: InvalidArgument if an
// axis is not one of x, epsilon is negative or not finite, or low_precision is illegal.
Value LayerNorm(const Value& x, absl::string_view name, const LayerNormOptions& options = {},
                const std::source_location& where = std::source_location::current());

// The options of RmsNorm.
struct RmsNormOptions {
  Axes axes = {-1};
  double epsilon = 1e-6;
  bool use_scale = true;
  std::optional<LowPrecision> low_precision = std::nullopt;  // as in LayerNormOptions, with c = q(x)
};

// y = x / sqrt(mean(x^2) + epsilon) * scale (Zhang and Sennrich 2019). Otherwise as LayerNorm.
Value RmsNorm(const Value& x, absl::string_view name, const RmsNormOptions& options = {},
              const std::source_location& where = std::source_location::current());

// The options of BatchNorm.
struct BatchNormOptions {
  // If true, normalizes with the mean and variance of the batch and updates the running statistics. Otherwise the
  // running statistics are used, and an example does not depend on its batch.
  bool train = true;
  double momentum = 0.99;  // in [0, 1): the weight of the old running statistics in a step
  double epsilon = 1e-5;
  bool use_scale = true, use_bias = true;
};

// y = (x - mean) / sqrt(variance + epsilon) * scale + bias, for each index of the last axis (Ioffe and Szegedy 2015).
// The statistics "mean" (zeros) and "var" (ones) are f32 and become
//   momentum * old + (1 - momentum) * that of the batch
// in each step, where variance is the mean of (x - mean)^2. Training and serving programs differ, so WYTIWYS is
// promised only between programs with train = false. Poisoned: InvalidArgument if x has no axes, or a number is out of
// range.
Value BatchNorm(const Value& x, absl::string_view name, const BatchNormOptions& options = {},
                const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_NORM_H_
