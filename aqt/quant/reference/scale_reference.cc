#include "aqt/quant/reference/scale_reference.h"

#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/check.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/kernels/simd/scalar_math.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/fp_rows.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt::reference {
namespace {

float NoiseOf(NoiseKind kind, const RandomBits& bits, int64_t number) {
  switch (kind) {
    case NoiseKind::kJaxUniform: return UniformF32(bits.Bits32(number)) - 0.5f;
    case NoiseKind::kRandomCenteredUniform: return static_cast<float>((bits.Bits16(number) + 0.5) / 65536.0 - 0.5);
    case NoiseKind::kFast:
      return static_cast<float>(((FastBits(bits.key()).Bits32(number) >> 10) + 0.5) / 4194304.0 - 0.5);
  }
  AQT_CHECK(!"a kind of noise");
}

}  // namespace

TensorBits MakeTensorBits(const Numerics& numerics, Index shape, const std::optional<Key>& key, PrngLayout layout) {
  const auto* integer = std::get_if<IntSymmetric>(&numerics);
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (integer != nullptr && integer->noise.has_value()) {
    for (const int64_t axis : integer->noise->noise_sharing_axes) shape[axis < 0 ? axis + rank : axis] = 1;
  }
  Value numbers(DType::kF32, shape);
  return {RandomBits(key.value_or(Key{}), static_cast<int64_t>(numbers.data.size()), layout), numbers};
}

float QuantizeOne(const Numerics& numerics, const Compat& compat, DType dtype, float y, const RandomBits* bits,
                  int64_t number) {
  if (const auto* fp8 = std::get_if<Fp8>(&numerics)) {
    if (fp8->stochastic_rounding) {
      const bool wide = dtype == DType::kF32;
      const int drop = (wide ? 23 : 7) - fp8->mantissa_bits;
      uint32_t pattern = __builtin_bit_cast(uint32_t, y) >> (wide ? 0 : 16);
      pattern += (wide ? bits->Bits32(number) : bits->Bits16(number)) & ((1u << drop) - 1);
      pattern = pattern >> drop << drop;
      y = __builtin_bit_cast(float, pattern << (wide ? 0 : 16));
    }
    const float bound = static_cast<float>(MaxFinite(fp8->dtype));
    return std::isnan(y) ? y : std::clamp(Flush(dtype, y), -bound, bound);
  }
  if (const auto* fp = std::get_if<Fp>(&numerics)) {
    y = Round(DType::kBF16, y);
    internal::Draws draws{.first = number};
    std::optional<kernels::RandomNumbers> numbers;
    if (fp->stochastic_rounding) draws.numbers = &numbers.emplace(kernels::RandomNumbers::Bits16(*bits));
    internal::RoundFpRow(fp->format, draws, &y, 1);
    return y;
  }
  const auto& n = std::get<IntSymmetric>(numerics);
  if (n.noise.has_value()) {
    y = Flush(dtype, y);
    if (compat.noise_sum_stays_f32) dtype = DType::kF32;
    y = Round(dtype, FlushSubnormal(Flush(dtype, y) + NoiseOf(n.noise->kind, *bits, number)));
  }
  if (n.clip && !std::isnan(y)) {
    const float highest = internal::HostConstant(dtype, ClipBound(n));
    const float lowest = internal::HostConstant(dtype, -ClipBound(n) - (compat.integers_reach_lowest ? 1 : 0));
    y = std::clamp(Flush(dtype, y), lowest, highest);
  }
  if (n.round && n.preserve_zero) y = std::nearbyint(Flush(dtype, y));
  if (n.round && !n.preserve_zero) y = Plus(dtype, std::floor(Flush(dtype, y)), 0.5f);
  return y;
}

// In extended precision, so that the result is rounded once.
float PowerOf(DType dtype, float x, double p) {
  const long double power = std::pow(static_cast<long double>(Flush(dtype, x)), internal::HostConstant(dtype, p));
  return Round(dtype, Flush(dtype, static_cast<float>(power)));
}

