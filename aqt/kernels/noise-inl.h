// From random numbers to noise, in vectors. Included once per Highway target, after hwy/highway.h.

#if defined(AQT_KERNELS_NOISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_NOISE_INL_H_
#undef AQT_KERNELS_NOISE_INL_H_
#else
#define AQT_KERNELS_NOISE_INL_H_
#endif

#include <cstdint>

#include "aqt/kernels/noise.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The noise made of a vector of numbers (noise.h): their bits become the mantissa of a number in [1, 2).
template <RandomNumbers::Kind kind>
struct ToNoise {
  template <class D>
  static hn::Vec<D> Apply(D d, const uint32_t* numbers) {
    const hn::RebindToUnsigned<D> du;
    const auto w = hn::LoadU(du, numbers);
    const auto one = hn::Set(du, 0x3F800000u);
    if constexpr (kind == RandomNumbers::Kind::kBits32) {
      return hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftRight<9>(w), one)), hn::Set(d, 1.5f));
    } else if constexpr (kind == RandomNumbers::Kind::kBits16) {
      return hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftLeft<7>(w), one)), hn::Set(d, 1.5f - 0x1p-17f));
    } else {
      return hn::Sub(hn::BitCast(d, hn::Or(hn::ShiftRight<9>(w), hn::Set(du, 0x3F800001u))), hn::Set(d, 1.5f));
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_NOISE_INL_H_
