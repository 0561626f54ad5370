#include "aqt/kernels/panels/pack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/reference.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The formats of all kernels with these sums, each once; for floats, with these elements.
std::vector<PanelFormat> Formats(GemmSums sums, std::initializer_list<PanelFormat::Element> elements) {
  std::vector<PanelFormat> formats;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->sums != sums) continue;
    for (const PanelFormat& format : {kernel->lhs, kernel->rhs}) {
      if (elements.size() > 0 && std::count(elements.begin(), elements.end(), format.element) == 0) continue;
      if (std::count(formats.begin(), formats.end(), format) == 0) formats.push_back(format);
    }
  }
  return formats;
}
using Element = PanelFormat::Element;
std::vector<PanelFormat> IntegerFormats() {
  return Formats(GemmSums::kS32, {Element::kS8, Element::kU8Offset, Element::kS16});
}

// The formats of the float kernels that can represent all values of a dtype.
std::vector<PanelFormat> FormatsFor(DType dtype) {
  switch (NarrowestElement(dtype)) {
    case Element::kS4:
    case Element::kS8: return Formats(GemmSums::kF32, {Element::kF32, Element::kBF16, Element::kS8});
    case Element::kBF16: return Formats(GemmSums::kF32, {Element::kF32, Element::kBF16});
    default: return Formats(GemmSums::kF32, {Element::kF32});
  }
}

std::string Describe(const PanelFormat& f) {
  return "layout " + std::to_string(static_cast<int>(f.layout)) + ", element " +
         std::to_string(static_cast<int>(f.element)) + ", width " + std::to_string(f.width) + ", group " +
         std::to_string(f.k_group);
}

// An operand over `count` elements starting at element `start`.
struct Case {
  std::string name;
  Operand src;  // without data
  int64_t start, count;
};

// [batch, rows, k] in the memory layouts that dot_general operands have.
std::vector<Case> Layouts(int64_t batch, int64_t rows, int64_t k) {
  const int64_t matrix = rows * k, all = batch * matrix;
  std::vector<Case> cases;
  const auto add = [&](const char* name, AxisGroup b, AxisGroup r, AxisGroup i, int64_t start, int64_t count) {
    Case c{std::string(name) + " " + std::to_string(batch) + " x " + std::to_string(rows) + " x " + std::to_string(k),
           {},
           start,
           count};
    c.src.batch = b;
    c.src.rows = r;
    c.src.k = i;
    cases.push_back(c);
  };
  const auto of = AxisGroup::Of;
  add("dense", of(batch, matrix), of(rows, k), of(k, 1), 0, all);
  add("transposed", of(batch, matrix), of(rows, 1), of(k, rows), 0, all);
  add("unaligned with gaps", of(batch, rows * (k + 3)), of(rows, k + 3), of(k, 1), 1, batch * rows * (k + 3) + 1);
  add("backwards", of(batch, matrix), of(rows, -k), of(k, -1), matrix - 1, all);
  add("backwards transposed", of(batch, matrix), of(rows, -1), of(k, -rows), matrix - 1, all);
  add("batch inside", of(batch, 1), of(rows, k * batch), of(k, batch), 0, all);
  if (rows % 3 == 0 && k % 2 == 0 && rows > 0 && k > 0) {
    // Memory order k2, r3, k, r with batch outermost: both groups are split.
    AxisGroup r, i;
    r.Append(3, matrix / 6);
    r.Append(rows / 3, 1);
    i.Append(2, matrix / 2);
    i.Append(k / 2, rows / 3);
    add("split axes, rows inside", of(batch, matrix), r, i, 0, all);
    AxisGroup r2, i2;
    r2.Append(3, matrix / 6);
    r2.Append(rows / 3, k / 2);
    i2.Append(2, matrix / 2);
    i2.Append(k / 2, 1);
    add("split axes, k inside", of(batch, matrix), r2, i2, 0, all);
  }
  return cases;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const auto& [batch, rows, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                          {1, 0, 5},
                                                                          {1, 5, 0},
                                                                          {0, 2, 2},
                                                                          {2, 6, 32},
                                                                          {1, 7, 33},
                                                                          {3, 9, 34},
                                                                          {1, 16, 64},
                                                                          {1, 15, 65},
                                                                          {1, 33, 31},
                                                                          {1, 3, 600},
                                                                          {2, 66, 130},
                                                                          {1, 129, 19},
                                                                          {1, 1, 1100}}) {
    for (Case& c : Layouts(batch, rows, k)) cases.push_back(std::move(c));
  }
  return cases;
}

