#ifndef AQT_OPS_CONTRACTION_AQT_DOT_SCALES_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_SCALES_H_

// How scales pass through the operations of an AqtDot (aqt_dot_general.h) when an operand is data * scale. Internal.
//
// A contraction is linear in each operand, and most calibrations follow their tensor: of data that are multiplied by a
// power of two the codes stay, and the calibrated scale is multiplied, too. So the data can be contracted alone:
//   out = (lhs.data x rhs.data) * (lhs.scale * rhs.scale)
//   dlhs = (g.data x rhs.data) * (g.scale * rhs.scale),   drhs = (g.data x lhs.data) * (g.scale * lhs.scale)

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "aqt/graph/composite.h"
#include "aqt/quant/config/config.h"

namespace aqt::internal {

struct ScalePassing {
  // By operand: whether it may be data without its scale. The others are wanted as values: keys, statistics, and what
  // meets a range that does not follow its tensor.
  std::vector<bool> keeps;
  // By output: the operands whose scales, multiplied, are its scale. If none of them has one, the output has none.
  struct Output {
    std::vector<size_t> factors = {};
    std::optional<int64_t> terms = std::nullopt;  // of a dot_general: how many products are summed
  };
  std::vector<Output> outputs = {};
  bool quantizes = false;  // false for the float contractions
};

// Null for operations that are not a contraction or a gradient of one, such as aqt_quantize.
std::optional<ScalePassing> ScalePassingOf(const Composite& op);

// Whether multiplying a tensor by a power of two leaves its codes as they are and multiplies its scale, as long as
// nothing over- or underflows. True without numerics, and for AbsMax, Percentile, SnrSearch, and AbsMean with p = 1.
// False for a range that is fixed or comes from statistics, for other means, whose powers are rounded, and for
// po2_scale, whose logarithms round differently at different exponents.
bool FollowsItsTensor(const Quantizer& quantizer);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_SCALES_H_
