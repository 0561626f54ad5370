#include "tests/golden_check/program_run.h"

#include <utility>

#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/transforms/quantize/fold.h"

namespace aqt::golden {

ProgramRun::ProgramRun(Program program, SlotValues fixed, std::optional<PreparedProgram> prepared)
    : program_(std::move(program)), fixed_(std::move(fixed)), prepared_(std::move(prepared)) {}

absl::StatusOr<ProgramRun> ProgramRun::Make(Way way, const Program& program, const SlotValues& fixed) {
  std::optional<PreparedProgram> prepared;
  if (way == Way::kPrepared) {
    AQT_ASSIGN_OR_RETURN(prepared, PreparedProgram::Make({program}, fixed));
  }
  return ProgramRun(program, fixed, std::move(prepared));
}

absl::StatusOr<SlotValues> ProgramRun::Eval(const SlotValues& inputs) const {
  return prepared_.has_value() ? prepared_->Eval(inputs) : EvalSlots(program_, Union(inputs, fixed_));
}

absl::StatusOr<SlotValues> Evaluate(Way way, const Program& program, const SlotValues& fixed,
                                    const SlotValues& inputs) {
  AQT_ASSIGN_OR_RETURN(const ProgramRun run, ProgramRun::Make(way, program, fixed));
  return run.Eval(inputs);
}

SlotValues Union(SlotValues a, const SlotValues& b) {
  a.insert(b.begin(), b.end());
  return a;
}

absl::StatusOr<SlotValues> Frozen(Way way, const Program& convert, const SlotValues& known, const SlotValues& data,
                                  SlotValues* out) {
  AQT_ASSIGN_OR_RETURN(Folded folded, Fold(convert, known));
  AQT_ASSIGN_OR_RETURN(SlotValues results, Evaluate(way, folded.program, folded.values, data));
  for (const auto& [slot, value] : results) {
    if (slot.kind == SlotKind::kFrozen) folded.values.emplace(slot, value);
  }
  if (out != nullptr) *out = std::move(results);
  return std::move(folded.values);
}

}  // namespace aqt::golden
