#include "aqt/kernels/small_floats/small_floats.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/small_floats/small_floats.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"
#include "aqt/kernels/simd/float8-inl.h"

#ifndef AQT_KERNELS_SMALL_FLOATS_ONCE_
#define AQT_KERNELS_SMALL_FLOATS_ONCE_
namespace aqt::kernels::internal {

template <SmallFloat kType>
struct SmallFormat;
template <>
struct SmallFormat<SmallFloat::kE2M1> {
  static constexpr int kMantissaBits = 1;
  static constexpr float kMax = 6;
};
template <>
struct SmallFormat<SmallFloat::kE2M3> {
  static constexpr int kMantissaBits = 3;
  static constexpr float kMax = 7.5f;
};

// What is added to the bits of an absmax so that the carry rounds it to a power of two.
constexpr int32_t RoundingOf(SmallFloat type) { return 1 << (type == SmallFloat::kE2M3 ? 19 : 21); }
// The exponent of the largest power of two of the type.
constexpr int32_t LargestExponentOf(SmallFloat type) { return type == SmallFloat::kE4M3 ? 8 : 2; }

}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_SMALL_FLOATS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using CodeVec = hn::Vec<hn::RebindToUnsigned<FloatTag>>;

// Calls body(absmax, code, factor) for each vector of n groups; a partial last vector goes through padded copies.
template <class Body>
HWY_INLINE void ForEachGroupVector(const float* absmax, int64_t n, uint8_t* code, float* factor, const Body& body) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(absmax + i, code + i, factor + i);
  constexpr size_t kMaxLanes = hn::MaxLanes(FloatTag());
  if (kMaxLanes == 1 || i == n) return;
  float padded[kMaxLanes] = {}, factors[kMaxLanes];
  uint8_t codes[kMaxLanes];
  std::copy(absmax + i, absmax + n, padded);
  body(padded, codes, factors);
  std::copy(codes, codes + (n - i), code + i);
  std::copy(factors, factors + (n - i), factor + i);
}

void MxScalesAny(const float* absmax, int64_t n, DType dtype, SmallFloat type, uint8_t* exponent, float* factor) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const bool is_f16 = dtype == DType::kF16;
  // The largest biased exponent, and the least f16 that rounds up to the smallest normal one; others become 0.
  const auto largest = hn::Set(di, is_f16 ? 127 + 15 : 254);
  const auto least = hn::Set(d, is_f16 ? (type == SmallFloat::kE2M3 ? 960 : 768) * 0x1p-24f : 0.0f);
  const auto least_normal = hn::Set(d, is_f16 ? 0x1p-14f : 0.0f);
  ForEachGroupVector(absmax, n, exponent, factor, [&](const float* in, uint8_t* code, float* out) HWY_ATTR {
    const auto a = hn::LoadU(d, in);
    // A NaN has the largest bits.
    const auto rounded =
        hn::ShiftRight<23>(hn::Add(hn::BitCast(di, hn::Max(a, least_normal)), hn::Set(di, internal::RoundingOf(type))));
    auto e = hn::Max(hn::Zero(di), hn::Sub(rounded, hn::Set(di, internal::LargestExponentOf(type))));
    if (is_f16) e = hn::IfThenElse(hn::RebindMask(di, hn::Lt(a, least)), hn::Set(di, 127), e);
    const auto bits = hn::BitCast(di, a);
    const auto none = hn::Or(hn::Gt(rounded, largest), hn::Gt(bits, hn::Set(di, 0x7f7fffff)));
    e = hn::IfThenElse(none, hn::Set(di, kNoExponent), e);
    const auto inverse = hn::ShiftLeft<23>(hn::Sub(hn::Set(di, 254), e));
    hn::StoreU(hn::BitCast(d, hn::IfThenZeroElse(none, inverse)), d, out);
    const hn::Rebind<uint8_t, FloatTag> d8;
    const hn::RebindToUnsigned<FloatTag> du;
    hn::StoreU(hn::U8FromU32(hn::BitCast(du, e)), d8, code);
  });
}

void E4M3ScalesAny(const float* absmax, int64_t n, DType dtype, float global, uint8_t* scale, float* factor) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto g = hn::Set(d, global);
  ForEachGroupVector(absmax, n, scale, factor, [&](const float* in, uint8_t* code, float* out) HWY_ATTR {
    auto sixth = hn::Div(hn::LoadU(d, in), hn::Set(d, 6.0f));
    if (dtype == DType::kBF16) sixth = RoundLanes<BFloat16>::Apply(d, sixth);
    if (dtype == DType::kF16) sixth = RoundLanes<Float16>::Apply(d, sixth);
    auto codes = Float8Codes<Float8E4M3FN>(d, hn::Mul(g, sixth));
    codes = hn::IfThenElse(hn::Eq(codes, hn::Zero(du)), hn::Set(du, 0x20u), codes);  // 0.125
    // The value of a code, which is positive and not a NaN.
    const auto normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(codes), hn::Set(du, 120u << 23)));
    const hn::RebindToSigned<FloatTag> di;
    const auto subnormal = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, codes)), hn::Set(d, 0x1p-9f));
    const auto value =
        hn::IfThenElse(hn::RebindMask(d, hn::Lt(hn::BitCast(di, codes), hn::Set(di, 8))), subnormal, normal);
    hn::StoreU(hn::Div(value, g), d, out);
    const hn::Rebind<uint8_t, FloatTag> d8;
    hn::StoreU(hn::U8FromU32(codes), d8, code);
  });
}

