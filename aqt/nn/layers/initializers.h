#ifndef AQT_NN_LAYERS_INITIALIZERS_H_
#define AQT_NN_LAYERS_INITIALIZERS_H_

// Initial values whose variance follows from the shape of a parameter, with the formulas and defaults of
// jax.nn.initializers. The numbers are our own: those of jax come from other draws. They are the same on every machine.
// parameter.h has the simple ones: zeros, ones, normal numbers.

#include <cstdint>

#include "aqt/core/shape.h"
#include "aqt/nn/layers/parameter.h"

namespace aqt::nn {

// Normally distributed with mean 0 and this standard deviation s, given that the number lies in [lower s, upper s]. The
// standard deviation of the result is smaller than s: 0.87962566 s for the default bounds.
//   x = s sqrt(2) erfinv(u), with u uniform between erf(lower / sqrt(2)) and erf(upper / sqrt(2))
// Preconditions: s >= 0 and -5 <= lower < upper <= 5, where erf of an f64 still tells its arguments apart.
Initializer TruncatedNormal(double standard_deviation, double lower = -2, double upper = 2);

// What the axes of a parameter are. Negative axes count from the end; the parameter must have them (precondition), and
// no axis may have two roles.
struct FanAxes {
  Axes in = {-2};
  Axes out = {-1};
  Axes batch = {};  // of a stack of parameters, each initialized as if it were alone
};
// fan_in is the product of the extents of `in`, and fan_out that of `out`, each times those of all other axes that are
// not `batch`: the window of a convolution. At least 1.
enum class Fan : uint8_t { kIn, kOut, kAverage };  // the average is (fan_in + fan_out) / 2
enum class Distribution : uint8_t {
  kNormal,
  kTruncatedNormal,  // between -2 and 2 standard deviations, then divided by 0.87962566: the variance is the stated one
  kUniform,          // in [-limit, limit) with limit = sqrt(3 variance)
};

// Mean 0 and variance scale / fan. Precondition: scale > 0.
Initializer VarianceScaling(double scale, Fan fan, Distribution distribution, FanAxes axes = {});

// Glorot and Bengio 2010, also known as Xavier: variance 1 / average fan.
Initializer GlorotUniform(FanAxes axes = {});
Initializer GlorotNormal(FanAxes axes = {});
// LeCun et al. 1998: variance 1 / fan_in. The default of Flax. LecunUniform is in parameter.h.
Initializer LecunNormal(FanAxes axes = {});
// He et al. 2015, also known as Kaiming: variance 2 / fan_in, for layers that a ReLU follows.
Initializer HeUniform(FanAxes axes = {});
Initializer HeNormal(FanAxes axes = {});
// The three whose name ends in Normal are truncated, as in jax.

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_INITIALIZERS_H_
