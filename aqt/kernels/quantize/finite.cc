#include "aqt/kernels/quantize/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize/finite.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bits of magnitudes are ordered as the magnitudes are, NaN above infinity. The index of the first value whose
// magnitude has at least the bits `limit`; -1 if there is none.
template <class Bits>
HWY_NOINLINE int64_t FirstAtLeast(const uint8_t* x, Bits limit, int64_t n) {
  constexpr int64_t kBlock = 1024;  // without a branch per value
  constexpr Bits kMagnitude = static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
  const hn::ScalableTag<Bits> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto magnitude = hn::Set(d, kMagnitude);
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    auto largest = hn::Zero(d);
    for (int64_t k = i; k < i + kBlock; k += lanes) {
      hn::Vec<decltype(d)> value;
      std::memcpy(&value, x + k * static_cast<int64_t>(sizeof(Bits)), sizeof value);
      largest = hn::Max(largest, hn::And(value, magnitude));
    }
    if (!hn::AllTrue(d, hn::Lt(largest, hn::Set(d, limit)))) break;
  }
  for (; i < n; ++i) {
    Bits value;
    std::memcpy(&value, x + i * static_cast<int64_t>(sizeof(Bits)), sizeof value);
    if ((value & kMagnitude) >= limit) return i;
  }
  return -1;
}

int64_t FirstAtLeast32(const void* x, int32_t limit, int64_t n) {
  return FirstAtLeast(static_cast<const uint8_t*>(x), limit, n);
}
int64_t FirstAtLeast16(const void* x, int16_t limit, int64_t n) {
  return FirstAtLeast(static_cast<const uint8_t*>(x), limit, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

int64_t FirstNotFinite(const void* x, DType dtype, int64_t n, Target target) {
  switch (dtype) {
    case DType::kF32: return AQT_HWY_DISPATCH(target, FirstAtLeast32)(x, 0x7f800000, n);
    case DType::kBF16: return AQT_HWY_DISPATCH(target, FirstAtLeast16)(x, 0x7f80, n);
    case DType::kF16: return AQT_HWY_DISPATCH(target, FirstAtLeast16)(x, 0x7c00, n);
    default: AQT_CHECK(false);
  }
}

int64_t FirstNotFiniteIn(DType dtype, const float* x, int64_t n, Target target) {
  AQT_DCHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16);
  // The smallest magnitudes that are rounded to infinity: halfway behind the largest finite value.
  const int32_t limit = dtype == DType::kF16    ? 0x477ff000   // 65520
                        : dtype == DType::kBF16 ? 0x7f7f8000   // 0x1.ffp127
                                                : 0x7f800000;  // infinity
  return AQT_HWY_DISPATCH(target, FirstAtLeast32)(x, limit, n);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
