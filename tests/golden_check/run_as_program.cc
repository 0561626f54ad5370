// Contractions of all kinds as programs: a rule quantizes the float operation, as in a model.

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/testing/contractions.h"
#include "aqt/testing/same_bits.h"
#include "aqt/transforms/quantize/inject.h"
#include "tests/golden_check/program_run.h"
#include "tests/golden_check/run_case.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {
namespace {

constexpr char kScope[] = "contraction";

Slot Data(absl::string_view name) { return {SlotKind::kData, std::string(name)}; }
Slot Param(absl::string_view name) { return {SlotKind::kParam, std::string(name)}; }

class ContractionProgram {
 public:
  static absl::StatusOr<ContractionProgram> Make(const ContractionDims& dims, const DotGeneralConfig& config,
                                                 const Tensors& inputs, const Semantics& semantics, Way way) {
    ContractionProgram self(dims, config, semantics, way);
    for (const char* name : {"lhs", "rhs"}) {
      AQT_ASSIGN_OR_RETURN(self.operands_[Param(name)], Input(inputs, name));
    }
    if (std::holds_alternative<RaggedDims>(dims)) {
      AQT_ASSIGN_OR_RETURN(const Array group_sizes, Input(inputs, "group_sizes"));
      self.data_[Data("group_sizes")] = Cast(group_sizes, DType::kS32);
    }
    AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
    if (context.key.has_value()) self.data_[{SlotKind::kKey, kScope}] = KeyArray(*context.key);
    return self;
  }

  // "out" and, if there is a gradient g of it, "dlhs" and "drhs".
  absl::StatusOr<Tensors> Train(const Array* g) const {
    AQT_ASSIGN_OR_RETURN(const Program forward, Injected(QuantMode::kTrain));
    AQT_ASSIGN_OR_RETURN(const SlotValues inferred, EvaluateWithEach(forward, operands_, data_));
    Tensors tensors{{"out", inferred.at(Data("out"))}};
    if (g == nullptr) return tensors;
    AQT_ASSIGN_OR_RETURN(const Program loss, Injected(QuantMode::kTrain, nullptr, g));
    AQT_ASSIGN_OR_RETURN(const Program gradients, ValueAndGrad(loss, loss.InputsOfKind(SlotKind::kParam)));
    SlotValues data = data_;
    data[Data("g")] = *g;
    AQT_ASSIGN_OR_RETURN(const SlotValues trained, EvaluateWithEach(gradients, operands_, data));
    if (!SameBits(trained.at(Data("out")), tensors.at("out"))) {
      return absl::InternalError("out has other bits with gradients than without");
    }
    tensors.emplace("dlhs", trained.at(Data("grad(lhs)")));
    tensors.emplace("drhs", trained.at(Data("grad(rhs)")));
    return tensors;
  }

  // The frozen tensors, with their names from the manifest. Serving them must give this `out`.
  absl::StatusOr<Tensors> Freeze(const Array& out) const {
    AQT_ASSIGN_OR_RETURN(const Program convert, Injected(QuantMode::kConvert));
    AQT_ASSIGN_OR_RETURN(const SlotValues converted, EvaluateWithEach(convert, operands_, data_));
    SlotValues frozen;
    for (const auto& [slot, value] : converted) {
      if (slot.kind == SlotKind::kFrozen) frozen.emplace(slot, value);
    }
    AQT_ASSIGN_OR_RETURN(const Program serve, Injected(QuantMode::kServe, &frozen));
    AQT_ASSIGN_OR_RETURN(const SlotValues served, Evaluate(way_, serve, Union(frozen, operands_), data_));
    for (const auto& [mode, results] : {std::pair{"CONVERT", &converted}, std::pair{"SERVE", &served}}) {
      if (SameBits(results->at(Data("out")), out)) continue;
      return absl::InternalError(absl::StrCat("out has other bits in mode ", mode, " than in TRAIN"));
    }
    Tensors tensors;
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      for (const auto& [part, name] :
           {std::pair{FrozenPart::kValue, "qvalue"}, std::pair{FrozenPart::kScale, "scale"}}) {
        const auto tensor = frozen.find(FrozenSlot(kScope, side, part));
        if (tensor == frozen.end()) continue;
        const std::string full_name = absl::StrCat(side == Side::kLhs ? "lhs." : "rhs.", name);
        tensors.emplace(full_name, tensor->second);
        tensors.emplace(absl::StrCat("fwd.", full_name), tensor->second);
      }
    }
    return tensors;
  }

