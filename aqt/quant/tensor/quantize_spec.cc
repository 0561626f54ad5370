#include "aqt/quant/tensor/quantize_spec.h"

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
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/numerics/validate.h"

namespace aqt::internal {
namespace {

bool HasPo2(const Calibration& calibration) {
  return std::visit([](const auto& c) { return c.po2_scale; }, calibration);
}

// bounds = bounds / quant_bound. Returns the dtype of the result.
DType DivideByQuantBound(const QuantizeSpec& spec, DType bound_dtype, Arithmetic arithmetic, float* bounds, int64_t n) {
  // The bound of an 8-bit float is a bf16 scalar, which promotes f16 bounds to f32.
  const bool widened = bound_dtype == DType::kF16 && std::holds_alternative<Fp8>(spec.numerics);
  const DType dtype = widened ? DType::kF32 : bound_dtype;
  // The number of all scales decides whether XLA divides.
  const bool divide = arithmetic == Arithmetic::kIeee || spec.num_scales() == 1;
  const float quant_bound = HostConstant(dtype, QuantBound(spec.numerics));
  VisitFloat(dtype, [&]<class T>() {
    const float reciprocal = Reciprocal<T>(quant_bound);
    for (int64_t i = 0; i < n; ++i) {
      bounds[i] = divide ? Div<T>(bounds[i], quant_bound) : Mul<T>(bounds[i], reciprocal);
    }
  });
  return dtype;
}

// Each step is in the dtype of the bounds.
void ScalesFromBounds(const QuantizeSpec& spec, DType bound_dtype, Arithmetic arithmetic, float* bounds, int64_t n) {
  const DType dtype = DivideByQuantBound(spec, bound_dtype, arithmetic, bounds, n);
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
  // In its own dtype: spec.bound_dtype holds it exactly.
  const Array& array = std::get<ConstantArray>(calibration.bound).array;
  LoadRow(array.dtype(), array.data(), 0, array.shape().rank() == 0 ? 0 : 1, n, bounds);
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

// For each group under work.scale: the sums of the squares of x and of the quantization error, in f64. With `rounded`
// each error, square and sum is rounded to the dtype of x.
void SumSquares(const QuantizeSpec& spec, const ArrayRef& x, const std::optional<TensorDraws>& draws, bool rounded,
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
    VisitFloat(x.dtype, [&]<class T>() {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t group = offsets[1] + i * InnerStride(groups);
        if (rounded) {
          const float e = Sub<T>(original[i], y[i]);
          work.signal[group] += Mul<T>(original[i], original[i]);
          work.error[group] += Mul<T>(e, e);
        } else {
          const double e = static_cast<double>(original[i]) - y[i];
          work.signal[group] += static_cast<double>(original[i]) * original[i];
          work.error[group] += e * e;
        }
      }
    });
  });
}

// ln(1 + signal / error): the quotient in f64 and the rest in f32, or all in T.
template <class T>
float SignalToNoise(double signal, double error, bool rounded) {
  if (!rounded) return static_cast<float>(kernels::Log(1.0 + static_cast<float>(signal / error)));
  const auto round = [](double v) { return Arith<T>::Round(Arith<T>::Flush(static_cast<float>(v))); };
  return round(kernels::Log(Add<T>(1.0f, Div<T>(round(signal), round(error)))));
}

