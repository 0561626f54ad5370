#include "aqt/quant/quantize_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/scalar_math.h"
#include "aqt/quant/arith.h"
#include "aqt/quant/numerics.h"
#include "aqt/quant/numerics_rows.h"
#include "aqt/quant/row_ops.h"
#include "aqt/quant/validate.h"

namespace aqt::internal {
namespace {

bool HasPo2(const Calibration& calibration) {
  return std::visit([](const auto& c) { return c.po2_scale; }, calibration);
}

// In the dtype of the bounds each step; the number of all scales decides whether XLA divides.
void ScalesFromBounds(const QuantizeSpec& spec, Arithmetic arithmetic, float* bounds, int64_t n) {
  // The bound of an 8-bit float is a bf16 scalar: f16 data is promoted to f32 by it.
  const bool widened = spec.x.dtype == DType::kF16 && std::holds_alternative<Fp8>(spec.numerics);
  const DType dtype = widened ? DType::kF32 : BoundDType(spec.calibration, spec.x.dtype);
  const bool divide = arithmetic == Arithmetic::kIeee || spec.num_scales() == 1;
  const float quant_bound = HostConstant(dtype, QuantBound(spec.numerics));
  VisitFloat(dtype, [&]<class T>() {
    const float reciprocal = Reciprocal<T>(quant_bound);
    for (int64_t i = 0; i < n; ++i) {
      bounds[i] = divide ? Div<T>(bounds[i], quant_bound) : Mul<T>(bounds[i], reciprocal);
    }
  });
  if (!HasPo2(spec.calibration)) return;
  for (int64_t i = 0; i < n; ++i) bounds[i] = CeilToPo2(dtype, bounds[i], arithmetic == Arithmetic::kIeee);
}

void AbsMaxToBounds(const AbsMax& calibration, DType dtype, float* absmax, int64_t n) {
  for (int64_t i = 0; i < n; ++i) absmax[i] = absmax[i] == 0 ? 1.0f : absmax[i];
  const double clipping_scale = calibration.clipping_scale.value_or(0);
  if (clipping_scale == 0) return;
  const float factor = HostConstant(dtype, clipping_scale);
  MulRow(dtype, &factor, 0, absmax, n);
}

void ConstantBounds(const Constant& calibration, const QuantizeSpec& spec, float* bounds) {
  const int64_t n = spec.num_scales();
  if (const auto* scalar = std::get_if<double>(&calibration.bound)) {
    std::fill(bounds, bounds + n, HostConstant(spec.x.dtype, *scalar));
    return;
  }
  const ArrayRef view = BroadcastTo(std::get<ConstantArray>(calibration.bound).array, spec.scale_shape);
  const StridesSpan strides[] = {view.strides};
  ForEachPiece(spec.scale_shape, strides, [&](const int64_t* offsets, int64_t count, int64_t linear) {
    LoadRow(view.dtype, view.data, offsets[0], InnerStride(view.strides), count, bounds + linear);
    RoundRow(spec.x.dtype, bounds + linear, count);
  });
}

// x^p for x >= 0, rounded to `dtype`: powers of small numbers underflow to 0 as they do in AQT.
float Power(DType dtype, float x, double p) {
  const double power = p == 1 ? x : x == 0 ? 0 : kernels::Exp(p * kernels::Log(x));
  return VisitFloat(dtype, [&]<class T>() { return Arith<T>::Round(Arith<T>::Flush(static_cast<float>(power))); });
}

// The powers are summed in f64, in row-major order of x; every other step is rounded to the dtype of x.
void AbsMeanBounds(const AbsMean& calibration, const QuantizeSpec& spec, const ArrayRef& x, double* sums,
                   float* bounds) {
  const int64_t n = spec.num_scales();
  const DType dtype = spec.x.dtype;
  double* counts = sums + n;
  std::fill(sums, sums + 2 * n, 0.0);
  const Strides groups = BroadcastStrides(spec.scale_shape, DenseStrides(spec.scale_shape), x.shape);
  const StridesSpan strides[] = {x.strides, groups};
  std::array<float, kPiece> piece;
  ForEachPiece(x.shape, strides, [&](const int64_t* offsets, int64_t count, int64_t) {
    LoadRow(x.dtype, x.data, offsets[0], InnerStride(x.strides), count, piece.data());
    FlushRow(dtype, piece.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = offsets[1] + i * InnerStride(groups);
      sums[group] += Power(dtype, std::fabs(piece[i]), calibration.p);
      counts[group] += piece[i] != 0 ? 1 : 0;
    }
  });
  VisitFloat(dtype, [&]<class T>() {
    const float factor = HostConstant(dtype, calibration.clipping_scale);
    for (int64_t i = 0; i < n; ++i) {
      const float sum = Arith<T>::Round(Arith<T>::Flush(static_cast<float>(sums[i])));
      const float mean = Div<T>(sum, counts[i] == 0 ? 1.0f : Arith<T>::Round(static_cast<float>(counts[i])));
      const float bound = Mul<T>(Power(dtype, mean, 1 / calibration.p), factor);
      bounds[i] = bound == 0 ? 1.0f : bound;
    }
  });
}

// What SnrSearch keeps per group.
struct SnrWork {
  float *absmax, *best, *top, *scale;
  double *signal, *error;
};

// The signal to noise ratio of each group under work.scale: signal and error are sums of squares.
void SumSquares(const QuantizeSpec& spec, const ArrayRef& x, const std::optional<TensorDraws>& draws,
                const SnrWork& work) {
  const int64_t n = spec.num_scales();
  std::fill(work.signal, work.signal + n, 0.0);
  std::fill(work.error, work.error + n, 0.0);
  const Strides groups = BroadcastStrides(spec.scale_shape, DenseStrides(spec.scale_shape), x.shape);
  std::optional<RandomBits> bits;
  Strides draw_strides(x.shape.rank(), 0);
  if (draws.has_value()) {
    bits.emplace(draws->key, draws->shape.num_elements(), draws->layout);
    draw_strides = BroadcastStrides(draws->shape, DenseStrides(draws->shape), x.shape);
  }
  const StridesSpan strides[] = {x.strides, groups, draw_strides};
  std::array<float, kPiece> original, y, scale, inverse;
  std::array<double, kPiece> container;  // at least as many bytes as any container
  ForEachPiece(x.shape, strides, [&](const int64_t* offsets, int64_t count, int64_t) {
    LoadRow(x.dtype, x.data, offsets[0], InnerStride(x.strides), count, original.data());
    LoadRow(DType::kF32, work.scale, offsets[1], InnerStride(groups), count, scale.data());
    inverse = scale;
    y = original;
    InvertScaleRow(spec.scale_dtype, inverse.data(), count);
    MulRow(spec.scaled_dtype, inverse.data(), 1, y.data(), count);
    QuantizeRow(spec.numerics, spec.scaled_dtype, {bits ? &*bits : nullptr, offsets[2], InnerStride(draw_strides)},
                y.data(), count);
    StoreRow(spec.q_dtype, y.data(), count, container.data(), 0, 1);
    LoadRow(spec.q_dtype, container.data(), 0, 1, count, y.data());
    RoundRow(x.dtype, y.data(), count);
    MulRow(spec.scaled_dtype, scale.data(), 1, y.data(), count);
    RoundRow(x.dtype, y.data(), count);
    FlushRow(x.dtype, original.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = offsets[1] + i * InnerStride(groups);
      const double e = static_cast<double>(original[i]) - y[i];
      work.signal[group] += static_cast<double>(original[i]) * original[i];
      work.error[group] += e * e;
    }
  });
}

// bounds = absmax times the candidate with the largest ln(1 + signal / error), the first of equal ones. A group whose
// ratio is NaN (all zeros) keeps 1 from there on.
void SnrBounds(const SnrSearch& calibration, const QuantizeSpec& spec, const ArrayRef& x, Arithmetic arithmetic,
               const std::optional<TensorDraws>& draws, const SnrWork& work, float* bounds) {
  const int64_t n = spec.num_scales();
  AbsMaxInto(x, spec.scale_shape, work.absmax);
  AbsMaxToBounds(AbsMax{}, x.dtype, work.absmax, n);
  std::fill(work.best, work.best + n, 1.0f);
  std::fill(work.top, work.top + n, 0.0f);
  for (const double candidate : calibration.candidates) {
    const float factor = HostConstant(x.dtype, candidate);
    std::copy(work.absmax, work.absmax + n, work.scale);
    MulRow(x.dtype, &factor, 0, work.scale, n);
    ScalesFromBounds(spec, arithmetic, work.scale, n);
    RoundRow(spec.scale_dtype, work.scale, n);
    SumSquares(spec, x, draws, work);
    for (int64_t i = 0; i < n; ++i) {
      const float ratio = static_cast<float>(work.signal[i] / work.error[i]);
      const float snr = static_cast<float>(kernels::Log(1.0 + ratio));
      if (snr > work.top[i]) work.best[i] = factor;
      if (snr > work.top[i] || snr != snr) work.top[i] = snr;
    }
  }
  std::copy(work.absmax, work.absmax + n, bounds);
  MulRow(x.dtype, work.best, 1, bounds, n);
}

bool BroadcastsTo(const Shape& shape, const Shape& target) {
  if (shape.rank() != target.rank()) return false;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1 && shape[axis] != target[axis]) return false;
  }
  return true;
}

