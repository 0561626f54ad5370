#include "aqt/nn/train/calibrate.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/runtime/executable.h"

namespace aqt::nn {

absl::StatusOr<SlotValues> Calibrate(const Program& model, InjectConfig config, SlotValues known,
                                     absl::Span<const SlotValues> batches) {
  config.param_mode = config.data_mode = QuantMode::kTrain;
  AQT_ASSIGN_OR_RETURN(const Program train, Inject(model, config));
  if (InitialStats(train).empty()) return known;
  config.param_mode = config.data_mode = QuantMode::kCalibrate;
  AQT_ASSIGN_OR_RETURN(const Program program, Inject(model, config));
  const SlotValues initial = InitialStats(program);
  if (batches.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("calibrate: there are no batches, but ",
                                                   initial.begin()->first.ToString(),
                                                   " is a statistic of activations; give at least one batch"));
  }
  AQT_ASSIGN_OR_RETURN(const Executable executable, Executable::Make(program));
  known.insert(initial.begin(), initial.end());  // known values stay
  for (size_t i = 0; i < batches.size(); ++i) {
    SlotValues values = known;
    for (const auto& [slot, array] : batches[i]) values.insert_or_assign(slot, array);
    absl::StatusOr<SlotValues> out = executable.RunSlots(values);
    if (!out.ok()) return Annotate(out.status(), absl::StrCat("calibration batch ", i));
    for (const auto& [slot, array] : initial) {
      const auto updated = out->find(slot);
      if (updated != out->end()) known.insert_or_assign(slot, std::move(updated->second));
    }
  }
  return known;
}

}  // namespace aqt::nn
