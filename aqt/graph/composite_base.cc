#include "aqt/graph/composite_base.h"

#include <source_location>
#include <utility>

#include "aqt/core/check.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"

namespace aqt {

std::vector<Value> CompositeBase::Expand(absl::Span<const Value> operands) const {
  AQT_CHECK(!has_expansion());
  return Bind(CompositeOp{shared_from_this()}, operands, std::source_location::current());
}

absl::StatusOr<std::vector<Array>> CompositeBase::Eval(absl::Span<const Array> operands, absl::Span<const bool>) const {
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

Composite::Forward CompositeBase::GradForward(absl::Span<const Value> operands) const {
  return {.outputs = Bind(CompositeOp{shared_from_this()}, operands, std::source_location::current()),
          .residuals = {operands.begin(), operands.end()}};
}

}  // namespace aqt
