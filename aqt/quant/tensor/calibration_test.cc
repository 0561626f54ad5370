#include "aqt/quant/tensor/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

constexpr QuantMode kModes[] = {QuantMode::kTrain, QuantMode::kCalibrate, QuantMode::kConvert, QuantMode::kServe};

Quantizer Int8(Calibration calibration) { return {.numerics = IntSymmetric{}, .calibration = std::move(calibration)}; }

std::vector<double> Doubles(const Array& x) {
  const Array f64 = Cast(x, DType::kF64);
  return {f64.View<double>().begin(), f64.View<double>().end()};
}

float Round(DType dtype, double x) {
  const float y = static_cast<float>(x);
  return dtype == DType::kBF16 ? ToFloat(RoundToBFloat16(y)) : dtype == DType::kF16 ? ToFloat(RoundToFloat16(y)) : y;
}

// Numbers of a wide range with some zeros; the same for the same seed.
Array Batch(const Aval& aval, uint64_t seed, float factor = 1) {
  const RandomBits bits(MakeKey(seed), 2 * aval.shape.num_elements() + 1);
  ArrayBuilder values(DType::kF32, aval.shape);
  for (int64_t i = 0; i < aval.shape.num_elements(); ++i) {
    const float u = UniformF32(bits.Bits32(2 * i)) - 0.5f;
    const uint32_t kind = bits.Bits32(2 * i + 1);
    values.Mutable<float>()[i] = kind % 5 == 0 ? 0 : factor * u * std::exp2(static_cast<float>(kind % 7));
  }
  return Cast(std::move(values).Build(), aval.dtype);
}

// ---- the formulas of calibration.h in their simplest form, in double except for the roundings that they name

using State = std::map<std::string, std::vector<double>>;

// The index of the scale of element i of x.
int64_t GroupOf(const Shape& shape, const std::vector<bool>& shared, int64_t i) {
  int64_t group = 0, stride = 1;
  for (int64_t axis = shape.rank() - 1; axis >= 0; --axis) {
    const int64_t index = i % shape[axis];
    i /= shape[axis];
    if (shared[axis]) continue;
    group += index * stride;
    stride *= shape[axis];
  }
  return group;
}

struct Slow {
  Calibration calibration;
  Aval x;
  std::vector<bool> shared;
  int64_t groups = 1;
  State state;
  std::vector<double> bound;

  Slow(const Calibration& c, const Aval& aval, const std::vector<bool>& shared_axes)
      : calibration(c), x(aval), shared(shared_axes) {
    for (int64_t axis = 0; axis < x.shape.rank(); ++axis) groups *= shared[axis] ? 1 : x.shape[axis];
    const auto all = [&](double v) { return std::vector<double>(groups, v); };
    if (const auto* w = std::get_if<WeightedStats>(&calibration)) {
      const double n = w->update_count_prior;
      state = {{"sum_of_ones", all(n)},
               {"sum_of_vals", all(w->mean_prior * n)},
               {"max_of_abs_vals", all(w->max_dev_prior)},
               {"sum_of_l1_vals", all(w->l1_dev_prior * n)},
               {"sum_of_lp_vals", all(std::pow(w->lp_dev_prior, w->lp_order) * n)}};
    } else if (const auto* d = std::get_if<DelayedScaling>(&calibration)) {
      state = {{"amax_history", std::vector<double>(d->amax_history_length)}, {"bound", {0}}};
    } else {
      state = {{"sum_of_max", all(0)}, {"count", {0}}};
    }
  }

