#include "aqt/transforms/quantize/serve.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/trace.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/fold.h"

namespace aqt {
namespace {

InjectConfig InMode(InjectConfig config, QuantMode mode) {
  config.param_mode = config.data_mode = mode;
  return config;
}

// What the served model reads, by name: what conversion writes, and the parameters and statistics that stay.
std::vector<Input> InputsWhenServed(const Program& model, const Program& convert) {
  const auto is_converted = [&](const Program::Port& output) {
    return output.slot.kind == SlotKind::kFrozen &&
           std::none_of(model.outputs.begin(), model.outputs.end(),
                        [&](const Program::Port& own) { return own.slot == output.slot; });
  };
  std::vector<Input> inputs;
  std::vector<bool> is_read(convert.vars.size(), false), is_input(convert.vars.size(), false);
  for (const Program::Port& output : convert.outputs) {
    if (is_converted(output)) {
      inputs.push_back({output.slot, convert.aval(output.var)});
      is_input[output.var] = true;
    } else {
      is_read[output.var] = true;
    }
  }
  for (size_t i = convert.eqns.size(); i-- > 0;) {
    const Equation& eqn = convert.eqns[i];
    const bool stays =
        std::any_of(eqn.out.begin(), eqn.out.end(), [&](VarId var) { return is_read[var] && !is_input[var]; });
    for (const VarId var : eqn.in) is_read[var] = is_read[var] || stays;
  }
  for (const Program::Port& input : convert.inputs) {
    const SlotKind kind = input.slot.kind;
    const bool is_state = kind == SlotKind::kParam || kind == SlotKind::kStat;
    if (kind == SlotKind::kFrozen || (is_state && is_read[input.var])) {
      inputs.push_back({input.slot, convert.aval(input.var)});
    }
  }
  return inputs;
}

}  // namespace

absl::StatusOr<SlotValues> Freeze(const Program& model, const InjectConfig& config, const SlotValues& known) {
  AQT_ASSIGN_OR_RETURN(const Program convert, Inject(model, InMode(config, QuantMode::kConvert)));
  AQT_ASSIGN_OR_RETURN(Folded folded, Fold(convert, known));
  SlotValues available = std::move(folded.values);
  available.insert(known.begin(), known.end());
  SlotValues values;
  for (const auto& [slot, aval] : InputsWhenServed(model, convert)) {
    const auto it = available.find(slot);
    if (it == available.end()) {
      return absl::NotFoundError(
          absl::StrCat("freeze: no value for ", slot.ToString(), ", which the served model reads"));
    }
    if (it->second.aval() != aval) {
      return absl::InvalidArgumentError(absl::StrCat("freeze: ", slot.ToString(), " is ", it->second.aval().ToString(),
                                                     ", the served model reads ", aval.ToString()));
    }
    values.emplace(slot, it->second);
  }
  return values;
}

absl::StatusOr<Program> ServeProgram(const Program& model, const InjectConfig& config, const SlotValues& frozen) {
  AQT_ASSIGN_OR_RETURN(const Program serve, Inject(model, InMode(config, QuantMode::kServe), &frozen));
  return Dce(serve, {.drop_inputs = {SlotKind::kParam, SlotKind::kStat, SlotKind::kKey}});
}

}  // namespace aqt