// The codes of y, which is not a NaN and has the sign of x, or is a NaN that stands for an infinity.
template <SmallFloat kType>
HWY_INLINE CodeVec CodesOf(FloatTag d, FloatVec x, FloatVec y) {
  const hn::RebindToUnsigned<FloatTag> du;
  const hn::RebindToSigned<FloatTag> di;
  if constexpr (kType == SmallFloat::kE4M3) {
    return Float8Codes<Float8E4M3FN>(d, hn::Add(y, hn::Zero(d)));  // +0, not -0
  } else {
    // As in Float8Codes.
    using Format = internal::SmallFormat<kType>;
    constexpr int kShift = 23 - Format::kMantissaBits, kFirst = 127;
    constexpr uint32_t kSign = 8u << (2 * (BitsOf(kType) == 6));
    const auto magnitude = hn::And(hn::BitCast(di, y), hn::Set(di, 0x7fffffff));
    const auto clamped = hn::Min(magnitude, hn::BitCast(di, hn::Set(d, Format::kMax)));
    const auto power = hn::Max(hn::And(clamped, hn::Set(di, 0x7f800000)), hn::Set(di, kFirst << 23));
    constexpr int kLess = -((kShift + kFirst) << Format::kMantissaBits) & 0xff;
    const auto magic = hn::Add(power, hn::Set(di, (kShift << 23) + kLess));
    const auto sum = hn::BitCast(du, hn::Add(hn::BitCast(d, clamped), hn::BitCast(d, magic)));
    const auto code = hn::And(hn::Add(sum, hn::ShiftRight<kShift>(sum)), hn::Set(du, kSign - 1));
    auto sign = hn::And(hn::ShiftRight<(BitsOf(kType) == 4 ? 28 : 26)>(hn::BitCast(du, x)), hn::Set(du, kSign));
    if constexpr (kType == SmallFloat::kE2M1) {
      sign = hn::IfThenZeroElse(hn::RebindMask(du, hn::Eq(magnitude, hn::Zero(di))), sign);
    }
    return hn::Or(code, sign);
  }
}

// How a value is scaled.
enum class Scaling {
  kMultiply,
  kDivide,
  kQuotient,  // a division by multiplications, with the inverse of the factor
};

// Products with powers of two are exact in T, except that magnitudes up to this one round to 0.
float RoundsToZero(DType dtype) { return dtype == DType::kF16 ? 0x1p-25f : dtype == DType::kBF16 ? 0x1p-134f : 0.0f; }

// The codes of a vector. kMultiply: products of at most `zero` are 0.
template <SmallFloat kType, Scaling kScaling>
HWY_INLINE CodeVec ScaledCodes(FloatTag d, FloatVec v, float factor, [[maybe_unused]] float inverse,
                               [[maybe_unused]] FloatVec zero) {
  const auto f = hn::Set(d, factor);
  if constexpr (kScaling == Scaling::kQuotient) {
    const auto i = hn::Set(d, inverse), q = hn::Mul(v, i);
    return CodesOf<kType>(d, v, hn::MulAdd(hn::NegMulAdd(q, f, v), i, q));
  } else if constexpr (kScaling == Scaling::kDivide) {
    const auto y = hn::Div(v, f);
    return CodesOf<kType>(d, y, y);
  } else {
    const auto product = hn::Mul(v, f), signed_zero = hn::And(product, hn::Set(d, -0.0f));
    const auto y = hn::IfThenElse(hn::Le(hn::Abs(product), zero), signed_zero, product);
    return CodesOf<kType>(d, y, y);
  }
}

