#include "aqt/nn/train/train_step.h"

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/train/optimizer_update.h"
#include "aqt/nn/train/step_state.h"

namespace aqt::nn {
namespace {

using internal::StepState;
using internal::TrainedParam;
using internal::UpdateDType;

constexpr char kEmaCount[] = "ema_count";

std::string EmaPath(const Slot& param) { return absl::StrCat("ema/", param.path); }

absl::Status CheckOptions(const StepOptions& options) {
  const auto invalid = [](absl::string_view field, auto value, absl::string_view expected) {
    return absl::InvalidArgumentError(absl::StrCat("train step: ", field, " = ", value, ", expected ", expected));
  };
  if (options.max_consecutive_skips.value_or(0) < 0) {
    return invalid("max_consecutive_skips", *options.max_consecutive_skips, "0 or more");
  }
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  if (options.accumulate_steps < 1 || options.accumulate_steps > kMax) {
    return invalid("accumulate_steps", options.accumulate_steps, absl::StrCat("1 to ", kMax));
  }
  const auto is_limit = [](const std::optional<double>& x) { return !x.has_value() || (*x > 0 && std::isfinite(*x)); };
  if (!is_limit(options.clip_value)) return invalid("clip_value", *options.clip_value, "a finite number > 0");
  if (!is_limit(options.clip_norm)) return invalid("clip_norm", *options.clip_norm, "a finite number > 0");
  if (options.ema.has_value() && !(options.ema->decay >= 0 && static_cast<float>(options.ema->decay) < 1)) {
    return invalid("ema.decay", options.ema->decay, "a number in [0, 1) that is not 1 in f32");
  }
  return absl::OkStatus();
}

// Whether this step is skipped, as a bool scalar; counts such steps. Null if steps are never skipped.
std::optional<Value> Skips(const StepOptions& options, absl::Span<const TrainedParam> params, StepState& state) {
  if (!options.max_consecutive_skips.has_value()) return std::nullopt;
  const NamedScope scope("skip_if_not_finite");
  constexpr char kCount[] = "skip_if_not_finite/count";
  std::vector<Value> gradients;
  for (const TrainedParam& param : params) gradients.push_back(param.gradient);
  const Value finite = AllFinite(gradients);
  const Value before = state.Read(kCount, {DType::kS32, {}}, "the number of steps that were left out");
  const Value count = ops::Select(finite, before * 0.0, before + 1.0);
  state.Write(kCount, before, count);
  return ops::And(ops::Not(finite), ops::LessEqual(count, static_cast<double>(*options.max_consecutive_skips)));
}

// Replaces the gradients by their means. Returns whether no update follows; null if one always does.
std::optional<Value> Accumulate(int64_t steps, std::vector<TrainedParam>& params, StepState& state) {
  if (steps == 1) return std::nullopt;
  const NamedScope scope("accumulation");
  constexpr char kCount[] = "accumulation/count";
  const Value before = state.Read(kCount, {DType::kS32, {}}, "the number of accumulated gradients");
  const Value waits = ops::Less(before, static_cast<double>(steps - 1));
  state.Write(kCount, before, ops::Select(waits, before + 1.0, before * 0.0));
  for (TrainedParam& param : params) {
    const NamedScope param_scope(param.slot.path);
    const std::string path = absl::StrCat("accumulation/gradient/", param.slot.path);
    const Value gradient = ops::Cast(param.gradient, UpdateDType(param.value.dtype()));
    const Value sum =
        state.Read(path, gradient.aval(), absl::StrCat("the accumulated gradient of ", param.slot.ToString()));
    const Value next = sum + gradient;
    state.Write(path, sum, ops::Select(waits, next, 0.0));
    param.gradient = next / static_cast<double>(steps);
  }
  return waits;
}

void Clip(const StepOptions& options, std::vector<TrainedParam>& params) {
  if (!options.clip_value.has_value() && !options.clip_norm.has_value()) return;
  const NamedScope scope("clip");
  DType norm_dtype = DType::kF32;
  for (TrainedParam& param : params) {
    const DType dtype = UpdateDType(param.value.dtype());
    if (dtype == DType::kF64) norm_dtype = dtype;
    param.gradient = ops::Cast(param.gradient, dtype);
    if (options.clip_value.has_value()) {
      param.gradient = ops::Clamp(-*options.clip_value, param.gradient, *options.clip_value);
    }
  }
  if (!options.clip_norm.has_value() || params.empty()) return;
  Value sum;
  for (const TrainedParam& param : params) {
    const Value own = ops::Cast(ops::ReduceSum(param.gradient * param.gradient), norm_dtype);
    sum = &param == &params.front() ? own : sum + own;
  }
  const Value norm = ops::Sqrt(sum);
  const Value is_small = ops::Less(norm, *options.clip_norm);
  for (TrainedParam& param : params) {
    const Value clipped = param.gradient / ops::Cast(norm, param.gradient.dtype()) * *options.clip_norm;
    param.gradient = ops::Select(is_small, param.gradient, clipped);
  }
}

void UpdateEma(const Ema& ema, absl::Span<const TrainedParam> params, absl::Span<const Value> updated,
               StepState& state) {
  const NamedScope scope("ema");
  const internal::UpdateCount count = internal::CountUpdate(kEmaCount, state);
  const Value is_first = ops::Equal(count.before, 0.0);
  for (size_t i = 0; i < params.size(); ++i) {
    const NamedScope param_scope(params[i].slot.path);
    const DType dtype = UpdateDType(updated[i].dtype());
    const Value value = ops::Cast(updated[i], dtype);
    const std::string path = EmaPath(params[i].slot);
    const Value before =
        state.Read(path, value.aval(), absl::StrCat("the moving average of ", params[i].slot.ToString()));
    const Value average = ema.debias ? before : ops::Select(is_first, ops::Cast(params[i].value, dtype), before);
    state.Write(path, before, value * (1 - ema.decay) + average * ema.decay);
  }
}

std::optional<Value> Either(const std::optional<Value>& a, const std::optional<Value>& b) {
  return a.has_value() && b.has_value() ? ops::Or(*a, *b) : a.has_value() ? a : b;
}

}  // namespace

absl::StatusOr<Program> TrainStep(const Program& loss, const Optimizer& optimizer, const StepOptions& options) {
  AQT_RETURN_IF_ERROR(Validate(optimizer));
  AQT_RETURN_IF_ERROR(CheckOptions(options));
  const std::vector<int> positions = loss.InputsOfKind(SlotKind::kParam);
  std::vector<std::string> paths;
  for (const int position : positions) paths.push_back(loss.inputs[position].slot.path);
  AQT_ASSIGN_OR_RETURN(const std::vector<bool> decays, internal::DecayMask(optimizer, paths));
  AQT_ASSIGN_OR_RETURN(const Program gradients, options.scaler.has_value()
                                                    ? DynamicScaleValueAndGrad(loss, positions, *options.scaler)
                                                    : ValueAndGrad(loss, positions));
  std::set<Slot> taken;
  for (const Program::Port& port : gradients.inputs) taken.insert(port.slot);
  for (const Program::Port& port : gradients.outputs) taken.insert(port.slot);
  StepState state(std::move(taken));
  // ValueAndGrad's outputs: those of the loss, one gradient per parameter, then the outputs that backward rules write.
  const size_t first_gradient = loss.outputs.size(), end_of_gradients = first_gradient + positions.size();
  std::vector<Slot> slots;
  for (size_t i = 0; i < gradients.outputs.size(); ++i) {
    if (i < first_gradient || i >= end_of_gradients) slots.push_back(gradients.outputs[i].slot);
  }
  absl::StatusOr<Program> step = Trace(
      [&](absl::Span<const Value> in) {
        std::vector<Value> results;
        std::vector<TrainedParam> params;
        const std::vector<Value> out = Inline(gradients, in);
        for (size_t i = 0; i < out.size(); ++i) {
          if (i < first_gradient || i >= end_of_gradients) {
            results.push_back(out[i]);
          } else {
            const int position = positions[i - first_gradient];
            params.push_back({gradients.inputs[position].slot, in[position], out[i]});
          }
        }
        const std::optional<Value> skips = Skips(options, params, state);
        state.set_keep(skips);
        const std::optional<Value> waits = Accumulate(options.accumulate_steps, params, state);
        state.set_keep(Either(skips, waits));
        Clip(options, params);
        const std::vector<Value> updated = internal::Update(optimizer, decays, params, state);
        if (options.ema.has_value()) UpdateEma(*options.ema, params, updated, state);
        return results;
      },
      InputsOf(gradients), slots);
  AQT_RETURN_IF_ERROR(state.status());
  return step;
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

absl::StatusOr<SlotValues> EmaParams(const Ema& ema, const SlotValues& state) {
  const auto value_of = [&](const std::string& path, const Aval& aval) -> absl::StatusOr<Value> {
    const Slot slot{SlotKind::kStat, path};
    const auto it = state.find(slot);
    if (it == state.end()) {
      return absl::NotFoundError(
          absl::StrCat("the state has no ", slot.ToString(), "; train with a moving average (StepOptions::ema)"));
    }
    if (it->second.aval() == aval) return Value(it->second);
    return absl::InvalidArgumentError(
        absl::StrCat(slot.ToString(), " is ", it->second.aval().ToString(), ", expected ", aval.ToString()));
  };
  const SuspendTrace at_once;
  SlotValues params;
  AQT_ASSIGN_OR_RETURN(const Value count, value_of(kEmaCount, {DType::kS32, {}}));
  for (const auto& [slot, array] : state) {
    if (slot.kind != SlotKind::kParam) continue;
    const DType dtype = UpdateDType(array.dtype());
    AQT_ASSIGN_OR_RETURN(Value average, value_of(EmaPath(slot), {dtype, array.shape()}));
    if (count.Item<int32_t>() == 0) {
      params.emplace(slot, array);
      continue;
    }
    if (ema.debias) average = average / internal::BiasCorrection(ema.decay, count, dtype);
    AQT_ASSIGN_OR_RETURN(Array result, ops::Cast(average, array.dtype()).ToArray());
    params.emplace(slot, std::move(result));
  }
  return params;
}

}  // namespace aqt::nn
