#include "aqt/nn/sgd.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/grad.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/rewrite.h"
#include "aqt/graph/trace.h"

namespace aqt::nn {
namespace {

Slot MomentumSlot(const Slot& param) { return {SlotKind::kStat, absl::StrCat("sgd/", param.path)}; }

// Whether this step is left out, as a bool scalar; counts such steps. Null if none ever is.
std::optional<Value> Skips(const StepOptions& options, absl::Span<const Value> gradients) {
  if (!options.max_consecutive_skips.has_value()) return std::nullopt;
  const NamedScope scope("skip_if_not_finite");
  const Slot slot{SlotKind::kStat, "skip_if_not_finite/count"};
  const Value finite = AllFinite(gradients), before = InputSlot(slot, Aval{DType::kS32, {}});
  const Value count = ops::Select(finite, before * 0.0, before + 1.0);
  WriteSlot(slot, count);
  return ops::And(ops::Not(finite), ops::LessEqual(count, static_cast<double>(*options.max_consecutive_skips)));
}

}  // namespace

absl::StatusOr<Program> TrainStep(const Program& loss, const Sgd& optimizer, const StepOptions& options) {
  if (!std::isfinite(optimizer.learning_rate) || !(optimizer.momentum >= 0 && optimizer.momentum < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("sgd: learning_rate = ", optimizer.learning_rate,
                                                   ", momentum = ", optimizer.momentum,
                                                   "; expected a finite learning_rate and a momentum in [0, 1)"));
  }
  const std::vector<int> params = loss.InputsOfKind(SlotKind::kParam);
  if (options.max_consecutive_skips.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sgd: max_consecutive_skips = ", *options.max_consecutive_skips, ", expected 0 or more"));
  }
  AQT_ASSIGN_OR_RETURN(const Program gradients, options.scaler.has_value()
                                                    ? DynamicScaleValueAndGrad(loss, params, *options.scaler)
                                                    : ValueAndGrad(loss, params));
  if (optimizer.momentum != 0) {
    absl::btree_set<Slot> taken;
    for (const Program::Port& port : gradients.inputs) taken.insert(port.slot);
    for (const Program::Port& port : gradients.outputs) taken.insert(port.slot);
    for (const int param : params) {
      const Slot& slot = gradients.inputs[param].slot;
      if (!taken.contains(MomentumSlot(slot))) continue;
      return absl::InvalidArgumentError(absl::StrCat("sgd: the program has ", MomentumSlot(slot).ToString(),
                                                     " itself, the name of the momentum of ", slot.ToString(),
                                                     "; rename the statistic"));
    }
  }
  // ValueAndGrad's outputs: those of the loss, one gradient per parameter, then what backward rules write.
  const size_t first_gradient = loss.outputs.size();
  std::vector<Slot> slots;
  for (size_t i = 0; i < gradients.outputs.size(); ++i) {
    if (i < first_gradient || i >= first_gradient + params.size()) slots.push_back(gradients.outputs[i].slot);
  }
  return Trace(
      [&](absl::Span<const Value> in) {
        const std::vector<Value> out = Inline(gradients, in);
        std::vector<Value> results;
        for (size_t i = 0; i < out.size(); ++i) {
          if (i < first_gradient || i >= first_gradient + params.size()) results.push_back(out[i]);
        }
        const std::optional<Value> keep =
            Skips(options, absl::MakeConstSpan(out).subspan(first_gradient, params.size()));
        const auto updated = [&](const Value& from, const Value& to) {
          return keep.has_value() ? ops::Select(*keep, from, to) : to;
        };
        const NamedScope scope("sgd");
        for (size_t i = 0; i < params.size(); ++i) {
          const Slot& slot = gradients.inputs[params[i]].slot;
          const NamedScope param_scope(slot.path);
          const Value& param = in[params[i]];
          Value update = ops::Cast(out[first_gradient + i], param.dtype());
          if (optimizer.momentum != 0) {
            const Slot momentum = MomentumSlot(slot);
            const Value before = InputSlot(momentum, update.aval());
            update = update + before * optimizer.momentum;
            WriteSlot(momentum, updated(before, update));
          }
          WriteSlot(slot, updated(param, param - update * optimizer.learning_rate));
        }
        return results;
      },
      InputsOf(gradients), slots);
}

void AddMissingStats(const Program& step, SlotValues& state) {
  for (auto& [slot, array] : InitialStats(step)) state.try_emplace(slot, std::move(array));
  for (const int position : step.InputsOfKind(SlotKind::kStat)) {
    const Program::Port& port = step.inputs[position];
    if (!state.contains(port.slot)) {
      state.emplace(port.slot, Array::Zeros(step.aval(port.var).dtype, step.aval(port.var).shape));
    }
  }
}

}  // namespace aqt::nn
