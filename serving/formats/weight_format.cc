#include "serving/formats/weight_format.h"

#include "aqt/core/check.h"

namespace aqt::serving {

int64_t WeightFormat::RowUnit(const WeightScheme& weights) const {
  return weights.strategy == WeightStrategy::kTensor ? 0 : 1;
}

Shape ScaleShape(const WeightScheme& weights, const Shape& weight) {
  switch (weights.strategy) {
    case WeightStrategy::kTensor: return {1};
    case WeightStrategy::kChannel: return {weight[0], 1};
    case WeightStrategy::kGroup: return {weight[0], weight[1] / weights.group_size};
    case WeightStrategy::kBlock: break;
  }
  AQT_CHECK(false);
}

}  // namespace aqt::serving