  void Step(const Array& batch, QuantMode mode) {
    const std::vector<double> v = Doubles(batch);
    std::vector<double> absmax(groups);
    for (size_t i = 0; i < v.size(); ++i) {
      double& m = absmax[GroupOf(x.shape, shared, static_cast<int64_t>(i))];
      m = std::max(m, std::fabs(v[i]));
    }
    const bool calibrates = mode == QuantMode::kCalibrate, trains = calibrates || mode == QuantMode::kTrain;
    if (const auto* w = std::get_if<WeightedStats>(&calibration)) {
      if (trains) UpdateWeighted(*w, v, absmax);
      bound.clear();
      for (int64_t g = 0; g < groups; ++g) {
        const double n = state["sum_of_ones"][g];
        const auto mean = [&](const char* name) { return n == 0 && w->safe_divide ? 0 : state[name][g] / n; };
        bound.push_back(w->l1_dev_coeff * mean("sum_of_l1_vals") +
                        w->lp_dev_coeff * std::pow(mean("sum_of_lp_vals"), 1.0 / w->lp_order) +
                        w->max_dev_coeff * state["max_of_abs_vals"][g] + w->const_bound_coeff);
      }
    } else if (std::holds_alternative<DelayedScaling>(calibration)) {
      std::vector<double>& history = state["amax_history"];
      double amax = 0;
      for (const double m : history) amax = std::max(amax, m);
      bound = {amax > 0 && std::isfinite(amax) ? amax : state["bound"][0]};
      if (!trains) return;
      std::vector<double> turned(history.begin() + 1, history.end());
      turned.push_back(history[0]);
      turned[0] = *std::max_element(absmax.begin(), absmax.end());
      history = turned;
      state["bound"] = bound;
    } else {
      if (calibrates) {
        for (int64_t g = 0; g < groups; ++g)
          state["sum_of_max"][g] = Round(x.dtype, state["sum_of_max"][g] + absmax[g]);
        state["count"][0] += 1;
      }
      bound.clear();
      for (const double sum : state["sum_of_max"]) bound.push_back(sum / state["count"][0]);
    }
  }

  void UpdateWeighted(const WeightedStats& w, const std::vector<double>& v, const std::vector<double>& absmax) {
    State news;
    for (const auto& [name, values] : state) news[name] = std::vector<double>(groups);
    for (size_t i = 0; i < v.size(); ++i) {
      const int64_t g = GroupOf(x.shape, shared, static_cast<int64_t>(i));
      news["sum_of_ones"][g] += !w.filter_zeros || v[i] != 0 ? 1 : 0;
      news["sum_of_vals"][g] += v[i];
      news["sum_of_l1_vals"][g] += std::fabs(v[i]);
      news["sum_of_lp_vals"][g] += std::pow(std::fabs(v[i]), w.lp_order);
    }
    news["max_of_abs_vals"] = absmax;
    const double rate = 1 / w.ema_update_count;
    for (auto& [name, values] : state) {
      for (int64_t g = 0; g < groups; ++g) values[g] = (1 - rate) * values[g] + rate * news[name][g];
    }
  }
};

// |got - want| <= relative * |magnitudes| + absolute.
void ExpectNear(const std::vector<double>& got, const std::vector<double>& want, const std::vector<double>& magnitudes,
                double relative, double absolute, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::fabs(got[i] - want[i]), relative * std::fabs(magnitudes[i]) + absolute)
        << what << " " << i << ": " << got[i] << " " << want[i];
  }
}

template <class F>
WeightedStats RandomWeightedStats(DType dtype, const F& below) {
  return {.l1_dev_coeff = 0.5 * below(3),
          .lp_dev_coeff = 0.25 * below(3),
          .max_dev_coeff = 1,
          .const_bound_coeff = 0.125 * below(2),
          .update_count_prior = 1.0 + below(2),
          .max_dev_prior = 0.5 * below(2),
          .mean_prior = -0.5,
          .l1_dev_prior = 0.25,
          .lp_dev_prior = 0.5,
          .lp_order = 1 + static_cast<int>(below(dtype == DType::kF16 ? 2 : 4)),
          .safe_divide = below(2) == 0,
          .filter_zeros = below(2) == 0,
          .ema_update_count = 1.0 + 2 * below(20)};
}

