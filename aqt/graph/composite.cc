#include "aqt/graph/composite.h"

#include "aqt/core/check.h"

namespace aqt {

std::vector<std::optional<Value>> Composite::GradBackward(absl::Span<const Value>, absl::Span<const Value>) const {
  AQT_CHECK(!"a composite with has_gradient() defines GradBackward");
}

}  // namespace aqt
