#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "gtest/gtest.h"

TEST(Consumer, Cast) {
  const aqt::Array x = aqt::Array::Of<float>({2.5f, -2.5f}, {2});
  EXPECT_TRUE(BitEqual(aqt::Cast(x, aqt::DType::kS8), aqt::Array::Of<int8_t>({2, -2}, {2})));
}
