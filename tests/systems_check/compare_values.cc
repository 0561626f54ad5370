#include "tests/systems_check/compare_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"

namespace aqt::systems {
namespace {

struct Rule {
  double atol = 0, rtol = 0;
  double max_flips_fraction = 0;
  std::string flip_step;
  double final_mean_rtol = -1;
  int64_t final_mean_last = 0;
  std::vector<double> accept_factor;

  static Rule Of(const Json& json) {
    Rule rule;
    rule.atol = json.value("atol", 0.0);
    rule.rtol = json.value("rtol", 0.0);
    rule.max_flips_fraction = json.value("max_flips_fraction", 0.0);
    rule.flip_step = json.value("flip_step", "");
    rule.final_mean_rtol = json.value("final_mean_rtol", -1.0);
    rule.final_mean_last = json.value("final_mean_last", int64_t{0});
    if (json.contains("accept_factor")) rule.accept_factor = json.at("accept_factor").get<std::vector<double>>();
    return rule;
  }
};

// Compares one output with everything nested in it.
class Comparison {
 public:
  Comparison(const SystemCase& system_case, Rule rule, Rule scale_rule)
      : case_(system_case), rule_(std::move(rule)), scale_rule_(std::move(scale_rule)) {}

  void Compare(const std::string& path, const SystemValue& got, const SystemValue& want) {
    if (wrong_.has_value()) return;
    if (got.of.index() != want.of.index()) {
      static constexpr const char* kKinds[] = {"an array", "a scaled array", "a list", "a dict"};
      return Fail(path, absl::StrCat("is ", kKinds[got.of.index()], ", expected ", kKinds[want.of.index()]));
    }
    if (const Array* array = std::get_if<Array>(&want.of)) {
      return CompareArray(path, std::get<Array>(got.of), *array, rule_);
    }
    if (const ScaledArrays* scaled = std::get_if<ScaledArrays>(&want.of)) {
      const ScaledArrays& own = std::get<ScaledArrays>(got.of);
      CompareArray(path + ".data", own.data, scaled->data, rule_);
      return CompareArray(path + ".scale", own.scale, scaled->scale, scale_rule_);
    }
    if (const SystemValue::List* list = std::get_if<SystemValue::List>(&want.of)) {
      const SystemValue::List& own = std::get<SystemValue::List>(got.of);
      if (own.size() != list->size()) {
        return Fail(path, absl::StrCat("has ", own.size(), " items, expected ", list->size()));
      }
      for (size_t i = 0; i < own.size(); ++i) Compare(absl::StrCat(path, "[", i, "]"), own[i], (*list)[i]);
      return;
    }
    const SystemValue::Dict &own = std::get<SystemValue::Dict>(got.of), &dict = std::get<SystemValue::Dict>(want.of);
    for (const auto& [key, value] : dict) {
      const auto it = own.find(key);
      if (it == own.end()) return Fail(path, absl::StrCat("has no key ", key));
      Compare(absl::StrCat(path, ".", key), it->second, value);
    }
    if (own.size() != dict.size()) Fail(path, absl::StrCat("has ", own.size(), " keys, expected ", dict.size()));
  }

  std::optional<std::string> Result() {
    if (!wrong_.has_value() && static_cast<double>(flips_) > std::floor(rule_.max_flips_fraction * elements_)) {
      Fail(first_flip_, absl::StrCat("and ", flips_ - 1, " more of ", elements_, " elements are a step off"));
    }
    return wrong_;
  }

 private:
  void Fail(const std::string& path, const std::string& what) {
    if (!wrong_.has_value()) wrong_ = absl::StrCat(path, " ", what);
  }

