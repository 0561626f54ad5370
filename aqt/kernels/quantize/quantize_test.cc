#include "aqt/kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/pack_words.h"
#include "aqt/kernels/quantize/quantize_reference.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string Describe(const QuantizeMatrixArgs& args) {
  return testing::PrintToString(args.rule == QuantizeRule::kDivideByScale ? "divide" : "multiply") +
         " flush=" + std::to_string(args.subnormals_are_zero) + " lo=" + std::to_string(args.lo);
}

// Quantizes on all targets and compares with the plain version. Bytes between the results must not change. `twin` is
// the same grid in another form, or null.
void ExpectQuantizedAsReference(QuantizeMatrixArgs args, MatrixLayout q_layout, const ScaleGrid* twin) {
  const Placement p = PlacementOf(q_layout, args.x.rows, args.x.cols);
  args.q_row_stride = p.row_stride;
  args.q_col_stride = p.col_stride;
  std::vector<int8_t> want(p.size + 1, 99), got(p.size + 1);
  args.q = want.data() + p.offset;
  reference::QuantizeMatrix(args);
  for (Target target : SupportedTargets()) {
    std::fill(got.begin(), got.end(), 99);
    args.q = got.data() + p.offset;
    QuantizeMatrix(args, target);
    EXPECT_EQ(got, want) << target << " " << Describe(args);
    if (twin == nullptr) continue;
    QuantizeMatrixArgs other = args;
    other.grid = *twin;
    std::fill(got.begin(), got.end(), 99);
    QuantizeMatrix(other, target);
    EXPECT_EQ(got, want) << target << " " << Describe(args) << " other grid";
  }
}

// Checks both rules, by default with the ranges of 2, 4 and 8 bits.
void ExpectAllRulesAsReference(QuantizeMatrixArgs args, MatrixLayout q_layout,
                               const std::vector<float>& clips = {1, 7, 127}, const ScaleGrid* twin = nullptr) {
  for (float clip : clips) {
    for (bool flush : {false, true}) {
      args.rule = QuantizeRule::kMultiplyByInverse;
      args.subnormals_are_zero = flush;
      args.lo = -clip;
      args.hi = clip;
      QuantizeMatrixArgs multiply = args;
      multiply.grid.zero_point = nullptr;
      ScaleGrid no_zero_point = twin == nullptr ? ScaleGrid() : *twin;
      no_zero_point.zero_point = nullptr;
      ExpectQuantizedAsReference(multiply, q_layout, twin == nullptr ? nullptr : &no_zero_point);
    }
    args.rule = QuantizeRule::kDivideByScale;
    args.subnormals_are_zero = false;
    args.lo = -clip - 1;
    args.hi = clip;
    ExpectQuantizedAsReference(args, q_layout, twin);
  }
}

std::vector<int8_t> Int8s(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int8_t> result(n);
  for (int8_t& q : result) q = static_cast<int8_t>(random());
  return result;
}

template <class T>
class QuantizeTest : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(QuantizeTest, FloatTypes);

TYPED_TEST(QuantizeTest, RowsOfAllLengthsAndStarts) {
  for (int64_t cols = 0; cols <= 70; ++cols) {
    const auto data = TestFloats<TypeParam>(2 * cols + 3, Values::kUsual, static_cast<uint32_t>(cols));
    const auto scales = ScalesOf<TypeParam>(2, Values::kUsual, 1);
    const std::vector<int8_t> zero_points = {3, -120};
    for (int64_t offset : {0, 1, 3}) {
      QuantizeMatrixArgs args;
      args.x = {data.data() + offset, kDTypeOf<TypeParam>, 2, cols, cols, 1};
      args.grid = {scales.data(), zero_points.data(), 1, 0};
      ExpectAllRulesAsReference(args, MatrixLayout::kPaddedRows);
    }
  }
}