absl::Status CheckArray(const char* field, const ConstantValue& value, const Shape& target) {
  const auto* constant = std::get_if<ConstantArray>(&value);
  if (constant == nullptr) return absl::OkStatus();
  if (!IsArithmeticFloat(constant->array.dtype()) || !BroadcastsTo(constant->array.shape(), target)) {
    return absl::InvalidArgumentError(absl::StrCat("Constant: ", field, " is ", constant->array.aval().ToString(),
                                                   ", expected f32, bf16 or f16 that broadcasts to ",
                                                   target.ToString()));
  }
  return absl::OkStatus();
}

// The bias in the dtype of x: one element for a scalar.
absl::StatusOr<Array> MakeBias(const ConstantValue& value, const Aval& x) {
  AQT_RETURN_IF_ERROR(CheckArray("bias", value, x.shape));
  if (const auto* constant = std::get_if<ConstantArray>(&value)) return Cast(constant->array, x.dtype);
  Shape ones = x.shape;
  for (int64_t axis = 0; axis < ones.rank(); ++axis) ones[axis] = 1;
  const float bias = HostConstant(x.dtype, std::get<double>(value));
  return Cast(ArrayRef(&bias, ones), x.dtype);
}

constexpr int64_t kMaxHistory = 1 << 20;

absl::Status ValidateCalibration(const Calibration& calibration) {
  struct Visitor {
    absl::Status operator()(const AbsMax& c) const {
      if (!c.clipping_scale.has_value() || *c.clipping_scale >= 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("AbsMax: clipping_scale = ", *c.clipping_scale, ", expected >= 0"));
    }
    absl::Status operator()(const Constant& c) const {
      const auto* bound = std::get_if<double>(&c.bound);
      if (bound == nullptr || *bound > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("Constant: bound = ", *bound, ", expected > 0"));
    }
    absl::Status operator()(const AbsMean& c) const {
      if (c.p > 0 && c.clipping_scale > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("AbsMean: p = ", c.p, ", clipping_scale = ", c.clipping_scale, ", expected both > 0"));
    }
    absl::Status operator()(const MeanOfAbsMax&) const { return absl::OkStatus(); }
    absl::Status operator()(const WeightedStats& c) const {
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
        return absl::InvalidArgumentError(
            absl::StrCat("WeightedStats: ", name, " = ", value, ", expected a number >= 0"));
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
    absl::Status operator()(const DelayedScaling& c) const {
      if (c.amax_history_length >= 1 && c.amax_history_length <= kMaxHistory) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("DelayedScaling: amax_history_length = ", c.amax_history_length,
                                                     ", expected 1 to ", kMaxHistory));
    }
    absl::Status operator()(const SnrSearch& c) const {
      for (const double candidate : c.candidates) {
        if (candidate >= 0) continue;
        return absl::InvalidArgumentError(absl::StrCat("SnrSearch: candidate ", candidate, ", expected >= 0"));
      }
      return absl::OkStatus();
    }
  };
  return std::visit(Visitor(), calibration);
}

}  // namespace

