#include "aqt/kernels/small_floats/decode_small_floats.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/small_floats/decode_small_floats.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

// Codes that are unpacked at a time: whole bytes of all types.
constexpr int64_t kCodesAtOnce = 512;
// Vectors may read and write this many bytes past them.
constexpr int64_t kSlack = 64;

// One byte per code, n of them. May write past them, within the slack.
template <SmallFloat kType>
HWY_INLINE void UnpackCodes(const uint8_t* q, int64_t n, uint8_t* code) {
  if constexpr (kType == SmallFloat::kE2M1) {
    // A byte b as 16 bits: b | b << 4 has the low nibble in its low byte, and the high nibble in its high byte.
    const hn::ScalableTag<uint16_t> d;
    const hn::Rebind<uint8_t, hn::ScalableTag<uint16_t>> d8;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), bytes = n / 2;
    int64_t i = 0;
    for (; i + lanes <= bytes; i += lanes) {
      const auto b = hn::PromoteTo(d, hn::LoadU(d8, q + i));
      const auto pair = hn::And(hn::Or(b, hn::ShiftLeft<4>(b)), hn::Set(d, uint16_t{0x0f0f}));
      std::memcpy(code + 2 * i, &pair, sizeof pair);
    }
    for (; i < bytes; ++i) {
      code[2 * i] = q[i] & 15;
      code[2 * i + 1] = q[i] >> 4;
    }
  } else if constexpr (kType == SmallFloat::kE2M3) {
    for (int64_t i = 0; i < n; i += 4, q += 3) {
      const uint32_t word = q[0] | static_cast<uint32_t>(q[1]) << 8 | static_cast<uint32_t>(q[2]) << 16;
      const uint32_t codes = (word & 0x3f) | (word & 0xfc0) << 2 | (word & 0x3f000) << 4 | (word & 0xfc0000) << 6;
      std::memcpy(code + i, &codes, sizeof codes);
    }
  }
}

// The values of a vector of codes.
template <SmallFloat kType>
HWY_INLINE FloatVec ValuesOf(FloatTag d, const uint8_t* code) {
  constexpr int kBits = BitsOf(kType), kMantissaBits = kType == SmallFloat::kE2M1 ? 1 : 3;
  constexpr int kBias = kType == SmallFloat::kE4M3 ? 7 : 1;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint8_t, FloatTag> d8;
  const auto codes = hn::PromoteTo(di, hn::LoadU(d8, code));
  const auto magnitude = hn::And(codes, hn::Set(di, (1 << (kBits - 1)) - 1));
  const auto normal =
      hn::BitCast(d, hn::Add(hn::ShiftLeft<23 - kMantissaBits>(magnitude), hn::Set(di, (127 - kBias) << 23)));
  // With an exponent of 0 the mantissa counts units of the smallest value.
  const auto unit = hn::BitCast(d, hn::Set(di, (127 + 1 - kBias - kMantissaBits) << 23));
  const auto small = hn::Mul(hn::ConvertTo(d, magnitude), unit);
  const auto is_small = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 1 << kMantissaBits)));
  auto value = hn::IfThenElse(is_small, small, normal);
  if constexpr (kType == SmallFloat::kE4M3) {
    const auto nan = hn::BitCast(d, hn::Set(di, 0x7fc00000));
    value = hn::IfThenElse(hn::RebindMask(d, hn::Eq(magnitude, hn::Set(di, 0x7f))), nan, value);
  }
  const auto sign = hn::ShiftLeft<32 - kBits>(hn::And(codes, hn::Set(di, 1 << (kBits - 1))));
  return hn::Or(value, hn::BitCast(d, sign));
}

template <SmallFloat kType>
HWY_NOINLINE void DecodeOf(const DecodeSmallFloatsArgs& args) {
  constexpr int64_t kBits = BitsOf(kType);
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  uint8_t code[kCodesAtOnce + kSlack] = {};
  float last[hn::MaxLanes(FloatTag())];
  int64_t group = 0, group_end = std::min(args.group, args.n);
  for (int64_t begin = 0; begin < args.n; begin += kCodesAtOnce) {
    const int64_t end = std::min(begin + kCodesAtOnce, args.n);
    const uint8_t* const q = args.q + begin / 8 * kBits;
    if constexpr (kType == SmallFloat::kE4M3) std::copy(q, q + (end - begin), code);
    else UnpackCodes<kType>(q, end - begin, code);
    for (int64_t i = begin; i < end;) {
      const int64_t stop = std::min(group_end, end);
      const auto scale = hn::Set(d, args.scale[group]);
      for (; i + lanes <= stop; i += lanes) {
        hn::StoreU(hn::Mul(ValuesOf<kType>(d, code + (i - begin)), scale), d, args.x + i);
      }
      if (i < stop) {
        hn::StoreU(hn::Mul(ValuesOf<kType>(d, code + (i - begin)), scale), d, last);
        std::copy(last, last + (stop - i), args.x + i);
        i = stop;
      }
      if (stop < group_end) continue;
      ++group;
      group_end += std::min(args.group, args.n - group_end);
    }
  }
}

void DecodeSmallFloatsAny(const DecodeSmallFloatsArgs& args) {
  switch (args.type) {
    case SmallFloat::kE2M1: return DecodeOf<SmallFloat::kE2M1>(args);
    case SmallFloat::kE2M3: return DecodeOf<SmallFloat::kE2M3>(args);
    case SmallFloat::kE4M3: return DecodeOf<SmallFloat::kE4M3>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void DecodeSmallFloats(const DecodeSmallFloatsArgs& args, Target target) {
  AQT_DCHECK(args.group > 0 && args.n * BitsOf(args.type) % 8 == 0);
  AQT_HWY_DISPATCH(target, DecodeSmallFloatsAny)(args);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
