#include "aqt/quant/numerics/row_ops.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/testing/random.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

// One largest magnitude: a kernel reads dense numbers, a loop those with strides. Both give the same.
TEST(AbsMaxIntoTest, DenseOrNotIsTheSame) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{37, 129}, Shape{0, 4}}) {
      for (const float special : {0.0f, -900.0f, 0x1p-130f, nan}) {
        const bool is_tiny = special == 0x1p-130f;  // counts as zero, but of f16, where it is zero
        const double size = is_tiny ? 0 : 8;
        const Array numbers = ::aqt::testing::RandomArray({DType::kF32, shape}, 5, -size, size);
        std::vector<float> values(numbers.View<float>().begin(), numbers.View<float>().end());
        if (!values.empty()) values.back() = special;
        float want = 0;
        for (float& v : values) {
          v = dtype == DType::kBF16  ? ToFloat(RoundToBFloat16(v))
              : dtype == DType::kF16 ? ToFloat(RoundToFloat16(v))
                                     : v;
          if (std::isnan(v) || std::fabs(v) > want) want = std::fabs(v);
        }
        if (is_tiny) want = 0;
        const Array x = Cast(Array::FromSpan<float>(values, shape), dtype);
        const ArrayRef dense(x);
        const ArrayRef turned(dtype, {shape[1], shape[0]}, Strides{1, shape[1]}, x.data());
        for (const ArrayRef& read : {dense, turned}) {
          float got = -1;
          AbsMaxInto(read, {1, 1}, &got);
          EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << got << ", expected " << want;
        }
      }
    }
  }
}

}  // namespace
}  // namespace aqt::internal
