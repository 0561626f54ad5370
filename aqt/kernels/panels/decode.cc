#include "aqt/kernels/panels/decode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "aqt/core/check.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/panels/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"

#ifndef AQT_KERNELS_DECODE_ONCE_
#define AQT_KERNELS_DECODE_ONCE_
namespace aqt::kernels {
namespace {

// An 8-bit float is widened to bf16 by shifting its magnitude and rebiasing its exponent: bits = (magnitude << shift) +
// bias. This does not hold for subnormals, infinities and NaN. Their magnitudes are below `small` or among the largest
// `special` ones, and their last four bits are distinct. These bits index the two bytes of their bf16.
template <class T>
struct Float8Bits;
template <>
struct Float8Bits<Float8E4M3FN> {
  static constexpr int kShift = 4;
  static constexpr int kBias = (127 - 7) << 7;
  static constexpr int kSmall = 8, kSpecial = 1;
  // m * 2^-9 for m < 8, and NaN.
  static constexpr uint8_t kUpper[16] = {0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0x7f};
  static constexpr uint8_t kLower[16] = {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0xc0};
};
template <>
struct Float8Bits<Float8E5M2> {
  static constexpr int kShift = 5;
  static constexpr int kBias = (127 - 15) << 7;
  static constexpr int kSmall = 4, kSpecial = 4;
  // m * 2^-16 for m < 4, infinity, and three NaN.
  static constexpr uint8_t kUpper[16] = {0, 0x37, 0x38, 0x38, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0x7f, 0x7f, 0x7f};
  static constexpr uint8_t kLower[16] = {0, 0x80, 0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0xc0, 0xc0, 0xc0};
};

template <class T>
BFloat16 DecodeOne(T x) {
  using Bits = Float8Bits<T>;
  const int magnitude = x.bits & 0x7f, sign = (x.bits & 0x80) << 8;
  const bool table = magnitude < Bits::kSmall || magnitude >= 0x80 - Bits::kSpecial;
  const int bits = table ? Bits::kUpper[magnitude & 15] << 8 | Bits::kLower[magnitude & 15]
                         : (magnitude << Bits::kShift) + Bits::kBias;
  return {static_cast<uint16_t>(sign | bits)};
}

}  // namespace
}  // namespace aqt::kernels
#endif  // AQT_KERNELS_DECODE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// DecodeVector(src, dst) converts kStep<From> elements.
#if HWY_TARGET == HWY_SCALAR

template <class From, class To>
constexpr int64_t kStep = 1;

template <bool kFlush, class From, class To>
void DecodeVector(const From* src, To* dst) {
  if constexpr (std::is_same_v<From, int8_t>) {
    if constexpr (std::is_same_v<To, float>) *dst = *src;
    else *dst = RoundToBFloat16(*src);
  } else if constexpr (sizeof(From) == 1) {
    if constexpr (std::is_same_v<To, float>) *dst = ToFloat(DecodeOne(*src));
    else *dst = DecodeOne(*src);
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    *dst = kFlush && (src->bits & 0x7f80) == 0 ? BFloat16{static_cast<uint16_t>(src->bits & 0x8000)} : *src;
  } else {
    const uint32_t bits = __builtin_bit_cast(uint32_t, ToFloat(*src));
    *dst = __builtin_bit_cast(float, kFlush && (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
  }
}

#else  // HWY_TARGET

template <class From, class To>
constexpr int64_t kStep = HWY_MAX_BYTES / (sizeof(From) == 1 && !std::is_same_v<From, int8_t> ? 1
                                           : std::is_same_v<From, int8_t>                     ? 4
                                                                                              : sizeof(To));

// Interleaving within blocks of 16 bytes puts the parts of each block into kParts vectors. Moves the 4-byte lanes so
// that these vectors hold consecutive elements.
template <int kParts, class V>
HWY_INLINE V SpreadOverBlocks(V v) {
  static constexpr auto kLanes = [] {
    constexpr int kBlocks = HWY_MAX_BYTES / 16, kLanesPerPart = 4 / kParts;
    std::array<int32_t, 4 * kBlocks> lanes = {};
    for (int block = 0; block < kBlocks; ++block) {
      for (int part = 0; part < kParts; ++part) {
        for (int i = 0; i < kLanesPerPart; ++i) {
          lanes[4 * block + part * kLanesPerPart + i] = (part * kBlocks + block) * kLanesPerPart + i;
        }
      }
    }
    return lanes;
  }();
  const hn::ScalableTag<uint8_t> d8;
  const hn::ScalableTag<int32_t> d32;
  return hn::BitCast(d8, hn::TableLookupLanes(hn::BitCast(d32, v), hn::SetTableIndices(d32, kLanes.data())));
}

// The upper and lower bytes of the bf16 values of the codes.
template <class From, class V>
HWY_INLINE void DecodeFloat8(V code, V& upper, V& lower) {
  using Bits = Float8Bits<From>;
  const hn::ScalableTag<uint8_t> d;
  const hn::ScalableTag<int8_t> di;
  const V sign = hn::And(code, hn::Set(d, 0x80)), magnitude = hn::Xor(code, sign);
  const V shifted = hn::Add(hn::ShiftRight<8 - Bits::kShift>(magnitude), hn::Set(d, Bits::kBias >> 8));
  // The addition makes the largest magnitudes negative, which is below the small ones.
  const auto offset = hn::BitCast(di, hn::Add(magnitude, hn::Set(d, Bits::kSpecial)));
  const auto listed = hn::RebindMask(d, hn::Lt(offset, hn::Set(di, Bits::kSmall + Bits::kSpecial)));
  const V index = hn::And(code, hn::Set(d, 15));
  const V listed_upper = hn::TableLookupBytes(hn::LoadDup128(d, Bits::kUpper), index);
  const V listed_lower = hn::TableLookupBytes(hn::LoadDup128(d, Bits::kLower), index);
  upper = hn::Or(sign, hn::IfThenElse(listed, listed_upper, shifted));
  lower = hn::IfThenElse(listed, listed_lower, hn::ShiftLeft<Bits::kShift>(code));
}

template <bool kFlush, class From, std::enable_if_t<sizeof(From) == 1 && !std::is_same_v<From, int8_t> >* = nullptr>
HWY_INLINE void DecodeVector(const From* src, BFloat16* dst) {
  const hn::ScalableTag<uint8_t> d8;
  const hn::ScalableTag<uint16_t> d16;
  uint16_t* const out = reinterpret_cast<uint16_t*>(dst);
  hn::Vec<decltype(d8)> upper, lower;
  DecodeFloat8<From>(SpreadOverBlocks<2>(hn::LoadU(d8, reinterpret_cast<const uint8_t*>(src))), upper, lower);
  hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d8, lower, upper)), d16, out);
  hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d8, lower, upper)), d16, out + hn::Lanes(d16));
}

