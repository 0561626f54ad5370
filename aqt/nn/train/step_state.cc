#include "aqt/nn/train/step_state.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"

namespace aqt::nn::internal {

Value StepState::Read(absl::string_view path, const Aval& aval, absl::string_view what) {
  const Slot slot{SlotKind::kStat, std::string(path)};
  if (!taken_.insert(slot).second && status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat("train step: the program has ", slot.ToString(),
                                                      " itself, the name of ", what, "; rename the statistic"));
  }
  return InputSlot(slot, aval);
}

void StepState::Write(const Slot& slot, const Value& before, const Value& after) const {
  WriteSlot(slot, keep_.has_value() ? ops::Select(*keep_, before, after) : after);
}

void StepState::Write(absl::string_view path, const Value& before, const Value& after) const {
  Write(Slot{SlotKind::kStat, std::string(path)}, before, after);
}

UpdateCount CountUpdate(absl::string_view path, StepState& state) {
  const Value before = state.Read(path, {DType::kS32, {}}, "the number of updates");
  const Value after = ops::Min(before, std::numeric_limits<int32_t>::max() - 1.0) + 1.0;
  state.Write(path, before, after);
  return {before, after};
}

DType UpdateDType(DType param) { return param == DType::kF64 ? DType::kF64 : DType::kF32; }

Value BiasCorrection(double decay, const Value& count, DType dtype) {
  return 1.0 - ops::Pow(decay, ops::Cast(count, dtype));
}

}  // namespace aqt::nn::internal
