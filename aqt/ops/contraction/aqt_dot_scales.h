#ifndef AQT_OPS_CONTRACTION_AQT_DOT_SCALES_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_SCALES_H_

// How scales pass through the operations of an AqtDot (aqt_dot_general.h) when an operand is data * scale. Internal.
//
// A contraction is linear in each operand, and most calibrations follow their tensor: multiplying the data by a power
// of two keeps the codes and multiplies the calibrated scale. So the data can be contracted alone:
//   out = (lhs.data x rhs.data) * (lhs.scale * rhs.scale)
//   dlhs = (g.data x rhs.data) * (g.scale * rhs.scale),   drhs = (g.data x lhs.data) * (g.scale * lhs.scale)

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "aqt/graph/op.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

struct ScalePassing {
  // For each operand: whether it may be data without its scale. All others must be full values: keys, statistics, and
  // operands whose range does not follow their tensor.
  std::vector<bool> keeps;
  // For each output: the operands whose scales multiply to its scale. If none of them has a scale, neither has the
  // output.
  struct Output {
    std::vector<size_t> factors = {};
    std::optional<int64_t> terms = std::nullopt;  // for a dot_general: the number of products per sum
  };
  std::vector<Output> outputs = {};
  bool quantizes = false;  // false for the float contractions
};

// Null for operations that are neither a contraction nor a gradient of one, such as aqt_quantize.
std::optional<ScalePassing> ScalePassingOf(const Op& op);

// Whether multiplying a tensor by a power of two keeps its codes and multiplies its scale, as long as nothing over- or
// underflows. True without numerics, and for AbsMax, Percentile, SnrSearch, and AbsMean with p = 1. False for a range
// that is fixed or comes from statistics, for other means, whose powers are rounded, for po2_scale, whose logarithms
// round differently at different exponents, and with Compat::small_scales_are_one.
bool FollowsItsTensor(const Quantizer& quantizer, const Compat& compat);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_SCALES_H_
