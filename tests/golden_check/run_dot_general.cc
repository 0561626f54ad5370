// Contractions.

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/testing/same_bits.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {
namespace {

// The manifest numbers the draws of a call: noise0, noise0_key, ... in the order of the operands.
void NumberNoise(Tensors& tensors) {
  int count = 0;
  for (const char* pass : {"fwd", "dlhs", "drhs"}) {
    for (const char* side : {"lhs", "rhs"}) {
      const auto noise = tensors.find(absl::StrCat(pass, ".", side, ".noise"));
      if (noise == tensors.end()) continue;
      tensors.emplace(absl::StrCat("noise", count), noise->second);
      const auto key = tensors.find(absl::StrCat(pass, ".", side, ".key"));
      if (key != tensors.end()) tensors.emplace(absl::StrCat("noise", count, "_key"), key->second);
      ++count;
    }
  }
}

// Cases of tiled contractions record only the operands of the forward pass, without its name.
void NameForwardOperands(Tensors& tensors) {
  for (const char* name : {"lhs.scale", "lhs.qvalue", "rhs.scale", "rhs.qvalue"}) {
    const auto tensor = tensors.find(absl::StrCat("fwd.", name));
    if (tensor != tensors.end()) tensors.emplace(name, tensor->second);
  }
}

// "out" and, with a gradient g, "dlhs" and "drhs".
absl::StatusOr<Tensors> Contract(const DotGeneralPlan& plan, const DotOperand& lhs, const DotOperand& rhs,
                                 const Tensors& inputs, const Context& context, const Runtime& runtime) {
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
  Residuals residuals;
  const auto g = inputs.find("g");
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, context, out.ref(), g != inputs.end() ? &residuals : nullptr, runtime));
  Tensors tensors{{"out", std::move(out).Build()}};
  if (g != inputs.end()) {
    AQT_RETURN_IF_ERROR(plan.Backward(g->second, residuals, context, dlhs.ref(), drhs.ref(), runtime));
    tensors.emplace("dlhs", std::move(dlhs).Build());
    tensors.emplace("drhs", std::move(drhs).Build());
  }
  return tensors;
}

// The operand, with a given scale instead of its calibration; it is kept in `prepared`.
absl::StatusOr<DotOperand> Operand(const DotGeneralPlan& plan, Side side, const Array& x, const Array* scale,
                                   std::optional<PreparedOperand>& prepared) {
  if (scale == nullptr) return DotOperand(x);
  QTensor qtensor;
  qtensor.scale = {*scale};
  qtensor.dequant_dtype = x.dtype();
  AQT_ASSIGN_OR_RETURN(prepared, plan.Prepare(side, std::move(qtensor)));
  return DotOperand(x.ref(), *prepared);
}

}  // namespace

absl::StatusOr<Tensors> Run(const DotConfig& config, const Tensors& inputs, const Semantics& semantics, Given& given) {
  AQT_ASSIGN_OR_RETURN(const Array lhs, Input(inputs, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Array rhs, Input(inputs, "rhs"));
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  const PlanPasses passes = inputs.contains("g") ? PlanPasses::kForwardAndBackward : PlanPasses::kForwardOnly;
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config.config, lhs.aval(), rhs.aval(), config.dims,
                                            {.passes = passes, .semantics = semantics}));
  // An observer prevents fusion. It must not change the results.
  std::optional<PreparedOperand> prepared_lhs, prepared_rhs;
  AQT_ASSIGN_OR_RETURN(const DotOperand l, Operand(plan, Side::kLhs, lhs, given.Find("fwd.lhs.scale"), prepared_lhs));
  AQT_ASSIGN_OR_RETURN(const DotOperand r, Operand(plan, Side::kRhs, rhs, given.Find("fwd.rhs.scale"), prepared_rhs));
  AQT_ASSIGN_OR_RETURN(Tensors tensors, Contract(plan, l, r, inputs, context, {}));
  Recorder recorder;
  AQT_ASSIGN_OR_RETURN(const Tensors observed, Contract(plan, l, r, inputs, context, {.observer = &recorder}));
  for (const auto& [name, value] : observed) {
    if (SameBits(value, tensors.at(name))) continue;
    return absl::InternalError(absl::StrCat(name, " has other bits with an observer than without"));
  }
  tensors.merge(recorder.tensors);
  NumberNoise(tensors);
  if (config.config.tiling.has_value()) NameForwardOperands(tensors);
  return tensors;
}

}  // namespace aqt::golden
