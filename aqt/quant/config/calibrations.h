#ifndef AQT_QUANT_CONFIG_CALIBRATIONS_H_
#define AQT_QUANT_CONFIG_CALIBRATIONS_H_

// Calibrations: how the scale of a tensor is found. Each is a struct, an alternative of Calibration and a
// specialization of CalibrationTraits. Those without state are computed in aqt/quant/tensor/bounds.cc, those with state
// in statistics.cc. po2_scale rounds each scale up to a power of two.

#include <cstdint>
#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/core/array.h"

namespace aqt {

// scale = max|x| * clipping_scale / quant_bound; an all-zero group has max 1.
struct AbsMax {
  std::optional<double> clipping_scale = std::nullopt;  // null and 0 mean 1
  bool po2_scale = false;
  bool operator==(const AbsMax&) const = default;
};

// scale = (sum|x|^p / count(x != 0))^(1/p) * clipping_scale / quant_bound; a bound of 0 becomes 1.
struct AbsMean {
  double p = 1;
  double clipping_scale = 1;
  bool po2_scale = false;
  bool operator==(const AbsMean&) const = default;
};

// One number for all elements, or an array: of rank 0 for one number, or of the rank of x, to which it is broadcast.
struct ConstantArray {
  Array array;
  friend bool operator==(const ConstantArray& a, const ConstantArray& b) { return BitEqual(a.array, b.array); }
};
// A bound or bias: one number, or an array.
using ConstantValue = std::variant<double, ConstantArray>;

// scale = bound / quant_bound; a number as the bound must be > 0. bias is added to x before scaling and needs
// kThisInput. Numbers are rounded to the dtype of x. An array bound is divided in its own dtype (rank 0: in the dtype
// that it and x promote to) and gives the scale its shape; an array bias is rounded to the dtype of the scale.
struct Constant {
  ConstantValue bound = 1.0;
  std::optional<ConstantValue> bias = std::nullopt;
  bool po2_scale = false;
  bool operator==(const Constant&) const = default;
};

// AbsMax times the candidate with the best signal-to-noise ratio of the quantized group; ties go to the first. Without
// candidates, AbsMax.
struct SnrSearch {
  std::vector<double> candidates = {};
  bool po2_scale = false;
  bool operator==(const SnrSearch&) const = default;
};

// scale = m * clipping_scale / quant_bound, where m is the smallest |x| of the group that at least `percentile` percent
// of the |x| of the group do not exceed; m = 0 becomes 1. Larger values are clipped. 100 is AbsMax.
struct Percentile {
  double percentile = 99.9;                             // above 0, at most 100; rounded to the nearest millionth
  std::optional<double> clipping_scale = std::nullopt;  // null and 0 mean 1
  bool po2_scale = false;
  bool operator==(const Percentile&) const = default;
};

// The next three have state: statistics of the tensors seen so far, kept from call to call. calibration.h has the
// formulas and says in which QuantMode they are updated.

// scale = mean over the calibration batches of max|x| / quant_bound. For ranges that are fixed before serving.
struct MeanOfAbsMax {
  bool po2_scale = false;
  bool operator==(const MeanOfAbsMax&) const = default;
};

// scale = (l1_dev_coeff * mean|x| + lp_dev_coeff * (mean|x|^lp)^(1/lp) + max_dev_coeff * max|x| + const_bound_coeff) /
// quant_bound, each statistic an exponential moving average.
struct WeightedStats {
  double l1_dev_coeff = 0, lp_dev_coeff = 0, max_dev_coeff = 0, const_bound_coeff = 0;
  // The initial statistics, weighted as update_count_prior elements.
  double update_count_prior = 1, max_dev_prior = 0, mean_prior = 0, l1_dev_prior = 0, lp_dev_prior = 0;
  int lp_order = 2;               // 1 .. 30
  bool safe_divide = false;       // a mean over nothing is 0 instead of NaN
  bool filter_zeros = true;       // zeros are not counted as elements
  double ema_update_count = 100;  // >= 1: an update has the weight 1 / ema_update_count
  bool po2_scale = false;
  bool operator==(const WeightedStats&) const = default;
};

// scale = max over the last amax_history_length calls *before* this one of max|x| / quant_bound; one for the whole
// tensor. x need not be read before it is quantized, which suits fp8 training.
struct DelayedScaling {
  int64_t amax_history_length = 1024;  // >= 1
  bool po2_scale = false;
  bool operator==(const DelayedScaling&) const = default;
};

// How the scale of a tensor is found.
using Calibration =
    std::variant<AbsMax, AbsMean, Constant, SnrSearch, Percentile, MeanOfAbsMax, WeightedStats, DelayedScaling>;

// ---- common to all calibrations

// The name of a calibration, whether it has state, whether its bounds are f32 for any dtype of the tensor, and its
// fields by name: text formats, program texts and random tests go through these. VisitFields calls visit(name, field)
// for each field of a calibration, const or not. The structured bindings ensure that none is left out.
template <class C>
struct CalibrationTraits;

template <>
struct CalibrationTraits<AbsMax> {
  static constexpr absl::string_view kName = "AbsMax";
  static constexpr bool kHasState = false;
  static constexpr bool kBoundsAreF32 = false;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [clipping_scale, po2_scale] = c;
    visit("clipping_scale", clipping_scale);
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<AbsMean> {
  static constexpr absl::string_view kName = "AbsMean";
  static constexpr bool kHasState = false;
  static constexpr bool kBoundsAreF32 = false;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [p, clipping_scale, po2_scale] = c;
    visit("p", p);
    visit("clipping_scale", clipping_scale);
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<Constant> {
  static constexpr absl::string_view kName = "Constant";
  static constexpr bool kHasState = false;
  static constexpr bool kBoundsAreF32 = false;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [bound, bias, po2_scale] = c;
    visit("bound", bound);
    visit("bias", bias);
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<SnrSearch> {
  static constexpr absl::string_view kName = "SnrSearch";
  static constexpr bool kHasState = false;
  static constexpr bool kBoundsAreF32 = true;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [candidates, po2_scale] = c;
    visit("candidates", candidates);
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<Percentile> {
  static constexpr absl::string_view kName = "Percentile";
  static constexpr bool kHasState = false;
  static constexpr bool kBoundsAreF32 = false;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [percentile, clipping_scale, po2_scale] = c;
    visit("percentile", percentile);
    visit("clipping_scale", clipping_scale);
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<MeanOfAbsMax> {
  static constexpr absl::string_view kName = "MeanOfAbsMax";
  static constexpr bool kHasState = true;
  static constexpr bool kBoundsAreF32 = false;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [po2_scale] = c;
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<WeightedStats> {
  static constexpr absl::string_view kName = "WeightedStats";
  static constexpr bool kHasState = true;
  static constexpr bool kBoundsAreF32 = true;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [l1_dev_coeff, lp_dev_coeff, max_dev_coeff, const_bound_coeff, update_count_prior, max_dev_prior, mean_prior,
           l1_dev_prior, lp_dev_prior, lp_order, safe_divide, filter_zeros, ema_update_count, po2_scale] = c;
    visit("l1_dev_coeff", l1_dev_coeff);
    visit("lp_dev_coeff", lp_dev_coeff);
    visit("max_dev_coeff", max_dev_coeff);
    visit("const_bound_coeff", const_bound_coeff);
    visit("update_count_prior", update_count_prior);
    visit("max_dev_prior", max_dev_prior);
    visit("mean_prior", mean_prior);
    visit("l1_dev_prior", l1_dev_prior);
    visit("lp_dev_prior", lp_dev_prior);
    visit("lp_order", lp_order);
    visit("safe_divide", safe_divide);
    visit("filter_zeros", filter_zeros);
    visit("ema_update_count", ema_update_count);
    visit("po2_scale", po2_scale);
  }
};

template <>
struct CalibrationTraits<DelayedScaling> {
  static constexpr absl::string_view kName = "DelayedScaling";
  static constexpr bool kHasState = true;
  static constexpr bool kBoundsAreF32 = true;
  static void VisitFields(auto& c, auto&& visit) {
    auto& [amax_history_length, po2_scale] = c;
    visit("amax_history_length", amax_history_length);
    visit("po2_scale", po2_scale);
  }
};

// Whether `value` is the default of the field `name` of C, for use in VisitFields.
template <class C, class T>
bool IsDefault(absl::string_view name, const T& value) {
  bool is_default = false;
  const C fixed;
  CalibrationTraits<C>::VisitFields(fixed, [&]<class U>(absl::string_view other, const U& by_default) {
    if constexpr (std::is_same_v<T, U>) is_default |= other == name && value == by_default;
  });
  return is_default;
}

absl::string_view NameOf(const Calibration& calibration);  // "MeanOfAbsMax"
// Whether the calibration keeps statistics from call to call.
bool HasState(const Calibration& calibration);
// Whether the calibration rounds scales up to powers of two.
bool HasPo2Scale(const Calibration& calibration);

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_CALIBRATIONS_H_
