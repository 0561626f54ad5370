#include "aqt/nn/train/optimizer_update.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "re2/re2.h"

namespace aqt::nn::internal {
namespace {

// Scalars shared by all parameters, one for each dtype in use.
template <class Make>
class PerDType {
 public:
  explicit PerDType(Make make) : make_(std::move(make)) {}
  const Value& operator()(DType dtype) {
    const auto it = values_.find(dtype);
    return it != values_.end() ? it->second : values_.emplace(dtype, make_(dtype)).first->second;
  }

 private:
  Make make_;
  std::map<DType, Value> values_;
};

// x * rate. A constant rate is a number of x's dtype.
template <class Rates>
Value TimesRate(const Value& x, const Schedule& schedule, Rates& rates) {
  const double* constant = std::get_if<double>(&schedule.kind());
  return constant != nullptr ? x * *constant : x * ops::Cast(rates(UpdateDType(x.dtype())), x.dtype());
}

std::vector<Value> UpdateBy(const Sgd& sgd, const std::vector<bool>&, absl::Span<const TrainedParam> params,
                            StepState& state) {
  const NamedScope scope("sgd");
  const Schedule& learning_rate = sgd.learning_rate;
  const Value count = learning_rate.is_constant() ? Value() : CountUpdate("sgd_count", state).before;
  PerDType rates([&](DType dtype) { return learning_rate.Rate(count, dtype); });
  std::vector<Value> results;
  for (const TrainedParam& param : params) {
    const NamedScope param_scope(param.slot.path);
    Value update = ops::Cast(param.gradient, param.value.dtype());
    if (sgd.momentum != 0) {
      const std::string path = absl::StrCat("sgd/", param.slot.path);
      const Value before = state.Read(path, update.aval(), absl::StrCat("the momentum of ", param.slot.ToString()));
      update = update + before * sgd.momentum;
      state.Write(path, before, update);
    }
    results.push_back(param.value - TimesRate(update, learning_rate, rates));
    state.Write(param.slot, param.value, results.back());
  }
  return results;
}

// decay * average + (1 - decay) * x.
Value MovingAverage(double decay, const Value& average, const Value& x) { return x * (1 - decay) + average * decay; }

template <class AdamOrAdamW>
std::vector<Value> UpdateByAdam(const AdamOrAdamW& adam, double weight_decay, const std::vector<bool>& decays,
                                absl::Span<const TrainedParam> params, StepState& state) {
  const NamedScope scope("adam");
  const UpdateCount count = CountUpdate("adam/count", state);
  PerDType rates([&](DType dtype) { return adam.learning_rate.Rate(count.before, dtype); });
  PerDType mu_corrections([&](DType dtype) { return BiasCorrection(adam.b1, count.after, dtype); });
  PerDType nu_corrections([&](DType dtype) { return BiasCorrection(adam.b2, count.after, dtype); });
  std::vector<Value> results;
  for (size_t i = 0; i < params.size(); ++i) {
    const TrainedParam& param = params[i];
    const NamedScope param_scope(param.slot.path);
    const DType dtype = UpdateDType(param.value.dtype());
    const Value gradient = ops::Cast(param.gradient, dtype), value = ops::Cast(param.value, dtype);
    const auto moment = [&](const char* name, const char* what, double decay, const Value& x) {
      const std::string path = absl::StrCat("adam/", name, "/", param.slot.path);
      const Value before = state.Read(path, x.aval(), absl::StrCat(what, " of ", param.slot.ToString()));
      const Value after = MovingAverage(decay, before, x);
      state.Write(path, before, after);
      return after;
    };
    const Value mu = moment("mu", "the first moment", adam.b1, gradient) / mu_corrections(dtype);
    Value nu = moment("nu", "the second moment", adam.b2, gradient * gradient) / nu_corrections(dtype);
    if (adam.eps_root != 0) nu = nu + adam.eps_root;
    Value update = mu / (ops::Sqrt(nu) + adam.eps);
    if (weight_decay != 0 && decays[i]) update = update + value * weight_decay;
    results.push_back(ops::Cast(value - TimesRate(update, adam.learning_rate, rates), param.value.dtype()));
    state.Write(param.slot, param.value, results.back());
  }
  return results;
}

std::vector<Value> UpdateBy(const Adam& adam, const std::vector<bool>& decays, absl::Span<const TrainedParam> params,
                            StepState& state) {
  return UpdateByAdam(adam, 0, decays, params, state);
}

std::vector<Value> UpdateBy(const AdamW& adamw, const std::vector<bool>& decays, absl::Span<const TrainedParam> params,
                            StepState& state) {
  return UpdateByAdam(adamw, adamw.weight_decay, decays, params, state);
}

}  // namespace

absl::StatusOr<std::vector<bool>> DecayMask(const Optimizer& optimizer, absl::Span<const std::string> paths) {
  std::vector<bool> decays(paths.size(), true);
  const auto* adamw = std::get_if<AdamW>(&optimizer);
  if (adamw == nullptr) return decays;
  if (const auto* predicate = std::get_if<1>(&adamw->decays)) {
    std::transform(paths.begin(), paths.end(), decays.begin(), *predicate);
    return decays;
  }
  const std::string& text = std::get<std::string>(adamw->decays);
  const RE2 regex(text, RE2::Quiet);
  if (!regex.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("adamw: decays \"", text, "\" is not a valid regular expression: ", regex.error()));
  }
  std::transform(paths.begin(), paths.end(), decays.begin(),
                 [&](const std::string& path) { return RE2::FullMatch(path, regex); });
  if (std::count(decays.begin(), decays.end(), true) == 0 && !paths.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("adamw: decays \"", text, "\" matches none of the parameters ",
                                                   absl::StrJoin(paths, ", "),
                                                   "; for no decay set weight_decay = 0 or use Adam"));
  }
  return decays;
}

std::vector<Value> Update(const Optimizer& optimizer, const std::vector<bool>& decays,
                          absl::Span<const TrainedParam> params, StepState& state) {
  return std::visit([&](const auto& own) { return UpdateBy(own, decays, params, state); }, optimizer);
}

}  // namespace aqt::nn::internal