template <class T>
T Narrow(float x) {
  return RoundTo<T>(x);
}

template <class T>
std::vector<T> Values(int64_t count, uint32_t seed) {
  std::vector<float> f = RandomF32(count, seed);
  // Includes ties, zeros, and large and small magnitudes.
  for (int64_t i = 0; i < count; ++i) {
    if (i % 7 == 3) f[i] = std::round(f[i] * 255) / 255.0f;
    if (i % 31 == 5) f[i] = i % 2 == 0 ? 0.0f : -0.0f;
    if (i % 97 == 11) f[i] *= 0x1p-130f;
  }
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = Narrow<T>(f[i]);
  return values;
}

bool SameBits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || __builtin_bit_cast(uint32_t, a) == __builtin_bit_cast(uint32_t, b);
}

// Compares a packed operand and its correction with dense values q[B, rows, k].
template <class T>
void ExpectPanels(const PanelFormat& format, const AlignedBytes& panels, const Case& c, const std::vector<T>& q) {
  const int64_t batch = c.src.batch.Count(), rows = c.src.rows.Count(), k = c.src.k.Count();
  for (int64_t b = 0; b < batch; ++b) {
    const char* matrix = panels.data() + b * format.PackedBytes(rows, k);
    for (int64_t r = 0; r < format.NumPanels(rows) * format.width; ++r) {
      int64_t sum = 0;
      for (int64_t i = 0; i < format.NumGroups(k) * format.k_group; ++i) {
        const T want = r < rows && i < k ? q[(b * rows + r) * k + i] : T{0};
        ASSERT_EQ(ReferenceUnpack(format, matrix, k, r, i), want)
            << c.name << ", " << Describe(format) << ", matrix " << b << ", row " << r << ", k " << i;
        sum += static_cast<int64_t>(want);
      }
      if (!format.has_correction) continue;
      const int32_t* correction = reinterpret_cast<const int32_t*>(matrix + r / format.width * format.PanelBytes(k));
      ASSERT_EQ(correction[r % format.width], -128 * sum) << c.name << ", row " << r;
    }
  }
}

class PackTest : public ::testing::TestWithParam<Target> {};

