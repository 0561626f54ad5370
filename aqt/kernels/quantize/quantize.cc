#include "aqt/kernels/quantize/quantize.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/pack_words.h"
#include "aqt/kernels/random/noise.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/quantize/quantize-inl.h"
#include "aqt/kernels/quantize/quotients-inl.h"
#include "aqt/kernels/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// round(clamp(y, lo, hi)) for 8-bit integers lo and hi; NaN gives 0.
struct Clamp {
  float lo, hi;

  template <class D, class V>
  void RoundAndStore(D d, V y, int8_t* q) const {
#if HWY_TARGET == HWY_AVX3
    // If the second operand of a minimum or maximum is NaN, it is the result, and its conversion has a zero low byte.
    const __m512 clamped = _mm512_min_ps(hn::Set(d, hi).raw, _mm512_max_ps(hn::Set(d, lo).raw, y.raw));
    constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512i rounded = _mm512_cvt_roundps_epi32(clamped, kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(rounded));
#else
    y = hn::IfThenElseZero(hn::Eq(y, y), y);
    y = hn::Min(hn::Max(y, hn::Set(d, lo)), hn::Set(d, hi));
    // Adding 1.5 * 2^23 makes the last bit of the sum worth 1. So the addition rounds to nearest even, and the low byte
    // is q in two's complement. Unlike Highway's NearestInt this is correct on every target (its SCALAR version rounds
    // 0.49999997 up).
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, hn::Add(y, hn::Set(d, 0x1.8p23f)));
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::U8FromU32(hn::And(bits, hn::Set(du, 0xffu))), d8, reinterpret_cast<uint8_t*>(q));
#endif
  }
};

// A product of a subnormal number, |x| < 2^-126, and a scale of at most this is at most 0.5, which rounds to 0.
constexpr float kLargestPlainScale = 0x1p125f;

// R rounds to P.
template <class P, bool kFlush>
struct MultiplyByInverse {
  Clamp clamp;

  template <class D, class T>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    FloatVec x = LoadFloat(d, in);
    if constexpr (kFlush) x = Flush(d, x);
    clamp.RoundAndStore(d, RoundLanes<P>::Apply(d, hn::Mul(x, s.scale)), q);
  }
};

template <class T, bool kHasZeroPoint>
struct DivideByScale {
  Clamp clamp;

  template <class D>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    FloatVec y = RoundLanes<T>::Apply(d, hn::Div(LoadFloat(d, in), s.scale));
    if constexpr (kHasZeroPoint) y = RoundLanes<T>::Apply(d, hn::Add(y, s.zero));
    clamp.RoundAndStore(d, y, q);
  }
};

// The scales of a run, with the noise of its elements as their `zero`.
template <class Scales>
struct WithNoise {
  Scales scales;
  const float* noise;

  ScaleAndZero At(FloatTag d, int64_t i) const { return {scales.At(d, i).scale, hn::LoadU(d, noise + i)}; }
  ScaleAndZero Rest(FloatTag d, int64_t i, int64_t n) const {
    float padded[kMaxLanes] = {};
    std::copy(noise + i, noise + i + n, padded);
    return {scales.Rest(d, i, n).scale, hn::LoadU(d, padded)};
  }
};

// MultiplyByInverse with WithNoise.
template <class P>
struct MultiplyAndAddNoise {
  Clamp clamp;
  bool flush;

  template <class D, class T>
  void Apply(D d, const T* in, const ScaleAndZero& s, int8_t* q) const {
    FloatVec x = LoadFloat(d, in);
    if (flush) x = Flush(d, x);
    const FloatVec y = RoundLanes<P>::Apply(d, hn::Mul(x, s.scale));
    clamp.RoundAndStore(d, RoundLanes<P>::Apply(d, hn::Add(y, s.zero)), q);
  }
};

