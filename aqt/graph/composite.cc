#include "aqt/graph/composite.h"

#include "aqt/core/check.h"

namespace aqt {

std::vector<std::optional<Value>> Composite::GradBackward(absl::Span<const Value>, absl::Span<const Value>) const {
  AQT_CHECK(!"a composite with has_gradient() defines GradBackward");
}

absl::StatusOr<std::vector<Array>> Composite::EvalInto(absl::Span<const Array>, absl::Span<const bool>, void*,
                                                       BlockEpilogue*) const {
  AQT_CHECK(!"a composite with has_eval_into() defines EvalInto");
}

}  // namespace aqt