// The same numbers, in memory that is transposed, give the same bits.
void ExpectTransposedGives(const CalibratedTensor& want, const Quantizer& quantizer, const CalibrationState& state,
                           const Array& batch, const Axes& axes, QuantMode mode, const std::string& what) {
  const Shape& shape = batch.shape();
  Strides strides(shape.rank(), 0);
  int64_t stride = 1;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  ArrayBuilder columns(batch.dtype(), shape);
  const MutableArrayRef column_view(batch.dtype(), shape, strides, columns.data());
  ASSERT_TRUE(CopyArray(batch, column_view).ok());
  const absl::StatusOr<CalibratedTensor> again =
      CalibrateWithState(quantizer, state, ArrayRef(column_view), axes, {.quant_mode = mode});
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(BitEqual(again->qtensor.scale[0], want.qtensor.scale[0])) << what;
  for (const auto& [name, array] : want.state) EXPECT_TRUE(BitEqual(array, again->state.at(name))) << what << name;
}

// Every kind of calibration with random shapes, axes, dtypes and modes, against the slow form. Dense and transposed
// views give the same bits, and so does a state that was copied in between.
TEST(Calibration, IsTheFormula) {
  for (uint64_t seed = 0; seed < 160; ++seed) {
    const RandomBits random(MakeKey(1000 + seed), 64);
    int64_t draws = 0;
    const auto below = [&](uint32_t n) { return random.Bits32(draws++) % n; };
    const DType dtype = std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16}[below(3)];
    Shape shape;
    std::vector<bool> shared;
    Axes axes;
    const int64_t rank = 1 + below(3);
    for (int64_t axis = 0; axis < rank; ++axis) {
      shape.push_back(std::vector<int64_t>{1, 2, 3, 5, 17, 300}[below(axis == rank - 1 ? 6 : 5)]);
      shared.push_back(below(2) == 0);
      if (shared.back()) axes.push_back(below(2) == 0 ? axis : axis - rank);
    }
    Quantizer quantizer = Int8(MeanOfAbsMax{});
    if (below(4) == 0) quantizer.scale_dtype = DType::kF32;
    const uint32_t kind = below(3);
    const double unit = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    // A term of a sum is a power of at most 2 roundings; the sum, the rate and their product are rounded once each. The
    // average adds 3 roundings of f32 per step. Terms of f16 can be subnormal: off by 2^-25 each.
    const double tolerance = kind != 1 ? 0 : dtype == DType::kF32 ? 5 * unit + 6 * 3 * unit : 6 * unit;
    const double absolute = kind == 1 && dtype == DType::kF16 ? static_cast<double>(shape.num_elements()) * 0x1p-25 : 0;
    if (kind == 1) {
      quantizer.calibration = RandomWeightedStats(dtype, below);
    } else if (kind == 2) {
      quantizer.calibration = DelayedScaling{.amax_history_length = 1 + below(5)};
      shared.assign(rank, true);
      axes = {};
    }
    const Aval x{dtype, shape};
    Slow slow(*quantizer.calibration, x, shared);
    absl::StatusOr<CalibrationState> state = InitialCalibrationState(quantizer, x, axes);
    ASSERT_TRUE(state.ok()) << state.status();
    const std::string what = absl::StrCat("seed ", seed, " ", x.ToString(), " kind ", kind);
    for (const auto& [name, array] : *state) EXPECT_EQ(Doubles(array), slow.state[name]) << what << name;
    for (int step = 0; step < 6; ++step) {
      const QuantMode mode = step == 0 ? QuantMode::kCalibrate : kModes[below(4)];
      // Sums of squares of f16 must not overflow.
      const Array batch = Batch(x, seed * 100 + step, dtype == DType::kF16 ? 0x1p-6f : 1);
      absl::StatusOr<CalibratedTensor> result =
          CalibrateWithState(quantizer, *state, batch, axes, {.quant_mode = mode});
      ASSERT_TRUE(result.ok()) << what << result.status();
      slow.Step(batch, mode);
      for (const auto& [name, array] : result->state) {
        // Where terms cancel, the error is relative to their magnitudes.
        const std::vector<double>& magnitudes = slow.state[name == "sum_of_vals" ? "sum_of_l1_vals" : name];
        ExpectNear(Doubles(array), slow.state[name], magnitudes, tolerance, absolute, what + name);
      }
      // Each statistic, and the number of elements that divides it; then 5 roundings of the bound and 2 of the scale.
      std::vector<double> want = slow.bound;
      for (double& b : want) b /= 127.5;
      ExpectNear(Doubles(result->qtensor.scale[0]), want, want, 2 * tolerance + 5 * 0x1p-24 + 2 * unit,
                 absolute + (dtype == DType::kF16 ? 3 * 0x1p-25 : 0), what + " scale");
      ExpectTransposedGives(*result, quantizer, *state, batch, axes, mode, what);
      // SERVE reads the same scale as CONVERT, and as a call that updates nothing.
      if (!UpdatesState(quantizer, mode)) {
        const absl::StatusOr<Array> scale = StaticScale(quantizer, *state, x, axes);
        ASSERT_TRUE(scale.ok()) << scale.status();
        EXPECT_TRUE(BitEqual(*scale, result->qtensor.scale[0])) << what;
        for (const auto& [name, array] : result->state) EXPECT_TRUE(BitEqual(array, state->at(name))) << what << name;
      }
      state->clear();
      for (const auto& [name, array] : result->state) state->emplace(name, Array::CopyOf(array));
    }
  }
}

