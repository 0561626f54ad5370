#ifndef AQT_JAX_PLANS_H_
#define AQT_JAX_PLANS_H_

// The plans of this process, by the text of their specification (contraction_spec.h) and the operands.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/aval.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt::jax {

// A plan that was made before, or a new one. The last 256 are kept.
absl::StatusOr<std::shared_ptr<const DotGeneralPlan>> PlanOf(absl::string_view spec, const Aval& lhs, const Aval& rhs,
                                                             PlanPasses passes);

// Appends bytes that differ for different avals.
void AppendAval(const Aval& aval, std::string* key);

// "f32[2,3]"
absl::StatusOr<Aval> ParseAval(absl::string_view text);

}  // namespace aqt::jax

#endif  // AQT_JAX_PLANS_H_