TYPED_TEST(QuantizeTest, GridsAndLayouts) {
  const int64_t rows = 19, cols = 75;
  const auto scales = ScalesOf<TypeParam>(rows * cols, Values::kUsual, 2);
  const auto zero_points = Int8s(rows * cols, 3);
  const ScaleGrid grids[] = {
      {scales.data(), zero_points.data(), 0, 0},         // per tensor
      {scales.data(), zero_points.data(), 1, 0},         // per row
      {scales.data(), zero_points.data(), 0, 1},         // per column
      {scales.data(), zero_points.data(), cols, 1},      // per element
      {scales.data(), nullptr, 1, rows},                 // per element, transposed
      {scales.data(), zero_points.data(), 3, 1, 1, 32},  // groups of a row, ragged
      {scales.data(), zero_points.data(), 5, 1, 8, 16},  // blocks
      {scales.data(), nullptr, 1, 0, 4, 1},              // groups of rows
  };
  for (MatrixLayout x_layout : kMatrixLayouts) {
    for (MatrixLayout q_layout :
         {MatrixLayout::kRowMajor, MatrixLayout::kTransposed, MatrixLayout::kScattered, MatrixLayout::kReversed}) {
      for (size_t g = 0; g < std::size(grids); ++g) {
        SCOPED_TRACE(testing::Message() << x_layout << " to " << q_layout << " grid " << g);
        const auto data = TestFloats<TypeParam>(PlacementOf(x_layout, rows, cols).size, Values::kUsual, 4);
        QuantizeMatrixArgs args;
        args.x = MatrixOf(data, x_layout, rows, cols);
        args.grid = grids[g];
        ExpectAllRulesAsReference(args, q_layout);
      }
    }
  }
}

// Rows longer than the buffers of the strided paths.
TYPED_TEST(QuantizeTest, LongStridedRows) {
  const int64_t rows = 3, cols = 1031;
  const auto scales = ScalesOf<TypeParam>(rows * 9, Values::kUsual, 2);
  const auto data = TestFloats<TypeParam>(3 * rows * cols, Values::kUsual, 4);
  for (MatrixLayout x_layout : {MatrixLayout::kRowMajor, MatrixLayout::kTransposed, MatrixLayout::kScattered}) {
    QuantizeMatrixArgs args;
    args.x = MatrixOf(data, x_layout, rows, cols);
    args.grid = {scales.data(), nullptr, 9, 1, 1, 128};
    for (MatrixLayout q_layout : {MatrixLayout::kRowMajor, MatrixLayout::kTransposed, MatrixLayout::kScattered})
      ExpectAllRulesAsReference(args, q_layout);
  }
}

// Every value against scales of every magnitude, including subnormal, infinite and NaN scales.
template <class T>
void CheckValuesAgainstScales(const std::vector<T>& data, const std::vector<float>& scales) {
  for (float scale : scales) {
    SCOPED_TRACE(scale);
    const int8_t zero_point = 5;
    QuantizeMatrixArgs args;
    const int64_t n = static_cast<int64_t>(data.size());
    args.x = {data.data(), kDTypeOf<T>, 1, n, n, 1};
    args.grid = {&scale, &zero_point, 0, 0};
    const std::vector<float> scale_per_element(n, scale);
    const std::vector<int8_t> zero_point_per_element(n, zero_point);
    const ScaleGrid per_element = {scale_per_element.data(), zero_point_per_element.data(), 0, 1};
    ExpectAllRulesAsReference(args, MatrixLayout::kRowMajor, {127}, &per_element);
  }
}

const std::vector<float>& ScalesOfAllMagnitudes() {
  static const auto* const scales = new std::vector<float>{
      0,        1,          0.5f,     1 / 127.5f, 3,        1e-30f,   1e30f, 0x1p-126f, 0x1p-127f,
      0x1p125f, 0x1.8p125f, 0x1p126f, 0x1p127f,   0x1p-14f, 0x1p-24f, 65504, kInfinity, kNaN};
  return *scales;
}

TEST(Quantize, AllBFloat16Codes) { CheckValuesAgainstScales(AllCodes<BFloat16>(), ScalesOfAllMagnitudes()); }
TEST(Quantize, AllFloat16Codes) { CheckValuesAgainstScales(AllCodes<Float16>(), ScalesOfAllMagnitudes()); }
TEST(Quantize, RandomFloat32Codes) {
  CheckValuesAgainstScales(TestFloats<float>(40000, Values::kAnyBits, 6), ScalesOfAllMagnitudes());
}

// The neighbours of every 8-bit tie, which expose double rounding and rounding not to even.
TEST(Quantize, TiesToEven) {
  std::vector<float> x;
  for (int i = -130; i <= 130; ++i) {
    const float tie = static_cast<float>(i) + 0.5f;
    for (float v : {std::nextafterf(tie, -kInfinity), tie, std::nextafterf(tie, kInfinity), static_cast<float>(i)})
      x.push_back(v);
  }
  CheckValuesAgainstScales(x, {1});
}

