#include "aqt/quant/tensor/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/simd/scalar_math.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt::internal {
namespace {

// Every state is updated in mode CALIBRATE.
struct Timing {
  bool updated_in_train;
  bool read_before_update;
};

// ---- MeanOfAbsMax

// Positions in a state.
enum MeanSlot { kSumOfMax, kCount };

absl::Status CheckFields(const MeanOfAbsMax&) { return absl::OkStatus(); }

Statistics Arrays(const MeanOfAbsMax&, const Aval& x, const Shape& scale_shape) {
  return {{"sum_of_max", {x.dtype, scale_shape}}, {"count", {DType::kS32, {}}}};
}

constexpr Timing TimingOf(const MeanOfAbsMax&) { return {.updated_in_train = false, .read_before_update = false}; }

// The maxima, as floats.
int64_t WorkDoubles(const MeanOfAbsMax&, int64_t num_scales) { return (num_scales + 1) / 2; }

void Update(const MeanOfAbsMax&, const ArrayRef& x, const Shape& scale_shape, const StatisticData& data, double* work) {
  const int64_t n = scale_shape.num_elements();
  const int32_t count = *static_cast<const int32_t*>(data.old[kCount]);
  float* absmax = reinterpret_cast<float*>(work);
  AbsMaxInto(x, scale_shape, absmax);
  // A full counter stays unchanged, and so does the mean.
  const bool full = count == std::numeric_limits<int32_t>::max();
  if (full) std::fill(absmax, absmax + n, 0.0f);
  std::array<float, kPiece> sums;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t length = std::min(kPiece, n - i);
    LoadRow(x.dtype, data.old[kSumOfMax], i, 1, length, sums.data());
    AddRow(x.dtype, absmax + i, 1, sums.data(), length);
    StoreRow(x.dtype, sums.data(), length, data.updated[kSumOfMax], i, 1);
  }
  *static_cast<int32_t*>(data.updated[kCount]) = full ? count : count + 1;
}

void FindBounds(const MeanOfAbsMax&, DType dtype, Arithmetic arithmetic, const void* const* statistics, int64_t n,
                float* bounds) {
  LoadRow(dtype, statistics[kSumOfMax], 0, 1, n, bounds);
  const float count = HostConstant(dtype, *static_cast<const int32_t*>(statistics[kCount]));
  OverConstantRow(dtype, count, /*divide=*/arithmetic == Arithmetic::kIeee || n == 1, bounds, n);
}

// ---- WeightedStats

enum WeightedSlot { kSumOfOnes, kSumOfVals, kMaxOfAbsVals, kSumOfL1Vals, kSumOfLpVals, kNumWeighted };

absl::Status CheckFields(const WeightedStats& c) {
  if (c.lp_order < 1 || c.lp_order > 30) {
    return absl::InvalidArgumentError(absl::StrCat("WeightedStats: lp_order = ", c.lp_order, ", expected 1 to 30"));
  }
  if (!(c.ema_update_count >= 1) || std::isinf(c.ema_update_count)) {
    return absl::InvalidArgumentError(
        absl::StrCat("WeightedStats: ema_update_count = ", c.ema_update_count, ", expected a number >= 1"));
  }
  const std::pair<const char*, double> fields[] = {{"l1_dev_coeff", c.l1_dev_coeff},
                                                   {"lp_dev_coeff", c.lp_dev_coeff},
                                                   {"max_dev_coeff", c.max_dev_coeff},
                                                   {"const_bound_coeff", c.const_bound_coeff},
                                                   {"update_count_prior", c.update_count_prior},
                                                   {"max_dev_prior", c.max_dev_prior},
                                                   {"l1_dev_prior", c.l1_dev_prior},
                                                   {"lp_dev_prior", c.lp_dev_prior}};
  for (const auto& [name, value] : fields) {
    if (value >= 0 && std::isfinite(value)) continue;
    return absl::InvalidArgumentError(absl::StrCat("WeightedStats: ", name, " = ", value, ", expected a number >= 0"));
  }
  if (!std::isfinite(c.mean_prior)) {
    return absl::InvalidArgumentError(
        absl::StrCat("WeightedStats: mean_prior = ", c.mean_prior, ", expected a number"));
  }
  if (c.l1_dev_coeff == 0 && c.lp_dev_coeff == 0 && c.max_dev_coeff == 0 && c.const_bound_coeff == 0) {
    return absl::InvalidArgumentError(
        "WeightedStats: all four coefficients are 0, so every bound would be 0; set max_dev_coeff: 1, for example");
  }
  return absl::OkStatus();
}