namespace {

float Largest(float a, float b) { return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::max(a, b); }

// m * constant in `dtype`.
float Multiply(DType dtype, double m, double constant) {
  return Times(dtype, static_cast<float>(m), internal::HostConstant(dtype, constant));
}

// From bounds to scales, in place.
void BoundsToScales(const Quantizer& quantizer, DType bound_dtype, bool po2, const Semantics& semantics,
                    Value& bounds) {
  const bool fp8_of_f16 = bound_dtype == DType::kF16 && std::holds_alternative<Fp8>(quantizer.numerics) &&
                          !semantics.compat.fp8_scales_in_tensor_dtype;
  const DType dtype = fp8_of_f16 ? DType::kF32 : bound_dtype;
  const bool ieee = semantics.arithmetic == Arithmetic::kIeee;
  const float quant_bound = internal::HostConstant(dtype, QuantBound(quantizer.numerics));
  const float reciprocal = Over(dtype == DType::kF16 ? DType::kF16 : DType::kF32, 1.0f, quant_bound);
  for (double& s : bounds.data) {
    const float m = static_cast<float>(s);
    float quotient = ieee || bounds.data.size() == 1 ? Over(dtype, m, quant_bound) : Times(dtype, m, reciprocal);
    const float least = std::sqrt(dtype == DType::kF16 ? 0x1p-14f : 0x1p-126f);
    if (semantics.compat.small_scales_are_one && quotient < least) quotient = 1;
    if (po2) quotient = internal::CeilToPo2(dtype, quotient, ieee);
    s = Store(bounds.dtype, quotient);
  }
}

// A tensor, and data for each group that shares a scale.
struct Groups {
  const Quantizer& quantizer;
  const Value& x;
  const TensorBits& bits;
  const Semantics& semantics;
  Value absmax;  // one per scale; 0 replaced by 1
  Value zeros;   // shape and dtype of the scale