template <class T, bool kHasZeroPoint>
struct MultiplyByScale {
  template <class D>
  void Apply(D d, const int8_t* q, const ScaleAndZero& s, T* out) const {
    FloatVec difference = LoadInts(d, q);
    if constexpr (kHasZeroPoint) difference = RoundLanes<T>::Apply(d, hn::Sub(difference, s.zero));
    StoreFloat(d, RoundLanes<T>::Apply(d, hn::Mul(difference, s.scale)), out);
  }
};

// Quantizes rows of args.x, or columns if those are contiguous, one piece at a time. The noise of a piece is drawn into
// L1.
template <class P, class T>
void QuantizeWithNoise(const QuantizeMatrixArgs& args, bool flush, Target target) {
  const FloatMatrix& x = args.x;
  int64_t rows = x.rows, cols = x.cols;
  internal::Strided<const T> in = {static_cast<const T*>(x.data), x.row_stride, x.col_stride};
  internal::Strided<int8_t> out = {args.q, args.q_row_stride, args.q_col_stride};
  NoiseMatrix noise = args.noise;
  ScaleGrid grid = args.grid;
  if (x.row_stride == 1 && x.col_stride != 1) {
    std::swap(rows, cols);
    in = in.Transposed();
    out = out.Transposed();
    grid = internal::Transposed(grid);
    std::swap(noise.row_stride, noise.col_stride);
  }
  const MultiplyAndAddNoise<P> body = {{args.lo, args.hi}, flush};
  const bool gather = in.col_stride != 1, scatter = out.col_stride != 1;
  float drawn[internal::kChunk];
  T gathered[internal::kChunk];
  int8_t results[internal::kChunk];
  for (int64_t r = 0; r < rows; ++r) {
    const ScaleGrid grid_row = internal::GridRow(grid, r);
    for (int64_t c = 0; c < cols; c += internal::kChunk) {
      const int64_t n = std::min(internal::kChunk, cols - c);
      FillNoise(*noise.numbers, noise.first + r * noise.row_stride + c * noise.col_stride, noise.col_stride, n, drawn,
                target);
      const T* from = in.Row(r) + c * in.col_stride;
      if (gather) internal::Gather(from, in.col_stride, n, gathered);
      const T* values = gather ? gathered : from;
      int8_t* to = out.Row(r) + c * out.col_stride;
      int8_t* q = scatter ? results : to;
      ForEachPiece(grid_row, flush, c, c + n, [&]<class Scales>(int64_t first, int64_t count, const Scales& scales) {
        const int64_t at = first - c;
        ForEachVector(values + at, count, WithNoise<Scales>{scales, drawn + at}, q + at, body);
      });
      if (scatter) internal::Scatter(results, n, out.col_stride, to);
    }
  }
}

// Quotients of dense rows by one scale, or by one scale per group, without zero points: DivideByScale<T, false>.
template <class T>
class DenseRows {
 public:
  explicit DenseRows(const QuantizeMatrixArgs& args)
      : args_(args), group_(args.grid.col_stride == 0 ? std::max<int64_t>(args.x.cols, 1) : args.grid.col_group) {}

  // Whether args describe such rows.
  bool Fit() const {
    return args_.rule == QuantizeRule::kDivideByScale && args_.grid.zero_point == nullptr && args_.x.col_stride == 1;
  }
  int64_t group() const { return group_; }

  // Calls f(x, column, elements, scale) for each group of row r.
  template <class F>
  HWY_INLINE void ForEachGroup(int64_t r, const F& f) const {
    const T* const x = static_cast<const T*>(args_.x.data) + r * args_.x.row_stride;
    const float* scale = internal::GridRow(args_.grid, r).scale;
    for (int64_t c = 0; c < args_.x.cols; c += group_, scale += args_.grid.col_stride) {
      f(x + c, c, std::min(group_, args_.x.cols - c), *scale);
    }
  }

  // Quantizes n elements by division.
  void Divide(const T* x, int64_t n, float scale, int8_t* q) const {
    ForEachVector(x, n, UniformScale(scale, 0, /*flush=*/false), q, DivideByScale<T, false>{{args_.lo, args_.hi}});
  }
  void DivideRow(int64_t r, int8_t* q) const {
    ForEachGroup(r, [&](const T* x, int64_t c, int64_t n, float scale) HWY_ATTR { Divide(x, n, scale, q + c); });
  }