Statistics Arrays(const WeightedStats& c, const Aval&, const Shape& scale_shape) {
  const Aval aval{DType::kF32, scale_shape};
  return {{"sum_of_ones", aval, c.update_count_prior},
          {"sum_of_vals", aval, c.mean_prior * c.update_count_prior},
          {"max_of_abs_vals", aval, c.max_dev_prior},
          {"sum_of_l1_vals", aval, c.l1_dev_prior * c.update_count_prior},
          {"sum_of_lp_vals", aval, std::pow(c.lp_dev_prior, c.lp_order) * c.update_count_prior}};
}

constexpr Timing TimingOf(const WeightedStats&) { return {.updated_in_train = true, .read_before_update = false}; }

int64_t WorkDoubles(const WeightedStats&, int64_t num_scales) { return kNumWeighted * num_scales; }

// x^p by repeated squaring, each multiplication rounded to T.
template <class T>
float IntegerPower(float x, int p) {
  float result = 1;
  for (bool first = true; p > 0; p >>= 1) {
    if (p & 1) {
      result = first ? x : Mul<T>(result, x);
      first = false;
    }
    x = Mul<T>(x, x);
  }
  return result;
}

// x^(1/order) for x >= 0 in f32. The square root is correctly rounded.
float Root(float x, int order) {
  if (order == 2) return FlushSubnormal(std::sqrt(FlushSubnormal(x)));
  if (order == 1 || x == 0) return x;
  return FlushSubnormal(static_cast<float>(kernels::Exp(static_cast<float>(1.0 / order) * kernels::Log(x))));
}

void Update(const WeightedStats& calibration, const ArrayRef& x, const Shape& scale_shape, const StatisticData& data,
            double* work) {
  const int64_t n = scale_shape.num_elements();
  double* sums = work;  // [kNumWeighted, n]; the maxima instead of sums for kMaxOfAbsVals
  std::fill(sums, sums + kNumWeighted * n, 0.0);
  const Strides groups = BroadcastStrides(scale_shape, DenseStrides(scale_shape), x.shape);
  const StridesSpan strides[] = {x.strides, groups};
  std::array<float, kPiece> piece, powers;
  ForEachPiece(x.shape, strides, [&](const int64_t* offsets, int64_t count, int64_t) {
    LoadRow(x.dtype, x.data, offsets[0], InnerStride(x.strides), count, piece.data());
    FlushRow(x.dtype, piece.data(), count);
    VisitFloat(x.dtype, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        powers[i] =
            IntegerPower<T>(calibration.lp_order % 2 == 0 ? piece[i] : std::fabs(piece[i]), calibration.lp_order);
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      double* group = sums + offsets[1] + i * InnerStride(groups);
      const double magnitude = std::fabs(piece[i]);
      group[kSumOfOnes * n] += !calibration.filter_zeros || piece[i] != 0 ? 1 : 0;
      group[kSumOfVals * n] += piece[i];
      double& largest = group[kMaxOfAbsVals * n];
      largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
      group[kSumOfL1Vals * n] += magnitude;
      group[kSumOfLpVals * n] += powers[i];
    }
  });
  const double rate = 1 / calibration.ema_update_count;
  const float keep = static_cast<float>(1 - rate);
  for (int slot = 0; slot < kNumWeighted; ++slot) {
    // The number of elements is in f32 when zeros are not counted.
    const DType dtype = slot == kSumOfOnes && calibration.filter_zeros ? DType::kF32 : x.dtype;
    const float weight = HostConstant(dtype, rate);
    const float* old = static_cast<const float*>(data.old[slot]);
    float* updated = static_cast<float*>(data.updated[slot]);
    VisitFloat(dtype, [&]<class T>() {
      for (int64_t i = 0; i < n; ++i) {
        const float sum = Arith<T>::Round(Arith<T>::Flush(static_cast<float>(sums[slot * n + i])));
        updated[i] = Add<float>(Mul<float>(old[i], keep), Mul<T>(sum, weight));
      }
    });
  }
}

