// Contractions that are trained or calibrated, converted and served: as a program that a rule quantizes, and with a
// plan and prepared operands.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/transforms/quantize/inject.h"
#include "tests/golden_check/program_run.h"
#include "tests/golden_check/run_case.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {
namespace {

constexpr char kScope[] = "dot";

const Slot& OutSlot() {
  static const auto* const slot = new Slot{SlotKind::kData, "out"};
  return *slot;
}

Slot OperandSlot(const ServedDotConfig& config, Side side) {
  const bool lhs = side == Side::kLhs;
  return {(lhs ? config.lhs_is_param : config.rhs_is_param) ? SlotKind::kParam : SlotKind::kData, lhs ? "lhs" : "rhs"};
}

// The program of a mode.
absl::StatusOr<Program> InMode(const ServedDotConfig& config, const Program& program, const Semantics& semantics,
                               QuantMode mode, const SlotValues* frozen = nullptr) {
  return Inject(program,
                {.rules = {{.scope = kScope, .dot_general = config.config, .key_slot = kScope}},
                 .param_mode = mode,
                 .data_mode = mode,
                 .semantics = semantics},
                frozen);
}

// The statistics after all calibration batches.
absl::StatusOr<SlotValues> Calibrated(const ServedDotConfig& config, const Program& program,
                                      const std::vector<aqt::Input>& operands, const Tensors& inputs,
                                      const SlotValues& params, const SlotValues& data, const Semantics& semantics,
                                      Way way) {
  AQT_ASSIGN_OR_RETURN(const Program calibrate, InMode(config, program, semantics, QuantMode::kCalibrate));
  SlotValues statistics;
  nn::AddMissingStats(calibrate, statistics);
  AQT_ASSIGN_OR_RETURN(const ProgramRun run, ProgramRun::Make(way, calibrate, params));
  for (int64_t i = 0; i < config.calibration_batches; ++i) {
    SlotValues values = Union(data, statistics);
    for (const aqt::Input& operand : operands) {
      if (operand.slot.kind == SlotKind::kParam) continue;
      AQT_ASSIGN_OR_RETURN(const Array batches, Input(inputs, absl::StrCat("calibration_", operand.slot.path)));
      values[operand.slot] = Part(batches, i);
    }
    AQT_ASSIGN_OR_RETURN(const SlotValues out, run.Eval(values));
    for (auto& [slot, value] : statistics) value = out.at(slot);
  }
  return statistics;
}

// A plan whose parameters are prepared operands gives the bits of the served program, `out`.
absl::Status CheckPreparedPlan(const ServedDotConfig& config, const std::vector<aqt::Input>& operands,
                               const SlotValues& values, const Context& context, const Semantics& semantics,
                               const Array& out) {
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config.config, operands[0].aval, operands[1].aval, config.dims,
                                            {.passes = PlanPasses::kForwardOnly, .semantics = semantics}));
  std::optional<PreparedOperand> prepared[2];
  std::optional<DotOperand> sides[2];
  bool all_stateless = true;
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const int i = static_cast<int>(side);
    const Slot& slot = operands[i].slot;
    const TensorConfig& tensor = side == Side::kLhs ? config.config.fwd.lhs : config.config.fwd.rhs;
    all_stateless = all_stateless && !HasState(tensor.quantizer);
    const Array& x = values.at(slot);
    sides[i].emplace(x);
    if (slot.kind != SlotKind::kParam || !IsQuantized(tensor.quantizer.numerics) || HasState(tensor.quantizer))
      continue;
    AQT_ASSIGN_OR_RETURN(prepared[i], plan.Prepare(side, x, context));
    sides[i].emplace(*prepared[i]);
  }
  // A plan prepares each operand separately, so without the mid scales that depend on both.
  const DotGeneralRawConfig& fwd = config.config.fwd;
  if (!all_stateless || fwd.lhs_mid_alpha.has_value() || fwd.rhs_mid_alpha.has_value()) return absl::OkStatus();
  ArrayBuilder builder(plan.out_aval());
  AQT_RETURN_IF_ERROR(plan.Forward(*sides[0], *sides[1], context, builder.ref()));
  if (!BitEqual(std::move(builder).Build(), out)) {
    return absl::InternalError("a plan with prepared operands gives other bits than the served program");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensors> Run(const ServedDotConfig& config, const Tensors& inputs, const Semantics& semantics, Way way) {
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  SlotValues params, data{{{SlotKind::kKey, kScope}, KeyArray(context.key.value_or(Key{}))}};
  std::vector<aqt::Input> operands;
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const Slot slot = OperandSlot(config, side);
    AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, slot.path));
    operands.push_back({slot, x.aval()});
    (slot.kind == SlotKind::kParam ? params : data)[slot] = x;
  }
  AQT_ASSIGN_OR_RETURN(const Program program,
                       Trace(
                           [&](absl::Span<const Value> in) {
                             const NamedScope scope(kScope);
                             return std::vector<Value>{ops::DotGeneral(in[0], in[1], config.dims)};
                           },
                           operands, {{OutSlot()}}));
  SlotValues known = params;
  Tensors tensors;
  if (config.calibration_batches > 0) {
    AQT_ASSIGN_OR_RETURN(const SlotValues statistics,
                         Calibrated(config, program, operands, inputs, params, data, semantics, way));
    for (const auto& [slot, value] : statistics) {
      // "dot/fwd.lhs/count" is stats.lhs.count.
      const std::vector<std::string> words = absl::StrSplit(slot.path, '/');
      tensors.emplace(absl::StrCat("stats.", absl::StripPrefix(words[1], "fwd."), ".", words[2]), value);
    }
    known = Union(std::move(known), statistics);
  }
  AQT_ASSIGN_OR_RETURN(const Program train, InMode(config, program, semantics, QuantMode::kTrain));
  AQT_ASSIGN_OR_RETURN(const SlotValues trained, Evaluate(way, train, known, data));
  AQT_ASSIGN_OR_RETURN(const Program convert, InMode(config, program, semantics, QuantMode::kConvert));
  AQT_ASSIGN_OR_RETURN(const SlotValues frozen, Frozen(way, convert, known, data));
  AQT_ASSIGN_OR_RETURN(const Program serve, InMode(config, program, semantics, QuantMode::kServe, &frozen));
  // Not the parameters: quantized ones are frozen.
  SlotValues values = frozen;
  for (const auto& [slot, value] : params) {
    const Side side = slot.path == "lhs" ? Side::kLhs : Side::kRhs;
    const TensorConfig& tensor = side == Side::kLhs ? config.config.fwd.lhs : config.config.fwd.rhs;
    values[slot] = IsQuantized(tensor.quantizer.numerics) ? Array::Zeros(value.dtype(), value.shape()) : value;
  }
  AQT_ASSIGN_OR_RETURN(const SlotValues served, Evaluate(way, serve, values, data));
  const Array& out = served.at(OutSlot());
  tensors.emplace("served_output", out);
  tensors.emplace("train_mode_output", trained.at(OutSlot()));
  if (config.train_equals_serve && !BitEqual(trained.at(OutSlot()), out)) {
    return absl::InternalError("serving gives other bits than the quantized product");
  }

  for (const aqt::Input& operand : operands) {
    const Side side = operand.slot.path == "lhs" ? Side::kLhs : Side::kRhs;
    for (const auto& [part, name] : {std::pair{FrozenPart::kValue, "qvalue"}, std::pair{FrozenPart::kScale, "scale"}}) {
      const auto tensor_part = frozen.find(FrozenSlot(kScope, side, part));
      if (tensor_part == frozen.end()) continue;
      tensors.emplace(absl::StrCat("frozen.", operand.slot.path, ".", name), tensor_part->second);
    }
  }
  AQT_RETURN_IF_ERROR(CheckPreparedPlan(config, operands, Union(params, data), context, semantics, out));
  return tensors;
}

}  // namespace aqt::golden