// Rows of groups, as in weights. Their quotients by the scales are integers, halves and the neighbours of these; some
// rows hold arbitrary values. One scale may have any bits.
template <class T>
struct GroupedRows {
  GroupedRows(int64_t group, int64_t cols, uint32_t seed) : group(group), cols(cols) {
    std::mt19937 random(seed);
    const int64_t groups = (cols + group - 1) / group;
    for (int64_t u = 0; u < kRows * groups; ++u) {
      const float significand = 1 + static_cast<float>(random() % 1024) / 1024;
      scales.push_back(ToFloat(RoundTo<T>(std::ldexp(significand, static_cast<int>(random() % 60) - 30))));
    }
    scales[random() % scales.size()] = ScalesOf<T>(1, Values::kAnyBits, seed)[0];
    const auto any = TestFloats<T>(kRows * cols, Values::kAnyBits, seed);
    for (int64_t i = 0; i < kRows * cols; ++i) {
      const int64_t r = i / cols;
      const float scale = scales[r * groups + i % cols / group];
      float v = static_cast<float>(static_cast<int>(random() % 40) - 20) / 2 * scale;
      const uint32_t next = random() % 4;
      if (next < 2) v = std::nextafterf(v, next == 0 ? kInfinity : -kInfinity);
      x.push_back(r % 3 == 2 && random() % 64 == 0 ? any[i] : RoundTo<T>(v));
    }
  }
  QuantizeMatrixArgs Args() const {
    QuantizeMatrixArgs args;
    args.x = {x.data(), kDTypeOf<T>, kRows, cols, cols, 1};
    args.rule = QuantizeRule::kDivideByScale;
    args.grid = {scales.data(), nullptr, (cols + group - 1) / group, 1, 1, group};
    return args;
  }

  static constexpr int64_t kRows = 9;
  int64_t group, cols;
  std::vector<float> scales;
  std::vector<T> x;
};

TYPED_TEST(QuantizeTest, QuotientsOfGroups) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    constexpr int64_t kGroups[] = {32, 64, 80, 128, 192};
    const GroupedRows<TypeParam> rows(kGroups[seed % 5], 1 + seed * 7 % 400, seed);
    QuantizeMatrixArgs args = rows.Args();
    if (seed % 2 == 0) args.ahead = 3 * rows.cols;
    for (const float clip : {7.0f, 127.0f}) {
      args.lo = -clip - 1;
      args.hi = clip;
      ExpectQuantizedAsReference(args, MatrixLayout::kPaddedRows, nullptr);
    }
  }
}

// All numbers divided by scales with all significands.
TEST(Quantize, AllQuotientsOfBFloat16) {
  const std::vector<BFloat16> x = AllCodes<BFloat16>();
  for (int significand = 128; significand < 256; ++significand) {
    const float scale = static_cast<float>(significand) * 0x1p-10f;
    QuantizeMatrixArgs args;
    args.x = {x.data(), DType::kBF16, 256, 256, 256, 1};
    args.rule = QuantizeRule::kDivideByScale;
    args.grid = {&scale, nullptr, 0, 0};
    args.lo = -128;
    ExpectQuantizedAsReference(args, MatrixLayout::kRowMajor, nullptr);
  }
}

// Scales with more bits than bf16: quotients are midway between k + 1/2 and its neighbours.
TEST(Quantize, TiesOfBFloat16) {
  constexpr int64_t kCols = 64;
  std::vector<BFloat16> x;
  std::vector<float> scales;
  for (int k = 0; k < 127; ++k) {
    const float tie = static_cast<float>(k) + 0.5f, half_ulp = std::ldexp(1.0f, std::ilogb(tie) - 8);
    for (int significand = 128; significand < 256; ++significand) {
      for (const float quotient : {tie - half_ulp, tie + half_ulp}) {
        scales.push_back(static_cast<float>(significand) / quotient);
        x.insert(x.end(), kCols, RoundToBFloat16(static_cast<float>(significand)));
      }
    }
  }
  QuantizeMatrixArgs args;
  args.x = {x.data(), DType::kBF16, static_cast<int64_t>(scales.size()), kCols, kCols, 1};
  args.rule = QuantizeRule::kDivideByScale;
  args.grid = {scales.data(), nullptr, 1, 0};
  args.lo = -128;
  ExpectQuantizedAsReference(args, MatrixLayout::kRowMajor, nullptr);
}

