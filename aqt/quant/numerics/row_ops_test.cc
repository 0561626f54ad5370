#include "aqt/quant/numerics/row_ops.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/testing/random.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

// A single largest magnitude: a kernel reads dense numbers, a loop strided ones. Both give the same.
TEST(AbsMaxIntoTest, DenseOrNotIsTheSame) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{37, 129}, Shape{0, 4}}) {
      for (const float special : {0.0f, -900.0f, 0x1p-130f, nan}) {
        const bool is_tiny = special == 0x1p-130f;  // counts as zero; in f16 it is zero
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

// Groups of any axes, with occasional special numbers, checked element by element.
TEST(AbsMaxIntoTest, GroupsOfAnyAxes) {
  ::aqt::testing::Random random(3);
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 0x1p-140f,
                            -0.0f};
  for (int i = 0; i < 600; ++i) {
    const DType dtype = std::array{DType::kF32, DType::kBF16, DType::kF16}[random.Below(3)];
    Shape shape, groups;
    for (int64_t axis = random.Below(4); axis >= 0; --axis) {
      shape.push_back(random.Below(4) == 0 ? random.Below(60) : random.Below(5));
      groups.push_back(random.Below(2) == 0 ? 1 : shape[shape.rank() - 1]);
    }
    std::vector<float> values(shape.num_elements());
    for (float& v : values) {
      v = static_cast<float>(random.Uniform(-8, 8)) * (i % 5 == 0 ? 0x1p-126f : 1);
      if (random.Below(50) == 0) v = specials[random.Below(4)];
    }
    const Array dense = Cast(Array::FromSpan<float>(values, shape), dtype);
    // The same numbers with the axes in the opposite order.
    const ArrayRef plain(dense);
    const Shape turned_shape(std::vector<int64_t>(shape.extents().rbegin(), shape.extents().rend()));
    const ArrayRef turned(dtype, turned_shape, Strides(plain.strides.rbegin(), plain.strides.rend()), plain.data);
    const Shape turned_groups(std::vector<int64_t>(groups.extents().rbegin(), groups.extents().rend()));
    for (const auto& [x, groups_shape] : {std::pair{plain, groups}, {turned, turned_groups}}) {
      std::vector<float> want(groups_shape.num_elements(), 0.0f), got(want.size(), -1.0f);
      ForEachIndex(x.shape, x.strides, BroadcastStrides(groups_shape, DenseStrides(groups_shape), x.shape),
                   [&](int64_t from, int64_t to) {
                     float v;
                     LoadRow(dtype, x.data, from, 0, 1, &v);
                     if (std::isnan(v) || std::fabs(v) > want[to]) want[to] = std::fabs(v);
                   });
      FlushRow(dtype, want.data(), static_cast<int64_t>(want.size()));
      AbsMaxInto(x, groups_shape, got.data());
      for (size_t g = 0; g < want.size(); ++g) {
        ASSERT_TRUE(got[g] == want[g] || (std::isnan(got[g]) && std::isnan(want[g])))
            << got[g] << ", expected " << want[g] << " in " << x.aval() << ", groups " << groups_shape;
      }
    }
  }
}

// Each code of 8-bit floats, contiguous and with strides, gives the bits of the conversion of one element, except for
// the payload of a NaN. 256 + 7 codes are not a multiple of a vector.
TEST(LoadRowTest, EightBitFloatsHaveTheBitsOfOneElement) {
  constexpr int64_t kCodes = 263;
  for (const int64_t stride : {1, 2, -3}) {
    const int64_t first = stride < 0 ? -stride * (kCodes - 1) : 0;
    std::vector<uint8_t> codes(kCodes * 3);
    for (int64_t i = 0; i < kCodes; ++i) codes[first + i * stride] = static_cast<uint8_t>(i);
    for (const DType dtype : {DType::kE4M3FN, DType::kE5M2}) {
      std::vector<float> row(kCodes);
      LoadRow(dtype, codes.data(), first, stride, kCodes, row.data());
      for (int64_t i = 0; i < kCodes; ++i) {
        const uint8_t code = static_cast<uint8_t>(i);
        const float want = dtype == DType::kE5M2 ? ToFloat(Float8E5M2{code}) : ToFloat(Float8E4M3FN{code});
        if (std::isnan(want)) EXPECT_TRUE(std::isnan(row[i])) << ToString(dtype) << " code " << i;
        else EXPECT_EQ(std::bit_cast<uint32_t>(row[i]), std::bit_cast<uint32_t>(want)) << ToString(dtype) << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::internal
