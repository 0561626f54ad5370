#include "tests/systems_check/scalify_program.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/transforms/precision/scalify.h"

namespace aqt::systems {
namespace {

Slot Data(const std::string& name) { return {SlotKind::kData, name}; }

}  // namespace

absl::StatusOr<ScaleRounding> RoundingOf(const std::string& mode) {
  if (mode == "none") return ScaleRounding::kNone;
  if (mode == "down") return ScaleRounding::kDown;
  if (mode == "up") return ScaleRounding::kUp;
  return absl::UnimplementedError(absl::StrCat("rounding mode ", mode));
}

absl::StatusOr<ScalifyRules> RulesOf(const SystemCase& c) {
  ScalifyRules rules{.compat = c.behaviour.scalify};
  if (c.config.contains("rounding_mode")) {
    AQT_ASSIGN_OR_RETURN(rules.rounding, RoundingOf(c.config.at("rounding_mode")));
  }
  if (c.config.contains("scale_dtype") && c.config.at("scale_dtype") == "f32") rules.scale_dtype = DType::kF32;
  if (c.config.contains("scale_dtype") && c.config.at("scale_dtype") == "f16") rules.scale_dtype = DType::kF16;
  return rules;
}

absl::StatusOr<ScaledValue> ScaledInput(const SystemCase& c, absl::string_view name) {
  const auto it = c.inputs.find(std::string(name));
  if (it == c.inputs.end() || !std::holds_alternative<ScaledArrays>(it->second.of)) {
    return absl::InvalidArgumentError(absl::StrCat("the case has no scaled input ", name));
  }
  const ScaledArrays& arrays = std::get<ScaledArrays>(it->second.of);
  return ScaledValue{Value(arrays.data), Value(arrays.scale)};
}

absl::StatusOr<SystemValue> ToSystemValue(const ScaledValue& value) {
  ScaledArrays arrays;
  AQT_ASSIGN_OR_RETURN(arrays.data, value.data.ToArray());
  AQT_ASSIGN_OR_RETURN(arrays.scale, value.scale.ToArray());
  return SystemValue(std::move(arrays));
}

absl::StatusOr<SystemValue::Dict> RunScaled(const NamedValues& inputs, const std::vector<std::string>& outputs,
                                            const ScalifyRules& rules, ScaledFunction fn) {
  std::vector<Input> traced;
  ScalifyOptions options{.rules = rules};
  SlotValues values;
  for (const auto& [name, value] : inputs) {
    const Slot slot = Data(absl::StrCat("in ", name));
    if (const Array* array = std::get_if<Array>(&value.of)) {
      traced.push_back({slot, array->aval()});
      values.insert_or_assign(slot, *array);
      continue;
    }
    const ScaledArrays& scaled = std::get<ScaledArrays>(value.of);
    traced.push_back({slot, scaled.data.aval()});
    values.insert_or_assign(slot, scaled.data);
    values.insert_or_assign(ScaleSlot(slot), scaled.scale);
    options.scaled_inputs[slot] = scaled.scale.dtype();
  }
  std::vector<Slot> slots;
  for (const std::string& name : outputs) slots.push_back(Data(name));
  absl::Status status;
  absl::StatusOr<Program> program = Trace(
      [&](absl::Span<const Value> in) {
        absl::StatusOr<std::vector<Value>> out = fn(in);
        if (out.ok()) return *std::move(out);
        status = out.status();
        return std::vector<Value>(slots.size(), Value::Poisoned(Aval{}, status));
      },
      traced, slots);
  if (!status.ok()) return status;
  AQT_RETURN_IF_ERROR(program.status());
  AQT_ASSIGN_OR_RETURN(const Program scaled, Scalify(*program, options));
  AQT_ASSIGN_OR_RETURN(const SlotValues results, EvalSlots(scaled, values));
  SystemValue::Dict dict;
  for (const Slot& slot : slots) {
    const auto scale = results.find(ScaleSlot(slot));
    const Array& data = results.at(slot);
    dict[slot.path] = scale == results.end() ? SystemValue(data) : SystemValue(ScaledArrays{data, scale->second});
  }
  return dict;
}

absl::StatusOr<SystemValue::Dict> RunScaledProgram(const SystemCase& c, const std::vector<std::string>& inputs,
                                                   const std::vector<std::string>& outputs, ScaledFunction fn) {
  NamedValues values;
  for (const std::string& name : inputs) {
    const auto it = c.inputs.find(name);
    if (it == c.inputs.end()) return absl::InvalidArgumentError(absl::StrCat("the case has no input ", name));
    values.emplace_back(name, it->second);
  }
  AQT_ASSIGN_OR_RETURN(const ScalifyRules rules, RulesOf(c));
  return RunScaled(values, outputs, rules, fn);
}

absl::StatusOr<Value> CotangentOf(const std::function<Value(const Value&)>& step, const Value& x,
                                  const Value& cotangent) {
  AQT_ASSIGN_OR_RETURN(
      const Program one,
      Trace([&](absl::Span<const Value> in) { return std::vector<Value>{step(in[0])}; }, {{{Data("x"), x.aval()}}}));
  const CompositeOp* op = std::get_if<CompositeOp>(&one.eqns.at(0).op);
  if (op == nullptr || one.eqns.size() != 1) return absl::InternalError("the step is not one operation");
  const Composite::Forward forward = op->impl->GradForward({x});
  std::vector<std::optional<Value>> result = op->impl->GradBackward(forward.residuals, {cotangent});
  if (result.empty() || !result[0].has_value()) return absl::InternalError("the step has no cotangent");
  return *result[0];
}

}  // namespace aqt::systems
