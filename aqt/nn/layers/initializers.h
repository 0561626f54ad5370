#ifndef AQT_NN_LAYERS_INITIALIZERS_H_
#define AQT_NN_LAYERS_INITIALIZERS_H_

// Initial values whose variance follows from the shape of a parameter, with the formulas and defaults of
// jax.nn.initializers. The random numbers differ from those of jax. They are the same on every machine. Zeros, ones and
// normal numbers are in parameter.h.

#include <cstdint>

#include "aqt/core/shape.h"
#include "aqt/nn/layers/parameter.h"

namespace aqt::nn {

// Normally distributed with mean 0 and this standard deviation s, truncated to [lower s, upper s]. The standard
// deviation of the result is smaller than s: 0.87962566 s for the default bounds.
//   x = s sqrt(2) erfinv(u), with u uniform between erf(lower / sqrt(2)) and erf(upper / sqrt(2))
// Preconditions: s >= 0 and -5 <= lower < upper <= 5, where erf in f64 still distinguishes its arguments.
Initializer TruncatedNormal(double standard_deviation, double lower = -2, double upper = 2);

// The roles of a parameter's axes. Negative axes count from the end; the parameter must have them (precondition), and
// no axis may have two roles.
struct FanAxes {
  Axes in = {-2};
  Axes out = {-1};
  Axes batch = {};  // axes of a stack of parameters, each initialized independently
};
// The fan that sets the variance. fan_in is the product of the extents of `in`, and fan_out that of `out`, each times
// those of all other axes that are not `batch`, such as the window of a convolution. At least 1.
enum class Fan : uint8_t { kIn, kOut, kAverage };  // the average is (fan_in + fan_out) / 2
// The distribution from which VarianceScaling draws.
enum class Distribution : uint8_t {
  kNormal,
  kTruncatedNormal,  // between -2 and 2 standard deviations, then divided by 0.87962566: the variance is the stated one
  kUniform,          // in [-limit, limit) with limit = sqrt(3 variance)
};

// Random numbers with mean 0 and variance scale / fan. Precondition: scale > 0.
Initializer VarianceScaling(double scale, Fan fan, Distribution distribution, FanAxes axes = {});

// Glorot and Bengio 2010, also known as Xavier: uniform, with variance 1 / average fan.
Initializer GlorotUniform(FanAxes axes = {});
// As GlorotUniform, from a truncated normal distribution, as in jax.
Initializer GlorotNormal(FanAxes axes = {});
// LeCun et al., 1998: truncated normal, with variance 1 / fan_in, as in jax. The default of Flax. LecunUniform is in
// parameter.h.
Initializer LecunNormal(FanAxes axes = {});
// He et al., 2015, also known as Kaiming: uniform, with variance 2 / fan_in, for layers followed by a ReLU.
Initializer HeUniform(FanAxes axes = {});
// As HeUniform, from a truncated normal distribution, as in jax.
Initializer HeNormal(FanAxes axes = {});

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_INITIALIZERS_H_