TEST_P(PackTest, PutsS8IntoPlace) {
  for (const Case& c : AllCases()) {
    const std::vector<int8_t> values = RandomS8(c.count + 1, 1);
    Operand src = c.src;
    src.data = values.data() + c.start;
    src.dtype = DType::kS8;
    std::vector<int8_t> q;
    for (int64_t b = 0; b < src.batch.Count(); ++b)
      for (int64_t r = 0; r < src.rows.Count(); ++r)
        for (int64_t i = 0; i < src.k.Count(); ++i) q.push_back(static_cast<int8_t>(ReferenceLoad(src, b, r, i)));
    for (const PanelFormat& format : IntegerFormats()) {
      ExpectPanels(format, Packed(GetParam(), format, src), c, q);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PackTest, IntegersOfFourBits) {
  const std::vector<PanelFormat> formats = Formats(GemmSums::kS32, {Element::kS4});
  ASSERT_FALSE(formats.empty());
  std::vector<int8_t> values = RandomS8(5000, 14);
  for (int8_t& v : values) v = static_cast<int8_t>(v >> 4);
  for (const Case& c : AllCases()) {
    if (c.count >= static_cast<int64_t>(values.size())) continue;
    Operand src = c.src;
    src.data = values.data() + c.start;
    src.dtype = DType::kS4;
    std::vector<int8_t> q;
    for (int64_t b = 0; b < src.batch.Count(); ++b)
      for (int64_t r = 0; r < src.rows.Count(); ++r)
        for (int64_t i = 0; i < src.k.Count(); ++i) q.push_back(static_cast<int8_t>(ReferenceLoad(src, b, r, i)));
    for (const PanelFormat& format : formats) {
      ExpectPanels(format, Packed(GetParam(), format, src), c, q);
      if (HasFatalFailure()) return;
      EXPECT_TRUE(Packed(GetParam(), format, src) == Packed(Target::kScalar, format, src)) << Describe(format);
    }
  }
}

TEST_P(PackTest, StridesMayBeZero) {
  const int64_t rows = 35, k = 70;
  const std::vector<int8_t> row = RandomS8(k, 12), column = RandomS8(rows, 13);
  for (const bool same_rows : {true, false}) {
    Case c{same_rows ? "one row" : "one column", {}, 0, 0};
    c.src.data = same_rows ? row.data() : column.data();
    c.src.dtype = DType::kS8;
    c.src.rows = AxisGroup::Of(rows, same_rows ? 0 : 1);
    c.src.k = AxisGroup::Of(k, same_rows ? 1 : 0);
    std::vector<int8_t> q;
    for (int64_t i = 0; i < rows * k; ++i) q.push_back(same_rows ? row[i % k] : column[i / k]);
    for (const PanelFormat& format : IntegerFormats()) {
      ExpectPanels(format, Packed(GetParam(), format, c.src), c, q);
      if (HasFatalFailure()) return;
    }
  }
}

template <class T>
void ExpectFloatPanels(Target target, const std::vector<T>& values, DType dtype) {
  for (const Case& c : AllCases()) {
    if (c.count >= static_cast<int64_t>(values.size())) continue;
    Operand src = c.src;
    src.data = values.data() + c.start;
    src.dtype = dtype;
    std::vector<float> q;
    for (int64_t b = 0; b < src.batch.Count(); ++b)
      for (int64_t r = 0; r < src.rows.Count(); ++r)
        for (int64_t i = 0; i < src.k.Count(); ++i) q.push_back(ReferenceLoad(src, b, r, i));
    for (const PanelFormat& format : FormatsFor(dtype)) {
      ExpectPanels(format, Packed(target, format, src), c, q);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Only subnormals of f32 and bf16 are flushed, only on request, and at every position.
TEST_P(PackTest, SubnormalsAreZeroWhenAsked) {
  const PanelFormat format = FormatsFor(DType::kF32)[0];
  constexpr int64_t kRows = 37, kK = 61;
  std::vector<float> x(kRows * kK), flushed;
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 3 == 0 ? -1e-39f : i % 3 == 1 ? 0x1p-126f : static_cast<float>(i);
  for (const float v : x) flushed.push_back(std::fabs(v) < 0x1p-126f ? -0.0f : v);
  for (const bool by_k : {true, false}) {
    const auto operand = [&](const std::vector<float>& values) {
      Operand src;
      src.data = values.data();
      src.dtype = DType::kF32;
      src.batch.Append(1, 0);
      src.rows.Append(kRows, by_k ? kK : 1);
      src.k.Append(kK, by_k ? 1 : kRows);
      return src;
    };
    const Operand plain = operand(x), zeros = operand(flushed);
    AlignedBytes got(format.PackedBytes(kRows, kK)), want(format.PackedBytes(kRows, kK)),
        kept(format.PackedBytes(kRows, kK));
    Pack(GetParam(), format, plain, got.data(), nullptr, /*subnormals_are_zero=*/true);
    Pack(GetParam(), format, zeros, want.data(), nullptr);
    Pack(GetParam(), format, plain, kept.data(), nullptr);
    EXPECT_TRUE(got == want) << by_k;
    EXPECT_FALSE(kept == want) << by_k;
  }
  // Subnormals of f16 are normal in f32, and are kept.
  const Float16 half[] = {RoundToFloat16(0x1p-24f)};
  AlignedBytes panels(format.PackedBytes(1, 1));
  Pack(GetParam(), format, Operand::Dense(half, DType::kF16, 1, 1, 1), panels.data(), nullptr, true);
  float first;
  std::memcpy(&first, panels.data(), sizeof first);
  EXPECT_EQ(first, 0x1p-24f);
}

TEST_P(PackTest, ConvertsExactly) {
  constexpr int64_t kCount = 1 << 15;
  ExpectFloatPanels(GetParam(), Values<float>(kCount, 2), DType::kF32);
  ExpectFloatPanels(GetParam(), Values<BFloat16>(kCount, 3), DType::kBF16);
  ExpectFloatPanels(GetParam(), Values<Float16>(kCount, 4), DType::kF16);
  ExpectFloatPanels(GetParam(), Values<Float8E4M3FN>(kCount, 5), DType::kE4M3FN);
  ExpectFloatPanels(GetParam(), Values<Float8E5M2>(kCount, 6), DType::kE5M2);
  ExpectFloatPanels(GetParam(), RandomS8(kCount, 7), DType::kS8);
  ExpectFloatPanels(GetParam(), RandomS8(kCount, 8), DType::kS4);
}

struct Setting {
  const char* name;
  AbsMaxScale rule;
  QuantizeStep step;
};

// Steps for a source of dtype T: scales of its own dtype and of f32, other bounds, both kinds of arithmetic.
std::vector<Setting> Settings(DType dtype) {
  return {
      {"8 bits", {127.5f, dtype}, {DType::kS8, -127, 127, dtype, dtype}},
      {"8 bits, f32 scales", {127.5f, DType::kF32}, {DType::kS8, -127, 127, DType::kF32, DType::kF32}},
      {"4 bits", {7.5f, dtype}, {DType::kS8, -7, 7, dtype, dtype}},
      {"2 bits divided", {1.5f, dtype, true}, {DType::kS8, -1, 1, dtype, dtype}},
      {"8 bits IEEE", {127.0f, dtype, true, false}, {DType::kS8, -127, 127, dtype, dtype, false}},
  };
}

std::vector<Setting> Float8Settings(DType dtype) {
  return {
      {"e4m3fn", {448.0f, dtype}, {.q_dtype = DType::kE4M3FN, .scale_dtype = dtype, .product_dtype = dtype}},
      {"e4m3fn, f32 scales", {448.0f, DType::kF32}, {.q_dtype = DType::kE4M3FN}},
      {"e5m2", {57344.0f, dtype}, {.q_dtype = DType::kE5M2, .scale_dtype = dtype, .product_dtype = dtype}},
      {"e5m2 IEEE",
       {57344.0f, dtype, true, false},
       {.q_dtype = DType::kE5M2, .scale_dtype = dtype, .product_dtype = dtype, .subnormals_are_zero = false}},
  };
}

std::vector<float> ValuesOf(const std::vector<int8_t>& codes, DType dtype) {
  std::vector<float> values;
  for (const int8_t code : codes) {
    const auto bits = static_cast<uint8_t>(code);
    values.push_back(dtype == DType::kE5M2 ? ToFloat(Float8E5M2{bits}) : ToFloat(Float8E4M3FN{bits}));
  }
  return values;
}

template <class T>
void ExpectQuantized(Target target, const Case& c, const std::vector<T>& values, const Setting& setting,
                     QuantizeArgs::Scales scales, const std::vector<PanelFormat>& formats) {
  QuantizeArgs args;
  args.src = c.src;
  args.src.data = values.data() + c.start;
  args.src.dtype = kDTypeOf<T>;
  args.step = setting.step;
  args.scales = scales;
  const int64_t batch = c.src.batch.Count(), rows = c.src.rows.Count(), k = c.src.k.Count();
  std::vector<float> want_scale(batch * rows + 1), scale(want_scale.size());
  if (scales == QuantizeArgs::Scales::kGiven) {
    for (int64_t i = 0; i <= batch * rows; ++i) want_scale[i] = scale[i] = ToFloat(Narrow<T>(0.001f * (i % 13)));
    args.scale_row_stride = 1;
    args.scale_batch_stride = rows;
  }
  std::vector<int8_t> want(batch * rows * k);
  args.scale = want_scale.data();
  ReferenceQuantize(args, setting.rule, want.data());
  for (const PanelFormat& format : formats) {
    const std::string trace = c.name + ", " + setting.name + ", " + Describe(format) + ", scales " +
                              std::to_string(static_cast<int>(scales)) + ", " + std::string(ToString(args.src.dtype));
    AlignedBytes panels(batch * format.PackedBytes(rows, k));
    std::vector<int8_t> qvalues(values.size(), 99);
    args.scale = scale.data();
    args.panels = panels.data();
    args.qvalues = qvalues.data() + c.start;
    QuantizePack(target, format, args, setting.rule, nullptr);
    for (size_t i = 0; i < scale.size(); ++i) {
      ASSERT_TRUE(SameBits(scale[i], want_scale[i]))
          << trace << ": scale " << i << ": " << scale[i] << ", want " << want_scale[i];
    }
    if (IsFloat(args.step.q_dtype)) ExpectPanels(format, panels, c, ValuesOf(want, args.step.q_dtype));
    else ExpectPanels(format, panels, c, want);
    if (::testing::Test::HasFatalFailure()) return;
    int64_t i = 0, others = 0;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < k; ++j)
          ASSERT_EQ(static_cast<int8_t*>(
                        args.qvalues)[args.src.batch.Offset(b) + args.src.rows.Offset(r) + args.src.k.Offset(j)],
                    want[i++])
              << trace;
    for (int8_t q : qvalues) others += q == 99;
    ASSERT_GE(others, static_cast<int64_t>(values.size()) - batch * rows * k) << trace;  // nothing else was written
  }
}

template <class T>
void ExpectAllQuantized(Target target, const std::vector<PanelFormat>& formats, const std::vector<Setting>& settings) {
  int64_t i = 0;
  for (const Case& c : AllCases()) {
    const std::vector<T> values = Values<T>(c.count + 2, 9);
    for (const Setting& setting : settings) {
      // One format and one kind of scales at a time, in rotation: all combinations occur.
      const auto scales = static_cast<QuantizeArgs::Scales>(i / 6 % 3);
      ExpectQuantized(target, c, values, setting, scales, {formats[i++ % formats.size()]});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

template <class T>
void ExpectAllQuantized(Target target) {
  ExpectAllQuantized<T>(target, IntegerFormats(), Settings(kDTypeOf<T>));
}

template <class T>
void ExpectAllQuantizedToFloat8(Target target) {
  ExpectAllQuantized<T>(target, FormatsFor(DType::kE4M3FN), Float8Settings(kDTypeOf<T>));
}

TEST_P(PackTest, QuantizesF32) { ExpectAllQuantized<float>(GetParam()); }
TEST_P(PackTest, QuantizesBF16) { ExpectAllQuantized<BFloat16>(GetParam()); }
TEST_P(PackTest, QuantizesF16) { ExpectAllQuantized<Float16>(GetParam()); }
TEST_P(PackTest, QuantizesF32ToFloat8) { ExpectAllQuantizedToFloat8<float>(GetParam()); }
TEST_P(PackTest, QuantizesBF16ToFloat8) { ExpectAllQuantizedToFloat8<BFloat16>(GetParam()); }
TEST_P(PackTest, QuantizesF16ToFloat8) { ExpectAllQuantizedToFloat8<Float16>(GetParam()); }

// Rows with a special abs-max, in both orientations.
TEST_P(PackTest, SpecialRows) {
  const std::vector<std::vector<float>> rows = {
      {0.0f, -0.0f, 0.0f, 0.0f},  // scale of 1
      {kNan, 1.0f, -1.0f, 0.0f},  // NaN: all qvalues 0
      {kInf, 1.0f, -1.0f, 0.0f},  // infinity becomes 0 * inf = NaN, then 0
      {-kInf, kNan, 1.0f, 2.0f},
      {0x1p-127f, -0x1p-149f, 0.0f, 0x1p-130f},                // all subnormal
      {0x1p-126f, 0x1p-127f, -0x1p-126f, 0.0f},                // the scale is subnormal
      {0x1p-119f, 0x1p-127f, -0x1.8p-120f, 0x1.fffffcp-127f},  // the inverse is so large that subnormals would matter
      {0x1.fffffep127f, -0x1.fffffep127f, 0x1p127f, 1.0f},     // the inverse is nearly subnormal
      {127.5f, 0.5f, 1.5f, -2.5f},                             // ties at a scale of 1; 127.5 is clamped to 127
      {1.0f, -1.0f, 0.5f, 0.25f},
  };
  const int64_t n = static_cast<int64_t>(rows.size()), k = 4;
  std::vector<float> dense, transposed(n * k);
  for (const std::vector<float>& row : rows) dense.insert(dense.end(), row.begin(), row.end());
  for (int64_t i = 0; i < n * k; ++i) transposed[i % k * n + i / k] = dense[i];
  for (const Setting& setting : Settings(DType::kF32)) {
    Case c{"special rows", Operand::Dense(nullptr, DType::kF32, n, k), 0, n * k};
    ExpectQuantized(GetParam(), c, dense, setting, QuantizeArgs::Scales::kPerRow, IntegerFormats());
    c.src = Operand::Transposed(nullptr, DType::kF32, n, k);
    ExpectQuantized(GetParam(), c, transposed, setting, QuantizeArgs::Scales::kPerRow, IntegerFormats());
  }
  // The expected values, by the rules of AQT.
  QuantizeArgs args;
  args.src = Operand::Dense(dense.data(), DType::kF32, n, k);
  std::vector<float> scale(n);
  std::vector<int8_t> q(n * k);
  args.scale = scale.data();
  args.qvalues = q.data();
  QuantizePack(GetParam(), IntegerFormats()[0], args, AbsMaxScale(), nullptr);
  EXPECT_EQ(scale[0], 1.0f / 127.5f);
  EXPECT_TRUE(std::isnan(scale[1]));
  EXPECT_EQ(scale[2], kInf);
  EXPECT_EQ(scale[4], 1.0f / 127.5f);
  EXPECT_EQ(scale[5], 0.0f);
  EXPECT_EQ(scale[8], 1.0f);
  EXPECT_EQ(std::vector<int8_t>(q.begin(), q.begin() + 6 * k), std::vector<int8_t>(6 * k, 0));
  EXPECT_EQ(std::vector<int8_t>(q.begin() + 8 * k, q.begin() + 9 * k), (std::vector<int8_t>{127, 0, 2, -2}));
  EXPECT_EQ(std::vector<int8_t>(q.begin() + 9 * k, q.end()), (std::vector<int8_t>{127, -127, 64, 32}));
}

TEST_P(PackTest, AbsMaxOfRows) {
  for (const Case& c : AllCases()) {
    std::vector<float> values = Values<float>(c.count + 2, 10);
    if (c.count > 40) values[20] = kNan;
    Operand src = c.src;
    src.data = values.data() + c.start;
    const int64_t rows = src.rows.Count();
    std::vector<float> got(src.batch.Count() * rows, -1.0f);
    AbsMaxRows(GetParam(), src, true, got.data(), nullptr);
    for (int64_t r = 0; r < static_cast<int64_t>(got.size()); ++r) {
      float want = 0;
      for (int64_t i = 0; i < src.k.Count(); ++i) {
        const float x = std::fabs(ReferenceLoad(src, r / rows, r % rows, i));
        want = std::isnan(want) || std::isnan(x) ? kNan : std::max(want, x);
      }
      if (want < 0x1p-126f) want = 0;
      ASSERT_TRUE(SameBits(got[r], want)) << c.name << ", row " << r << ": " << got[r] << ", want " << want;
    }
  }
}

// Compares every byte, on all targets and for several thread counts.
TEST_P(PackTest, EqualBytesForAnyTargetAndNumberOfThreads) {
  const int64_t batch = 3, rows = 150, k = 301;
  const std::vector<float> values = Values<float>(batch * rows * k, 11);
  for (const Operand& src : {Operand::Dense(values.data(), DType::kF32, rows, k, batch),
                             Operand::Transposed(values.data(), DType::kF32, rows, k, batch)}) {
    for (const PanelFormat& format : IntegerFormats()) {
      for (const auto scales : {QuantizeArgs::Scales::kPerRow, QuantizeArgs::Scales::kSingle}) {
        const auto run = [&](Target target, Executor* executor, std::vector<float>& scale) {
          AlignedBytes panels(batch * format.PackedBytes(rows, k));
          QuantizeArgs args;
          args.src = src;
          args.scales = scales;
          args.scale = scale.data();
          args.panels = panels.data();
          QuantizePack(target, format, args, AbsMaxScale(), executor);
          return panels;
        };
        std::vector<float> want_scale(batch * rows), scale(batch * rows);
        const AlignedBytes want = run(Target::kScalar, nullptr, want_scale);
        for (int threads : {1, 2, 7}) {
          ThreadPool pool(threads);
          EXPECT_TRUE(run(GetParam(), &pool, scale) == want) << threads << " threads, " << Describe(format);
          EXPECT_EQ(scale, want_scale);
        }
      }
    }
    for (const PanelFormat& format : FormatsFor(DType::kF32)) {
      ThreadPool pool(2);
      EXPECT_TRUE(Packed(GetParam(), format, src, &pool) == Packed(Target::kScalar, format, src)) << Describe(format);
    }
  }
  const std::vector<Float8E4M3FN> codes = Values<Float8E4M3FN>(batch * rows * k, 12);
  for (const Operand& src : {Operand::Dense(codes.data(), DType::kE4M3FN, rows, k, batch),
                             Operand::Transposed(codes.data(), DType::kE4M3FN, rows, k, batch)}) {
    for (const PanelFormat& format : FormatsFor(DType::kE4M3FN)) {
      ThreadPool pool(2);
      EXPECT_TRUE(Packed(GetParam(), format, src, &pool) == Packed(Target::kScalar, format, src)) << Describe(format);
    }
  }
}

std::string TargetName(const ::testing::TestParamInfo<Target>& info) { return ToString(info.param); }

INSTANTIATE_TEST_SUITE_P(Targets, PackTest, ::testing::ValuesIn(SupportedTargets().begin(), SupportedTargets().end()),
                         TargetName);

TEST(AbsMaxScaleTest, MultipliesOrDividesInTheGivenType) {
  float s[] = {1.0f, 0.0f, 3.0f};
  AbsMaxScale{127.5f, DType::kF32, false}(s, 3);
  EXPECT_EQ(s[0], 1.0f / 127.5f);
  EXPECT_EQ(s[1], 1.0f / 127.5f);
  EXPECT_EQ(s[2], 3.0f * (1.0f / 127.5f));
  float d[] = {3.0f, 7.0f};
  AbsMaxScale{127.5f, DType::kF32, true}(d, 2);
  EXPECT_EQ(d[0], 3.0f / 127.5f);
  EXPECT_EQ(d[1], 7.0f / 127.5f);
  float h[] = {3.0f};
  AbsMaxScale{127.5f, DType::kF16, false}(h, 1);
  EXPECT_EQ(h[0], ToFloat(RoundToFloat16(3.0f * ToFloat(RoundToFloat16(1.0f / 127.5f)))));
  float b[] = {3.0f};
  AbsMaxScale{127.5f, DType::kBF16, false}(b, 1);
  EXPECT_EQ(b[0], ToFloat(RoundToBFloat16(3.0f * (1.0f / 127.5f))));
}

TEST(AxisGroupTest, MergesNeighboursAndWalksTheRest) {
  AxisGroup g;
  g.Append(2, 60);
  g.Append(3, 20);
  EXPECT_EQ(g.rank, 1);
  EXPECT_EQ(g.Count(), 6);
  g.Append(1, 12345);
  g.Append(4, 1);
  EXPECT_EQ(g.rank, 2);
  EXPECT_EQ(g.Count(), 24);
  EXPECT_EQ(g.Offset(23), 103);
  EXPECT_EQ(g.Offset(5), 21);
  EXPECT_EQ(AxisGroup().Count(), 1);
  EXPECT_EQ(AxisGroup().Offset(0), 0);
}

}  // namespace
}  // namespace aqt::kernels
