#include "aqt/quant/config/calibrations.h"

namespace aqt {

absl::string_view NameOf(const Calibration& calibration) {
  return std::visit([]<class C>(const C&) { return CalibrationTraits<C>::kName; }, calibration);
}

bool HasState(const Calibration& calibration) {
  return std::visit([]<class C>(const C&) { return CalibrationTraits<C>::kHasState; }, calibration);
}

bool HasPo2Scale(const Calibration& calibration) {
  return std::visit([](const auto& c) { return c.po2_scale; }, calibration);
}

}  // namespace aqt
