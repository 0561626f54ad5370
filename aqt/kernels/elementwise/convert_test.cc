#include "aqt/kernels/elementwise/convert.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

// Every f16 and bf16 number, the f32 numbers around each of them and around each midpoint, and NaNs of several kinds,
// including signaling ones.
std::vector<float> Numbers() {
  std::vector<float> numbers;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    for (const float base :
         {ToFloat(Float16{static_cast<uint16_t>(bits)}), ToFloat(BFloat16{static_cast<uint16_t>(bits)})}) {
      const uint32_t word = __builtin_bit_cast(uint32_t, base);
      for (const uint32_t more : {0u, 1u, ~0u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
        numbers.push_back(__builtin_bit_cast(float, word + more));
      }
    }
  }
  return numbers;
}

template <class From, class To>
void ExpectBitsOfConvertElement(const std::vector<From>& x) {
  std::vector<To> want(x.size()), got(x.size());
  for (size_t i = 0; i < x.size(); ++i) want[i] = ConvertElement<To>(x[i]);
  for (const Target target : SupportedTargets()) {
    // Any length and any address.
    for (const size_t skipped : {0, 1, 5}) {
      const size_t n = x.size() - 2 * skipped;
      got.assign(x.size(), To{});
      Convert(kDTypeOf<From>, x.data() + skipped, kDTypeOf<To>, static_cast<int64_t>(n), got.data() + skipped, target);
      EXPECT_EQ(std::memcmp(got.data() + skipped, want.data() + skipped, n * sizeof(To)), 0)
          << ToString(kDTypeOf<From>) << " to " << ToString(kDTypeOf<To>) << ", " << ToString(target);
    }
  }
}

template <class T>
std::vector<T> All() {
  std::vector<T> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back(T{static_cast<uint16_t>(bits)});
  return all;
}

TEST(Convert, Floats) {
  const std::vector<float> numbers = Numbers();
  ExpectBitsOfConvertElement<float, BFloat16>(numbers);
  ExpectBitsOfConvertElement<float, Float16>(numbers);
  ExpectBitsOfConvertElement<BFloat16, float>(All<BFloat16>());
  ExpectBitsOfConvertElement<BFloat16, Float16>(All<BFloat16>());
  ExpectBitsOfConvertElement<Float16, float>(All<Float16>());
  ExpectBitsOfConvertElement<Float16, BFloat16>(All<Float16>());
}

TEST(Convert, OtherDTypes) {
  const std::vector<float> x = {1.75f, -300, std::numeric_limits<float>::quiet_NaN(), 0, 9e9f, 2, 3, 4, 5, 6, 7, -8};
  ExpectBitsOfConvertElement<float, int8_t>(x);
  ExpectBitsOfConvertElement<float, double>(x);
  ExpectBitsOfConvertElement<float, float>(x);
  ExpectBitsOfConvertElement<float, Float8E4M3FN>(x);
}

}  // namespace
}  // namespace aqt::kernels