// max|x| of the calls, and the bound that each of them uses.
TEST(DelayedScaling, HistoryOfFour) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> maxima = {3, 10, 0, inf, 4, 5, 6, 7, 8, 9};
  const std::vector<double> bounds = {0, 3, 10, 10, 10, 10, 10, 10, 7, 8};
  const Quantizer quantizer = Int8(DelayedScaling{.amax_history_length = 4});
  CalibrationState state = *InitialCalibrationState(quantizer, {DType::kF32, {2}}, {});
  for (size_t i = 0; i < maxima.size(); ++i) {
    absl::StatusOr<CalibratedTensor> result =
        CalibrateWithState(quantizer, state, Array::Of<float>({-maxima[i], 0}, {2}), {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->qtensor.scale[0].View<float>()[0], static_cast<float>(bounds[i]) / 127.5f) << i;
    state = std::move(result->state);
    EXPECT_EQ(state.at("bound").View<float>()[0], bounds[i]) << i;
  }
  // The newest is first; the second newest is at the end.
  EXPECT_EQ(Doubles(state.at("amax_history")), (std::vector<double>{9, 6, 7, 8}));
  // NaN does not become the bound, either.
  state = CalibrateWithState(quantizer, state, Array::Of<float>({std::nanf(""), 1}, {2}), {})->state;
  EXPECT_EQ(CalibrateWithState(quantizer, state, Array::Of<float>({1, 1}, {2}), {})->state.at("bound").View<float>()[0],
            9);
}

// A history of length one holds the last call. If it is 0, the last bound stays.
TEST(DelayedScaling, HistoryOfOneAndZeros) {
  const Quantizer quantizer = Int8(DelayedScaling{.amax_history_length = 1});
  CalibrationState state = *InitialCalibrationState(quantizer, {DType::kF32, {1}}, {});
  const std::vector<float> maxima = {3, 10, 2, 0, 0, 5, 1}, bounds = {0, 3, 10, 2, 2, 2, 5};
  for (size_t i = 0; i < maxima.size(); ++i) {
    state = CalibrateWithState(quantizer, state, Array::Of<float>({maxima[i]}, {1}), {})->state;
    EXPECT_EQ(state.at("bound").View<float>()[0], bounds[i]) << i;
  }
}