// Packs n codes, one per byte; n is a multiple of 4.
template <int kBits>
void PackBytes(const uint8_t* code, int64_t n, uint8_t* q) {
  if constexpr (kBits == 8) {
    std::copy(code, code + n, q);
  } else if constexpr (kBits == 4) {
    for (int64_t i = 0; i < n / 2; ++i) q[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
  } else {
    for (int64_t i = 0; i < n; i += 4, q += 3) {
      const uint32_t word = static_cast<uint32_t>(code[i]) | static_cast<uint32_t>(code[i + 1]) << 6 |
                            static_cast<uint32_t>(code[i + 2]) << 12 | static_cast<uint32_t>(code[i + 3]) << 18;
      q[0] = static_cast<uint8_t>(word);
      q[1] = static_cast<uint8_t>(word >> 8);
      q[2] = static_cast<uint8_t>(word >> 16);
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// Packs the codes of four consecutive vectors.
template <int kBits>
HWY_INLINE void StoreFour(CodeVec c0, CodeVec c1, CodeVec c2, CodeVec c3, uint8_t* q) {
  // Each block of 16 bytes has four bytes of each vector; the permutation groups them by vector.
  const __m512i mixed = _mm512_packus_epi16(_mm512_packs_epi32(c0.raw, c1.raw), _mm512_packs_epi32(c2.raw, c3.raw));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, mixed);
  if constexpr (kBits == 8) {
    _mm512_storeu_si512(q, bytes);
  } else if constexpr (kBits == 4) {
    const __m512i pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001));  // alternately times 1 and 16
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm512_cvtepi16_epi8(pairs));
  } else {
    const __m512i pairs = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x4001));   // times 1 and 64
    const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x10000001));  // times 1 and 4096
    const __m512i turns = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const __m512i together = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15), _mm512_shuffle_epi8(fours, turns));
    _mm512_mask_storeu_epi32(q, 0x0fff, together);
  }
}
#elif HWY_TARGET == HWY_AVX2
template <int kBits>
HWY_INLINE void StoreFour(CodeVec c0, CodeVec c1, CodeVec c2, CodeVec c3, uint8_t* q) {
  const __m256i mixed = _mm256_packus_epi16(_mm256_packs_epi32(c0.raw, c1.raw), _mm256_packs_epi32(c2.raw, c3.raw));
  const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  if constexpr (kBits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  } else if constexpr (kBits == 4) {
    const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001));  // alternately times 1 and 16
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm256_castsi256_si128(halves));
  } else {
    uint8_t code[32];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(code), bytes);
    PackBytes<kBits>(code, 32, q);
  }
}
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
constexpr int64_t kStep = 4 * hn::MaxLanes(FloatTag());
#else
constexpr int64_t kStep = 16;  // of every group size
#endif

// A part of a row, n values. kStep values at a time; the last ones, a few groups, go through padded copies.
template <class T, SmallFloat kType, Scaling kScaling>
HWY_NOINLINE void QuantizeSmallRow(const T* x, int64_t n, int64_t group, const float* factor, const float* inverse,
                                   float rounds_to_zero, uint8_t* q) {
  constexpr int kBits = BitsOf(kType);
  const FloatTag d;
  const int shift = group == 16 ? 4 : 5;
  const auto zero = hn::Set(d, rounds_to_zero);
  T padded[kStep] = {};
  uint8_t packed[kStep];
  for (int64_t c = 0; c < n; c += kStep) {
    const int64_t count = std::min(kStep, n - c);
    const T* from = x + c;
    if (count < kStep) from = std::copy(x + c, x + n, padded) - count;
    uint8_t* const to = count < kStep ? packed : q + c / 8 * kBits;
    const auto codes = [&](int64_t i) HWY_ATTR {
      const int64_t g = std::min(c + i, n - 1) >> shift;  // beyond the end, any factor
      return ScaledCodes<kType, kScaling>(d, LoadFloat(d, from + i), factor[g],
                                          kScaling == Scaling::kQuotient ? inverse[g] : 0, zero);
    };
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    constexpr int64_t kLanes = kStep / 4;
    StoreFour<kBits>(codes(0), codes(kLanes), codes(2 * kLanes), codes(3 * kLanes), to);
#else
    const hn::Rebind<uint8_t, FloatTag> d8;
    uint8_t code[kStep];
    for (int64_t i = 0; i < kStep; i += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::U8FromU32(codes(i)), d8, code + i);
    }
    PackBytes<kBits>(code, kStep, to);
#endif
    if (count < kStep) std::copy(packed, packed + count / 8 * kBits, q + c / 8 * kBits);
  }
}

constexpr int64_t kGroupsAtOnce = 64;

// The inverses of n factors. Returns whether kQuotient may use them all.
bool InvertFactors([[maybe_unused]] const float* factor, [[maybe_unused]] int64_t n, [[maybe_unused]] float* inverse) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  // Factors for which kQuotient gives the codes of kDivide. The quotients of values between 2^-60 and 2^60 are the same
  // (QuotientsBy in strip_steps-inl.h has the proof). Those of smaller values round to 0, and those of larger ones
  // saturate, also if they become NaN. No quotient underflows.
  constexpr float kLeastFactor = 0x1p-40f, kMostFactor = 1;
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  float padded[kGroupsAtOnce];
  std::copy(factor, factor + n, padded);
  std::fill(padded + n, padded + kGroupsAtOnce, 1.0f);
  auto all_fit = hn::Eq(one, one);
  for (int64_t i = 0; i < kGroupsAtOnce; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto f = hn::LoadU(d, padded + i);
    const auto fits = hn::And(hn::Ge(f, hn::Set(d, kLeastFactor)), hn::Le(f, hn::Set(d, kMostFactor)));
    all_fit = hn::And(all_fit, fits);
    hn::StoreU(hn::Div(one, f), d, inverse + i);
  }
  return hn::AllTrue(d, all_fit);
