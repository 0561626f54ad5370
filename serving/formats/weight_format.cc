#include "serving/formats/weight_format.h"

namespace aqt::serving {

int64_t WeightFormat::RowUnit(const WeightScheme& weights) const {
  if (weights.strategy == WeightStrategy::kTensor) return 0;
  return weights.strategy == WeightStrategy::kBlock ? weights.block[0] : 1;
}

compressed_tensors::Units UnitsOf(const WeightScheme& weights, const Shape& shape) {
  return *compressed_tensors::UnitsOf(weights, shape[0], shape[1]);
}

}  // namespace aqt::serving