  void CompareArray(const std::string& path, const Array& got, const Array& want, const Rule& rule) {
    if (got.aval() != want.aval()) {
      return Fail(path, absl::StrCat("is ", got.aval().ToString(), ", expected ", want.aval().ToString()));
    }
    const Array a = Cast(got, DType::kF64), b = Cast(want, DType::kF64);
    const absl::Span<const double> x = a.View<double>(), y = b.View<double>();
    double squares = 0;
    for (const double v : y) squares += v * v;
    const double rms = y.empty() ? 0 : std::sqrt(squares / static_cast<double>(y.size()));
    elements_ += static_cast<double>(y.size());
    for (size_t i = 0; i < y.size(); ++i) {
      if (Passes(x[i], y[i], i, IsFloat(want.dtype()), rule)) continue;
      const std::string at = absl::StrCat(path, "[", i, "]: got ", x[i], ", want ", y[i]);
      const double step = 0.125 * std::max(std::fabs(y[i]), rms);
      if (rule.flip_step == "one_fp8_step" && std::fabs(x[i] - y[i]) <= step) {
        if (++flips_ == 1) first_flip_ = at;
        continue;
      }
      return Fail(at, "");
    }
    CompareFinalMean(path, x, y, want.shape(), rule);
  }

  bool Passes(double x, double y, size_t i, bool is_float, const Rule& rule) const {
    if (std::isnan(y)) return std::isnan(x);
    if (std::isinf(y) || std::isinf(x) || !is_float) return x == y;
    if (!rule.accept_factor.empty()) {
      const double base = std::ldexp(1.0, -case_.config.at("k").at(i).get<int>());
      const auto accepts = [&](double factor) { return x == base * factor; };
      return std::any_of(rule.accept_factor.begin(), rule.accept_factor.end(), accepts);
    }
    return std::fabs(x - y) <= rule.atol + rule.rtol * std::fabs(y);
  }

  void CompareFinalMean(const std::string& path, absl::Span<const double> x, absl::Span<const double> y,
                        const Shape& shape, const Rule& rule) {
    if (rule.final_mean_rtol < 0 || shape.rank() == 0 || shape[0] == 0) return;
    const size_t row = y.size() / static_cast<size_t>(shape[0]);
    const size_t last = std::min<size_t>(y.size(), row * static_cast<size_t>(rule.final_mean_last));
    double got = 0, want = 0;
    for (size_t i = y.size() - last; i < y.size(); ++i) {
      got += x[i] / static_cast<double>(last);
      want += y[i] / static_cast<double>(last);
    }
    if (!(std::fabs(got - want) <= rule.final_mean_rtol * std::fabs(want))) {
      Fail(path, absl::StrCat("has a final mean of ", got, ", want ", want));
    }
  }

  const SystemCase& case_;
  const Rule rule_, scale_rule_;
  std::optional<std::string> wrong_;
  double elements_ = 0;
  int64_t flips_ = 0;
  std::string first_flip_;
};

// A field that is neither known nor an output.
std::optional<std::string> UnknownField(const Json& tolerance, const SystemCase& system_case, bool nested) {
  static constexpr const char* kKnown[] = {
      "atol",          "rtol",       "max_flips_fraction", "flip_step", "final_mean_rtol", "final_mean_last",
      "accept_factor", "accept_base"};
  for (const auto& [key, value] : tolerance.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown)) continue;
    const bool is_rule = !nested && value.is_object() && (key == "scale" || system_case.expected.contains(key));
    if (!is_rule) return key;
    if (std::optional<std::string> unknown = UnknownField(value, system_case, /*nested=*/true)) return unknown;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> CompareOutputs(const SystemValue::Dict& got, const SystemCase& system_case) {
  const Json& tolerance = system_case.tolerance;
  if (const std::optional<std::string> unknown = UnknownField(tolerance, system_case, /*nested=*/false)) {
    return absl::StrCat("the tolerance has an unknown field ", *unknown);
  }
  const bool has_scale_rule = tolerance.contains("scale") && !system_case.expected.contains("scale");
  for (const auto& [name, want] : system_case.expected) {
    const auto it = got.find(name);
    if (it == got.end()) return absl::StrCat(name, " did not come out");
    const Rule rule = Rule::Of(tolerance.contains(name) ? tolerance.at(name) : tolerance);
    Comparison comparison(system_case, rule, has_scale_rule ? Rule::Of(tolerance.at("scale")) : rule);
    comparison.Compare(name, it->second, want);
    if (std::optional<std::string> wrong = comparison.Result(); wrong.has_value()) return wrong;
  }
  return std::nullopt;
}

}  // namespace aqt::systems