TYPED_TEST(QuantizeTest, NibblesArePackedIntegers) {
  int64_t taken = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    constexpr int64_t kGroups[] = {32, 64, 128, 256};
    const GroupedRows<TypeParam> rows(kGroups[seed % 4], 8 * (1 + seed * 7 % 64), seed);
    QuantizeMatrixArgs args = rows.Args();
    args.lo = -8;
    args.hi = 7;
    if (seed % 2 == 0) args.ahead = 3 * rows.cols;
    std::vector<int8_t> q(rows.x.size());
    args.q = q.data();
    args.q_row_stride = rows.cols;
    reference::QuantizeMatrix(args);
    const int64_t row_words = rows.cols / 8, stride = row_words + 1;
    std::vector<int32_t> want(rows.kRows * stride, 99);
    for (int64_t r = 0; r < rows.kRows; ++r) {
      ASSERT_TRUE(PackWords(&q[r * rows.cols], row_words, 4, &want[r * stride]));
    }
    for (const Target target : SupportedTargets()) {
      std::vector<int32_t> got(want.size(), 99);
      const bool takes = QuantizeToNibbles(args, got.data(), stride, target);
      taken += takes;
      EXPECT_EQ(got, takes ? want : std::vector<int32_t>(want.size(), 99)) << target;
    }
  }
  const bool is_fast = BestTarget().Has(Capability::kAvx512) && !std::is_same_v<TypeParam, Float16>;
  EXPECT_EQ(taken > 0, is_fast);
}

TEST(Quantize, ValuesByHand) {
  const float payload = __builtin_bit_cast(float, 0x7fc12345u), signaling = __builtin_bit_cast(float, 0xffa00001u);
  const std::vector<float> x = {0.5f, 1.5f, 2.5f,      -0.5f,      -1.5f, 127.4f,  127.5f,
                                200,  -200, kInfinity, -kInfinity, kNaN,  payload, signaling};
  const float one = 1, half = 0.5f;
  const int8_t zero_point = -3;
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<int8_t> q(n);
  QuantizeMatrixArgs args;
  args.x = {x.data(), DType::kF32, 1, n, n, 1};
  args.q = q.data();
  for (Target target : SupportedTargets()) {
    args.rule = QuantizeRule::kMultiplyByInverse;
    args.grid = {&one, nullptr, 0, 0};
    args.lo = -127;
    QuantizeMatrix(args, target);
    EXPECT_EQ(q, (std::vector<int8_t>{0, 2, 2, 0, -2, 127, 127, 127, -127, 127, -127, 0, 0, 0})) << target;
    args.rule = QuantizeRule::kDivideByScale;
    args.grid = {&half, &zero_point, 0, 0};
    args.lo = -128;
    QuantizeMatrix(args, target);
    EXPECT_EQ(q, (std::vector<int8_t>{-2, 0, 2, -4, -6, 127, 127, 127, -128, 127, -128, 0, 0, 0})) << target;
  }
}

// Subnormals times a large inverse scale: 2^-127 * 2^127 = 1, or 0 if subnormals are flushed.
TEST(Quantize, SubnormalsCountAsZeroOnRequest) {
  const float x = 0x1p-127f, inv_scale = 0x1p127f;
  const float large = 0x1p127f, subnormal_inv_scale = 0x1p-127f;
  for (Target target : SupportedTargets()) {
    for (bool flush : {false, true}) {
      for (auto [value, inv] : {std::pair{&x, &inv_scale}, {&large, &subnormal_inv_scale}}) {
        int8_t q = 99;
        QuantizeMatrixArgs args;
        args.x = {value, DType::kF32, 1, 1, 1, 1};
        args.grid = {inv, nullptr, 0, 0};
        args.subnormals_are_zero = flush;
        args.q = &q;
        QuantizeMatrix(args, target);
        EXPECT_EQ(q, flush ? 0 : 1) << target;
      }
    }
  }
}

// ---- DequantizeMatrix

template <class T>
void ExpectDequantizedAsReference(DequantizeMatrixArgs args, MatrixLayout x_layout) {
  const Placement p = PlacementOf(x_layout, args.rows, args.cols);
  args.dtype = kDTypeOf<T>;
  args.row_stride = p.row_stride;
  args.col_stride = p.col_stride;
  std::vector<T> want(p.size + 1), got(p.size + 1);
  for (bool flush : {false, true}) {
    args.subnormals_are_zero = flush;
    args.x = want.data() + p.offset;
    reference::DequantizeMatrix(args);
    for (Target target : SupportedTargets()) {
      std::fill(got.begin(), got.end(), T{});
      args.x = got.data() + p.offset;
      DequantizeMatrix(args, target);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(T)), 0) << target << " flush=" << flush;
    }
  }
}

