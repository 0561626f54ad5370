#include "aqt/nn/layers/parameter.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/name_key.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"

namespace aqt::nn {
namespace {

// A parameter requested through Parameter(), to be initialized.
struct RequestedParameter {
  Slot slot;
  Aval aval;
  Initializer init;
};
thread_local std::vector<RequestedParameter>* collector = nullptr;
thread_local const SlotValues* eager_params = nullptr;

absl::StatusOr<Value> EagerValue(const Slot& slot, const Aval& aval) {
  if (eager_params == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no value for ", slot.ToString(), ": trace the model, or let an nn::EagerParams live around it"));
  }
  const auto it = eager_params->find(slot);
  if (it == eager_params->end()) return absl::NotFoundError(absl::StrCat("EagerParams has no ", slot.ToString()));
  if (it->second.aval() != aval) {
    return absl::InvalidArgumentError(
        absl::StrCat(slot.ToString(), " is ", it->second.aval().ToString(), ", the model wants ", aval.ToString()));
  }
  return Value(it->second);
}

Slot InScope(SlotKind kind, absl::string_view name) {
  const std::string& scope = CurrentScope();
  return {kind, absl::StrCat(scope, scope.empty() ? "" : "/", name)};
}

// Implements Parameter and Statistic, which differ only in the kind.
Value Requested(SlotKind kind, absl::string_view name, const Aval& aval, const Initializer& init,
                const std::source_location& where) {
  const Slot slot = InScope(kind, name);
  if (IsTracing()) {
    if (collector != nullptr) collector->push_back({slot, aval, init});
    return InputSlot(slot, aval, where);
  }
  absl::StatusOr<Value> value = EagerValue(slot, aval);
  return value.ok() ? *std::move(value) : Refuse(value.status(), "parameter", {}, where);
}

}  // namespace

Initializer Zeros() {
  return [](const Aval& aval, Key) { return Array::Zeros(aval.dtype, aval.shape); };
}

Initializer Ones() {
  return [](const Aval& aval, Key) {
    const SuspendTrace suspended;
    return *ops::BroadcastTo(ValueOrNumber(1.0).As(aval.dtype), aval.shape).ToArray();
  };
}

Initializer Normal(double standard_deviation) {
  return [standard_deviation](const Aval& aval, Key key) {
    ArrayBuilder radius(DType::kF64, aval.shape), turn(DType::kF64, aval.shape);
    const absl::Span<double> u = radius.Mutable<double>(), v = turn.Mutable<double>();
    const RandomBits bits(key, 2 * static_cast<int64_t>(u.size()));
    for (size_t i = 0; i < u.size(); ++i) {
      u[i] = (bits.Bits32(2 * static_cast<int64_t>(i)) + 0.5) * 0x1p-32;
      v[i] = bits.Bits32(2 * static_cast<int64_t>(i) + 1) * 0x1p-32;
    }
    const SuspendTrace suspended;
    const Value r = ops::Sqrt(ops::Log(Value(std::move(radius).Build())) * -2.0);
    const Value angle = Value(std::move(turn).Build()) * (2 * std::numbers::pi);
    return *ops::Cast(r * ops::Cos(angle) * standard_deviation, aval.dtype).ToArray();
  };
}

Initializer LecunUniform(Axes fan_in_axes) {
  return [fan_in_axes = std::move(fan_in_axes)](const Aval& aval, Key key) {
    double fan_in = 1;
    for (const int64_t axis : fan_in_axes) {
      AQT_CHECK(-aval.shape.rank() <= axis && axis < aval.shape.rank());
      fan_in *= static_cast<double>(aval.shape[axis < 0 ? axis + aval.shape.rank() : axis]);
    }
    const double limit = std::sqrt(3.0 / std::max(fan_in, 1.0));
    ArrayBuilder numbers(DType::kF64, aval.shape);
    const absl::Span<double> out = numbers.Mutable<double>();
    const RandomBits bits(key, static_cast<int64_t>(out.size()));
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = (2.0 * UniformF32(bits.Bits32(static_cast<int64_t>(i))) - 1.0) * limit;
    return Cast(std::move(numbers).Build(), aval.dtype);
  };
}

Value Parameter(absl::string_view name, const Aval& aval, const Initializer& init, const std::source_location& where) {
  return Requested(SlotKind::kParam, name, aval, init, where);
}

Value Statistic(absl::string_view name, const Aval& aval, const Initializer& init, const std::source_location& where) {
  return Requested(SlotKind::kStat, name, aval, init, where);
}

void WriteStatistic(absl::string_view name, const Value& value, const std::source_location& where) {
  WriteSlot(InScope(SlotKind::kStat, name), value, where);
}

absl::StatusOr<SlotValues> InitParams(TracedFunction fn, absl::Span<const Input> inputs, Key key) {
  std::vector<RequestedParameter> requested;
  std::vector<RequestedParameter>* const saved = std::exchange(collector, &requested);
  const absl::Status status = Trace(fn, inputs).status();
  collector = saved;
  AQT_RETURN_IF_ERROR(status);
  SlotValues params;
  for (const RequestedParameter& r : requested) {
    if (params.contains(r.slot)) continue;
    if (r.init == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(r.slot.ToString(), " has no initializer"));
    }
    Array value = r.init(r.aval, FoldInName(key, r.slot.path));
    if (value.aval() != r.aval) {
      return absl::InvalidArgumentError(absl::StrCat("the initializer of ", r.slot.ToString(), " returns ",
                                                     value.aval().ToString(), ", expected ", r.aval.ToString()));
    }
    params.emplace(r.slot, std::move(value));
  }
  return params;
}

EagerParams::EagerParams(const SlotValues& params) : saved_(std::exchange(eager_params, &params)) {}

EagerParams::~EagerParams() { eager_params = saved_; }

}  // namespace aqt::nn