// bounds = absmax times the candidate with the largest ln(1 + signal / error), the first of equal ones, in f32. A group
// whose ratio is NaN (all zeros) keeps 1 from there on.
void SnrBounds(const SnrSearch& calibration, const QuantizeSpec& spec, const ArrayRef& x, const Semantics& semantics,
               const std::optional<TensorDraws>& draws, const SnrWork& work, float* bounds) {
  const bool rounded = semantics.compat.snr_rates_in_tensor_dtype;
  const int64_t n = spec.num_scales();
  AbsMaxInto(x, spec.scale_shape, work.absmax);
  AbsMaxToBounds(AbsMax{}, x.dtype, work.absmax, n);
  std::fill(work.best, work.best + n, 1.0f);
  std::fill(work.top, work.top + n, 0.0f);
  for (const double candidate : calibration.candidates) {
    const float factor = HostConstant(x.dtype, candidate);
    std::copy(work.absmax, work.absmax + n, work.scale);
    MulRow(x.dtype, &factor, 0, work.scale, n);
    if (semantics.compat.snr_rates_unrounded_scales) {
      DivideByQuantBound(spec, x.dtype, semantics.arithmetic, work.scale, n);
    } else {
      ScalesFromBounds(spec, x.dtype, semantics.arithmetic, work.scale, n);
    }
    RoundRow(spec.scale_dtype, work.scale, n);
    SumSquares(spec, x, draws, rounded, work);
    for (int64_t i = 0; i < n; ++i) {
      const float snr =
          VisitFloat(x.dtype, [&]<class T>() { return SignalToNoise<T>(work.signal[i], work.error[i], rounded); });
      if (snr > work.top[i]) work.best[i] = HostConstant(DType::kF32, candidate);
      if (snr > work.top[i] || snr != snr) work.top[i] = snr;
    }
  }
  std::copy(work.absmax, work.absmax + n, bounds);
  MulRow(DType::kF32, work.best, 1, bounds, n);
}

bool BroadcastsTo(const Shape& shape, const Shape& target) {
  if (shape.rank() != target.rank()) return false;
  for (int64_t axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1 && shape[axis] != target[axis]) return false;
  }
  return true;
}

// An array of rank 1 or more; null for a number and for an array of rank 0, which is one number.
const Array* ArrayOf(const ConstantValue& value) {
  const auto* constant = std::get_if<ConstantArray>(&value);
  return constant == nullptr || constant->array.shape().rank() == 0 ? nullptr : &constant->array;
}

absl::Status CheckArray(const char* field, const ConstantValue& value, const Shape& target) {
  const auto* constant = std::get_if<ConstantArray>(&value);
  if (constant == nullptr) return absl::OkStatus();
  const bool fits = ArrayOf(value) == nullptr || BroadcastsTo(constant->array.shape(), target);
  if (!IsArithmeticFloat(constant->array.dtype()) || !fits) {
    return absl::InvalidArgumentError(absl::StrCat("Constant: ", field, " is ", constant->array.aval().ToString(),
                                                   ", expected f32, bf16 or f16 that broadcasts to ",
                                                   target.ToString()));
  }
  return absl::OkStatus();
}

// An array has the dtype of the scale; a number becomes one element in the dtype of x.
Array MakeBias(const ConstantValue& value, const Aval& x, DType scale_dtype) {
  if (const Array* array = ArrayOf(value)) return Cast(*array, scale_dtype);
  Shape ones = x.shape;
  for (int64_t axis = 0; axis < ones.rank(); ++axis) ones[axis] = 1;
  const auto* constant = std::get_if<ConstantArray>(&value);
  const double number =
      constant == nullptr ? std::get<double>(value) : Cast(constant->array, DType::kF32).View<float>()[0];
  const float bias = HostConstant(x.dtype, number);
  return Cast(ArrayRef(&bias, ones), x.dtype);
}

// The shape, the dtype of the bounds, and the bias of a Constant calibration.
absl::Status ResolveConstant(const Constant& constant, QuantizeSpec& spec) {
  AQT_RETURN_IF_ERROR(CheckArray("bound", constant.bound, spec.x.shape));
  if (const auto* bound = std::get_if<ConstantArray>(&constant.bound)) {
    const DType dtype = bound->array.dtype();
    const bool has_axes = ArrayOf(constant.bound) != nullptr;
    spec.bound_dtype = has_axes ? dtype : Promote(spec.x.dtype, dtype);
    if (has_axes) spec.scale_shape = bound->array.shape();
  }
  if (!constant.bias.has_value()) return absl::OkStatus();
  AQT_RETURN_IF_ERROR(CheckArray("bias", *constant.bias, spec.x.shape));
  spec.bias = MakeBias(*constant.bias, spec.x, spec.scale_dtype);
  spec.bias_shape = ArrayOf(*constant.bias) != nullptr ? spec.bias->shape() : spec.x.shape;
  return absl::OkStatus();
}

