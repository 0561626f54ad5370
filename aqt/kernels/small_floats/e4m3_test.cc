#include "aqt/kernels/small_floats/e4m3.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "aqt/kernels/quantize/scale_grid.h"
#include "aqt/kernels/small_floats/e4m3_reference.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Quantizes on all targets and compares with the plain version. Bytes between the results must not change.
void ExpectQuantizedAsReference(QuantizeE4M3Args args, MatrixLayout q_layout) {
  const Placement p = PlacementOf(q_layout, args.x.rows, args.x.cols);
  args.q_row_stride = p.row_stride;
  args.q_col_stride = p.col_stride;
  std::vector<Float8E4M3FN> want(p.size + 1, {99}), got(p.size + 1);
  args.q = want.data() + p.offset;
  reference::QuantizeE4M3(args);
  for (Target target : SupportedTargets()) {
    std::fill(got.begin(), got.end(), Float8E4M3FN{99});
    args.q = got.data() + p.offset;
    QuantizeE4M3(args, target);
    EXPECT_TRUE(got == want) << target;
  }
}

std::vector<Float8E4M3FN> Codes(int64_t n) {
  std::vector<Float8E4M3FN> codes(n);
  for (int64_t i = 0; i < n; ++i) codes[i].bits = static_cast<uint8_t>(i * 37);
  return codes;
}

std::vector<ScaleGrid> Grids(const std::vector<float>& scales, int64_t cols) {
  return {
      {scales.data(), nullptr, 0, 0},         // per tensor
      {scales.data(), nullptr, 1, 0},         // per row
      {scales.data(), nullptr, 0, 1},         // per column
      {scales.data(), nullptr, cols, 1},      // per element
      {scales.data(), nullptr, 3, 1, 1, 32},  // groups of a row, ragged
      {scales.data(), nullptr, 5, 1, 8, 16},  // blocks
  };
}

template <class T>
class E4M3Test : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(E4M3Test, FloatTypes);

TYPED_TEST(E4M3Test, QuantizeRowsOfAllLengthsAndStarts) {
  const auto scales = ScalesOf<TypeParam>(2, Values::kUsual, 1);
  for (int64_t cols = 0; cols <= 70; ++cols) {
    const auto data = TestFloats<TypeParam>(2 * cols + 3, Values::kUsual, static_cast<uint32_t>(cols));
    for (int64_t offset : {0, 1, 3}) {
      QuantizeE4M3Args args;
      args.x = {data.data() + offset, kDTypeOf<TypeParam>, 2, cols, cols, 1};
      args.grid = {scales.data(), nullptr, 1, 0};
      ExpectQuantizedAsReference(args, MatrixLayout::kPaddedRows);
    }
  }
}

TYPED_TEST(E4M3Test, QuantizeGridsAndLayouts) {
  const int64_t rows = 19, cols = 575;  // longer than the buffers of the strided paths
  const auto scales = ScalesOf<TypeParam>(rows * cols, Values::kUsual, 2);
  for (MatrixLayout x_layout : kMatrixLayouts) {
    const auto data = TestFloats<TypeParam>(PlacementOf(x_layout, rows, cols).size, Values::kUsual, 4);
    for (const ScaleGrid& grid : Grids(scales, cols)) {
      QuantizeE4M3Args args;
      args.x = MatrixOf(data, x_layout, rows, cols);
      args.grid = grid;
      for (MatrixLayout q_layout : kMatrixLayouts) {
        SCOPED_TRACE(testing::Message() << x_layout << " to " << q_layout << ", " << grid.col_group);
        ExpectQuantizedAsReference(args, q_layout);
      }
    }
  }
}

// Every value against scales of every magnitude, including subnormal, infinite and NaN scales.
template <class T>
void CheckValuesAgainstScales(const std::vector<T>& data) {
  const int64_t n = static_cast<int64_t>(data.size());
  for (float scale : {0.0f, 1.0f, 0.5f, 1 / 448.0f, 3.0f, 1e-30f, 1e30f, 0x1p-126f, 0x1p-127f, 0x1p127f, 0x1p-14f,
                      0x1p-24f, kInfinity, kNaN}) {
    SCOPED_TRACE(scale);
    QuantizeE4M3Args args;
    args.x = {data.data(), kDTypeOf<T>, 1, n, n, 1};
    args.grid = {&scale, nullptr, 0, 0};
    ExpectQuantizedAsReference(args, MatrixLayout::kRowMajor);
  }
}
TEST(QuantizeE4M3, AllBFloat16Codes) { CheckValuesAgainstScales(AllCodes<BFloat16>()); }
TEST(QuantizeE4M3, AllFloat16Codes) { CheckValuesAgainstScales(AllCodes<Float16>()); }

