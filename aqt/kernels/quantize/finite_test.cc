#include "aqt/kernels/quantize/finite.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
class FiniteTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(FiniteTest, FloatTypes);

TYPED_TEST(FiniteTest, TheFirstOfMany) {
  constexpr DType kDType = kDTypeOf<TypeParam>;
  for (const int64_t n : {0, 1, 5, 64, 1023, 1024, 1025, 2500}) {
    // One byte aside from any alignment.
    std::vector<uint8_t> bytes(n * sizeof(TypeParam) + 1);
    const auto set = [&](int64_t i, float value) {
      const TypeParam x = ConvertElement<TypeParam>(value);
      std::memcpy(bytes.data() + 1 + i * sizeof x, &x, sizeof x);
    };
    const float largest = static_cast<float>(MaxFinite(kDTypeOf<TypeParam>));
    for (int64_t i = 0; i < n; ++i) set(i, i % 2 == 0 ? largest : -largest);
    for (const Target target : SupportedTargets()) {
      EXPECT_EQ(FirstNotFinite(bytes.data() + 1, kDType, n, target), -1) << target << " " << n;
      for (const int64_t at : {int64_t{0}, n / 3, n - 2, n - 1}) {
        if (at < 0 || at >= n) continue;
        for (const float bad : {kInf, -kInf, kNan, -kNan}) {
          set(at, bad);
          set(n - 1, bad);
          EXPECT_EQ(FirstNotFinite(bytes.data() + 1, kDType, n, target), at) << target << " " << n << " " << bad;
          EXPECT_EQ(FirstNotFinite(bytes.data() + 1, kDType, at, target), -1) << target << " " << at;
        }
        for (const int64_t i : {at, n - 1}) set(i, largest);
      }
    }
  }
}

TYPED_TEST(FiniteTest, BoundsAreThoseOfRounding) {
  const float largest = static_cast<float>(MaxFinite(kDTypeOf<TypeParam>));
  std::vector<float> values = {0, 1, largest, kInf, kNan};
  // The halfway point, and its neighbours.
  float above = largest;
  for (uint32_t bits = 0; bits < 3 && kDTypeOf<TypeParam> != DType::kF32; ++bits) {
    const uint32_t half = kDTypeOf<TypeParam> == DType::kF16 ? 0x477ff000u : 0x7f7f8000u, x = half - 1 + bits;
    std::memcpy(&above, &x, sizeof above);
    values.push_back(above);
  }
  for (const float value : values) {
    for (const float x : {value, -value}) {
      const bool finite = std::isfinite(ConvertElement<float>(ConvertElement<TypeParam>(x)));
      for (const Target target : SupportedTargets()) {
        EXPECT_EQ(FirstNotFiniteIn(kDTypeOf<TypeParam>, &x, 1, target), finite ? -1 : 0) << target << " " << x;
        const std::vector<float> many(1024, x);
        EXPECT_EQ(FirstNotFiniteIn(kDTypeOf<TypeParam>, many.data(), 1024, target), finite ? -1 : 0) << target;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
