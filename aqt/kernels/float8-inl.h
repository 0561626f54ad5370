// Vectors of f32 to 8-bit floats. Included once per Highway target, after hwy/highway.h. All targets give the same
// bits.

#if defined(AQT_KERNELS_FLOAT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_FLOAT8_INL_H_
#undef AQT_KERNELS_FLOAT8_INL_H_
#else
#define AQT_KERNELS_FLOAT8_INL_H_
#endif

#include <cstdint>

#include "aqt/core/dtype.h"
#include "hwy/highway.h"

#ifndef AQT_KERNELS_FLOAT8_INL_ONCE_
#define AQT_KERNELS_FLOAT8_INL_ONCE_
namespace aqt::kernels::internal {

template <class T>
struct Float8Format;
template <>
struct Float8Format<Float8E4M3FN> {
  static constexpr int kMantissaBits = 3, kMinExponent = -6, kNan = 0x7f;
  static constexpr float kMax = 448;
};
template <>
struct Float8Format<Float8E5M2> {
  static constexpr int kMantissaBits = 2, kMinExponent = -14, kNan = 0x7e;
  static constexpr float kMax = 57344;
};

}  // namespace aqt::kernels::internal
#endif  // AQT_KERNELS_FLOAT8_INL_ONCE_

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The codes of y, rounded to nearest, ties to even; what is larger than the largest finite value becomes that, with its
// sign, and a NaN the positive quiet NaN.
template <class Fp8, class D, class V>
HWY_INLINE void StoreFloat8(D d, V y, uint8_t* q) {
  using Format = internal::Float8Format<Fp8>;
  constexpr int kShift = 23 - Format::kMantissaBits, kFirst = 127 + Format::kMinExponent;
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, y);
  const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
  const auto clamped = hn::Min(magnitude, hn::BitCast(di, hn::Set(d, Format::kMax)));
  // 2^e with the value's exponent e, or the smallest normal's. Adding 2^(e + kShift) makes the last bit of the sum
  // worth 2^(e - kMantissaBits), which is what the code counts in: normal and subnormal codes alike.
  const auto power = hn::Max(hn::And(clamped, hn::Set(di, 0x7f800000)), hn::Set(di, kFirst << 23));
  const auto magic = hn::Add(power, hn::Set(di, kShift << 23));
  const auto sum = hn::BitCast(di, hn::Add(hn::BitCast(d, clamped), hn::BitCast(d, magic)));
  const auto steps = hn::Sub(sum, magic);  // 2^kMantissaBits and more for a normal value
  const auto before = hn::Sub(hn::ShiftRight<kShift>(power), hn::Set(di, kFirst << Format::kMantissaBits));
  const auto with_sign = hn::OrAnd(hn::Add(before, steps), hn::ShiftRight<24>(bits), hn::Set(di, 0x80));
  const auto code = hn::IfThenElse(is_nan, hn::Set(di, Format::kNan), with_sign);
  const hn::Rebind<uint8_t, D> d8;
  hn::StoreU(hn::U8FromU32(hn::BitCast(du, code)), d8, q);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_FLOAT8_INL_H_