template <bool kFlush, class From, std::enable_if_t<sizeof(From) == 1 && !std::is_same_v<From, int8_t> >* = nullptr>
HWY_INLINE void DecodeVector(const From* src, float* dst) {
  const hn::ScalableTag<uint8_t> d8;
  const hn::ScalableTag<uint16_t> d16;
  const hn::ScalableTag<float> df;
  hn::Vec<decltype(d8)> upper, lower;
  DecodeFloat8<From>(SpreadOverBlocks<4>(hn::LoadU(d8, reinterpret_cast<const uint8_t*>(src))), upper, lower);
  const auto zero = hn::Zero(d16);
  const auto a = hn::BitCast(d16, hn::InterleaveLower(d8, lower, upper));
  const auto b = hn::BitCast(d16, hn::InterleaveUpper(d8, lower, upper));
  const size_t n = hn::Lanes(df);
  hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d16, zero, a)), df, dst);
  hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d16, zero, a)), df, dst + n);
  hn::StoreU(hn::BitCast(df, hn::InterleaveLower(d16, zero, b)), df, dst + 2 * n);
  hn::StoreU(hn::BitCast(df, hn::InterleaveUpper(d16, zero, b)), df, dst + 3 * n);
}

template <bool kFlush>
HWY_INLINE void DecodeVector(const int8_t* src, float* dst) {
  const hn::ScalableTag<float> df;
  const hn::ScalableTag<int32_t> d32;
  const hn::Rebind<int8_t, decltype(df)> d8;
  hn::StoreU(hn::ConvertTo(df, hn::PromoteTo(d32, hn::LoadU(d8, src))), df, dst);
}

template <bool kFlush>
HWY_INLINE void DecodeVector(const int8_t* src, BFloat16* dst) {
  const hn::ScalableTag<float> df;
  const hn::ScalableTag<int32_t> d32;
  const hn::Rebind<int8_t, decltype(df)> d8;
  StoreFloat(df, hn::ConvertTo(df, hn::PromoteTo(d32, hn::LoadU(d8, src))), dst);
}

template <bool kFlush>
HWY_INLINE void DecodeVector(const BFloat16* src, BFloat16* dst) {
  const hn::ScalableTag<uint16_t> d;
  auto bits = hn::LoadU(d, reinterpret_cast<const uint16_t*>(src));
  if constexpr (kFlush) {
    const auto subnormal = hn::Eq(hn::And(bits, hn::Set(d, 0x7f80)), hn::Zero(d));
    bits = hn::IfThenElse(subnormal, hn::And(bits, hn::Set(d, 0x8000)), bits);
  }
  hn::StoreU(bits, d, reinterpret_cast<uint16_t*>(dst));
}

template <bool kFlush, class From, std::enable_if_t<(sizeof(From) > 1)>* = nullptr>
HWY_INLINE void DecodeVector(const From* src, float* dst) {
  const hn::ScalableTag<float> df;
  const hn::ScalableTag<uint32_t> d;
  auto bits = hn::BitCast(d, LoadFloat(df, src));
  if constexpr (kFlush) {
    const auto subnormal = hn::Eq(hn::And(bits, hn::Set(d, 0x7f800000)), hn::Zero(d));
    bits = hn::IfThenElse(subnormal, hn::And(bits, hn::Set(d, 0x80000000)), bits);
  }
  hn::StoreU(bits, d, reinterpret_cast<uint32_t*>(dst));
}