  double NotZero(double bound) const { return bound == 0 && !semantics.compat.small_scales_are_one ? 1 : bound; }
};

// One overload for each calibration: the bounds, and their dtype if it differs from the dtype of x.

Value Bounds(const AbsMax& c, const Groups& t, DType&) {
  Value bounds = t.absmax;
  const double factor = c.clipping_scale.value_or(0);
  for (double& m : bounds.data) m = factor == 0 ? m : Multiply(t.x.dtype, m, factor);
  return bounds;
}

Value Bounds(const Constant& c, const Groups& t, DType& bound_dtype) {
  const Value& x = t.x;
  Value scale = t.zeros;
  if (const auto* array = std::get_if<ConstantArray>(&c.bound)) {
    const Value bound = FromArray(array->array);
    bound_dtype = bound.shape.empty() ? internal::Promote(x.dtype, bound.dtype) : bound.dtype;
    if (!bound.shape.empty()) scale = Value(scale.dtype, bound.shape);
    for (size_t i = 0; i < scale.data.size(); ++i) scale.data[i] = bound.data[bound.shape.empty() ? 0 : i];
  } else {
    for (double& m : scale.data) m = internal::HostConstant(x.dtype, std::get<double>(c.bound));
  }
  return scale;
}

// The f32 sums of x over the axes along which `groups` has extent 1. Partial sums are addressed by index.
Value Sum(const Value& x, const Value& groups) {
  bool done = true;
  Value sums(groups.dtype, x.shape);
  std::vector<int64_t> first(x.shape.size(), 0);
  for (size_t axis = 0; axis < x.shape.size(); ++axis) {
    const int64_t n = x.shape[axis];
    if (groups.shape[axis] == n) continue;
    const int64_t windows = n > 32 ? (n + 31) / 32 : 1;
    if (windows > 1) done = false;
    first[axis] = (windows * 32 - n) / 2;
    sums.shape[axis] = windows;
  }
  sums = Value(sums.dtype, sums.shape);
  ForEach(x.shape, [&](const Index& i) {
    Index window = i;
    for (size_t axis = 0; axis < window.size(); ++axis) {
      if (sums.shape[axis] != x.shape[axis]) window[axis] = (i[axis] + first[axis]) / 32;
    }
    sums[window] = sums(window) + x(i);
  });
  return done ? sums : Sum(sums, groups);
}

Value Bounds(const AbsMean& c, const Groups& t, DType&) {
  const Value& x = t.x;
  Value powers = x, scale = t.zeros;
  Value counts = scale;
  ForEach(x.shape, [&](const Index& i) {
    const float magnitude = std::fabs(Flush(x.dtype, x(i)));
    powers[i] = PowerOf(x.dtype, magnitude, c.p);
    counts[i] += magnitude != 0 ? 1 : 0;
  });
  const Value sums = Sum(powers, scale);
  const size_t groups = scale.data.size();
  for (size_t i = 0; i < groups; ++i) {
    const float exact_sum = static_cast<float>(sums.data[i]);
    const float sum = Round(x.dtype, Flush(x.dtype, exact_sum));
    const float count = Round(x.dtype, std::max(1.0f, static_cast<float>(counts.data[i])));
    float mean = Over(x.dtype, sum, count);
    if (t.semantics.compat.abs_mean_counts_zeros) {
      const float size = static_cast<float>(std::max<size_t>(x.data.size() / groups, 1));
      const bool divides = t.semantics.arithmetic == Arithmetic::kIeee;
      const DType f32 = DType::kF32;
      mean = divides ? Over(f32, exact_sum, size) : Times(f32, exact_sum, Over(f32, 1.0f, size));
      mean = Round(x.dtype, Flush(x.dtype, mean));
    }
    scale.data[i] = t.NotZero(Multiply(x.dtype, PowerOf(x.dtype, mean, 1 / c.p), c.clipping_scale));
  }
  return scale;
}

Value Bounds(const SnrSearch& c, const Groups& t, DType& bound_dtype) {
  const auto& [quantizer, x, bits, semantics, absmax, zeros] = t;
  Value scale = zeros;
  const DType scaled = internal::Promote(x.dtype, scale.dtype);
  const DType q_dtype = QvalueDType(quantizer.numerics, scaled);
  const bool rounded = semantics.compat.snr_rates_in_tensor_dtype;
  Value best = scale, top = scale;
  for (double& b : best.data) b = 1;
  for (const double candidate : c.candidates) {
    Value trial = scale, signal = scale, error = scale;
    for (size_t i = 0; i < trial.data.size(); ++i) trial.data[i] = Multiply(x.dtype, absmax.data[i], candidate);
    BoundsToScales(quantizer, x.dtype, c.po2_scale && !semantics.compat.snr_rates_unrounded_scales, semantics, trial);
    ForEach(x.shape, [&](const Index& i) {
      const float inverse = Over(scale.dtype, 1.0f, trial(i));
      const float y = Times(scaled, x(i), std::isinf(inverse) ? 1.0f : inverse);
      const double q = Store(q_dtype, QuantizeOne(quantizer.numerics, {}, scaled, y, &bits.bits, bits.Number(i)));
      const float back = Round(x.dtype, Times(scaled, Round(x.dtype, static_cast<float>(q)), trial(i)));
      const double value = Flush(x.dtype, x(i));
      if (rounded) {
        const float difference = Minus(x.dtype, x(i), back);
        signal[i] += Times(x.dtype, x(i), x(i));
        error[i] += Times(x.dtype, difference, difference);
      } else {
        signal[i] += value * value;
        error[i] += (value - back) * (value - back);
      }
    });
    for (size_t i = 0; i < trial.data.size(); ++i) {
      float snr = static_cast<float>(kernels::Log(1.0 + static_cast<float>(signal.data[i] / error.data[i])));
      if (rounded) {
        const auto round = [&](double v) { return Round(x.dtype, Flush(x.dtype, static_cast<float>(v))); };
        snr = round(kernels::Log(Plus(x.dtype, 1, Over(x.dtype, round(signal.data[i]), round(error.data[i])))));
      }
      if (snr > top.data[i]) best.data[i] = static_cast<float>(candidate);
      if (!(snr <= top.data[i]) && !std::isnan(top.data[i])) top.data[i] = snr;
    }
  }
  bound_dtype = DType::kF32;
  for (size_t i = 0; i < scale.data.size(); ++i) {
    scale.data[i] = Times(DType::kF32, static_cast<float>(absmax.data[i]), static_cast<float>(best.data[i]));
  }
  return scale;
}

// By definition: the first magnitude, in ascending order, that at least the given share of the group does not exceed.
Value Bounds(const Percentile& c, const Groups& t, DType&) {
  std::vector<std::vector<float>> groups(t.zeros.data.size());
  ForEach(t.x.shape, [&](const Index& i) { groups[t.zeros.Position(i)].push_back(std::fabs(t.x(i))); });
  Value bounds = t.absmax;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty() || std::isnan(bounds.data[g])) continue;
    std::sort(groups[g].begin(), groups[g].end());
    const auto reaches = [&](float m) {
      const auto not_above = std::upper_bound(groups[g].begin(), groups[g].end(), m) - groups[g].begin();
      return not_above * 100'000'000 >= std::llround(c.percentile * 1e6) * static_cast<int64_t>(groups[g].size());
    };
    const float found = *std::find_if(groups[g].begin(), groups[g].end(), reaches);
    bounds.data[g] = t.NotZero(Flush(t.x.dtype, found));
  }
  const double factor = c.clipping_scale.value_or(0);
  for (double& m : bounds.data) m = factor == 0 ? m : Multiply(t.x.dtype, m, factor);
  return bounds;
}