absl::Status ValidateQuantizer(const Quantizer& quantizer) {
  AQT_RETURN_IF_ERROR(Validate(quantizer.numerics));
  if (quantizer.scale_dtype.has_value() && !IsArithmeticFloat(*quantizer.scale_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Quantizer: scale_dtype ", ToString(*quantizer.scale_dtype), ", expected f32, bf16, f16 or none"));
  }
  AQT_RETURN_IF_ERROR(ValidateSharedAxes(quantizer.calib_shared_axes));
  if (quantizer.calibration.has_value()) AQT_RETURN_IF_ERROR(ValidateCalibration(*quantizer.calibration));
  if (quantizer.calibration.has_value() && std::holds_alternative<DelayedScaling>(*quantizer.calibration) &&
      !quantizer.calib_shared_axes.axes.empty()) {
    return absl::InvalidArgumentError(
        "Quantizer: DelayedScaling has one scale for the whole tensor; leave the axes of calib_shared_axes out");
  }
  if (IsQuantized(quantizer.numerics) && !quantizer.calibration.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Quantizer: ", Describe(quantizer.numerics), " needs a calibration, such as AbsMax"));
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizeSpec> MakeQuantizeSpec(const Quantizer& quantizer, const Aval& x,
                                              absl::Span<const int64_t> calibration_axes) {
  AQT_RETURN_IF_ERROR(ValidateQuantizer(quantizer));
  AQT_CHECK(IsQuantized(quantizer.numerics));
  if (!IsArithmeticFloat(x.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Quantizer: the tensor has dtype ", ToString(x.dtype), ", expected f32, bf16 or f16"));
  }
  QuantizeSpec spec;
  spec.numerics = quantizer.numerics;
  spec.calibration = *quantizer.calibration;
  spec.x = x;
  const SharedAxes& shared = quantizer.calib_shared_axes;
  if (shared.per_tensor || std::holds_alternative<DelayedScaling>(spec.calibration)) {
    for (int64_t axis = 0; axis < x.shape.rank(); ++axis) spec.shared_axes.push_back(axis);
  } else {
    absl::StatusOr<Axes> axes =
        NormalizeAxes(shared.axes.empty() ? calibration_axes : absl::MakeConstSpan(shared.axes), x.shape.rank());
    if (!axes.ok()) return Annotate(axes.status(), absl::StrCat("Quantizer: shared axes of ", x.ToString()));
    spec.shared_axes = *std::move(axes);
  }
  spec.scale_shape = x.shape;
  for (const int64_t axis : spec.shared_axes) spec.scale_shape[axis] = 1;
  spec.scale_dtype = quantizer.scale_dtype.value_or(x.dtype);
  spec.scaled_dtype = Promote(x.dtype, spec.scale_dtype);
  if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
    AQT_RETURN_IF_ERROR(CheckArray("bound", constant->bound, spec.scale_shape));
    if (constant->bias.has_value()) {
      AQT_ASSIGN_OR_RETURN(spec.bias, MakeBias(*constant->bias, x));
    }
  }
  spec.statistics = StatisticsOf(spec.calibration, x, spec.scale_shape);
  spec.q_dtype = QvalueDType(spec.numerics, spec.scaled_dtype);
  AQT_ASSIGN_OR_RETURN(spec.draws_shape, DrawsShape(spec.numerics, x.shape, spec.scaled_dtype));
  return spec;
}

void ScalesFromAbsMax(const QuantizeSpec& spec, Arithmetic arithmetic, float* absmax, int64_t n) {
  AbsMaxToBounds(std::get<AbsMax>(spec.calibration), spec.x.dtype, absmax, n);
  ScalesFromBounds(spec, arithmetic, absmax, n);
  RoundRow(spec.scale_dtype, absmax, n);
}

int64_t QuantizeSpec::num_work_doubles() const {
  // Bounds; then sums and counts, or absmax, best, top and scale (floats) and two sums.
  const int64_t n = num_scales(), bounds = (n + 1) / 2;
  if (std::holds_alternative<AbsMean>(calibration)) return bounds + 2 * n;
  if (std::holds_alternative<SnrSearch>(calibration)) return bounds + 4 * bounds + 2 * n;
  if (has_state()) return bounds + UpdateWorkDoubles(calibration, n);
  return bounds;
}

void ComputeScale(const QuantizeSpec& spec, const ArrayRef& x, Arithmetic arithmetic,
                  const std::optional<TensorDraws>& draws, double* work, void* scale) {
  const int64_t n = spec.num_scales(), floats = (n + 1) / 2;
  float* bounds = reinterpret_cast<float*>(work);
  double* rest = work + floats;
  if (std::holds_alternative<AbsMax>(spec.calibration)) {
    AbsMaxInto(x, spec.scale_shape, bounds);
    ScalesFromAbsMax(spec, arithmetic, bounds, n);
  } else {
    if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
      ConstantBounds(*constant, spec, bounds);
    } else if (const auto* mean = std::get_if<AbsMean>(&spec.calibration)) {
      AbsMeanBounds(*mean, spec, x, rest, bounds);
    } else {
      AQT_CHECK(std::holds_alternative<SnrSearch>(spec.calibration));
      const auto row = [&](int64_t i) { return reinterpret_cast<float*>(rest + i * floats); };
      double* sums = rest + 4 * floats;
      SnrBounds(std::get<SnrSearch>(spec.calibration), spec, x, arithmetic, draws,
                {row(0), row(1), row(2), row(3), sums, sums + n}, bounds);
    }
    ScalesFromBounds(spec, arithmetic, bounds, n);
  }
  StoreRow(spec.scale_dtype, bounds, n, scale, 0, 1);
}

void ScaleFromState(const QuantizeSpec& spec, Arithmetic arithmetic, const void* const* statistics, double* work,
                    void* scale) {
  const int64_t n = spec.num_scales();
  float* bounds = reinterpret_cast<float*>(work);
  BoundsOf(spec.calibration, spec.x.dtype, arithmetic, statistics, n, bounds);
  ScalesFromBounds(spec, arithmetic, bounds, n);
  StoreRow(spec.scale_dtype, bounds, n, scale, 0, 1);
}

void ComputeScaleWithState(const QuantizeSpec& spec, const ArrayRef& x, QuantMode mode, Arithmetic arithmetic,
                           const StatisticData& data, double* work, void* scale) {
  const bool updates = UpdatesIn(mode, spec.calibration), before = ReadsBeforeUpdate(spec.calibration);
  if (!updates || before) ScaleFromState(spec, arithmetic, data.old, work, scale);
  if (!updates) return;
  UpdateStatistics(spec.calibration, x, spec.scale_shape, data, work);
  if (!before) ScaleFromState(spec, arithmetic, data.updated, work, scale);
}

absl::Status CheckSeen(const QuantizeSpec& spec, QuantMode mode, const Compat& compat, const void* const* statistics) {
  // Without elements there is nothing to scale.
  if (compat.read_unseen_calibration || UpdatesIn(mode, spec.calibration) || spec.x.shape.num_elements() == 0) {
    return absl::OkStatus();
  }
  if (!IsUnseen(spec.statistics, statistics)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      NameOf(spec.calibration), " has seen no calibration batch, so in ", ToString(mode),
      " there is no scale to read; run some batches in QUANT_MODE_CALIBRATE first and pass the state that they give"));
}

absl::string_view NameOf(const Calibration& calibration) {
  struct Visitor {
    absl::string_view operator()(const AbsMax&) const { return "AbsMax"; }
    absl::string_view operator()(const AbsMean&) const { return "AbsMean"; }
    absl::string_view operator()(const Constant&) const { return "Constant"; }
    absl::string_view operator()(const SnrSearch&) const { return "SnrSearch"; }
    absl::string_view operator()(const MeanOfAbsMax&) const { return "MeanOfAbsMax"; }
    absl::string_view operator()(const WeightedStats&) const { return "WeightedStats"; }
    absl::string_view operator()(const DelayedScaling&) const { return "DelayedScaling"; }
  };
  return std::visit(Visitor(), calibration);
}

}  // namespace aqt::internal