#endif  // HWY_TARGET

template <bool kFlush, class From, class To>
HWY_INLINE void DecodeRun(const From* src, int64_t count, To* dst) {
  constexpr int64_t kN = kStep<From, To>;
  if (count <= 0) return;
  if (count < kN) {
    alignas(64) char in[kN * sizeof(From)] = {}, out[kN * sizeof(To)];  // the types may have constructors
    std::memcpy(in, src, count * sizeof(From));
    DecodeVector<kFlush>(reinterpret_cast<const From*>(in), reinterpret_cast<To*>(out));
    std::memcpy(static_cast<void*>(dst), out, count * sizeof(To));
    return;
  }
  for (int64_t i = 0; i + kN <= count; i += kN) DecodeVector<kFlush>(src + i, dst + i);
  if (count % kN != 0) DecodeVector<kFlush>(src + count - kN, dst + count - kN);  // overlaps some elements
}

template <bool kFlush, class From, class To>
void DecodeLines(const DecodeArgs& args, To* dst, int64_t dst_line) {
  constexpr int64_t kLinesAhead = 8, kCacheLine = 64 / sizeof(From);
  const From* src = static_cast<const From*>(args.src);
  for (int64_t line = 0; line < args.lines; ++line, src += args.src_line, dst += dst_line) {
    if (args.prefetch) {  // may run past the end of the source, which is harmless
      const From* ahead = src + kLinesAhead * args.src_line;
      for (int64_t i = 0; i < args.count; i += kCacheLine) __builtin_prefetch(ahead + i * args.src_step);
    }
    if (args.src_step == 1) {
      if constexpr (std::is_same_v<From, To> && !kFlush) std::memcpy(dst, src, args.count * sizeof(To));
      else DecodeRun<kFlush>(src, args.count, dst);
      continue;
    }
    if constexpr (std::is_same_v<From, To> && !kFlush) {
      for (int64_t i = 0; i < args.count; ++i) dst[i] = src[i * args.src_step];
      continue;
    } else {
      constexpr int64_t kGathered = 256;
      alignas(From) char bytes[kGathered * sizeof(From)];  // From may have a constructor
      From* const gathered = reinterpret_cast<From*>(bytes);
      for (int64_t i = 0; i < args.count; i += kGathered) {
        const int64_t n = std::min(kGathered, args.count - i);
        const From* from = src + i * args.src_step;
        for (int64_t j = 0; j < n; ++j) gathered[j] = from[j * args.src_step];
        DecodeRun<kFlush>(gathered, n, dst + i);
      }
    }
  }
}

template <class To>
void DecodeTo(const DecodeArgs& args, To* dst, int64_t dst_line) {
  const bool flush = args.subnormals_are_zero;
  switch (args.dtype) {
    case DType::kS2:
    case DType::kS4:
    case DType::kS8: return DecodeLines<false, int8_t>(args, dst, dst_line);
    case DType::kE4M3FN: return DecodeLines<false, Float8E4M3FN>(args, dst, dst_line);
    case DType::kE5M2: return DecodeLines<false, Float8E5M2>(args, dst, dst_line);
    case DType::kBF16:
      return flush ? DecodeLines<true, BFloat16>(args, dst, dst_line)
                   : DecodeLines<false, BFloat16>(args, dst, dst_line);
    default: break;
  }
  if constexpr (std::is_same_v<To, float>) {
    if (args.dtype == DType::kF16) return DecodeLines<false, Float16>(args, dst, dst_line);
    if (args.dtype == DType::kF32) {
      return flush ? DecodeLines<true, float>(args, dst, dst_line) : DecodeLines<false, float>(args, dst, dst_line);
    }
  }
  AQT_CHECK(!"Decode: f32 takes f32, bf16, f16, fp8, s8, s4 and s2; bf16 takes them except f32 and f16");
}

void DecodeToS8(const DecodeArgs& args, int8_t* dst, int64_t dst_line) {
  AQT_DCHECK(IsByteInteger(args.dtype));
  DecodeLines<false, int8_t>(args, dst, dst_line);
}
void DecodeToF32(const DecodeArgs& args, float* dst, int64_t dst_line) { DecodeTo(args, dst, dst_line); }
void DecodeToBF16(const DecodeArgs& args, BFloat16* dst, int64_t dst_line) { DecodeTo(args, dst, dst_line); }

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void Decode(Target target, const DecodeArgs& args, int8_t* dst, int64_t dst_line) {
  AQT_HWY_DISPATCH(target, DecodeToS8)(args, dst, dst_line);
}

void Decode(Target target, const DecodeArgs& args, float* dst, int64_t dst_line) {
  AQT_HWY_DISPATCH(target, DecodeToF32)(args, dst, dst_line);
}

void Decode(Target target, const DecodeArgs& args, BFloat16* dst, int64_t dst_line) {
  AQT_HWY_DISPATCH(target, DecodeToBF16)(args, dst, dst_line);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
