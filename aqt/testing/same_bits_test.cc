#include "aqt/testing/same_bits.h"

#include <cmath>
#include <cstdint>

#include <gtest/gtest.h>

#include "aqt/core/array.h"

namespace aqt {
namespace {

TEST(SameBits, TellsZerosApartAndNaNNot) {
  const float nan = std::nanf("");
  const Array x = Array::Of<float>({1, 0, nan}, {3});
  EXPECT_TRUE(SameBits(x, x));
  EXPECT_TRUE(SameBits(x, Array::Of<float>({1, 0, -nan}, {3})));
  EXPECT_FALSE(SameBits(x, Array::Of<float>({1, -0.0f, nan}, {3})));
  EXPECT_FALSE(SameBits(x, Array::Of<float>({1, 0, 2}, {3})));
  EXPECT_FALSE(SameBits(x, Array::Of<float>({1, 0, nan}, {3, 1})));
  EXPECT_FALSE(SameBits(Array::Of<int32_t>({1}, {1}), Array::Of<int32_t>({2}, {1})));
}

}  // namespace
}  // namespace aqt