void FindBounds(const WeightedStats& calibration, DType, Arithmetic, const void* const* statistics, int64_t n,
                float* bounds) {
  const auto value = [&](int slot, int64_t i) { return static_cast<const float*>(statistics[slot])[i]; };
  const auto coefficient = [](double c) { return HostConstant(DType::kF32, c); };
  for (int64_t i = 0; i < n; ++i) {
    const float ones = value(kSumOfOnes, i);
    const auto mean = [&](int slot) {
      return calibration.safe_divide && FlushSubnormal(ones) == 0 ? 0.0f : Div<float>(value(slot, i), ones);
    };
    float bound = Mul<float>(coefficient(calibration.l1_dev_coeff), mean(kSumOfL1Vals));
    const float lp = Root(mean(kSumOfLpVals), calibration.lp_order);
    bound = Add<float>(bound, Mul<float>(coefficient(calibration.lp_dev_coeff), lp));
    bound = Add<float>(bound, Mul<float>(coefficient(calibration.max_dev_coeff), value(kMaxOfAbsVals, i)));
    bounds[i] = Add<float>(bound, coefficient(calibration.const_bound_coeff));
  }
}

// ---- DelayedScaling

enum DelayedSlot { kHistory, kBound };

constexpr int64_t kMaxHistory = 1 << 20;

absl::Status CheckFields(const DelayedScaling& c) {
  if (c.amax_history_length >= 1 && c.amax_history_length <= kMaxHistory) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("DelayedScaling: amax_history_length = ", c.amax_history_length, ", expected 1 to ", kMaxHistory));
}

Statistics Arrays(const DelayedScaling& c, const Aval&, const Shape&) {
  return {{"amax_history", {DType::kF32, {c.amax_history_length}}}, {"bound", {DType::kF32, {1}}}};
}

constexpr Timing TimingOf(const DelayedScaling&) { return {.updated_in_train = true, .read_before_update = true}; }

// One maximum.
int64_t WorkDoubles(const DelayedScaling&, int64_t) { return 1; }

// The largest of the history, or the old bound if that is not a finite positive number.
float DelayedBound(const DelayedScaling& calibration, const void* const* statistics) {
  const float* history = static_cast<const float*>(statistics[kHistory]);
  float largest = 0;
  for (int64_t i = 0; i < calibration.amax_history_length; ++i) {
    if (!std::isfinite(history[i])) return *static_cast<const float*>(statistics[kBound]);
    largest = std::max(largest, FlushSubnormal(history[i]));
  }
  return largest > 0 ? largest : *static_cast<const float*>(statistics[kBound]);
}

// The history rotates left by one, and its first element becomes max|x|: element 0 is the newest, the last one the
// second newest.
void Update(const DelayedScaling& calibration, const ArrayRef& x, const Shape&, const StatisticData& data,
            double* work) {
  float* absmax = reinterpret_cast<float*>(work);
  Shape one = x.shape;
  for (int64_t axis = 0; axis < one.rank(); ++axis) one[axis] = 1;
  AbsMaxInto(x, one, absmax);
  const float bound = DelayedBound(calibration, data.old);
  const int64_t n = calibration.amax_history_length;
  const float* old = static_cast<const float*>(data.old[kHistory]);
  float* updated = static_cast<float*>(data.updated[kHistory]);
  const float first = old[0];
  std::memmove(updated, old + 1, (n - 1) * sizeof(float));
  updated[n - 1] = first;
  updated[0] = *absmax;
  *static_cast<float*>(data.updated[kBound]) = bound;
}