TYPED_TEST(QuantizeTest, DequantizeAllLengths) {
  const auto scales = ScalesOf<TypeParam>(2, Values::kUsual, 1);
  const std::vector<int8_t> zero_points = {3, -120};
  for (int64_t cols = 0; cols <= 70; ++cols) {
    const auto q = Int8s(2 * cols + 1, static_cast<uint32_t>(cols));
    DequantizeMatrixArgs args;
    args.q = q.data() + 1;
    args.rows = 2;
    args.cols = args.q_row_stride = cols;
    args.grid = {scales.data(), zero_points.data(), 1, 0};
    ExpectDequantizedAsReference<TypeParam>(args, MatrixLayout::kPaddedRows);
  }
}

TYPED_TEST(QuantizeTest, DequantizeGridsAndLayouts) {
  const int64_t rows = 19, cols = 75;
  const auto scales = ScalesOf<TypeParam>(rows * cols, Values::kUsual, 2);
  const auto zero_points = Int8s(rows * cols, 3);
  const ScaleGrid grids[] = {
      {scales.data(), zero_points.data(), 0, 0},        {scales.data(), zero_points.data(), 1, 0},
      {scales.data(), zero_points.data(), 0, 1},        {scales.data(), nullptr, cols, 1},
      {scales.data(), zero_points.data(), 3, 1, 1, 32}, {scales.data(), zero_points.data(), 5, 1, 8, 16}};
  for (MatrixLayout q_layout : kMatrixLayouts) {
    for (MatrixLayout x_layout :
         {MatrixLayout::kRowMajor, MatrixLayout::kTransposed, MatrixLayout::kScattered, MatrixLayout::kReversed}) {
      for (size_t g = 0; g < std::size(grids); ++g) {
        SCOPED_TRACE(testing::Message() << q_layout << " to " << x_layout << " grid " << g);
        const Placement p = PlacementOf(q_layout, rows, cols);
        const auto q = Int8s(p.size, 4);
        DequantizeMatrixArgs args = {q.data() + p.offset, rows, cols, p.row_stride, p.col_stride, grids[g]};
        ExpectDequantizedAsReference<TypeParam>(args, x_layout);
      }
    }
  }
}

// All values of q times all scales of a 16-bit type, or random scales.
template <class T>
void CheckDequantizeScales(const std::vector<T>& codes) {
  const int64_t rows = static_cast<int64_t>(codes.size());
  std::vector<float> scales(rows);
  for (int64_t i = 0; i < rows; ++i) scales[i] = ToFloat(codes[i]);
  const std::vector<int8_t> q = {-128, -127, -3, -1, 0, 1, 2, 77, 127};
  for (int8_t zero_point : {0, 1, -128}) {
    const std::vector<int8_t> zero_points(rows, zero_point);
    DequantizeMatrixArgs args;
    args.q = q.data();
    args.rows = rows;
    args.cols = static_cast<int64_t>(q.size());
    args.grid = {scales.data(), zero_points.data(), 1, 0};
    ExpectDequantizedAsReference<T>(args, MatrixLayout::kRowMajor);
    ExpectDequantizedAsReference<T>(args, MatrixLayout::kTransposed);  // one scale per element of the inner loop
  }
}
TEST(Dequantize, AllBFloat16Scales) { CheckDequantizeScales(AllCodes<BFloat16>()); }
TEST(Dequantize, AllFloat16Scales) { CheckDequantizeScales(AllCodes<Float16>()); }
TEST(Dequantize, RandomFloat32Scales) { CheckDequantizeScales(TestFloats<float>(20000, Values::kAnyBits, 8)); }

// |x - dequantized| <= scale / 2 for values that are not clipped.
TEST(Dequantize, RoundTripIsWithinHalfAStep) {
  const auto x = TestFloats<float>(1000, Values::kUsual, 9);
  const float scale = 8 / 127.5f, inv_scale = 1 / scale;
  std::vector<int8_t> q(1000);
  std::vector<float> back(1000);
  QuantizeMatrixArgs args;
  args.x = {x.data(), DType::kF32, 1, 1000, 1000, 1};
  args.grid = {&inv_scale, nullptr, 0, 0};
  args.q = q.data();
  QuantizeMatrix(args);
  DequantizeMatrixArgs dargs = {q.data(), 1, 1000, 1000, 1, {&scale, nullptr, 0, 0}};
  dargs.x = back.data();
  DequantizeMatrix(dargs);
  for (int i = 0; i < 1000; ++i) {
    // Half a step, plus the rounding of x * inv_scale (which is at most 128, so 2^-18) and of the product.
    EXPECT_LE(std::fabs(x[i] - back[i]), scale * (0.5f + 0x1p-16f)) << x[i];
  }
}

}  // namespace
}  // namespace aqt::kernels