TEST(DelayedScaling, FirstCallGivesZeros) {
  const Quantizer quantizer = Int8(DelayedScaling{});
  const Array x = Array::Of<float>({-3, 1.4f, 200}, {3});
  CalibrationState state = *InitialCalibrationState(quantizer, x.aval(), {});
  absl::StatusOr<CalibratedTensor> first = CalibrateWithState(quantizer, state, x, {});
  ASSERT_TRUE(first.ok());
  absl::StatusOr<QTensor> q = CalculateQvalue(quantizer, x, first->qtensor);
  ASSERT_TRUE(q.ok());
  EXPECT_EQ(Doubles(*q->qvalue), (std::vector<double>{-3, 1, 127}));  // scaled by 1
  EXPECT_EQ(Doubles(*q->Dequantize()), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(Doubles(CalibrateWithState(quantizer, first->state, x, {})->qtensor.scale[0])[0], 200 / 127.5f);
}

TEST(Calibration, ATensorWithoutElementsChangesNothing) {
  for (const Calibration& calibration :
       {Calibration(MeanOfAbsMax{}), Calibration(WeightedStats{.max_dev_coeff = 1}), Calibration(DelayedScaling{})}) {
    const Quantizer quantizer = Int8(calibration);
    const CalibrationState initial = *InitialCalibrationState(quantizer, {DType::kF32, {4, 3}}, {0});
    const CalibrationState state = *UpdateCalibration(quantizer, initial, Batch({DType::kF32, {4, 3}}, 1), {0});
    const absl::StatusOr<CalibrationState> next =
        UpdateCalibration(quantizer, state, Array::Zeros(DType::kF32, {0, 3}), {0});
    ASSERT_TRUE(next.ok()) << next.status();
    for (const auto& [name, array] : state) EXPECT_TRUE(BitEqual(array, next->at(name))) << name;
  }
}

TEST(Calibration, ScalarsHaveOneScale) {
  const Quantizer quantizer = Int8(MeanOfAbsMax{});
  CalibrationState state = *InitialCalibrationState(quantizer, {DType::kF32, {}}, {});
  state = *UpdateCalibration(quantizer, state, Array::Scalar(-3.0f), {});
  state = *UpdateCalibration(quantizer, state, Array::Scalar(4.0f), {});
  EXPECT_EQ(StaticScale(quantizer, state, {DType::kF32, {}}, {})->View<float>()[0], 3.5f / 127.5f);
}

TEST(MeanOfAbsMax, NoBatchSeen) {
  const Quantizer quantizer = Int8(MeanOfAbsMax{});
  const Aval x{DType::kF32, {2, 3}};
  const CalibrationState state = *InitialCalibrationState(quantizer, x, {1});
  for (const QuantMode mode : {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kServe}) {
    const absl::Status status = CalibrateWithState(quantizer, state, Batch(x, 1), {1}, {.quant_mode = mode}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              absl::StrCat(
                  "MeanOfAbsMax has seen no calibration batch, so in ", ToString(mode),
                  " there is no scale to read; run some batches in QUANT_MODE_CALIBRATE first and pass the resulting "
                  "state"));
  }
  // As in AQT.
  const absl::StatusOr<Array> scale =
      StaticScale(quantizer, state, x, {1}, {.compat = {.read_unseen_calibration = true}});
  ASSERT_TRUE(scale.ok());
  for (const double s : Doubles(*scale)) EXPECT_TRUE(std::isnan(s));
  const Calibration others[] = {WeightedStats{.l1_dev_coeff = 1, .max_dev_prior = 2}, DelayedScaling{}};
  for (const Calibration& other : others) {
    const Quantizer q = Int8(other);
    const CalibrationState unseen = *InitialCalibrationState(q, x, {1});
    EXPECT_EQ(StaticScale(q, unseen, x, {1}).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

// After 2^31 - 1 batches the counter is full and the mean stays unchanged.
TEST(MeanOfAbsMax, AFullCounterStays) {
  const Quantizer quantizer = Int8(MeanOfAbsMax{});
  const Aval x{DType::kF32, {2, 3}};
  const auto state = [](int32_t count) {
    return CalibrationState{{"count", Array::Scalar(count)}, {"sum_of_max", Array::Of<float>({2e9f, 4e9f}, {2, 1})}};
  };
  const int32_t full = std::numeric_limits<int32_t>::max();
  const CalibrationState last = *UpdateCalibration(quantizer, state(full - 1), Array::Zeros(x.dtype, x.shape), {1});
  EXPECT_EQ(last.at("count").View<int32_t>()[0], full);
  const CalibrationState same = *UpdateCalibration(quantizer, state(full), Batch(x, 1, 1e9f), {1});
  EXPECT_EQ(same.at("count").View<int32_t>()[0], full);
  EXPECT_TRUE(BitEqual(same.at("sum_of_max"), state(full).at("sum_of_max")));
}

TEST(Calibration, Refuses) {
  const auto message = [](const Quantizer& q) {
    const absl::Status status = Validate(q);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(Int8(WeightedStats{.max_dev_coeff = 1, .lp_order = 31})),
            "WeightedStats: lp_order = 31, expected 1 to 30");
  EXPECT_EQ(message(Int8(WeightedStats{.max_dev_coeff = 1, .lp_order = 0})),
            "WeightedStats: lp_order = 0, expected 1 to 30");
  EXPECT_EQ(message(Int8(WeightedStats{.max_dev_coeff = 1, .ema_update_count = 0.5})),
            "WeightedStats: ema_update_count = 0.5, expected a number >= 1");
  EXPECT_EQ(message(Int8(WeightedStats{.max_dev_coeff = -1})),
            "WeightedStats: max_dev_coeff = -1, expected a number >= 0");
  EXPECT_EQ(message(Int8(WeightedStats{.max_dev_coeff = 1, .lp_dev_prior = std::nan("")})),
            "WeightedStats: lp_dev_prior = nan, expected a number >= 0");
  EXPECT_EQ(message(Int8(WeightedStats{.max_dev_coeff = 1, .mean_prior = -HUGE_VAL})),
            "WeightedStats: mean_prior = -inf, expected a number");
  EXPECT_EQ(message(Int8(WeightedStats{})),
            "WeightedStats: all four coefficients are 0, so every bound would be 0; set max_dev_coeff: 1, for example");
  EXPECT_EQ(message(Int8(DelayedScaling{.amax_history_length = 0})),
            "DelayedScaling: amax_history_length = 0, expected 1 to 1048576");
  Quantizer axes = Int8(DelayedScaling{});
  axes.calib_shared_axes.axes = {0};
  EXPECT_EQ(message(axes),
            "Quantizer: DelayedScaling has one scale for the whole tensor; leave the axes of calib_shared_axes out");

  const Aval x{DType::kF32, {2, 3}};
  const Quantizer mean = Int8(MeanOfAbsMax{});
  absl::Status status = CalibrateWithState(mean, {}, Batch(x, 1), {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "calibration: the state is {}, expected {sum_of_max f32[2,1], count s32[]} for f32[2,3]");
  status = UpdateCalibration(mean, *InitialCalibrationState(mean, x, {0}), Batch(x, 1), {1}).status();
  EXPECT_EQ(
      status.message(),
      "calibration: the state is {count s32[], sum_of_max f32[1,3]}, expected {sum_of_max f32[2,1], count s32[]} for "
      "f32[2,3]");
  status = InitialCalibrationState(Int8(AbsMax{}), x, {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "calibration: AbsMax has no state; use Calibrate");
  status = Quantize(mean, Batch(x, 1), {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "Calibrate: MeanOfAbsMax has state; use CalibrateWithState (calibration.h)");
  EXPECT_EQ(InitialCalibrationState(mean, {DType::kS8, {2}}, {0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(InitialCalibrationState(mean, x, {2}).status().code(), absl::StatusCode::kInvalidArgument);
}

// A shape alone, such as one from a file, must not cause an absurdly large allocation.
TEST(Calibration, RefusesStatisticsThatNobodyCouldMean) {
  const Quantizer mean = Int8(MeanOfAbsMax{});
  const absl::Status status = InitialCalibrationState(mean, {DType::kF32, {int64_t{1} << 40, 2}}, {1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("the statistic sum_of_max of f32[1099511627776,2] would be f32[1099511627776,1]"),
            absl::string_view::npos)
      << status;
  EXPECT_TRUE(InitialCalibrationState(mean, {DType::kF32, {int64_t{1} << 40, 2}}, {0, 1}).ok());
}

}  // namespace
}  // namespace aqt