 private:
  const QuantizeMatrixArgs& args_;
  const int64_t group_;
};

// Returns false, with nothing done, unless the matrix consists of such rows with groups of at least kQuotients.
template <class T, bool kFetches>
bool DivideQuickly([[maybe_unused]] const QuantizeMatrixArgs& args) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (!std::is_same_v<T, Float16>) {
    const DenseRows<T> rows(args);
    if (!rows.Fit() || args.q_col_stride != 1 || rows.group() < kQuotients) return false;
    for (int64_t r = 0; r < args.x.rows; ++r) {
      int8_t* const q = args.q + r * args.q_row_stride;
      Quotients<T> quotients(args.lo, args.hi);
      rows.ForEachGroup(r, [&](const T* x, int64_t c, int64_t n, float scale) HWY_ATTR {
        const int64_t whole = n / kQuotients * kQuotients;
        quotients.template Divide<kFetches>(x, whole, scale, args.ahead, StoreBytes{q + c});
        if (whole != n) rows.Divide(x + whole, n - whole, scale, q + c + whole);
      });
      if (!quotients.AreRight()) rows.DivideRow(r, q);
    }
    return true;
  }
#endif
  return false;
}

// QuantizeToNibbles for T.
template <class T, bool kFetches>
bool NibblesOf([[maybe_unused]] const QuantizeMatrixArgs& args, [[maybe_unused]] int32_t* words,
               [[maybe_unused]] int64_t row_stride, [[maybe_unused]] Target target) {
#if HWY_TARGET == HWY_AVX3
  const DenseRows<T> rows(args);
  if (!rows.Fit() || rows.group() % kQuotients != 0 || args.x.cols % kQuotients != 0) return false;
  std::vector<int8_t> bytes;  // a row that needs divisions
  for (int64_t r = 0; r < args.x.rows; ++r) {
    int32_t* const out = words + r * row_stride;
    Quotients<T> quotients(args.lo, args.hi);
    rows.ForEachGroup(r, [&](const T* x, int64_t c, int64_t n, float scale) HWY_ATTR {
      quotients.template Divide<kFetches>(x, n, scale, args.ahead,
                                          StoreNibbles{reinterpret_cast<uint8_t*>(out) + c / 2});
    });
    if (quotients.AreRight()) continue;
    bytes.resize(args.x.cols);
    rows.DivideRow(r, bytes.data());
    AQT_CHECK(PackWords(bytes.data(), args.x.cols / 8, /*num_bits=*/4, out, target));
  }
  return true;
#else
  return false;
#endif
}

bool NibblesOfAny(const QuantizeMatrixArgs& args, int32_t* words, int64_t row_stride, Target target) {
  const bool fetches = args.ahead != 0;
  switch (args.x.dtype) {
    case DType::kF32:
      return fetches ? NibblesOf<float, true>(args, words, row_stride, target)
                     : NibblesOf<float, false>(args, words, row_stride, target);
    case DType::kBF16:
      return fetches ? NibblesOf<BFloat16, true>(args, words, row_stride, target)
                     : NibblesOf<BFloat16, false>(args, words, row_stride, target);
    default: return false;
  }
}

