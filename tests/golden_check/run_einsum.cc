// Einsum.

#include <utility>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {

absl::StatusOr<DotGeneralConfig> ConfigOfEquation(const EinsumConfig& config, const Aval& lhs, const Aval& rhs,
                                                  const Semantics& semantics) {
  if (!config.of_product) return config.config;
  AQT_ASSIGN_OR_RETURN(const EinsumPlan plan, EinsumPlan::Make(config.equation, DefaultUnquantizedConfig(), lhs, rhs,
                                                               {.semantics = semantics}));
  // What the plan undoes.
  return plan.swapped() ? SwapOperands(config.config, semantics.compat.einsum_keeps_mid_alphas) : config.config;
}

absl::StatusOr<Tensors> Run(const EinsumConfig& config, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array lhs, Input(inputs, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Array rhs, Input(inputs, "rhs"));
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  const PlanOptions options{.semantics = semantics};
  AQT_ASSIGN_OR_RETURN(const DotGeneralConfig sides, ConfigOfEquation(config, lhs.aval(), rhs.aval(), semantics));
  if (const auto g = inputs.find("g"); g != inputs.end()) {
    AQT_ASSIGN_OR_RETURN(DotGeneralGradients results,
                         QuantizedEinsumWithGradients(config.equation, sides, lhs, rhs, g->second, context, options));
    return Tensors{
        {"out", std::move(results.out)}, {"dlhs", std::move(results.dlhs)}, {"drhs", std::move(results.drhs)}};
  }
  AQT_ASSIGN_OR_RETURN(Array out, QuantizedEinsum(config.equation, sides, lhs, rhs, context, options));
  return Tensors{{"out", std::move(out)}};
}

}  // namespace aqt::golden