// All signs and exponents. The mantissas are all ties of e4m3fn, which have at most four bits after the leading one,
// and their neighbours.
TEST(QuantizeE4M3, AllTiesOfFloat32) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x8000u, 0xffffu}) {
      x.push_back(__builtin_bit_cast(float, high << 16 | low));
    }
  }
  CheckValuesAgainstScales(x);
}

TEST(QuantizeE4M3, ValuesByHand) {
  const std::vector<float> x = {
      0,         -0.0f,     1,          -1,        17,        19,      448,      464,
      -464,      kInfinity, -kInfinity, kNaN,      -kNaN,     0x1p-9f, 0x1p-10f, 0x1.000002p-10f,
      0x1.8p-9f, 0x1.fp-7f, 0x1p-6f,    0x1p-149f, -0x1p-149f};
  const std::vector<uint8_t> want = {0,    0,    0x38, 0xb8, 0x58, 0x5a, 0x7e, 0x7e, 0xfe, 0x7e, 0xfe,
                                     0x7f, 0x7f, 1,    0,    1,    2,    8,    8,    0,    0x80};
  const float one = 1;
  const int64_t n = static_cast<int64_t>(x.size());
  for (Target target : SupportedTargets()) {
    std::vector<Float8E4M3FN> q(n);
    QuantizeE4M3({{x.data(), DType::kF32, 1, n, n, 1}, {&one, nullptr, 0, 0}, q.data()}, target);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(q[i].bits, want[i]) << target << " " << x[i];
  }
}

// ---- DequantizeE4M3

template <class T>
void ExpectDequantizedAsReference(DequantizeE4M3Args args, MatrixLayout x_layout) {
  const Placement p = PlacementOf(x_layout, args.rows, args.cols);
  args.dtype = kDTypeOf<T>;
  args.row_stride = p.row_stride;
  args.col_stride = p.col_stride;
  std::vector<T> want(p.size + 1), got(p.size + 1);
  args.x = want.data() + p.offset;
  reference::DequantizeE4M3(args);
  for (Target target : SupportedTargets()) {
    std::fill(got.begin(), got.end(), T{});
    args.x = got.data() + p.offset;
    DequantizeE4M3(args, target);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(T)), 0) << target;
  }
}

TYPED_TEST(E4M3Test, DequantizeRowsOfAllLengths) {
  const auto scales = ScalesOf<TypeParam>(2, Values::kUsual, 1);
  for (int64_t cols = 0; cols <= 70; ++cols) {
    const auto q = Codes(2 * cols + 1);
    DequantizeE4M3Args args = {q.data() + 1, 2, cols, cols, 1, {scales.data(), nullptr, 1, 0}};
    ExpectDequantizedAsReference<TypeParam>(args, MatrixLayout::kPaddedRows);
  }
}

TYPED_TEST(E4M3Test, DequantizeGridsAndLayouts) {
  const int64_t rows = 19, cols = 575;
  const auto scales = ScalesOf<TypeParam>(rows * cols, Values::kUsual, 2);
  for (MatrixLayout q_layout : kMatrixLayouts) {
    const Placement p = PlacementOf(q_layout, rows, cols);
    const auto q = Codes(p.size);
    for (const ScaleGrid& grid : Grids(scales, cols)) {
      for (MatrixLayout x_layout : kMatrixLayouts) {
        SCOPED_TRACE(testing::Message() << q_layout << " to " << x_layout << ", " << grid.col_group);
        ExpectDequantizedAsReference<TypeParam>({q.data() + p.offset, rows, cols, p.row_stride, p.col_stride, grid},
                                                x_layout);
      }
    }
  }
}

// Each scale times a quarter of the codes, which shifts from row to row.
template <class T>
void CheckDequantizeScales(const std::vector<T>& values) {
  const int64_t rows = static_cast<int64_t>(values.size()), cols = 64, step = 65;
  std::vector<float> scales(rows);
  for (int64_t i = 0; i < rows; ++i) scales[i] = ToFloat(values[i]);
  const auto q = Codes(rows * step);
  ExpectDequantizedAsReference<T>({q.data(), rows, cols, step, 1, {scales.data(), nullptr, 1, 0}},
                                  MatrixLayout::kRowMajor);
}
TEST(DequantizeE4M3, AllBFloat16Scales) { CheckDequantizeScales(AllCodes<BFloat16>()); }
TEST(DequantizeE4M3, AllFloat16Scales) { CheckDequantizeScales(AllCodes<Float16>()); }
TEST(DequantizeE4M3, RandomFloat32Scales) { CheckDequantizeScales(TestFloats<float>(5000, Values::kAnyBits, 8)); }

}  // namespace
}  // namespace aqt::kernels
