#include "aqt/nn/serve/serve.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/status_macros.h"
#include "aqt/transforms/quantize/serve.h"

namespace aqt::nn {

absl::StatusOr<SlotValues> Frozen(const Program& model, const InjectConfig& config, const SlotValues& state) {
  const bool is_frozen =
      std::any_of(state.begin(), state.end(), [](const auto& value) { return value.first.kind == SlotKind::kFrozen; });
  return is_frozen ? state : Freeze(model, config, state);
}

absl::StatusOr<PreparedProgram> Serve(absl::Span<const Program> models, const InjectConfig& config,
                                      const SlotValues& state, const PrepareOptions& options) {
  if (models.empty()) return absl::InvalidArgumentError("serve: there is no model");
  AQT_ASSIGN_OR_RETURN(const SlotValues frozen, Frozen(models[0], config, state));
  std::vector<Program> programs;
  for (const Program& model : models) {
    AQT_ASSIGN_OR_RETURN(Program program, ServeProgram(model, config, frozen));
    programs.push_back(std::move(program));
  }
  return PreparedProgram::Make(programs, frozen, options);
}

}  // namespace aqt::nn
