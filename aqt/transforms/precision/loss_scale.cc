#include "aqt/transforms/precision/loss_scale.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

constexpr char kPrefix[] = "dynamic_scaler/";

Slot StateSlot(absl::string_view field) { return {SlotKind::kStat, absl::StrCat(kPrefix, field)}; }

// Calls f for each field of the state. `dtype` is that of the fields in the scaler's dtype.
template <class State, class F>
void ForEachField(State& state, DType dtype, const F& f) {
  f("patience", DType::kS32, state.patience);
  f("adjust_factor", dtype, state.adjust_factor);
  f("scaler", dtype, state.scaler);
  f("count", DType::kS32, state.count);
  f("total_resets", DType::kS32, state.total_resets);
}

ScalerValues ReadState(DType dtype) {
  ScalerValues state;
  ForEachField(state, dtype, [](const char* field, DType own, Value& value) {
    value = InputSlot(StateSlot(field), Aval{own, {}});
  });
  return state;
}

Array Scalar(DType dtype, double number) { return Cast(Array::Scalar(number), dtype); }

absl::Status CheckOptions(const Program& loss, const DynamicScaler& options) {
  const auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("dynamic scaler: ", parts...));
  };
  if (options.dtype != DType::kF32 && options.dtype != DType::kF16 && options.dtype != DType::kBF16) {
    return invalid("dtype is ", ToString(options.dtype), ", expected f32, f16 or bf16");
  }
  // A number as the state stores it.
  const auto held = [&](double x) { return Cast(Array::Scalar(static_cast<float>(x)), options.dtype); };
  const auto number = [&](double x) { return Cast(held(x), DType::kF64).View<double>()[0]; };
  const double factor = number(options.adjust_factor), scaler = number(options.scaler);
  if (!(factor > 1) || !std::isfinite(factor) || !(scaler > 0) || !std::isfinite(scaler) || options.patience < 0) {
    return invalid("patience = ", options.patience, ", adjust_factor = ", options.adjust_factor,
                   ", scaler = ", options.scaler,
                   "; expected patience >= 0, adjust_factor > 1 and scaler > 0, finite in ", ToString(options.dtype));
  }
  if (options.min.has_value() && !std::isfinite(*options.min)) {
    return invalid("min = ", *options.min, ", expected a finite number");
  }
  if (options.max.has_value() && !(*options.max > 0)) {
    return invalid("max = ", *options.max, ", expected a number > 0");
  }
  if (options.min.has_value() && options.max.has_value() && !(*options.min <= *options.max)) {
    return invalid("min = ", *options.min, " is not below max = ", *options.max);
  }
  for (const std::vector<Program::Port>* ports : {&loss.inputs, &loss.outputs}) {
    for (const Program::Port& port : *ports) {
      if (!port.slot.path.starts_with(kPrefix)) continue;
      return invalid("the program has ", port.slot.ToString(), " itself, a name of the scaler's state; rename it");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Program> Scaled(const Program& loss, absl::Span<const int> wrt, const DynamicScaler& options,
                               bool keep_value) {
  AQT_RETURN_IF_ERROR(CheckOptions(loss, options));
  // The scaled loss and its gradients; the scaler is an input.
  AQT_ASSIGN_OR_RETURN(const Program scaled,
                       Trace(
                           [&](absl::Span<const Value> in) {
                             std::vector<Value> out = Inline(loss, in);
                             const NamedScope scope("dynamic_scaler");
                             const Value scaler = InputSlot(StateSlot("scaler"), Aval{options.dtype, {}});
                             if (!out.empty()) out[0] = out[0] * ops::Cast(scaler, out[0].dtype());
                             return out;
                           },
                           InputsOf(loss), OutputSlotsOf(loss)));
  AQT_ASSIGN_OR_RETURN(const Program gradients, ValueAndGrad(scaled, wrt));
  const size_t first = keep_value ? 0 : 1, num_outputs = loss.outputs.size(), num_gradients = wrt.size();
  std::vector<Slot> slots = OutputSlotsOf(gradients);
  slots.erase(slots.begin(), slots.begin() + static_cast<int64_t>(first));
  slots.push_back({SlotKind::kData, kFiniteOutput});
  return Trace(
      [&](absl::Span<const Value> in) {
        std::vector<Value> out = Inline(gradients, in);
        const NamedScope scope("dynamic_scaler");
        const ScalerValues state = ReadState(options.dtype);
        std::vector<Value> results;
        for (size_t i = first; i < out.size(); ++i) {
          const bool is_gradient = i >= num_outputs && i < num_outputs + num_gradients;
          if (i == 0 || is_gradient) out[i] = ops::Cast(out[i], options.dtype) / state.scaler;
          if (is_gradient || (i < num_outputs && gradients.outputs[i].slot.kind == SlotKind::kData)) {
            results.push_back(out[i]);
          }
        }
        const Value finite = AllFinite(results);
        ScalerValues next = UpdateScaler(state, finite, options);
        ForEachField(next, options.dtype,
                     [](const char* field, DType, const Value& value) { WriteSlot(StateSlot(field), value); });
        out.erase(out.begin(), out.begin() + static_cast<int64_t>(first));
        out.push_back(finite);
        return out;
      },
      InputsOf(gradients), slots);
}

}  // namespace

Value AllFinite(absl::Span<const Value> values) {
  Value finite = ValueOrNumber(1.0).As(DType::kF32);
  for (const Value& x : values) {
    if (!IsFloat(x.dtype())) continue;
    const Value own = ops::ReduceMin(ops::Cast(ops::IsFinite(x), DType::kF32));
    finite = ops::Min(finite, own);
  }
  return ops::Greater(finite, 0.5);
}

bool IsScalerState(const Slot& slot) { return slot.kind == SlotKind::kStat && slot.path.starts_with(kPrefix); }

SlotValues InitialScalerState(const DynamicScaler& options) {
  return {{StateSlot("patience"), Array::Scalar<int32_t>(options.patience)},
          {StateSlot("adjust_factor"), Scalar(options.dtype, options.adjust_factor)},
          {StateSlot("scaler"), Scalar(options.dtype, options.scaler)},
          {StateSlot("count"), Array::Scalar<int32_t>(0)},
          {StateSlot("total_resets"), Array::Scalar<int32_t>(0)}};
}

ScalerValues UpdateScaler(const ScalerValues& state, const Value& finite, const DynamicScaler& options) {
  const Value grows = ops::GreaterEqual(state.count, state.patience);
  const Value after_finite = ops::Select(grows, state.scaler * state.adjust_factor, state.scaler);
  ScalerValues next = state;
  next.scaler = ops::Select(finite, after_finite, state.scaler / state.adjust_factor);
  if (options.subnormals_are_zero) next.scaler = ops::Flush(next.scaler);
  if (options.min.has_value()) next.scaler = ops::Max(next.scaler, *options.min);
  if (options.max.has_value()) next.scaler = ops::Min(next.scaler, *options.max);
  next.count = ops::Select(finite, ops::Select(grows, state.count * 0.0, state.count + 1.0), state.count * 0.0);
  next.total_resets = ops::Select(finite, state.total_resets, state.total_resets + 1.0);
  return next;
}

absl::StatusOr<Program> DynamicScaleValueAndGrad(const Program& loss, absl::Span<const int> wrt,
                                                 const DynamicScaler& options) {
  return Scaled(loss, wrt, options, /*keep_value=*/true);
}

absl::StatusOr<Program> DynamicScaleGrad(const Program& loss, absl::Span<const int> wrt, const DynamicScaler& options) {
  return Scaled(loss, wrt, options, /*keep_value=*/false);
}

absl::StatusOr<SlotValues> EvalWithRedo(const Program& scaled, SlotValues values, int redo_on_nan) {
  if (redo_on_nan < 0) {
    return absl::InvalidArgumentError(absl::StrCat("redo_on_nan = ", redo_on_nan, ", expected 0 or more"));
  }
  for (int repeats = 0;; ++repeats) {
    AQT_ASSIGN_OR_RETURN(SlotValues out, EvalSlots(scaled, values));
    const auto finite = out.find({SlotKind::kData, kFiniteOutput});
    if (finite == out.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the program has no output data \"", kFiniteOutput,
                                                     "\"; make it with DynamicScaleGrad or DynamicScaleValueAndGrad"));
    }
    if (finite->second.View<bool>()[0] || repeats == redo_on_nan) return out;
    for (const auto& [slot, array] : out) {
      if (IsScalerState(slot)) values.insert_or_assign(slot, array);
    }
  }
}

}  // namespace aqt