void FindBounds(const DelayedScaling& calibration, DType, Arithmetic, const void* const* statistics, int64_t,
                float* bounds) {
  *bounds = DelayedBound(calibration, statistics);
}

// ---- all calibrations with state

// Calls f(calibration) for a calibration with state, otherwise returns {}. A calibration without the overloads above
// does not compile.
template <class F>
auto Visit(const Calibration& calibration, F f) {
  using Result = std::invoke_result_t<F, const MeanOfAbsMax&>;
  return std::visit(
      [&]<class C>(const C& c) -> Result {
        if constexpr (CalibrationTraits<C>::kHasState) return f(c);
        else return Result();
      },
      calibration);
}

}  // namespace

absl::Status CheckStatisticFields(const Calibration& calibration) {
  return Visit(calibration, [](const auto& c) { return CheckFields(c); });
}

Statistics StatisticsOf(const Calibration& calibration, const Aval& x, const Shape& scale_shape) {
  return Visit(calibration, [&](const auto& c) { return Arrays(c, x, scale_shape); });
}

Array InitialValue(const Statistic& statistic) {
  ArrayBuilder builder(statistic.aval);
  const float initial = static_cast<float>(statistic.initial);
  for (int64_t i = 0, n = statistic.aval.shape.num_elements(); i < n; ++i) {
    StoreRow(statistic.aval.dtype, &initial, 1, builder.data(), i, 1);
  }
  return std::move(builder).Build();
}

bool UpdatesIn(QuantMode mode, const Calibration& calibration) {
  return Visit(calibration, [&](const auto& c) {
    return mode == QuantMode::kCalibrate || (mode == QuantMode::kTrain && TimingOf(c).updated_in_train);
  });
}

bool ReadsBeforeUpdate(const Calibration& calibration) {
  return Visit(calibration, [](const auto& c) { return TimingOf(c).read_before_update; });
}

DType BoundDType(const Calibration& calibration, DType x) {
  return std::visit([&]<class C>(const C&) { return CalibrationTraits<C>::kBoundsAreF32 ? DType::kF32 : x; },
                    calibration);
}

int64_t UpdateWorkDoubles(const Calibration& calibration, int64_t num_scales) {
  return Visit(calibration, [&](const auto& c) { return WorkDoubles(c, num_scales); });
}

void UpdateStatistics(const Calibration& calibration, const ArrayRef& x, const Shape& scale_shape,
                      const StatisticData& data, double* work) {
  if (x.shape.num_elements() == 0) {
    const Statistics specs = StatisticsOf(calibration, x.aval(), scale_shape);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (data.updated[i] != data.old[i]) std::memcpy(data.updated[i], data.old[i], specs[i].aval.num_bytes());
    }
    return;
  }
  Visit(calibration, [&](const auto& c) { Update(c, x, scale_shape, data, work); });
}

void BoundsOf(const Calibration& calibration, DType x, Arithmetic arithmetic, const void* const* statistics, int64_t n,
              float* bounds) {
  Visit(calibration, [&](const auto& c) { FindBounds(c, x, arithmetic, statistics, n, bounds); });
}

bool IsUnseen(const Statistics& specs, const void* const* statistics) {
  for (size_t i = 0; i < specs.size(); ++i) {
    const Aval& aval = specs[i].aval;
    if (aval.dtype == DType::kS32) return *static_cast<const int32_t*>(statistics[i]) == 0;  // the count decides
    std::array<float, kPiece> piece;
    const float initial = HostConstant(aval.dtype, specs[i].initial);
    for (int64_t start = 0, n = aval.shape.num_elements(); start < n; start += kPiece) {
      const int64_t count = std::min(kPiece, n - start);
      LoadRow(aval.dtype, statistics[i], start, 1, count, piece.data());
      if (!std::all_of(piece.data(), piece.data() + count, [&](float v) { return v == initial; })) return false;
    }
  }
  return true;
}

}  // namespace aqt::internal