#else
  return false;  // no fused multiplication and addition
#endif
}

// A part of a row with at most kGroupsAtOnce groups.
template <class T>
void QuantizeSmallPart(const QuantizeSmallFloatsArgs& args, const T* x, int64_t n, const float* factor, uint8_t* q) {
  const float zero = RoundsToZero(args.x.dtype);
  const auto multiply = [&]<SmallFloat kType>() {
    QuantizeSmallRow<T, kType, Scaling::kMultiply>(x, n, args.group, factor, nullptr, zero, q);
  };
  constexpr SmallFloat kE2M1 = SmallFloat::kE2M1;
  if (args.divide) {
    float inverse[kGroupsAtOnce];
    if (InvertFactors(factor, n / args.group, inverse)) {
      QuantizeSmallRow<T, kE2M1, Scaling::kQuotient>(x, n, args.group, factor, inverse, zero, q);
    } else {
      QuantizeSmallRow<T, kE2M1, Scaling::kDivide>(x, n, args.group, factor, nullptr, zero, q);
    }
    return;
  }
  switch (args.type) {
    case SmallFloat::kE2M1: return multiply.template operator()<kE2M1>();
    case SmallFloat::kE2M3: return multiply.template operator()<SmallFloat::kE2M3>();
    case SmallFloat::kE4M3: return multiply.template operator()<SmallFloat::kE4M3>();
  }
}

// For these types code of their own would hardly be faster.
template <class T>
constexpr bool kGoesThroughFloats = std::is_same_v<T, Float16> ||
                                    (std::is_same_v<T, BFloat16> && HWY_TARGET != HWY_AVX3);

template <class T>
void QuantizeSmallOf(const QuantizeSmallFloatsArgs& args) {
  const FloatMatrix& x = args.x;
  const int64_t row_bytes = x.cols * BitsOf(args.type) / 8, groups = x.cols / args.group;
  for (int64_t r = 0; r < x.rows; ++r) {
    const T* const row = static_cast<const T*>(x.data) + r * x.row_stride;
    for (int64_t g = 0; g < groups; g += kGroupsAtOnce) {
      const int64_t first = g * args.group, n = std::min(kGroupsAtOnce, groups - g) * args.group;
      const float* const factor = args.factor + r * groups + g;
      uint8_t* const q = args.q + r * row_bytes + first * BitsOf(args.type) / 8;
      if constexpr (kGoesThroughFloats<T>) {
        const FloatTag d;
        float values[kGroupsAtOnce * 32];
        for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
          hn::StoreU(LoadFloat(d, row + first + i), d, values + i);
        }
        QuantizeSmallPart(args, values, n, factor, q);
      } else {
        QuantizeSmallPart(args, row + first, n, factor, q);
      }
    }
  }
}

void QuantizeSmallFloatsAny(const QuantizeSmallFloatsArgs& args) {
  switch (args.x.dtype) {
    case DType::kF32: return QuantizeSmallOf<float>(args);
    case DType::kBF16: return QuantizeSmallOf<BFloat16>(args);
    case DType::kF16: return QuantizeSmallOf<Float16>(args);
    default: AQT_CHECK(!"QuantizeSmallFloats: dtype is f32, bf16 or f16");
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void MxScales(const float* absmax, int64_t n, DType dtype, SmallFloat type, uint8_t* exponent, float* factor,
              Target target) {
  AQT_HWY_DISPATCH(target, MxScalesAny)(absmax, n, dtype, type, exponent, factor);
}

void E4M3Scales(const float* absmax, int64_t n, DType dtype, float global, Float8E4M3FN* scale, float* factor,
                Target target) {
  AQT_HWY_DISPATCH(target, E4M3ScalesAny)(absmax, n, dtype, global, reinterpret_cast<uint8_t*>(scale), factor);
}

void QuantizeSmallFloats(const QuantizeSmallFloatsArgs& args, Target target) {
  AQT_DCHECK(args.x.col_stride == 1 && (args.group == 16 || args.group == 32) && args.x.cols % args.group == 0);
  AQT_DCHECK(!args.divide || args.type == SmallFloat::kE2M1);
  AQT_HWY_DISPATCH(target, QuantizeSmallFloatsAny)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
