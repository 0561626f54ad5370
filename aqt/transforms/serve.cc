#include "aqt/transforms/serve.h"

#include <utility>

#include "aqt/core/status_macros.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/fold.h"

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
  return std::move(folded.values);
}

absl::StatusOr<Program> ServeProgram(const Program& model, const InjectConfig& config, const SlotValues& frozen) {
  AQT_ASSIGN_OR_RETURN(const Program serve, Inject(model, InMode(config, QuantMode::kServe), &frozen));
  return Dce(serve, {.drop_inputs = {SlotKind::kParam, SlotKind::kStat, SlotKind::kKey}});
}

}  // namespace aqt
