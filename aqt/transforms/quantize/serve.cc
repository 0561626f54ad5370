#include "aqt/transforms/quantize/serve.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/quantize/fold.h"

namespace aqt {
namespace {

InjectConfig InMode(InjectConfig config, QuantMode mode) {
  config.param_mode = config.data_mode = mode;
  return config;
}

}  // namespace

absl::StatusOr<SlotValues> Freeze(const Program& model, const InjectConfig& config, const SlotValues& known) {
  AQT_ASSIGN_OR_RETURN(const Program convert, Inject(model, InMode(config, QuantMode::kConvert)));
  AQT_ASSIGN_OR_RETURN(Folded folded, Fold(convert, known));
  // The inputs of the served program: frozen tensors, or known values of the model itself.
  SlotValues available = std::move(folded.values);
  available.insert(known.begin(), known.end());
  AQT_ASSIGN_OR_RETURN(const Program serve, ServeProgram(model, config, available));
  SlotValues values;
  for (const Program::Port& port : serve.inputs) {
    if (port.slot.kind == SlotKind::kData || port.slot.kind == SlotKind::kKey) continue;
    const auto it = available.find(port.slot);
    if (it == available.end()) {
      return absl::NotFoundError(
          absl::StrCat("freeze: no value for ", port.slot.ToString(), ", which the served model reads"));
    }
    if (it->second.aval() != serve.aval(port.var)) {
      return absl::InvalidArgumentError(absl::StrCat("freeze: ", port.slot.ToString(), " is ",
                                                     it->second.aval().ToString(), ", the served model reads ",
                                                     serve.aval(port.var).ToString()));
    }
    values.emplace(port.slot, it->second);
  }
  return values;
}

absl::StatusOr<Program> ServeProgram(const Program& model, const InjectConfig& config, const SlotValues& frozen) {
  AQT_ASSIGN_OR_RETURN(const Program serve, Inject(model, InMode(config, QuantMode::kServe), &frozen));
  return Dce(serve, {.drop_inputs = {SlotKind::kParam, SlotKind::kStat, SlotKind::kKey}});
}

}  // namespace aqt