template <class C>
concept HasState = CalibrationTraits<C>::kHasState;

// Tests of calibrations with state use only the plan.
template <HasState C>
Value Bounds(const C&, const Groups& t, DType&) {
  AQT_CHECK(!CalibrationTraits<C>::kHasState);
  return t.zeros;
}

Value BoundsOf(const Quantizer& quantizer, const Value& x, const Index& shared, const TensorBits& bits,
               const Semantics& semantics, DType& bound_dtype) {
  Index shape = x.shape;
  for (const int64_t axis : shared) shape[axis] = 1;
  const Value zeros(quantizer.scale_dtype.value_or(x.dtype), shape);
  Value absmax = zeros;
  ForEach(x.shape, [&](const Index& i) { absmax[i] = Largest(absmax(i), std::fabs(x(i))); });
  Groups groups{quantizer, x, bits, semantics, absmax, zeros};
  for (double& m : groups.absmax.data) m = groups.NotZero(Flush(x.dtype, static_cast<float>(m)));
  bound_dtype = x.dtype;
  return std::visit([&](const auto& c) { return Bounds(c, groups, bound_dtype); }, *quantizer.calibration);
}

}  // namespace

float ScaleOne(const Semantics& semantics, DType dtype, float y, DType scale_dtype, float scale,
               bool each_has_its_own_scale) {
  if (!semantics.compat.divide_by_scale) {
    const float inverse = Over(scale_dtype, 1.0f, scale);
    return Times(dtype, y, std::isinf(inverse) ? 1.0f : inverse);
  }
  if (semantics.arithmetic == Arithmetic::kIeee || each_has_its_own_scale) return Over(dtype, y, scale);
  return Times(dtype, y, Over(dtype == DType::kF16 ? DType::kF16 : DType::kF32, 1.0f, scale));
}

Value MakeBounds(const Quantizer& quantizer, const Value& x, const Index& shared, const TensorBits& bits,
                 const Semantics& semantics) {
  DType bound_dtype;
  return BoundsOf(quantizer, x, shared, bits, semantics, bound_dtype);
}

Value MakeScale(const Quantizer& quantizer, const Value& x, const Index& shared, const TensorBits& bits,
                const Semantics& semantics) {
  DType bound_dtype;
  Value scale = BoundsOf(quantizer, x, shared, bits, semantics, bound_dtype);
  const bool po2 = std::visit([](const auto& c) { return c.po2_scale; }, *quantizer.calibration);
  BoundsToScales(quantizer, bound_dtype, po2, semantics, scale);
  return scale;
}

}  // namespace aqt::reference