 private:
  ContractionProgram(const ContractionDims& dims, const DotGeneralConfig& config, const Semantics& semantics, Way way)
      : dims_(dims), config_(config), semantics_(semantics), way_(way) {}

  // The program in a mode, with output "out". With g, its first output is the loss whose gradient with respect to out
  // is g.
  absl::StatusOr<Program> Injected(QuantMode mode, const SlotValues* frozen = nullptr, const Array* g = nullptr) const {
    std::vector<aqt::Input> inputs;
    for (const auto& [slot, value] : operands_) inputs.push_back({slot, value.aval()});
    if (const auto sizes = data_.find(Data("group_sizes")); sizes != data_.end()) {
      inputs.push_back({sizes->first, sizes->second.aval()});
    }
    std::vector<Slot> outputs = {Data("out")};
    if (g != nullptr) {
      inputs.push_back({Data("g"), g->aval()});
      outputs.insert(outputs.begin(), Data("loss"));
    }
    const auto model = [&](absl::Span<const Value> in) {
      Value out;
      {
        const NamedScope scope(kScope);
        out = testing::FloatContraction(dims_, in);
      }
      return g == nullptr ? std::vector<Value>{out} : std::vector<Value>{ops::ReduceSum(out * in.back()), out};
    };
    AQT_ASSIGN_OR_RETURN(const Program program, Trace(model, inputs, outputs));
    const InjectRule rule{
        .scope = kScope, .ops = {std::string(KindOf(dims_))}, .dot_general = config_, .key_slot = kScope};
    return Inject(program, {.rules = {rule}, .param_mode = mode, .data_mode = mode, .semantics = semantics_}, frozen);
  }

  // Prepared: with the one operand fixed, with the other, and with both. All must give the same bits.
  absl::StatusOr<SlotValues> EvaluateWithEach(const Program& program, const SlotValues& operands,
                                              const SlotValues& data) const {
    AQT_ASSIGN_OR_RETURN(SlotValues results, Evaluate(way_, program, operands, data));
    if (way_ != Way::kPrepared) return results;
    for (const auto& [slot, value] : operands) {
      AQT_ASSIGN_OR_RETURN(const SlotValues others,
                           Evaluate(way_, program, {{slot, value}}, Union(data, Without(operands, slot))));
      for (const auto& [result_slot, result] : results) {
        if (SameBits(result, others.at(result_slot))) continue;
        return absl::InternalError(
            absl::StrCat(result_slot.path, " has other bits with both operands prepared than with ", slot.path));
      }
    }
    return results;
  }
  static SlotValues Without(SlotValues values, const Slot& slot) {
    values.erase(slot);
    return values;
  }

  ContractionDims dims_;
  DotGeneralConfig config_;
  Semantics semantics_;
  Way way_;
  SlotValues operands_, data_;
};

// The reason why operands cannot be quantized ahead of time by design; null for any other error. A stored tensor has no
// calibration bias, and with mid alphas each operand depends on the other one.
std::optional<std::string> WhyNotFrozen(const absl::Status& status, const DotGeneralConfig& config) {
  const bool has_mid_alphas = config.fwd.lhs_mid_alpha.has_value() || config.fwd.rhs_mid_alpha.has_value();
  if (!absl::IsUnimplemented(status) && !(has_mid_alphas && absl::IsInvalidArgument(status))) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(status.message(), "; operands ");  // and their places
  return parts[0];
}

}  // namespace

absl::StatusOr<Computed> RunAsProgram(const ContractionDims& dims, const DotGeneralConfig& config,
                                      const Tensors& inputs, const Semantics& semantics, Way way) {
  AQT_ASSIGN_OR_RETURN(const ContractionProgram program,
                       ContractionProgram::Make(dims, config, inputs, semantics, way));
  const auto g = inputs.find("g");
  Computed computed;
  AQT_ASSIGN_OR_RETURN(computed.tensors, program.Train(g == inputs.end() ? nullptr : &g->second));
  absl::StatusOr<Tensors> frozen = program.Freeze(computed.tensors.at("out"));
  if (const std::optional<std::string> reason = WhyNotFrozen(frozen.status(), config)) {
    for (const char* name : {"lhs.scale", "lhs.qvalue", "rhs.scale", "rhs.qvalue"}) {
      computed.refused[name] = computed.refused[absl::StrCat("fwd.", name)] = *reason;
    }
    return computed;
  }
  AQT_RETURN_IF_ERROR(frozen.status());
  computed.tensors.merge(*frozen);
  return computed;
}

}  // namespace aqt::golden
