#include "aqt/nn/train/schedule.h"

#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"

namespace aqt::nn {
namespace {

constexpr int64_t kMaxSteps = std::numeric_limits<int32_t>::max();

// Checks fields in order; keeps the first error.
class FieldChecks {
 public:
  explicit FieldChecks(std::string schedule) : schedule_(std::move(schedule)) {}

  FieldChecks& Finite(absl::string_view field, double value) {
    if (!std::isfinite(value)) Fail(field, value, "a finite number");
    return *this;
  }
  FieldChecks& AtLeast(absl::string_view field, double value, double least) {
    if (!(value >= least && std::isfinite(value))) Fail(field, value, absl::StrCat("a finite number >= ", least));
    return *this;
  }
  FieldChecks& Positive(absl::string_view field, double value) {
    if (!(value > 0 && std::isfinite(value))) Fail(field, value, "a finite number > 0");
    return *this;
  }
  FieldChecks& Steps(absl::string_view field, int64_t value, int64_t least) {
    if (value < least || value > kMaxSteps) Fail(field, value, absl::StrCat(least, " to ", kMaxSteps));
    return *this;
  }
  template <class T>
  void Fail(absl::string_view field, const T& value, absl::string_view expected) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat(schedule_, ": ", field, " = ", value, ", expected ", expected));
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string schedule_;
  absl::Status status_;
};

PolynomialSchedule AsPolynomial(const LinearSchedule& s) {
  return {s.init_value, s.end_value, 1, s.transition_steps, s.transition_begin};
}

JoinedSchedule AsJoined(const WarmupCosineSchedule& s) {
  const CosineSchedule decay = {s.peak_value, s.decay_steps - s.warmup_steps,
                                s.peak_value == 0 ? 0 : s.end_value / s.peak_value, s.exponent};
  if (s.warmup_steps == 0) return {{decay}, {}};
  return {{LinearSchedule{s.init_value, s.peak_value, s.warmup_steps}, decay}, {s.warmup_steps}};
}

absl::Status ValidateKind(const std::string& name, double rate) {
  if (std::isfinite(rate)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " = ", rate, ", expected a finite number"));
}

absl::Status ValidateKind(const std::string& name, const PolynomialSchedule& s) {
  return FieldChecks(name)
      .Finite("init_value", s.init_value)
      .Finite("end_value", s.end_value)
      .Positive("power", s.power)
      .Steps("transition_steps", s.transition_steps, 1)
      .Steps("transition_begin", s.transition_begin, 0)
      .status();
}

absl::Status ValidateKind(const std::string& name, const LinearSchedule& s) {
  return ValidateKind(name, AsPolynomial(s));
}

absl::Status ValidateKind(const std::string& name, const CosineSchedule& s) {
  return FieldChecks(name)
      .Finite("init_value", s.init_value)
      .Steps("decay_steps", s.decay_steps, 1)
      .Finite("alpha", s.alpha)
      .Positive("exponent", s.exponent)
      .status();
}

absl::Status ValidateKind(const std::string& name, const ExponentialSchedule& s) {
  return FieldChecks(name)
      .Finite("init_value", s.init_value)
      .Positive("decay_rate", s.decay_rate)
      .Steps("transition_steps", s.transition_steps, 1)
      .Steps("transition_begin", s.transition_begin, 0)
      .Finite("end_value", s.end_value.value_or(0))
      .status();
}

absl::Status ValidateKind(const std::string& name, const PiecewiseConstantSchedule& s) {
  FieldChecks checks(name);
  checks.Finite("init_value", s.init_value);
  for (const auto& [boundary, scale] : s.boundaries_and_scales) {
    checks.Steps("boundary", boundary, 0).AtLeast(absl::StrCat("scale at ", boundary), scale, 0);
  }
  return checks.status();
}

absl::Status ValidateKind(const std::string& name, const WarmupCosineSchedule& s) {
  FieldChecks checks(name);
  checks.Finite("init_value", s.init_value)
      .Finite("peak_value", s.peak_value)
      .Steps("warmup_steps", s.warmup_steps, 0)
      .Steps("decay_steps", s.decay_steps, 1)
      .Finite("end_value", s.end_value)
      .Positive("exponent", s.exponent);
  if (s.decay_steps <= s.warmup_steps) {
    checks.Fail("decay_steps", s.decay_steps,
                absl::StrCat("more than warmup_steps = ", s.warmup_steps, ": it counts them, too"));
  }
  return checks.status();
}

