#include "aqt/nn/train/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"

namespace aqt::nn {
namespace {

absl::Status OutOfRange(absl::string_view field, double value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ", expected ", expected));
}

// The decay must not round to 1 in f32, in which updates are computed: the average would never move.
absl::Status CheckDecay(absl::string_view field, double value) {
  if (value >= 0 && static_cast<float>(value) < 1) return absl::OkStatus();
  return OutOfRange(field, value, "a number in [0, 1) that is not 1 in f32");
}

absl::Status CheckNotNegative(absl::string_view field, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return OutOfRange(field, value, "a finite number >= 0");
}

absl::Status ValidateOne(const Sgd& sgd) {
  AQT_RETURN_IF_ERROR(sgd.learning_rate.Validate("sgd: learning_rate"));
  if (sgd.momentum >= 0 && sgd.momentum < 1) return absl::OkStatus();
  return OutOfRange("sgd: momentum", sgd.momentum, "a number in [0, 1)");
}

template <class AdamOrAdamW>
absl::Status ValidateAdam(const std::string& name, const AdamOrAdamW& adam) {
  AQT_RETURN_IF_ERROR(adam.learning_rate.Validate(absl::StrCat(name, ": learning_rate")));
  AQT_RETURN_IF_ERROR(CheckDecay(absl::StrCat(name, ": b1"), adam.b1));
  AQT_RETURN_IF_ERROR(CheckDecay(absl::StrCat(name, ": b2"), adam.b2));
  if (!(static_cast<float>(adam.eps) > 0 && std::isfinite(adam.eps))) {
    return OutOfRange(absl::StrCat(name, ": eps"), adam.eps, "a finite number > 0, also in f32");
  }
  return CheckNotNegative(absl::StrCat(name, ": eps_root"), adam.eps_root);
}

absl::Status ValidateOne(const Adam& adam) { return ValidateAdam("adam", adam); }

absl::Status ValidateOne(const AdamW& adamw) {
  AQT_RETURN_IF_ERROR(ValidateAdam("adamw", adamw));
  if (const auto* predicate = std::get_if<1>(&adamw.decays); predicate != nullptr && !*predicate) {
    return absl::InvalidArgumentError("adamw: decays is an empty function, expected a predicate on a path");
  }
  return CheckNotNegative("adamw: weight_decay", adamw.weight_decay);
}

}  // namespace

absl::Status Validate(const Optimizer& optimizer) {
  return std::visit([](const auto& own) { return ValidateOne(own); }, optimizer);
}

}  // namespace aqt::nn
