#include "aqt/quant/tensor/bounds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/simd/scalar_math.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/window_sums.h"

namespace aqt::internal {
namespace {

// The input of FindBounds besides the calibration; `work` has WorkDoubles elements.
struct BoundsInput {
  const QuantizeSpec& spec;
  const ArrayRef& x;
  const Semantics& semantics;
  const std::optional<TensorDraws>& draws;
  double* work;
};

// bounds = bounds / quant_bound. Returns the dtype of the result.
DType DivideByQuantBound(const QuantizeSpec& spec, DType bound_dtype, const Semantics& semantics, float* bounds,
                         int64_t n) {
  // The bound of an 8-bit float is a bf16 scalar, which promotes f16 bounds to f32.
  const bool widened = bound_dtype == DType::kF16 && std::holds_alternative<Fp8>(spec.numerics) &&
                       !semantics.compat.fp8_scales_in_tensor_dtype;
  const DType dtype = widened ? DType::kF32 : bound_dtype;
  // The number of all scales decides whether XLA divides.
  const bool divide = semantics.arithmetic == Arithmetic::kIeee || spec.num_scales() == 1;
  const float quant_bound = HostConstant(dtype, QuantBound(spec.numerics));
  OverConstantRow(dtype, quant_bound, divide, bounds, n);
  return dtype;
}

// A bound of 0 becomes 1, unless its scale will.
void ReplaceZeros(const Compat& compat, float* bounds, int64_t n) {
  if (compat.small_scales_are_one) return;
  for (int64_t i = 0; i < n; ++i) bounds[i] = bounds[i] == 0 ? 1.0f : bounds[i];
}

// Scales that are too small for their reciprocals and products become 1.
void ReplaceSmallScales(DType dtype, float* scales, int64_t n) {
  const float least = dtype == DType::kF16 ? 0x1p-7f : 0x1p-63f;  // the square root of the smallest normal number
  for (int64_t i = 0; i < n; ++i) scales[i] = scales[i] < least ? 1.0f : scales[i];
}

// Multiplies bounds by a clipping scale, which is 1 if null or 0.
void Clip(std::optional<double> clipping_scale, DType dtype, float* bounds, int64_t n) {
  if (clipping_scale.value_or(0) == 0) return;
  const float factor = HostConstant(dtype, *clipping_scale);
  MulRow(dtype, &factor, 0, bounds, n);
}

// ---- AbsMax

bool IsFiniteF32(double x) { return std::isfinite(static_cast<float>(x)); }

absl::Status CheckClippingScale(absl::string_view name, std::optional<double> clipping_scale) {
  if (IsFiniteF32(clipping_scale.value_or(0))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": clipping_scale = ", *clipping_scale, ", expected a number that f32 holds"));
}

absl::Status CheckFields(const AbsMax& c) { return CheckClippingScale("AbsMax", c.clipping_scale); }

int64_t WorkDoubles(const AbsMax&, const QuantizeSpec&) { return 0; }

void AbsMaxToBounds(const AbsMax& calibration, DType dtype, const Compat& compat, float* absmax, int64_t n) {
  ReplaceZeros(compat, absmax, n);
  Clip(calibration.clipping_scale, dtype, absmax, n);
}

void FindBounds(const AbsMax& calibration, const BoundsInput& in, float* bounds) {
  AbsMaxInto(in.x, in.spec.scale_shape, bounds);
  AbsMaxToBounds(calibration, in.x.dtype, in.semantics.compat, bounds, in.spec.num_scales());
}

// ---- AbsMean

absl::Status CheckFields(const AbsMean& c) {
  if (std::isfinite(c.p) && c.p != 0 && IsFiniteF32(c.clipping_scale)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("AbsMean: p = ", c.p, ", clipping_scale = ", c.clipping_scale,
                                                 ", expected a finite p other than 0 and a number that f32 holds"));
}

// counts[i], over dense `groups_shape`: the number of nonzero elements of x; f32 and bf16 subnormals count as zero.
void CountNonzero(const ArrayRef& x, const Shape& groups_shape, double* counts) {
  std::fill(counts, counts + groups_shape.num_elements(), 0.0);
  const Strides groups = BroadcastStrides(groups_shape, DenseStrides(groups_shape), x.shape);
  const StridesSpan strides[] = {x.strides, groups};
  std::array<float, kPiece> piece;
  ForEachPiece(x.shape, strides, [&](const int64_t* offsets, int64_t n, int64_t) {
    LoadRow(x.dtype, x.data, offsets[0], InnerStride(x.strides), n, piece.data());
    FlushRow(x.dtype, piece.data(), n);
    for (int64_t i = 0; i < n; ++i) counts[offsets[1] + i * InnerStride(groups)] += piece[i] != 0 ? 1 : 0;
  });
}

// Counts, sums, and the scratch memory of the sums.
int64_t WorkDoubles(const AbsMean&, const QuantizeSpec& spec) {
  const int64_t n = spec.num_scales();
  return n + DoublesForFloats(n + WindowSumFloats(spec.x.shape, spec.scale_shape));
}

// The mean of `count` numbers in f32. XLA multiplies by the reciprocal of the count, which it knows.
float MeanInF32(Arithmetic arithmetic, float sum, float count) {
  return arithmetic == Arithmetic::kIeee ? Div<float>(sum, count) : Mul<float>(sum, Reciprocal<float>(count));
}

// Powers and everything after the sum are rounded to the dtype of x; the sum is in f32.
void FindBounds(const AbsMean& calibration, const BoundsInput& in, float* bounds) {
  const QuantizeSpec& spec = in.spec;
  const ArrayRef& x = in.x;
  const int64_t n = spec.num_scales();
  const DType dtype = spec.x.dtype;
  double* counts = in.work;
  float* sums = reinterpret_cast<float*>(counts + n);
  const auto powers = [&](float* y, int64_t count) {
    FlushRow(dtype, y, count);
    for (int64_t i = 0; i < count; ++i) y[i] = Power(dtype, std::fabs(y[i]), calibration.p);
  };
  WindowSumsInto(x, spec.scale_shape, powers, sums + n, sums);
  const bool counts_zeros = in.semantics.compat.abs_mean_counts_zeros;
  const float size = n == 0 ? 0 : static_cast<float>(std::max<int64_t>(x.shape.num_elements() / n, 1));
  if (!counts_zeros) CountNonzero(x, spec.scale_shape, counts);
  VisitFloat(dtype, [&]<class T>() {
    const float factor = HostConstant(dtype, calibration.clipping_scale);
    for (int64_t i = 0; i < n; ++i) {
      const float sum = Arith<T>::Round(Arith<T>::Flush(sums[i]));
      const float mean = counts_zeros
                             ? Arith<T>::Round(Arith<T>::Flush(MeanInF32(in.semantics.arithmetic, sums[i], size)))
                             : Div<T>(sum, counts[i] == 0 ? 1.0f : Arith<T>::Round(static_cast<float>(counts[i])));
      bounds[i] = Mul<T>(Power(dtype, mean, 1 / calibration.p), factor);
    }
  });
  ReplaceZeros(in.semantics.compat, bounds, n);
}

// ---- Constant

absl::Status CheckFields(const Constant& c) {
  const auto* bound = std::get_if<double>(&c.bound);
  if (bound == nullptr || (*bound > 0 && IsFiniteF32(*bound))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Constant: bound = ", *bound, ", expected a number > 0 that f32 holds"));
}

int64_t WorkDoubles(const Constant&, const QuantizeSpec&) { return 0; }

void FindBounds(const Constant& calibration, const BoundsInput& in, float* bounds) {
  const QuantizeSpec& spec = in.spec;
  const int64_t n = spec.num_scales();
  if (const auto* scalar = std::get_if<double>(&calibration.bound)) {
    std::fill(bounds, bounds + n, HostConstant(spec.x.dtype, *scalar));
    return;
  }
  // In its own dtype: spec.bound_dtype represents it exactly.
  const Array& array = std::get<ConstantArray>(calibration.bound).array;
  LoadRow(array.dtype(), array.data(), 0, array.shape().rank() == 0 ? 0 : 1, n, bounds);
}

// ---- SnrSearch

absl::Status CheckFields(const SnrSearch& c) {
  for (const double candidate : c.candidates) {
    if (!std::isnan(candidate)) continue;
    return absl::InvalidArgumentError("SnrSearch: candidate nan, expected a number");
  }
  return absl::OkStatus();
}

// The data of SnrSearch per group.
struct SnrWork {
  float *absmax, *best, *top, *scale;
  double *signal, *error;
};

int64_t WorkDoubles(const SnrSearch&, const QuantizeSpec& spec) {
  return 4 * DoublesForFloats(spec.num_scales()) + 2 * spec.num_scales();
}

// For each group under work.scale: the sums of the squares of x and of the quantization error, in f64. With `rounded`
// each error, square and sum is rounded to the dtype of x.
void SumSquares(const QuantizeSpec& spec, const ArrayRef& x, const std::optional<TensorDraws>& draws, bool rounded,
                const SnrWork& work) {
  const int64_t n = spec.num_scales();
  std::fill(work.signal, work.signal + n, 0.0);
  std::fill(work.error, work.error + n, 0.0);
  const Strides groups = BroadcastStrides(spec.scale_shape, DenseStrides(spec.scale_shape), x.shape);
  std::optional<kernels::RandomNumbers> numbers;
  Strides draw_strides(x.shape.rank(), 0);
  if (draws.has_value()) {
    numbers = NumbersOf(spec.numerics, spec.scaled_dtype, *draws);
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
    const Draws row{numbers.has_value() ? &*numbers : nullptr, offsets[2], InnerStride(draw_strides),
                    kernels::BestTarget()};
    QuantizeRow(spec.numerics, /*compat=*/{}, spec.scaled_dtype, row, y.data(), count);
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

// ln(1 + signal / error): the quotient in f64 and the rest in f32, or everything in T.
template <class T>
float SignalToNoise(double signal, double error, bool rounded) {
  if (!rounded) return static_cast<float>(kernels::Log(1.0 + static_cast<float>(signal / error)));
  const auto round = [](double v) { return Arith<T>::Round(Arith<T>::Flush(static_cast<float>(v))); };
  return round(kernels::Log(Add<T>(1.0f, Div<T>(round(signal), round(error)))));
}

// bounds = absmax times the candidate with the largest ln(1 + signal / error), the first of equal ones, in f32. A group
// whose ratio is NaN (all zeros) keeps the factor 1.
void FindBounds(const SnrSearch& calibration, const BoundsInput& in, float* bounds) {
  const QuantizeSpec& spec = in.spec;
  const ArrayRef& x = in.x;
  const Semantics& semantics = in.semantics;
  const bool rounded = semantics.compat.snr_rates_in_tensor_dtype;
  const int64_t n = spec.num_scales();
  const auto row = [&](int64_t i) { return reinterpret_cast<float*>(in.work + i * DoublesForFloats(n)); };
  double* sums = in.work + 4 * DoublesForFloats(n);
  const SnrWork work = {row(0), row(1), row(2), row(3), sums, sums + n};
  AbsMaxInto(x, spec.scale_shape, work.absmax);
  ReplaceZeros(semantics.compat, work.absmax, n);
  std::fill(work.best, work.best + n, 1.0f);
  std::fill(work.top, work.top + n, 0.0f);
  for (const double candidate : calibration.candidates) {
    const float factor = HostConstant(x.dtype, candidate);
    std::copy(work.absmax, work.absmax + n, work.scale);
    MulRow(x.dtype, &factor, 0, work.scale, n);
    if (semantics.compat.snr_rates_unrounded_scales) {
      DivideByQuantBound(spec, x.dtype, semantics, work.scale, n);
    } else {
      ScalesFromBounds(spec, x.dtype, semantics, work.scale, n);
    }
    RoundRow(spec.scale_dtype, work.scale, n);
    SumSquares(spec, x, in.draws, rounded, work);
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

// ---- Percentile

absl::Status CheckFields(const Percentile& c) {
  if (!(c.percentile > 0 && c.percentile <= 100)) {
    return absl::InvalidArgumentError(absl::StrCat("Percentile: percentile = ", c.percentile,
                                                   ", expected a number above 0 and at most 100, in percent; such as "
                                                   "99.9, or 100 for the largest magnitude"));
  }
  return CheckClippingScale("Percentile", c.clipping_scale);
}

// The magnitudes of one group.
int64_t WorkDoubles(const Percentile&, const QuantizeSpec& spec) {
  const int64_t n = spec.num_scales();
  return n == 0 ? 0 : DoublesForFloats(spec.x.shape.num_elements() / n);
}

// ceil(percentile / 100 * n), at least 1, in integers: a double such as 99.9 is slightly larger than its decimals, so
// 99.9 / 100 * 1000 could be rounded up to 1000. Rounding to the nearest millionth of a percent restores the decimals.
int64_t PercentileRank(double percentile, int64_t n) {
  constexpr int64_t kAll = 100'000'000;  // millionths in 100 percent
  const int64_t share = std::llround(percentile * 1e6);
  // share * n could overflow; n = n / kAll * kAll + n % kAll.
  const int64_t rank = share * (n / kAll) + (share * (n % kAll) + kAll - 1) / kAll;
  return std::max<int64_t>(rank, 1);
}

// Selects, group by group. NaN is kept as AbsMaxInto keeps it.
void FindBounds(const Percentile& calibration, const BoundsInput& in, float* bounds) {
  const QuantizeSpec& spec = in.spec;
  const ArrayRef& x = in.x;
  float* magnitudes = reinterpret_cast<float*>(in.work);
  Shape group_shape;
  Strides group_strides;
  for (int64_t axis = 0; axis < x.shape.rank(); ++axis) {
    if (spec.scale_shape[axis] == x.shape[axis]) continue;
    group_shape.push_back(x.shape[axis]);
    group_strides.push_back(x.strides[axis]);
  }
  const StridesSpan in_group[] = {group_strides}, to_group[] = {x.strides};
  const int64_t n = group_shape.num_elements();
  const auto find = [&](int64_t first) {
    float nan = 0, *end = magnitudes;
    ForEachPiece(group_shape, in_group, [&](const int64_t* offsets, int64_t count, int64_t) {
      LoadRow(x.dtype, x.data, first + offsets[0], InnerStride(group_strides), count, end);
      for (float* m = end; m < end + count; ++m) {
        *m = std::fabs(*m);
        if (*m != *m) nan = *m;
      }
      end += count;
    });
    if (n == 0 || nan != nan) return nan;
    float* found = magnitudes + PercentileRank(calibration.percentile, n) - 1;
    std::nth_element(magnitudes, found, end);
    return *found;
  };
  ForEachPiece(spec.scale_shape, to_group, [&](const int64_t* offsets, int64_t count, int64_t linear) {
    for (int64_t i = 0; i < count; ++i) bounds[linear + i] = find(offsets[0] + i * InnerStride(x.strides));
  });
  FlushRow(x.dtype, bounds, spec.num_scales());
  ReplaceZeros(in.semantics.compat, bounds, spec.num_scales());
  Clip(calibration.clipping_scale, x.dtype, bounds, spec.num_scales());
}

// ---- all calibrations without state

// Calls f(calibration) for a calibration without state. A calibration without the overloads above does not compile.
template <class F>
auto Visit(const Calibration& calibration, F f) {
  using Result = std::invoke_result_t<F, const AbsMax&>;
  return std::visit(
      [&]<class C>(const C& c) -> Result {
        AQT_CHECK(!CalibrationTraits<C>::kHasState);
        if constexpr (CalibrationTraits<C>::kHasState) return Result();
        else return f(c);
      },
      calibration);
}

}  // namespace

absl::Status CheckBoundFields(const Calibration& calibration) {
  return Visit(calibration, [](const auto& c) { return CheckFields(c); });
}

int64_t BoundsWorkDoubles(const QuantizeSpec& spec) {
  return Visit(spec.calibration, [&](const auto& c) { return WorkDoubles(c, spec); });
}

void ComputeBounds(const QuantizeSpec& spec, const ArrayRef& x, const Semantics& semantics,
                   const std::optional<TensorDraws>& draws, double* work, float* bounds) {
  Visit(spec.calibration, [&](const auto& c) { FindBounds(c, {spec, x, semantics, draws, work}, bounds); });
}

void ScalesFromBounds(const QuantizeSpec& spec, DType bound_dtype, const Semantics& semantics, float* bounds,
                      int64_t n) {
  const DType dtype = DivideByQuantBound(spec, bound_dtype, semantics, bounds, n);
  if (semantics.compat.small_scales_are_one) ReplaceSmallScales(dtype, bounds, n);
  if (!HasPo2Scale(spec.calibration)) return;
  for (int64_t i = 0; i < n; ++i) bounds[i] = CeilToPo2(dtype, bounds[i], semantics.arithmetic == Arithmetic::kIeee);
}

void ScalesFromAbsMax(const QuantizeSpec& spec, const Semantics& semantics, float* absmax, int64_t n) {
  AbsMaxToBounds(std::get<AbsMax>(spec.calibration), spec.x.dtype, semantics.compat, absmax, n);
  ScalesFromBounds(spec, spec.bound_dtype, semantics, absmax, n);
  RoundRow(spec.scale_dtype, absmax, n);
}

}  // namespace aqt::internal