absl::Status ValidateKind(const std::string& name, const JoinedSchedule& s) {
  FieldChecks checks(name);
  if (s.schedules.size() != s.boundaries.size() + 1) {
    checks.Fail("number of boundaries", s.boundaries.size(),
                absl::StrCat("one less than the ", s.schedules.size(), " schedules"));
  }
  for (size_t i = 0; i < s.boundaries.size(); ++i) {
    const std::string field = absl::StrCat("boundaries[", i, "]");
    checks.Steps(field, s.boundaries[i], 0);
    if (i > 0 && s.boundaries[i] <= s.boundaries[i - 1]) {
      checks.Fail(field, s.boundaries[i], absl::StrCat("more than the one before, ", s.boundaries[i - 1]));
    }
  }
  AQT_RETURN_IF_ERROR(checks.status());
  for (size_t i = 0; i < s.schedules.size(); ++i) {
    AQT_RETURN_IF_ERROR(s.schedules[i].Validate(absl::StrCat(name, ": schedules[", i, "]")));
  }
  return absl::OkStatus();
}

// min(max(t - begin, 0), steps) as a float.
Value StepsDone(const Value& t, int64_t begin, int64_t steps, DType dtype) {
  const Value since = begin == 0 ? t : t - static_cast<double>(begin);
  return ops::Cast(ops::Min(ops::Max(since, 0.0), static_cast<double>(steps)), dtype);
}

Value Rate(double rate, const Value&, DType dtype) { return ValueOrNumber(rate).As(dtype); }

Value Rate(const PolynomialSchedule& s, const Value& t, DType dtype) {
  Value left =
      1.0 - StepsDone(t, s.transition_begin, s.transition_steps, dtype) / static_cast<double>(s.transition_steps);
  if (s.power != 1) left = ops::Pow(left, s.power);
  return left * (s.init_value - s.end_value) + s.end_value;
}

Value Rate(const LinearSchedule& s, const Value& t, DType dtype) { return Rate(AsPolynomial(s), t, dtype); }

Value Rate(const CosineSchedule& s, const Value& t, DType dtype) {
  const Value angle = StepsDone(t, 0, s.decay_steps, dtype) * std::numbers::pi / static_cast<double>(s.decay_steps);
  Value decayed = (ops::Cos(angle) + 1.0) * 0.5;
  if (s.exponent != 1) decayed = ops::Pow(decayed, s.exponent);
  return (decayed * (1 - s.alpha) + s.alpha) * s.init_value;
}

Value Rate(const ExponentialSchedule& s, const Value& t, DType dtype) {
  const Value since = s.transition_begin == 0 ? t : t - static_cast<double>(s.transition_begin);
  Value power = ops::Cast(since, dtype) / static_cast<double>(s.transition_steps);
  if (s.staircase) power = ops::Floor(power);
  const Value decayed = ops::Pow(s.decay_rate, power) * s.init_value;
  Value rate = ops::Select(ops::LessEqual(since, 0.0), s.init_value, decayed);
  if (s.end_value.has_value()) {
    rate = s.decay_rate < 1 ? ops::Max(rate, *s.end_value) : ops::Min(rate, *s.end_value);
  }
  return rate;
}

Value Rate(const PiecewiseConstantSchedule& s, const Value& t, DType dtype) {
  Value rate = ValueOrNumber(s.init_value).As(dtype);
  for (const auto& [boundary, scale] : s.boundaries_and_scales) {
    rate = ops::Select(ops::Less(t, static_cast<double>(boundary)), rate, rate * scale);
  }
  return rate;
}

Value Rate(const JoinedSchedule& s, const Value& t, DType dtype) {
  Value rate = s.schedules[0].Rate(t, dtype);
  for (size_t i = 0; i < s.boundaries.size(); ++i) {
    const auto boundary = static_cast<double>(s.boundaries[i]);
    rate = ops::Select(ops::Less(t, boundary), rate, s.schedules[i + 1].Rate(t - boundary, dtype));
  }
  return rate;
}

Value Rate(const WarmupCosineSchedule& s, const Value& t, DType dtype) { return Rate(AsJoined(s), t, dtype); }

}  // namespace

absl::Status Schedule::Validate(absl::string_view name) const {
  static constexpr const char* kNames[] = {"",
                                           " (polynomial)",
                                           " (linear)",
                                           " (cosine)",
                                           " (exponential)",
                                           " (piecewise constant)",
                                           " (warm-up and cosine)",
                                           " (joined)"};
  static_assert(std::size(kNames) == std::variant_size_v<Kind>);
  const std::string full_name = absl::StrCat(name, kNames[kind_.index()]);
  return std::visit([&](const auto& kind) { return ValidateKind(full_name, kind); }, kind_);
}

Value Schedule::Rate(const Value& t, DType dtype) const {
  return std::visit([&](const auto& kind) { return nn::Rate(kind, t, dtype); }, kind_);
}

float Schedule::RateAt(int32_t t) const {
  const SuspendTrace at_once;
  return Rate(Value(Array::Scalar<int32_t>(t)), DType::kF32).Item<float>();
}

}  // namespace aqt::nn
