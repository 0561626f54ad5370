#include "aqt/graph/composite.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt {

std::vector<Value> Composite::Expand(absl::Span<const Value> operands) const {
  AQT_CHECK(!has_expansion());
  return Bind(CompositeOp{shared_from_this()}, operands, std::source_location::current());
}

absl::StatusOr<std::vector<Array>> Composite::Eval(absl::Span<const Array> operands, absl::Span<const bool>) const {
  AQT_CHECK(has_expansion());
  const SuspendTrace suspend;
  std::vector<Value> values;
  for (const Array& operand : operands) values.emplace_back(operand);
  std::vector<Array> results;
  for (const Value& output : Expand(values)) {
    AQT_ASSIGN_OR_RETURN(Array result, output.ToArray());
    results.push_back(std::move(result));
  }
  return results;
}

Composite::Forward Composite::GradForward(absl::Span<const Value> operands) const {
  return {.outputs = Bind(CompositeOp{shared_from_this()}, operands, std::source_location::current()),
          .residuals = {operands.begin(), operands.end()}};
}

std::vector<std::optional<Value>> Composite::GradBackward(absl::Span<const Value>, absl::Span<const Value>) const {
  AQT_CHECK(!"a composite with has_gradient() defines GradBackward");
}

}  // namespace aqt