template <class P, class T>
void QuantizeOf(const QuantizeMatrixArgs& args, Target target) {
  const FloatMatrix& x = args.x;
  const Clamp clamp = {args.lo, args.hi};
  const bool divide = args.rule == QuantizeRule::kDivideByScale;
  const bool flush = args.subnormals_are_zero && !std::is_same_v<T, Float16>;
  if (args.noise.numbers != nullptr) return QuantizeWithNoise<P, T>(args, flush, target);
  if (divide && (args.ahead == 0 ? DivideQuickly<T, false>(args) : DivideQuickly<T, true>(args))) return;
  // Captured by value: a store of an int8_t might change the target of a reference.
  const auto run = [=](const T* in, int64_t n, const auto& scales, int8_t* out) {
    if (divide && scales.HasZeroPoint()) ForEachVector(in, n, scales, out, DivideByScale<T, true>{clamp});
    else if (divide) ForEachVector(in, n, scales, out, DivideByScale<T, false>{clamp});
    else if (flush && !scales.IsAtMost(kLargestPlainScale))
      ForEachVector(in, n, scales, out, MultiplyByInverse<P, true>{clamp});
    else ForEachVector(in, n, scales, out, MultiplyByInverse<P, false>{clamp});
  };
  if (x.col_stride == 1 && args.q_col_stride == 1 && args.grid.col_stride == 0) {
    const auto run_rows = [&](const auto run_row) {
      for (int64_t r = 0; r < x.rows; ++r) {
        const ScaleGrid row = internal::GridRow(args.grid, r);
        const int zero_point = row.zero_point == nullptr ? 0 : row.zero_point[0];
        run_row(static_cast<const T*>(x.data) + r * x.row_stride, x.cols, UniformScale(row.scale[0], zero_point, flush),
                args.q + r * args.q_row_stride);
      }
    };
    if (divide || flush) return run_rows(run);
    // The variant is chosen once, because rows may be short.
    return run_rows([=](const T* in, int64_t n, UniformScale scale, int8_t* out) {
      ForEachVector(in, n, scale, out, MultiplyByInverse<P, false>{clamp});
    });
  }
  ForEachRun<T, int8_t>(x.rows, x.cols, {static_cast<const T*>(x.data), x.row_stride, x.col_stride},
                        {args.q, args.q_row_stride, args.q_col_stride}, args.grid,
                        x.row_stride == 1 && x.col_stride != 1, flush, run);
}

template <class T>
void DequantizeOf(const DequantizeMatrixArgs& args) {
  const bool flush = args.subnormals_are_zero && !std::is_same_v<T, Float16>;
  ForEachRun<int8_t, T>(args.rows, args.cols, {args.q, args.q_row_stride, args.q_col_stride},
                        {static_cast<T*>(args.x), args.row_stride, args.col_stride}, args.grid,
                        args.row_stride == 1 && args.col_stride != 1, flush,
                        [](const int8_t* in, int64_t n, const auto& scales, T* out) {
                          if (scales.HasZeroPoint()) ForEachVector(in, n, scales, out, MultiplyByScale<T, true>{});
                          else ForEachVector(in, n, scales, out, MultiplyByScale<T, false>{});
                        });
}

void QuantizeAny(const QuantizeMatrixArgs& args, Target target) {
  switch (args.x.dtype) {
    case DType::kF32:
      switch (args.product_dtype.value_or(DType::kF32)) {
        case DType::kBF16: return QuantizeOf<BFloat16, float>(args, target);
        case DType::kF16: return QuantizeOf<Float16, float>(args, target);
        default: return QuantizeOf<float, float>(args, target);
      }
    case DType::kBF16: return QuantizeOf<BFloat16, BFloat16>(args, target);
    case DType::kF16: return QuantizeOf<Float16, Float16>(args, target);
    default: AQT_CHECK(!"QuantizeMatrix: dtype is f32, bf16 or f16");
  }
}

template <class D>
FloatVec LoadFloat(D d, const int8_t* x) {
  return LoadInts(d, x);
}

// Loads a vector of elements; the factors are ignored.
struct LoadPlain {
  template <class D, class T>
  static FloatVec Apply(D d, const T* in, FloatVec) {
    return LoadFloat(d, in);
  }
};

// R(in * factor).
template <bool kFlush>
struct LoadProduct {
  template <class D, class T>
  static FloatVec Apply(D d, const T* in, FloatVec factor) {
    FloatVec x = LoadFloat(d, in);
    if constexpr (kFlush) x = Flush(d, x);
    FloatVec y = hn::Mul(x, factor);
    if constexpr (kFlush) y = Flush(d, y);
    return RoundLanes<T>::Apply(d, y);
  }
};

