#include "tests/digest/cases.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/text/config_proto.h"
#include "tests/digest/contraction.h"
#include "tests/digest/draw.h"
#include "tests/digest/hash.h"
#include "tests/digest/other_cases.h"

namespace aqt::digest {
namespace {

bool InS32(const DotGeneralRawConfig& raw) { return raw.dg_accumulator_dtype == DType::kS32; }

std::vector<StateSlot> Copy(absl::Span<const StateSlot> slots) { return {slots.begin(), slots.end()}; }

PlanPasses Passes(bool forward_only) {
  return forward_only ? PlanPasses::kForwardOnly : PlanPasses::kForwardAndBackward;
}

// The parts that plans have under the same names.
absl::Status CheckQuantized(const PlannedContraction& plan, Side side) { return plan.quantized_avals(side).status(); }
absl::Status CheckQuantized(const EinsumPlan& plan, Side side) {
  const bool is_lhs = (side == Side::kLhs) != plan.swapped();
  return CheckQuantized(plan.dot_general(), is_lhs ? Side::kLhs : Side::kRhs);
}

// As when the digests were recorded: a side that is not quantized was refused. Prepared floats have tests of their own.
template <class Plan>
absl::StatusOr<PreparedOperand> PrepareQuantized(const Plan& plan, Side side, const ArrayRef& value,
                                                 const Context& context, const Runtime& runtime) {
  if (const absl::Status status = CheckQuantized(plan, side); !status.ok()) return status;
  return plan.Prepare(side, value, context, runtime);
}

template <class Plan>
Contraction MakeContraction(const Plan& plan) {
  Contraction c{.lhs = plan.lhs_aval(), .rhs = plan.rhs_aval(), .out = plan.out_aval()};
  c.forward = [plan](const DotOperand& lhs, const DotOperand& rhs, const Context& context, const MutableArrayRef& out,
                     Residuals* residuals, const Runtime& runtime, const StateArrays& state) {
    return plan.Forward(lhs, rhs, context, out, residuals, runtime, state);
  };
  c.prepare = [plan](Side side, const ArrayRef& value, const Context& context, const Runtime& runtime) {
    return PrepareQuantized(plan, side, value, context, runtime);
  };
  return c;
}

template <class Plan>
void AddGradients(const Plan& plan, Contraction& c) {
  c.backward = [plan](const ArrayRef& g, const Residuals& residuals, const Context& context,
                      const std::optional<MutableArrayRef>& dlhs, const std::optional<MutableArrayRef>& drhs,
                      const Runtime& runtime, const StateArrays& state) {
    return plan.Backward(g, residuals, context, dlhs, drhs, runtime, state);
  };
}

template <class Plan>
void AddPrepareQTensor(const Plan& plan, Contraction& c) {
  c.prepare_qtensor = [plan](Side side, QTensor qtensor, const Runtime& runtime) {
    return plan.Prepare(side, std::move(qtensor), runtime);
  };
}

// Draws until Make takes one, but not for long. `draw_one` sets `words` and gives a planner.
template <class DrawOne>
Case DrawPlanned(Draw& draw, const UseStyle& style, DrawOne&& draw_one) {
  constexpr int kAttempts = 4;
  Case c;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Planner planner = draw_one(c.words);
    const absl::StatusOr<Contraction> contraction = planner({}, std::nullopt);
    if (!contraction.ok()) {
      absl::StrAppend(&c.words, "\n", contraction.status().ToString());
      c.fields.push_back({"make", true, static_cast<uint64_t>(contraction.status().code())});
      ++c.num_refused;
      continue;
    }
    const Use use = DrawUse(draw, *contraction, style);
    absl::StrAppend(&c.words, "\n", use.ToString());
    c.run = [planner, use](const Machine& where) { return Run(planner, use, where); };
    return c;
  }
  c.refused = true;
  return c;
}

struct DotStyle {
  Style config = {};
  UseStyle use = {};
  bool large = false, named = false, tiled = false, local = false;
};

Case DrawDot(uint64_t seed, const DotStyle& style) {
  Draw draw(seed);
  return DrawPlanned(draw, style.use, [&](std::string& words) -> Planner {
    const DotShapes shapes = style.large ? DrawLargeDotShapes(draw) : DrawDotShapes(draw);
    DotGeneralConfig config = style.named && draw.OneIn(2)
                                  ? DrawNamedConfig(draw)
                                  : DrawConfig(draw, style.config, shapes.dims, shapes.lhs.rank(), shapes.rhs.rank());
    if (style.tiled) config.tiling = DrawTiling(draw, shapes);
    if (style.local) AddLocalAqt(draw, shapes, config);
    const DType dtype = DrawDType(draw);
    const Aval lhs{draw.OneIn(100) ? DType::kS8 : dtype, shapes.lhs}, rhs{dtype, shapes.rhs};
    const bool forward_only = draw.OneIn(style.use.prepared ? 2 : 10);
    words = absl::StrCat("dot_general ", lhs.ToString(), " ", rhs.ToString(), " ", shapes.dims.ToString(),
                         forward_only ? " forward only" : "", "\n", ToText(config));
    return [=](const Semantics& semantics, std::optional<kernels::Target> target) -> absl::StatusOr<Contraction> {
      const absl::StatusOr<DotGeneralPlan> plan =
          DotGeneralPlan::Make(config, lhs, rhs, shapes.dims, {Passes(forward_only), semantics, target});
      if (!plan.ok()) return plan.status();
      Contraction c = MakeContraction(*plan);
      AddPrepareQTensor(*plan, c);
      if (!forward_only) AddGradients(*plan, c);
      c.forward_state = Copy(plan->forward_state());
      c.backward_state = Copy(plan->backward_state());
      c.out_everywhere = InS32(config.fwd);
      c.dlhs_everywhere = InS32(config.dlhs);
      c.drhs_everywhere = InS32(config.drhs);
      return c;
    };
  });
}

Case DrawDotInteger(uint64_t seed) { return DrawDot(seed, {.config = {.integers = true}}); }
Case DrawDotAny(uint64_t seed) { return DrawDot(seed, {.named = true}); }
Case DrawDotLarge(uint64_t seed) {
  return DrawDot(seed, {.config = {.integers = seed % 2 == 0}, .large = true, .named = true});
}
Case DrawDotTiled(uint64_t seed) { return DrawDot(seed, {.config = {.integers = seed % 2 == 0}, .tiled = true}); }
Case DrawDotLocal(uint64_t seed) { return DrawDot(seed, {.config = {.integers = seed % 3 != 0}, .local = true}); }
Case DrawDotState(uint64_t seed) {
  return DrawDot(seed, {.config = {.integers = seed % 2 == 0, .state = true},
                        .use = {.prepared = seed % 5 == 0, .state = true},
                        .tiled = seed % 7 == 0});
}
Case DrawDotPrepared(uint64_t seed) {
  return DrawDot(seed, {.config = {.integers = seed % 2 == 0}, .use = {.prepared = true}, .tiled = seed % 5 == 0});
}

Case DrawEinsum(uint64_t seed) {
  Draw draw(seed);
  const UseStyle use{.prepared = draw.OneIn(4), .state = draw.OneIn(4)};
  return DrawPlanned(draw, use, [&](std::string& words) -> Planner {
    const Equation equation = DrawEquation(draw);
    const Style style{.integers = draw.OneIn(2), .state = use.state};
    // The ranks are only needed for arrays as constants, which then are of rank 0 or refused.
    const DotGeneralConfig config =
        draw.OneIn(3) ? DrawNamedConfig(draw) : DrawConfig(draw, style, {}, equation.lhs.rank(), equation.rhs.rank());
    const DType dtype = DrawDType(draw);
    Aval lhs{dtype, equation.lhs}, rhs{dtype, equation.rhs};
    if (draw.OneIn(8)) lhs.dtype = draw.Pick({DType::kF32, DType::kBF16, DType::kS8, DType::kS4, DType::kE4M3FN});
    if (draw.OneIn(8)) rhs.dtype = draw.Pick({DType::kF32, DType::kF16, DType::kS8, DType::kS32});
    const Compat compat = draw.OneIn(3) ? Compat::Original() : Compat{};
    const bool forward_only = draw.OneIn(6);
    words = absl::StrCat("einsum ", equation.text, " ", lhs.ToString(), " ", rhs.ToString(),
                         compat == Compat{} ? "" : " as the original", forward_only ? " forward only" : "", "\n",
                         ToText(config));
    return [=](const Semantics& semantics, std::optional<kernels::Target> target) -> absl::StatusOr<Contraction> {
      Semantics in_plan = semantics;
      in_plan.compat.einsum_keeps_mid_alphas = compat.einsum_keeps_mid_alphas;
      const absl::StatusOr<EinsumPlan> plan =
          EinsumPlan::Make(equation.text, config, lhs, rhs, {Passes(forward_only), in_plan, target});
      if (!plan.ok()) return plan.status();
      Contraction c = MakeContraction(*plan);
      AddPrepareQTensor(*plan, c);
      if (!forward_only) AddGradients(*plan, c);
      c.forward_state = Copy(plan->dot_general().forward_state());
      c.backward_state = Copy(plan->dot_general().backward_state());
      c.out_everywhere = InS32(config.fwd);
      c.dlhs_everywhere = InS32(config.dlhs);
      c.drhs_everywhere = InS32(config.drhs);
      return c;
    };
  });
}

Case DrawConv(uint64_t seed) {
  Draw draw(seed);
  const UseStyle use{.prepared = draw.OneIn(4), .state = draw.OneIn(2), .product = false};
  return DrawPlanned(draw, use, [&](std::string& words) -> Planner {
    const Convolution conv = DrawConvolution(draw);
    const DType dtype = DrawDType(draw);
    const Aval lhs{dtype, conv.lhs}, rhs{dtype, conv.rhs};
    std::string padding;
    for (const auto& [low, high] : conv.dims.explicit_padding) absl::StrAppend(&padding, " ", low, ",", high);
    words = absl::StrCat("conv_general ", lhs.ToString(), " ", rhs.ToString(), " strides ",
                         absl::StrJoin(conv.dims.window_strides, ","), " ", ToString(conv.dims.padding), padding,
                         " lhs dilation ", absl::StrJoin(conv.dims.lhs_dilation, ","), " rhs dilation ",
                         absl::StrJoin(conv.dims.rhs_dilation, ","), " groups ", conv.dims.feature_group_count, "\n",
                         ToText({.fwd = conv.config}));
    return [=](const Semantics& semantics, std::optional<kernels::Target> target) -> absl::StatusOr<Contraction> {
      const absl::StatusOr<ConvGeneralPlan> plan =
          ConvGeneralPlan::Make(conv.config, lhs, rhs, conv.dims, {.semantics = semantics, .target = target});
      if (!plan.ok()) return plan.status();
      Contraction c = MakeContraction(*plan);
      c.prepare_qtensor = [plan = *plan](Side side, QTensor qtensor, const Runtime&) {
        return plan.Prepare(side, std::move(qtensor));
      };
      c.backward = [plan = *plan](const ArrayRef& g, const Residuals& residuals, const Context&,
                                  const std::optional<MutableArrayRef>& dlhs,
                                  const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                  const StateArrays&) { return plan.Backward(g, residuals, dlhs, drhs, runtime); };
      c.forward_state = Copy(plan->forward_state());
      // Gradients of convolutions are sums of floats.
      c.out_everywhere = InS32(conv.config);
      return c;
    };
  });
}

Case DrawRagged(uint64_t seed) {
  Draw draw(seed);
  const UseStyle use{.prepared = draw.OneIn(4), .state = draw.OneIn(2)};
  return DrawPlanned(draw, use, [&](std::string& words) -> Planner {
    const DotGeneralConfig config = DrawRaggedConfig(draw);
    const int64_t groups = draw.Below(5), k = draw.OneIn(20) ? 0 : draw.Pick<int64_t>({1, 3, 8, 17, 66});
    const int64_t n = draw.OneIn(20) ? 0 : draw.Pick<int64_t>({1, 2, 5, 33});
    std::vector<int64_t> sizes;
    int64_t rows = draw.OneIn(2) ? 0 : draw.Below(3);
    for (int64_t i = 0; i < groups; ++i) {
      sizes.push_back(draw.OneIn(3) ? 0 : draw.Below(14));
      rows += sizes.back();
    }
    const DType dtype = DrawDType(draw);
    const Aval lhs{dtype, {rows, k}}, rhs{dtype, {groups, k, n}};
    const bool forward_only = draw.OneIn(6);
    words = absl::StrCat("ragged_dot ", lhs.ToString(), " ", rhs.ToString(), " sizes ", absl::StrJoin(sizes, ","),
                         forward_only ? " forward only" : "", "\n", ToText(config));
    return [=](const Semantics& semantics, std::optional<kernels::Target> target) -> absl::StatusOr<Contraction> {
      const absl::StatusOr<RaggedDotPlan> plan =
          RaggedDotPlan::Make(config, lhs, rhs, {Passes(forward_only), semantics, target});
      if (!plan.ok()) return plan.status();
      Contraction c{.lhs = plan->lhs_aval(), .rhs = plan->rhs_aval(), .out = plan->out_aval()};
      c.forward = [plan = *plan, sizes](const DotOperand& x, const DotOperand& y, const Context& context,
                                        const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                        const StateArrays& state) {
        return plan.Forward(x, y, sizes, context, out, residuals, runtime, state);
      };
      if (!forward_only) {
        c.backward = [plan = *plan, sizes](const ArrayRef& g, const Residuals& residuals, const Context& context,
                                           const std::optional<MutableArrayRef>& dlhs,
                                           const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                           const StateArrays& state) {
          return plan.Backward(g, residuals, sizes, context, dlhs, drhs, runtime, state);
        };
      }
      c.prepare = [plan = *plan](Side side, const ArrayRef& value, const Context& context, const Runtime& runtime) {
        return PrepareQuantized(plan, side, value, context, runtime);
      };
      AddPrepareQTensor(*plan, c);
      c.forward_state = Copy(plan->forward_state());
      c.backward_state = Copy(plan->backward_state());
      c.out_everywhere = InS32(config.fwd);
      c.dlhs_everywhere = InS32(config.dlhs);
      c.drhs_everywhere = InS32(config.drhs);
      return c;
    };
  });
}

}  // namespace

absl::Span<const Kind> Kinds() {
  // Each kind draws for itself: new ones, and more groups of an old one, leave the others as they are.
  static constexpr Kind kKinds[] = {
      {"dot_integer", 6, DrawDotInteger},
      {"dot_any", 8, DrawDotAny},
      {"dot_large", 2, DrawDotLarge},
      {"dot_tiled", 3, DrawDotTiled},
      {"dot_local", 3, DrawDotLocal},
      {"dot_state", 4, DrawDotState},
      {"dot_prepared", 4, DrawDotPrepared},
      {"einsum", 4, DrawEinsum},
      {"conv", 5, DrawConv},
      {"ragged", 4, DrawRagged},
      {"quant_dot", 2, DrawQuantDot},
      {"gptq", 1, DrawGptq},
      {"quantize", 2, DrawQuantize},
  };
  return kKinds;
}

Case DrawCase(const Kind& kind, int64_t group, int64_t index) {
  return kind.draw(Hash().Add(kind.name).Add(group).Add(index).value());
}

}  // namespace aqt::digest
