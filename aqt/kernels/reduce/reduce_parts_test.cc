#include "aqt/kernels/reduce/reduce_parts.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

using testing::Random;

// Numbers of several magnitudes, zeros of both signs, and occasionally an infinity or a NaN.
Array Matrix(DType dtype, int64_t rows, int64_t columns, Random& random) {
  std::vector<double> numbers(rows * columns);
  const bool special = random.Below(4) == 0;
  for (double& x : numbers) {
    x = random.Uniform(-1, 1) * (random.Below(2) == 0 ? 1 : 1000);
    if (random.Below(5) == 0) x = random.Below(2) == 0 ? -0.0 : 0.0;
    if (special && random.Below(20) == 0) x = std::numeric_limits<double>::infinity() * (random.Below(3) - 1.0);
  }
  return Cast(Array::FromSpan(absl::MakeConstSpan(numbers), {rows, columns}), dtype);
}

Array Reduced(ReduceKind kind, const Array& x, int64_t axis) {
  ArrayBuilder out(x.dtype(), {x.shape()[1 - axis]});
  Reduce(kind, x, {axis}, out.data());
  return std::move(out).Build();
}

TEST(ReducePartsTest, HasTheBitsOfReduce) {
  Random random(1);
  const int64_t extents[] = {0, 1, 2, 3, 15, 16, 17, 33, 40, 300};
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kS32}) {
    for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax}) {
      for (const int64_t rows : extents) {
        for (const int64_t columns : extents) {
          const Array x = Matrix(dtype, rows, columns, random);
          ArrayBuilder by_row(dtype, {rows}), by_column(dtype, {columns});
          ReduceRows(kind, dtype, x.data(), rows, columns, by_row.data());
          EXPECT_TRUE(SameBits(std::move(by_row).Build(), Reduced(kind, x, 1))) << x.aval() << ToString(kind);

          ArrayBuilder in_parts(dtype, {rows});
          for (int64_t row = 0; row < rows; ++row) {
            double lanes[16];
            StartLanes(kind, dtype, 1, lanes);
            for (int64_t first = 0; first < columns;) {
              const int64_t part = std::min(columns - first, 1 + random.Below(40));
              const char* data = static_cast<const char*>(x.data()) + (row * columns + first) * SizeOf(dtype);
              AddToRow(kind, dtype, data, first, part, lanes);
              first += part;
            }
            FinishLanes(kind, dtype, 1, lanes, static_cast<char*>(in_parts.data()) + row * SizeOf(dtype));
          }
          EXPECT_TRUE(SameBits(std::move(in_parts).Build(), Reduced(kind, x, 1))) << x.aval() << ToString(kind);

          std::vector<double> lanes(LaneBytes(dtype, columns) / sizeof(double) + 1);
          StartLanes(kind, dtype, columns, lanes.data());
          for (int64_t first = 0; first < rows;) {
            const int64_t part = std::min(rows - first, 1 + random.Below(40));
            const char* data = static_cast<const char*>(x.data()) + first * columns * SizeOf(dtype);
            AddToLanes(kind, dtype, data, columns, first, part, columns, lanes.data());
            first += part;
          }
          FinishLanes(kind, dtype, columns, lanes.data(), by_column.data());
          EXPECT_TRUE(SameBits(std::move(by_column).Build(), Reduced(kind, x, 0))) << x.aval() << ToString(kind);
        }
      }
    }
  }
}

TEST(ReducePartsTest, RowsOfOneElementInPlace) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {kNan, 0, -1, 2, -0.0f, kInf, -kInf, kNan, 3, kNan, 0};
  for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax}) {
    const Array array = Array::FromSpan(absl::MakeConstSpan(x), {static_cast<int64_t>(x.size()), 1});
    std::vector<float> in_place = x;
    ReduceRows(kind, DType::kF32, in_place.data(), array.num_elements(), 1, in_place.data());
    EXPECT_TRUE(
        SameBits(Array::FromSpan(absl::MakeConstSpan(in_place), {array.num_elements()}), Reduced(kind, array, 1)))
        << ToString(kind);
  }
}

// +0 is above -0 and a NaN above everything, at any position of the row.
TEST(ReducePartsTest, MaximaOfZerosAndNaN) {
  constexpr int64_t kRows = 4;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t columns : {2, 16, 37, 128}) {
    for (int64_t i = 0; i < columns; ++i) {
      for (const auto& [first, second] :
           {std::pair{-0.0f, 0.0f}, {0.0f, -0.0f}, {-0.0f, -0.0f}, {nan, 5.0f}, {2, nan}}) {
        std::vector<float> x(kRows * columns, -1.0f);
        const int64_t row = i % kRows;
        x[row * columns + i] = first;
        x[row * columns + (i * 7 + 1) % columns] = second;
        const Array array = Array::FromSpan(absl::MakeConstSpan(x), {kRows, columns});
        ArrayBuilder out(DType::kF32, {kRows});
        ReduceRows(ReduceKind::kMax, DType::kF32, x.data(), kRows, columns, out.data());
        EXPECT_TRUE(SameBits(std::move(out).Build(), Reduced(ReduceKind::kMax, array, 1)))
            << first << " and " << second << " of " << columns;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