constexpr int64_t kMaxHistory = 1 << 20;

absl::Status ValidateCalibration(const Calibration& calibration) {
  struct Visitor {
    absl::Status operator()(const AbsMax& c) const {
      if (!c.clipping_scale.has_value() || !std::isnan(*c.clipping_scale)) return absl::OkStatus();
      return absl::InvalidArgumentError("AbsMax: clipping_scale = nan, expected a number");
    }
    absl::Status operator()(const Constant& c) const {
      const auto* bound = std::get_if<double>(&c.bound);
      if (bound == nullptr || *bound > 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("Constant: bound = ", *bound, ", expected > 0"));
    }
    absl::Status operator()(const AbsMean& c) const {
      if (std::isfinite(c.p) && c.p != 0 && !std::isnan(c.clipping_scale)) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("AbsMean: p = ", c.p, ", clipping_scale = ", c.clipping_scale,
                                                     ", expected a finite p other than 0 and a number"));
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
        if (!std::isnan(candidate)) continue;
        return absl::InvalidArgumentError("SnrSearch: candidate nan, expected a number");
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
  spec.bound_dtype = BoundDType(spec.calibration, x.dtype);
  if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
    AQT_RETURN_IF_ERROR(ResolveConstant(*constant, spec));
  }
  spec.statistics = StatisticsOf(spec.calibration, x, spec.scale_shape);
  spec.q_dtype = QvalueDType(spec.numerics, spec.scaled_dtype);
  AQT_ASSIGN_OR_RETURN(spec.draws_shape, DrawsShape(spec.numerics, x.shape, spec.scaled_dtype));
  return spec;
}

void ScalesFromAbsMax(const QuantizeSpec& spec, Arithmetic arithmetic, float* absmax, int64_t n) {
  AbsMaxToBounds(std::get<AbsMax>(spec.calibration), spec.x.dtype, absmax, n);
  ScalesFromBounds(spec, spec.bound_dtype, arithmetic, absmax, n);
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

void ComputeScale(const QuantizeSpec& spec, const ArrayRef& x, const Semantics& semantics,
                  const std::optional<TensorDraws>& draws, double* work, void* scale) {
  const int64_t n = spec.num_scales(), floats = (n + 1) / 2;
  float* bounds = reinterpret_cast<float*>(work);
  double* rest = work + floats;
  if (std::holds_alternative<AbsMax>(spec.calibration)) {
    AbsMaxInto(x, spec.scale_shape, bounds);
    ScalesFromAbsMax(spec, semantics.arithmetic, bounds, n);
  } else {
    if (const auto* constant = std::get_if<Constant>(&spec.calibration)) {
      ConstantBounds(*constant, spec, bounds);
    } else if (const auto* mean = std::get_if<AbsMean>(&spec.calibration)) {
      AbsMeanBounds(*mean, spec, x, rest, bounds);
    } else {
      AQT_CHECK(std::holds_alternative<SnrSearch>(spec.calibration));
      const auto row = [&](int64_t i) { return reinterpret_cast<float*>(rest + i * floats); };
      double* sums = rest + 4 * floats;
      SnrBounds(std::get<SnrSearch>(spec.calibration), spec, x, semantics, draws,
                {row(0), row(1), row(2), row(3), sums, sums + n}, bounds);
    }
    ScalesFromBounds(spec, spec.bound_dtype, semantics.arithmetic, bounds, n);
  }
  StoreRow(spec.scale_dtype, bounds, n, scale, 0, 1);
}

void ScaleFromState(const QuantizeSpec& spec, Arithmetic arithmetic, const void* const* statistics, double* work,
                    void* scale) {
  const int64_t n = spec.num_scales();
  float* bounds = reinterpret_cast<float*>(work);
  BoundsOf(spec.calibration, spec.x.dtype, arithmetic, statistics, n, bounds);
  ScalesFromBounds(spec, spec.bound_dtype, arithmetic, bounds, n);
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
      " there is no scale to read; run some batches in QUANT_MODE_CALIBRATE first and pass the resulting state"));
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
