#ifndef AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_COMPAT_H_
#define AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_COMPAT_H_

// The switches for the originals' behaviour.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/transforms/precision/scaled.h"

namespace aqt::systems {

struct SystemsCompat {
  ScalifyCompat scalify = {};
  Fp8Compat fp8 = {};
  bool dropped_under_grad = false;   // ScalingOptions
  bool subnormals_are_zero = false;  // DynamicScaler
  static SystemsCompat Original();
};

struct SystemsSwitch {
  absl::string_view name;
  absl::string_view reason;  // the reason for our behaviour
  bool& (*of)(SystemsCompat& compat);
};
absl::Span<const SystemsSwitch> SystemsSwitches();

}  // namespace aqt::systems

#endif  // AQT_TESTS_SYSTEMS_CHECK_SYSTEMS_COMPAT_H_