template <class Load, class T>
void LoadRun(const T* in, int64_t n, const float* factor, int64_t factor_stride, float* out) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec same = factor == nullptr ? hn::Zero(d) : hn::Set(d, factor[0]);
  const bool varies = factor != nullptr && factor_stride != 0;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(Load::Apply(d, in + i, varies ? hn::LoadU(d, factor + i) : same), d, out + i);
  }
  if (i == n) return;
  T padded[kMaxLanes] = {};
  float factors[kMaxLanes] = {}, result[kMaxLanes];
  std::copy(in + i, in + n, padded);
  if (varies) std::copy(factor + i, factor + n, factors);
  hn::StoreU(Load::Apply(d, padded, varies ? hn::LoadU(d, factors) : same), d, result);
  std::copy(result, result + (n - i), out + i);
}

template <class T>
void LoadLineOf(const Line& line, int64_t n, float* out) {
  const T* data = static_cast<const T*>(line.data);
  T gathered[internal::kChunk];
  const int64_t step = line.stride == 1 ? n : internal::kChunk;
  for (int64_t i = 0; i < n; i += step) {
    const int64_t count = std::min(step, n - i);
    if (line.stride != 1) internal::Gather(data + i * line.stride, line.stride, count, gathered);
    const T* in = line.stride == 1 ? data : gathered;
    if constexpr (!std::is_same_v<T, int8_t>) {
      if (line.factor != nullptr) {
        const bool flush = line.subnormals_are_zero && !std::is_same_v<T, Float16>;
        const float* factor = line.factor + i * line.factor_stride;
        if (flush) LoadRun<LoadProduct<true>>(in, count, factor, line.factor_stride, out + i);
        else LoadRun<LoadProduct<false>>(in, count, factor, line.factor_stride, out + i);
        continue;
      }
    }
    LoadRun<LoadPlain>(in, count, nullptr, 0, out + i);
  }
}

void LoadAnyLine(const Line& line, int64_t n, float* out) {
  switch (line.dtype) {
    case DType::kF32: return LoadLineOf<float>(line, n, out);
    case DType::kBF16: return LoadLineOf<BFloat16>(line, n, out);
    case DType::kF16: return LoadLineOf<Float16>(line, n, out);
    default: return LoadLineOf<int8_t>(line, n, out);
  }
}

void DequantizeAny(const DequantizeMatrixArgs& args) {
  switch (args.dtype) {
    case DType::kF32: return DequantizeOf<float>(args);
    case DType::kBF16: return DequantizeOf<BFloat16>(args);
    case DType::kF16: return DequantizeOf<Float16>(args);
    default: AQT_CHECK(!"DequantizeMatrix: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void QuantizeMatrix(const QuantizeMatrixArgs& args, Target target) {
  AQT_DCHECK(-128 <= args.lo && args.lo <= args.hi && args.hi <= 127);
  AQT_DCHECK(args.rule == QuantizeRule::kDivideByScale || args.grid.zero_point == nullptr);
  AQT_DCHECK(args.rule == QuantizeRule::kMultiplyByInverse || args.noise.numbers == nullptr);
  AQT_HWY_DISPATCH(target, QuantizeAny)(args, target);
}

bool QuantizeToNibbles(const QuantizeMatrixArgs& args, int32_t* words, int64_t row_stride, Target target) {
  AQT_DCHECK(-8 <= args.lo && args.lo <= args.hi && args.hi <= 7);
  return AQT_HWY_DISPATCH(target, NibblesOfAny)(args, words, row_stride, target);
}

void LoadLine(const Line& line, int64_t n, float* out, Target target) {
  AQT_DCHECK(line.factor == nullptr || !IsByteInteger(line.dtype));
  if (n > 0) AQT_HWY_DISPATCH(target, LoadAnyLine)(line, n, out);
}

void DequantizeMatrix(const DequantizeMatrixArgs& args, Target target) {
  AQT_HWY_DISPATCH(target, DequantizeAny)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
