#include "aqt/kernels/gemm/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/reference.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t batch, m, n, k;
};

void PrintTo(const Shape& s, std::ostream* os) { *os << s.batch << " x " << s.m << " x " << s.n << " x " << s.k; }

// Sizes around those of tiles (6, 8, 12 rows; 16, 32 columns), groups (2, 4), steps (16, 32, 64 k) and blocks of k
// (256, 512, 768, 1024).
const Shape kShapes[] = {
    {0, 3, 3, 3},     {1, 0, 5, 7},     {1, 5, 0, 7},     {1, 5, 7, 0},       {2, 1, 1, 0},
    {1, 1, 1, 1},     {1, 1, 33, 2},    {1, 2, 16, 3},    {1, 3, 15, 4},      {1, 4, 17, 5},
    {1, 5, 31, 31},   {1, 6, 32, 32},   {1, 7, 33, 33},   {1, 8, 16, 63},     {1, 9, 1, 64},
    {1, 11, 48, 65},  {1, 12, 64, 67},  {1, 13, 37, 127}, {3, 6, 16, 16},     {2, 37, 65, 129},
    {1, 2, 3, 257},   {1, 3, 19, 769},  {1, 7, 40, 1023}, {1, 8, 32, 1024},   {1, 17, 35, 1025},
    {2, 5, 18, 1537}, {1, 1, 7, 2081},  {1, 200, 3, 9},   {1, 193, 17, 1601}, {1, 131, 133, 3001},  // chunks of columns
    {1, 1, 133, 643}, {2, 1, 64, 1100}, {1, 4, 70, 3001}, {1, 30, 40, 1700},  // panels in pairs, and prefetching
    {1, 1, 250, 643}, {1, 1, 226, 129}, {1, 30, 70, 500},  // seven panels of one row, long and short; one block of f32
};

// The rows of the table with these sums and, for floats, these elements.
std::vector<const GemmKernel*> Rows(GemmSums sums, PanelFormat::Element lhs, PanelFormat::Element rhs) {
  std::vector<const GemmKernel*> rows;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->sums != sums) continue;
    if (sums == GemmSums::kF32 && (kernel->lhs.element != lhs || kernel->rhs.element != rhs)) continue;
    rows.push_back(kernel);
  }
  return rows;
}
using Element = PanelFormat::Element;

// A product with both operands packed from dense values.
struct Product {
  Product(const GemmKernel& kernel, const Shape& s, DType dtype, const void* lhs_values, const void* rhs_values)
      : lhs(Packed(kernel.target, kernel.lhs, Operand::Dense(lhs_values, dtype, s.m, s.k, s.batch))),
        rhs(Packed(kernel.target, kernel.rhs, Operand::Dense(rhs_values, dtype, s.n, s.k, s.batch))) {
    problem = GemmProblem::Dense(s.batch, s.m, s.n, s.k, DType::kF32, nullptr);
    panels = {.lhs = lhs.data(),
              .rhs = rhs.data(),
              .lhs_batch_bytes = kernel.lhs.PackedBytes(s.m, s.k),
              .rhs_batch_bytes = kernel.rhs.PackedBytes(s.n, s.k)};
  }
  template <class T>
  std::vector<T> Run(const GemmKernel& kernel, Executor* executor = nullptr) {
    std::vector<T> out(problem.batch * problem.m * problem.n);
    problem.out.data = out.data();
    problem.out.dtype = kDTypeOf<T>;
    RunGemm(kernel, problem, panels, executor);
    return out;
  }

  AlignedBytes lhs, rhs;
  GemmProblem problem;
  GemmPanels panels;
};

// Random values that the rhs of the kernel can represent.
std::vector<int8_t> RandomRhs(const GemmKernel& kernel, int64_t n, uint32_t seed) {
  std::vector<int8_t> values = RandomS8(n, seed);
  if (kernel.rhs.element == Element::kS4) {
    for (int8_t& v : values) v = static_cast<int8_t>(v >> 4);
  }
  return values;
}

class GemmS8Test : public ::testing::TestWithParam<const GemmKernel*> {};

TEST_P(GemmS8Test, SumsAreExact) {
  const GemmKernel& kernel = *GetParam();
  for (const Shape& s : kShapes) {
    const std::vector<int8_t> lhs = RandomS8(s.batch * s.m * s.k, 1), rhs = RandomRhs(kernel, s.batch * s.n * s.k, 2);
    std::vector<int32_t> want(s.batch * s.m * s.n);
    ReferenceGemmS8(s.batch, s.m, s.n, s.k, lhs.data(), rhs.data(), want.data());
    EXPECT_EQ(Product(kernel, s, DType::kS8, lhs.data(), rhs.data()).Run<int32_t>(kernel), want)
        << ::testing::PrintToString(s);
  }
}

TEST_P(GemmS8Test, LargestSumsAreExactAndLargerOnesWrap) {
  const GemmKernel& kernel = *GetParam();
  struct Case {
    int64_t k;
    int8_t lhs, rhs;
    int32_t want;
  };
  for (const Case& c : {Case{kMaxExactK, -128, -128, 2147467264}, Case{kMaxExactK, -128, 127, -2130690176},
                        Case{kMaxExactK, 127, -128, -2130690176}, Case{kMaxExactSymmetricK, 127, 127, 2147479576},
                        Case{kMaxExactSymmetricK, -127, 127, -2147479576},
                        Case{kMaxExactK + 1, -128, -128, std::numeric_limits<int32_t>::min()}}) {
    const Shape s = {1, 2, 2, c.k};
    const bool is_s4 = kernel.rhs.element == Element::kS4;  // the rhs is then -8 or 7
    const int8_t right = is_s4 ? static_cast<int8_t>(c.rhs >> 4) : c.rhs;
    const int32_t want = is_s4 ? static_cast<int32_t>(c.k) * c.lhs * right : c.want;
    const std::vector<int8_t> lhs(2 * c.k, c.lhs), rhs(2 * c.k, right);
    EXPECT_EQ(Product(kernel, s, DType::kS8, lhs.data(), rhs.data()).Run<int32_t>(kernel),
              std::vector<int32_t>(4, want))
        << c.k << " x " << int{c.lhs} << " x " << int{c.rhs};
  }
}

// Requires s.batch * s.m > 5.
void ExpectEpilogues(const GemmKernel& kernel, const Shape& s) {
  const std::vector<int8_t> lhs = RandomS8(s.batch * s.m * s.k, 3), rhs = RandomRhs(kernel, s.batch * s.n * s.k, 4);
  std::vector<int32_t> sums(s.batch * s.m * s.n);
  ReferenceGemmS8(s.batch, s.m, s.n, s.k, lhs.data(), rhs.data(), sums.data());
  std::vector<float> lhs_scale = RandomF32(s.batch * s.m, 5), rhs_scale = RandomF32(s.batch * s.n, 6);
  lhs_scale[3] = 0x1p-140f;  // subnormal products
  lhs_scale[4] = std::nanf("");
  lhs_scale[5] = kInf;
  rhs_scale[7] = 0.0f;
  rhs_scale[8] = 0x1p-125f;
  Product product(kernel, s, DType::kS8, lhs.data(), rhs.data());
  Epilogue& epi = product.problem.epilogue;
  for (int scales = 0; scales < 12; ++scales) {
    epi = Epilogue();
    epi.rhs_first = scales >= 6;
    epi.lhs_scale = scales % 2 == 1 ? lhs_scale.data() : nullptr;
    epi.rhs_scale = scales / 2 % 3 != 0 ? rhs_scale.data() : nullptr;
    if (scales / 2 % 3 == 2) {  // one scale per side, shared by the whole batch
      epi.lhs_stride = 0;
    } else {
      epi.lhs_batch_stride = s.m;
      epi.rhs_batch_stride = s.n;
    }
    for (const bool flush : {false, true}) {
      for (const DType step : {DType::kF32, DType::kBF16, DType::kF16}) {
        epi.subnormals_are_zero = flush;
        epi.sum_dtype = epi.first_dtype = step;
        epi.second_dtype = flush ? step : DType::kF32;
        const std::vector<float> f32 = product.Run<float>(kernel);
        const std::vector<BFloat16> bf16 = product.Run<BFloat16>(kernel);
        const std::vector<Float16> f16 = product.Run<Float16>(kernel);
        const auto same = [&](float got, float want) {
          return std::isnan(want) ? std::isnan(got)
                                  : __builtin_bit_cast(uint32_t, got) == __builtin_bit_cast(uint32_t, want);
        };
        int64_t wrong = 0;
        for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
          const int64_t b = i / (s.m * s.n), m = i / s.n % s.m, n = i % s.n;
          product.problem.out.dtype = DType::kF32;
          wrong += !same(f32[i], ReferenceEpilogue(product.problem, b, m, n, static_cast<float>(sums[i])));
          product.problem.out.dtype = DType::kBF16;
          wrong += !same(ToFloat(bf16[i]), ReferenceEpilogue(product.problem, b, m, n, static_cast<float>(sums[i])));
          product.problem.out.dtype = DType::kF16;
          wrong += !same(ToFloat(f16[i]), ReferenceEpilogue(product.problem, b, m, n, static_cast<float>(sums[i])));
        }
        EXPECT_EQ(wrong, 0) << ::testing::PrintToString(s) << ", scales " << scales << ", flush " << flush << ", step "
                            << step;
      }
    }
  }
}

TEST_P(GemmS8Test, EpilogueRoundsEachStepInOrder) {
  for (const Shape& s : {Shape{2, 19, 50, 1100}, Shape{6, 1, 70, 40}, Shape{6, 1, 101, 1100}, Shape{3, 2, 64, 67},
                         Shape{2, 4, 97, 128}, Shape{1, 8, 40, 33}}) {
    ExpectEpilogues(*GetParam(), s);
  }
}

TEST_P(GemmS8Test, SumsThatF32CannotHoldAreRoundedToNearestEven) {
  const GemmKernel& kernel = *GetParam();
  // Sums 2^24 + {0 .. 3}: equal products, 1024 * 128 * 128 or 16384 * 128 * 8, plus one other product.
  const bool is_s4 = kernel.rhs.element == Element::kS4;
  const Shape s = {1, 1, 32, is_s4 ? 16385 : 1025};
  std::vector<int8_t> lhs(s.k, -128), rhs(s.n * s.k, is_s4 ? -8 : -128);
  lhs.back() = 1;
  for (int64_t n = 0; n < s.n; ++n) rhs[(n + 1) * s.k - 1] = static_cast<int8_t>(n % 4);
  const std::vector<float> out = Product(kernel, s, DType::kS8, lhs.data(), rhs.data()).Run<float>(kernel);
  for (int64_t n = 0; n < s.n; ++n) EXPECT_EQ(out[n], 0x1p24f + (n % 4 == 3 ? 4 : n % 4 == 2 ? 2 : 0)) << n;
}

TEST_P(GemmS8Test, WritesAnyLayoutAndNothingElse) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {2, 12, 34, 70};
  const std::vector<int8_t> lhs = RandomS8(s.batch * s.m * s.k, 7), rhs = RandomRhs(kernel, s.batch * s.n * s.k, 8);
  std::vector<int32_t> sums(s.batch * s.m * s.n);
  ReferenceGemmS8(s.batch, s.m, s.n, s.k, lhs.data(), rhs.data(), sums.data());
  Product product(kernel, s, DType::kS8, lhs.data(), rhs.data());
  struct Layout {
    const char* name;
    AxisGroup batch, rows, cols;
    int64_t start;
  };
  AxisGroup split_rows, split_cols;  // rows 3 x 4, columns 2 x 17, as if other axes were between them
  split_rows.Append(3, 2 * 17 * 4 * 2);
  split_rows.Append(4, 17);
  split_cols.Append(2, 17 * 4);
  split_cols.Append(17, 1);
  const Layout layouts[] = {
      {"gaps between rows", AxisGroup::Of(2, 12 * 41), AxisGroup::Of(12, 41), AxisGroup::Of(34, 1), 0},
      {"transposed", AxisGroup::Of(2, 12 * 34), AxisGroup::Of(12, 1), AxisGroup::Of(34, 12), 0},
      {"backwards", AxisGroup::Of(2, 12 * 34), AxisGroup::Of(12, -34), AxisGroup::Of(34, -1), 12 * 34 - 1},
      {"batch inside", AxisGroup::Of(2, 1), AxisGroup::Of(12, 68), AxisGroup::Of(34, 2), 0},
      {"split axes", AxisGroup::Of(2, 17 * 2 * 4), split_rows, split_cols, 0},
  };
  for (const Layout& layout : layouts) {
    std::vector<float> f32(1024, -1.5f);
    std::vector<int32_t> s32(1024, -77);
    std::vector<float> want_f32 = f32;
    std::vector<int32_t> want_s32 = s32;
    for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
      const int64_t at = layout.start + layout.batch.Offset(i / (s.m * s.n)) + layout.rows.Offset(i / s.n % s.m) +
                         layout.cols.Offset(i % s.n);
      want_f32.at(at) = static_cast<float>(sums[i]);
      want_s32.at(at) = sums[i];
    }
    product.problem.out.batch = layout.batch;
    product.problem.out.rows = layout.rows;
    product.problem.out.cols = layout.cols;
    product.problem.out.data = f32.data() + layout.start;
    product.problem.out.dtype = DType::kF32;
    RunGemm(kernel, product.problem, product.panels, nullptr);
    EXPECT_EQ(f32, want_f32) << layout.name;
    product.problem.out.data = s32.data() + layout.start;
    product.problem.out.dtype = DType::kS32;
    RunGemm(kernel, product.problem, product.panels, nullptr);
    EXPECT_EQ(s32, want_s32) << layout.name;
  }
}

// The matrices of a batch, accumulated in order.
void ExpectAdds(const GemmKernel& kernel, const Shape& s, const std::vector<int8_t>& lhs,
                const std::vector<int8_t>& rhs) {
  const std::vector<float> lhs_scale = RandomF32(s.batch * s.m, 55), rhs_scale = RandomF32(s.n, 56);
  Product product(kernel, s, DType::kS8, lhs.data(), rhs.data());
  Epilogue& epi = product.problem.epilogue;
  epi.lhs_scale = lhs_scale.data();
  epi.lhs_batch_stride = s.m;
  epi.rhs_scale = rhs_scale.data();
  const std::vector<float> parts = product.Run<float>(kernel);
  std::vector<float> want(s.m * s.n, 0x1p-120f);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.m * s.n; ++i) want[i] += parts[b * s.m * s.n + i];
  }
  epi.adds = true;
  product.problem.out.batch = AxisGroup::Of(s.batch, 0);
  product.problem.out.dtype = DType::kF32;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<float> sums(s.m * s.n, 0x1p-120f);
    product.problem.out.data = sums.data();
    RunGemm(kernel, product.problem, product.panels, &pool);
    EXPECT_EQ(sums, want) << threads << " threads, " << ::testing::PrintToString(s);
    // The same with columns that are not contiguous.
    std::vector<float> transposed(s.m * s.n, 0x1p-120f);
    product.problem.out.data = transposed.data();
    product.problem.out.rows = AxisGroup::Of(s.m, 1);
    product.problem.out.cols = AxisGroup::Of(s.n, s.m);
    RunGemm(kernel, product.problem, product.panels, &pool);
    for (int64_t i = 0; i < s.m * s.n; ++i) ASSERT_EQ(transposed[i % s.n * s.m + i / s.n], want[i]) << i;
    product.problem.out.rows = AxisGroup::Of(s.m, s.n);
    product.problem.out.cols = AxisGroup::Of(s.n, 1);
  }
}

TEST_P(GemmS8Test, AddsTheMatricesOfABatch) {
  const GemmKernel& kernel = *GetParam();
  for (const Shape& s : {Shape{3, 1, 70, 40}, Shape{2, 3, 64, 131}, Shape{4, 7, 97, 64}, Shape{2, 8, 64, 32},
                         Shape{2, 12, 33, 40}, Shape{2, 37, 65, 129}, Shape{5, 64, 600, 128}}) {
    ExpectAdds(kernel, s, RandomS8(s.batch * s.m * s.k, 57), RandomRhs(kernel, s.batch * s.n * s.k, 58));
  }
}

// A subnormal sum becomes a zero on request, in a single column and in whole panels.
TEST_P(GemmS8Test, AddsAndFlushes) {
  const GemmKernel& kernel = *GetParam();
  const float scale = -0x1.8p-126f;
  for (const int64_t n : {1, 64}) {
    const std::vector<int8_t> ones(n, 1);
    Product product(kernel, {1, 1, n, 1}, DType::kS8, ones.data(), ones.data());
    product.problem.out.dtype = DType::kF32;
    for (const bool flushes : {false, true}) {
      product.problem.epilogue = {.lhs_scale = &scale, .subnormals_are_zero = flushes, .adds = true};
      std::vector<float> sums(n, 0x1p-126f);
      product.problem.out.data = sums.data();
      RunGemm(kernel, product.problem, product.panels, nullptr);
      EXPECT_EQ(sums, std::vector<float>(n, flushes ? 0.0f : -0x1p-127f));
    }
  }
}

TEST_P(GemmS8Test, OneMatrixForAllOfTheBatch) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {3, 7, 20, 40};
  const std::vector<int8_t> lhs = RandomS8(s.batch * s.m * s.k, 9), rhs = RandomRhs(kernel, s.n * s.k, 10);
  std::vector<int8_t> repeated;
  for (int b = 0; b < 3; ++b) repeated.insert(repeated.end(), rhs.begin(), rhs.end());
  Product product(kernel, s, DType::kS8, lhs.data(), repeated.data());
  const std::vector<int32_t> want = product.Run<int32_t>(kernel);
  product.panels.rhs_batch_bytes = 0;
  EXPECT_EQ(product.Run<int32_t>(kernel), want);
}

TEST_P(GemmS8Test, EqualForAnyNumberOfThreads) {
  const GemmKernel& kernel = *GetParam();
  for (const Shape& s :
       {Shape{1, 131, 133, 129}, Shape{1, 1, 2100, 1030}, Shape{5, 33, 65, 257}, Shape{1, 2100, 1, 1030}}) {
    const std::vector<int8_t> lhs = RandomS8(s.batch * s.m * s.k, 11), rhs = RandomRhs(kernel, s.batch * s.n * s.k, 12);
    const std::vector<float> scale = RandomF32(2100, 13);
    Product product(kernel, s, DType::kS8, lhs.data(), rhs.data());
    product.problem.epilogue.lhs_scale = product.problem.epilogue.rhs_scale = scale.data();
    const std::vector<float> want = product.Run<float>(kernel);
    for (int threads : {1, 2, 7}) {
      ThreadPool pool(threads);
      EXPECT_EQ(product.Run<float>(kernel, &pool), want) << threads << " threads, " << ::testing::PrintToString(s);
    }
  }
}

std::string KernelName(const ::testing::TestParamInfo<const GemmKernel*>& info) { return info.param->name; }

INSTANTIATE_TEST_SUITE_P(All, GemmS8Test, ::testing::ValuesIn(Rows(GemmSums::kS32, {}, {})), KernelName);

TEST(GemmTableTest, EachTargetHasItsKernels) {
  const auto name = [](Target target, const GemmTypes& types, int64_t rows) -> std::string {
    const GemmKernel& kernel = ChooseGemm(types, target, rows);
    EXPECT_TRUE(target.Includes(kernel.target)) << kernel.name;
    return kernel.name;
  };
  const GemmTypes s8 = {}, f32 = {GemmSums::kF32, Element::kF32, Element::kF32};
  const GemmTypes bf16 = {GemmSums::kF32, Element::kBF16, Element::kBF16};
  GemmTypes weights = {GemmSums::kF32, Element::kF32, Element::kS8, /*rhs_is_packed_ahead=*/true};
  const GemmTypes s4 = {GemmSums::kS32, Element::kS8, Element::kS4};
  GemmTypes s4_ahead = s4;
  s4_ahead.rhs_is_packed_ahead = true;
  struct Case {
    Target target;
    std::string s8_row, s8, bf16, f32;
  };
  const Case cases[] = {
      {Target::kScalar, "emulated_s8_avx2", "emulated_s8_avx2", "f32_scalar", "f32_scalar"},
      {Target::kSse4, "s8_sse4", "s8_sse4", "f32_scalar", "f32_scalar"},
      {Target::kAvx2, "s8_avx2", "s8_avx2", "f32_avx2", "f32_avx2"},
      {Target::kAvxVnni, "s8_avx_vnni", "s8_avx_vnni", "f32_avx2", "f32_avx2"},
      {Target::kAvx512, "s8_avx512", "s8_avx512", "f32_avx512", "f32_avx512"},
      {Target::kAvx512Vnni, "s8_avx512_vnni", "s8_avx512_vnni", "f32_avx512", "f32_avx512"},
      {Target::kAvx512Bf16, "s8_avx512_vnni", "s8_avx512_vnni", "bf16_avx512_bf16", "f32_avx512"},
      {Target::kAmx, "s8_avx512_vnni", "s8_amx", "bf16_amx", "f32_avx512"},
      {Target::kAmx.Without(Capability::kAmxInt8), "s8_avx512_vnni", "s8_avx512_vnni", "bf16_amx", "f32_avx512"},
  };
  for (const Case& c : cases) {
    if (!IsSupported(c.target)) continue;
    EXPECT_EQ(name(c.target, s8, 1), c.s8_row);
    EXPECT_EQ(name(c.target, s8, 3), c.s8);
    EXPECT_EQ(name(c.target, s8, 4096), c.s8);
    for (const int64_t rows : {1, 4096}) {
      EXPECT_EQ(name(c.target, bf16, rows), c.bf16);
      EXPECT_EQ(name(c.target, f32, rows), c.f32);
      EXPECT_EQ(name(c.target, weights, rows), "f32xs8" + c.f32.substr(3));
    }
    // 4 bits are kept where that pays off: if the rhs is packed ahead.
    if (c.target != Target::kScalar) {
      EXPECT_EQ(name(c.target, s4, 1), c.s8_row);
      EXPECT_EQ(name(c.target, s4_ahead, 1), "s8xs4" + c.s8_row.substr(2));
      EXPECT_EQ(name(c.target, s4_ahead, 4096), "s8xs4" + c.s8.substr(2));
    }
    // The panels of an rhs work for any number of rows.
    for (const GemmTypes& types : {s8, s4_ahead}) {
      for (int64_t rows = 1; rows < 100; ++rows) {
        EXPECT_EQ(ChooseGemm(types, c.target, rows).rhs, ChooseGemm(types, c.target, 1).rhs) << c.target << " " << rows;
      }
    }
  }
}

// Testing the emulated tiles is pointless unless their formats are those of the SIMD tiles.
TEST(GemmTableTest, EmulatedTilesHaveTheGeometryOfTheRealOnes) {
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->emulated || kernel->lhs.element == Element::kF32) continue;
    const GemmKernel* twin = nullptr;
    for (const GemmKernel* other : AllGemmKernels()) {
      if (other->name == absl::StrCat("emulated_", kernel->name)) twin = other;
    }
    ASSERT_NE(twin, nullptr) << kernel->name;
    EXPECT_TRUE(twin->emulated);
    EXPECT_EQ(twin->lhs, kernel->lhs);
    EXPECT_EQ(twin->rhs, kernel->rhs);
    EXPECT_EQ(twin->sums, kernel->sums);
  }
}

// More rows than fit L2 with this k are summed in chunks of columns, one block of k at a time. A few rows are not.
TEST(GemmTableTest, ChunksOfColumnsChangeNothing) {
  const Shape all = {1, 131, 133, 3001}, few = {1, 7, 133, 3001};
  const std::vector<float> lhs = RandomF32(all.m * all.k, 51), rhs = RandomF32(all.n * all.k, 52);
  const std::vector<int8_t> lhs_s8 = RandomS8(all.m * all.k, 53);
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (kernel->emulated) continue;
    SCOPED_TRACE(kernel->name);
    const bool integers = kernel->sums == GemmSums::kS32, bf16 = kernel->lhs.element == Element::kBF16;
    const std::vector<int8_t> rhs_s8 = RandomRhs(*kernel, all.n * all.k, 54);
    const auto run = [&](const Shape& s) {
      if (integers || bf16) return Product(*kernel, s, DType::kS8, lhs_s8.data(), rhs_s8.data()).Run<float>(*kernel);
      if (kernel->rhs.element != Element::kF32) return std::vector<float>(s.m * s.n);
      return Product(*kernel, s, DType::kF32, lhs.data(), rhs.data()).Run<float>(*kernel);
    };
    std::vector<float> sums = run(all);
    sums.resize(few.m * few.n);
    EXPECT_EQ(sums, run(few));
  }
}

TEST(GemmTableTest, BlocksAreWholePanels) {
  for (const GemmKernel* kernel : AllGemmKernels()) {
    EXPECT_EQ(kernel->block_rows % kernel->lhs.width, 0) << kernel->name;
    EXPECT_GT(kernel->products_per_cycle, 0) << kernel->name;
  }
}

class GemmF32Test : public ::testing::TestWithParam<const GemmKernel*> {};

TEST_P(GemmF32Test, ErrorsStayBelowTheBound) {
  const GemmKernel& kernel = *GetParam();
  for (const Shape& s : kShapes) {
    const std::vector<float> lhs = RandomF32(s.batch * s.m * s.k, 21), rhs = RandomF32(s.batch * s.n * s.k, 22);
    std::vector<double> want(s.batch * s.m * s.n), magnitude(want.size());
    ReferenceGemmF32(s.batch, s.m, s.n, s.k, lhs.data(), rhs.data(), want.data(), magnitude.data());
    const std::vector<float> got = Product(kernel, s, DType::kF32, lhs.data(), rhs.data()).Run<float>(kernel);
    // At most k + 1 roundings, by table.h, each with a relative error of at most 2^-24.
    const double steps = static_cast<double>(s.k + 1) * 0x1p-24, bound = steps / (1 - steps);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::fabs(got[i] - want[i]), bound * magnitude[i]) << ::testing::PrintToString(s) << ", element " << i;
    }
  }
}

// An output element depends only on its row and column.
TEST_P(GemmF32Test, BitsDoNotDependOnTheRestOfTheMatrixOrOnThreads) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {3, 67, 101, 1300};
  const std::vector<float> lhs = RandomF32(s.batch * s.m * s.k, 23), rhs = RandomF32(s.batch * s.n * s.k, 24);
  Product all(kernel, s, DType::kF32, lhs.data(), rhs.data());
  const std::vector<float> want = all.Run<float>(kernel);
  for (int threads : {2, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(all.Run<float>(kernel, &pool), want) << threads;
  }
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t m : {0, 1, 11, 66}) {
      for (int64_t n : {0, 16, 31, 100}) {
        const float* row = lhs.data() + (b * s.m + m) * s.k;
        const float* col = rhs.data() + (b * s.n + n) * s.k;
        const float alone = Product(kernel, {1, 1, 1, s.k}, DType::kF32, row, col).Run<float>(kernel)[0];
        EXPECT_EQ(alone, want[(b * s.m + m) * s.n + n]) << b << " " << m << " " << n;
      }
    }
  }
}

TEST_P(GemmF32Test, SumsAreStepsInTheOrderOfK) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {1, 3, 5, 700};
  const std::vector<float> lhs = RandomF32(s.m * s.k, 25), rhs = RandomF32(s.n * s.k, 26);
  const std::vector<float> got = Product(kernel, s, DType::kF32, lhs.data(), rhs.data()).Run<float>(kernel);
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const float a = lhs[i / s.n * s.k + k], b = rhs[i % s.n * s.k + k];
      if (kernel.target == Target::kScalar) {
        volatile float product = a * b;  // two roundings, whatever the compiler flags of this file
        sum += product;
      } else {
        sum = std::fma(a, b, sum);
      }
    }
    EXPECT_EQ(got[i], sum) << i;
  }
}

// The row with the arithmetic of `wide` that reads narrower rhs panels.
const GemmKernel* Narrow(const GemmKernel& wide, Element rhs) {
  for (const GemmKernel* kernel : Rows(GemmSums::kF32, Element::kF32, rhs)) {
    if (kernel->target == wide.target) return kernel;
  }
  return nullptr;
}

// An rhs in bf16 or s8 panels gives the bits of f32 panels with the same values.
TEST_P(GemmF32Test, NarrowPanelsGiveTheSameBits) {
  const GemmKernel& wide = *GetParam();
  for (const Shape& s : kShapes) {
    const std::vector<float> lhs = RandomF32(s.batch * s.m * s.k, 31);
    const std::vector<int8_t> integers = RandomS8(s.batch * s.n * s.k, 32);
    std::vector<BFloat16> floats;
    for (const float x : RandomF32(s.batch * s.n * s.k, 33)) floats.push_back(RoundToBFloat16(x));
    const std::vector<float> unread(s.batch * s.n * s.k);
    const auto run = [&](const GemmKernel& kernel, DType dtype, const void* rhs) {
      Product product(wide, s, DType::kF32, lhs.data(), unread.data());
      product.rhs = Packed(kernel.target, kernel.rhs, Operand::Dense(rhs, dtype, s.n, s.k, s.batch));
      product.panels.rhs = product.rhs.data();
      product.panels.rhs_batch_bytes = kernel.rhs.PackedBytes(s.n, s.k);
      return product.Run<float>(kernel);
    };
    const GemmKernel& bf16 = *Narrow(wide, Element::kBF16);
    const GemmKernel& s8 = *Narrow(wide, Element::kS8);
    ASSERT_EQ(bf16.rhs.ElementBits() + s8.rhs.ElementBits(), 24);
    EXPECT_EQ(run(bf16, DType::kBF16, floats.data()), run(wide, DType::kBF16, floats.data()))
        << ::testing::PrintToString(s);
    EXPECT_EQ(run(s8, DType::kS8, integers.data()), run(wide, DType::kS8, integers.data()))
        << ::testing::PrintToString(s);
  }
}

TEST_P(GemmF32Test, NanAndInfinityFollowIeee) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {1, 3, 20, 40};
  std::vector<float> lhs(s.m * s.k, 1.0f), rhs(s.n * s.k, 1.0f);
  lhs[0] = kInf;
  lhs[s.k] = std::nanf("");
  const std::vector<float> out = Product(kernel, s, DType::kF32, lhs.data(), rhs.data()).Run<float>(kernel);
  for (int64_t n = 0; n < s.n; ++n) {
    EXPECT_EQ(out[n], kInf);
    EXPECT_TRUE(std::isnan(out[s.n + n]));
    EXPECT_EQ(out[2 * s.n + n], 40.0f);
  }
}

TEST_P(GemmF32Test, ScalesAndNarrowOutputs) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {1, 13, 33, 20};
  const std::vector<float> lhs = RandomF32(s.m * s.k, 27), rhs = RandomF32(s.n * s.k, 28);
  const std::vector<float> scale = RandomF32(33, 29);
  Product product(kernel, s, DType::kF32, lhs.data(), rhs.data());
  const std::vector<float> sums = product.Run<float>(kernel);
  product.problem.epilogue.rhs_scale = scale.data();
  const std::vector<float> scaled = product.Run<float>(kernel);
  product.problem.epilogue.sum_dtype = product.problem.epilogue.second_dtype = DType::kBF16;
  const std::vector<BFloat16> narrow = product.Run<BFloat16>(kernel);
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    EXPECT_EQ(scaled[i], sums[i] * scale[i % s.n]);
    EXPECT_EQ(narrow[i], RoundToBFloat16(ToFloat(RoundToBFloat16(sums[i])) * scale[i % s.n]));
  }
}

// Sums and products below 2^-126, in registers and in partial tiles.
TEST_P(GemmF32Test, AddsTheMatricesOfABatch) {
  const GemmKernel& kernel = *GetParam();
  for (const Shape& s : {Shape{3, 1, 70, 40}, Shape{2, 37, 65, 129}}) {
    ExpectAdds(kernel, s, RandomS8(s.batch * s.m * s.k, 57), RandomS8(s.batch * s.n * s.k, 58));
  }
}

TEST_P(GemmF32Test, SubnormalsBecomeZerosIfAsked) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {1, 15, 70, 3};
  std::vector<float> lhs(s.m * s.k), rhs = RandomF32(s.n * s.k, 30), lhs_scale(s.m), rhs_scale = RandomF32(s.n, 35);
  for (int64_t i = 0; i < s.m * s.k; ++i) lhs[i] = std::ldexp(1.0f, static_cast<int>(-120 - i / s.k));
  for (int64_t m = 0; m < s.m; ++m) lhs_scale[m] = m % 3 == 0 ? 1.0f : m % 3 == 1 ? 0x1p-8f : 0x1p8f;
  Product product(kernel, s, DType::kF32, lhs.data(), rhs.data());
  const std::vector<float> sums = product.Run<float>(kernel);
  Epilogue& epi = product.problem.epilogue;
  int64_t flushed = 0;
  for (const bool scaled : {false, true}) {
    epi.lhs_scale = scaled ? lhs_scale.data() : nullptr;
    epi.rhs_scale = scaled ? rhs_scale.data() : nullptr;
    for (const bool flush : {false, true}) {
      epi.subnormals_are_zero = flush;
      const std::vector<float> got = product.Run<float>(kernel);
      for (int64_t i = 0; i < s.m * s.n; ++i) {
        const float want = ReferenceEpilogue(product.problem, 0, i / s.n, i % s.n, sums[i]);
        ASSERT_EQ(__builtin_bit_cast(uint32_t, got[i]), __builtin_bit_cast(uint32_t, want)) << i;
        flushed += flush && want == 0;
      }
    }
  }
  EXPECT_GT(flushed, 100);
}

INSTANTIATE_TEST_SUITE_P(All, GemmF32Test, ::testing::ValuesIn(Rows(GemmSums::kF32, Element::kF32, Element::kF32)),
                         KernelName);

// ---- bf16

class GemmBf16Test : public ::testing::TestWithParam<const GemmKernel*> {};

// Values of all magnitudes, with zeros, subnormals and products that underflow.
std::vector<BFloat16> RandomBf16(int64_t n, uint64_t seed) {
  std::vector<BFloat16> values;
  const std::vector<float> x = RandomF32(n, seed), e = RandomF32(n, seed + 1000);
  for (int64_t i = 0; i < n; ++i) {
    const int kind = static_cast<int>(std::fabs(e[i]) * 1e4f) % 16;
    const float scale = kind == 0 ? 0.0f : kind == 1 ? 0x1p-70f : kind == 2 ? 0x1p-130f : kind == 3 ? 0x1p30f : 1.0f;
    values.push_back(RoundToBFloat16(x[i] * scale));
  }
  return values;
}

// The sum of one element as specified in table.h.
float Bf16Sum(const GemmKernel& kernel, const BFloat16* lhs, const BFloat16* rhs, int64_t k) {
  const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  const auto fma = [&](int64_t i, float sum) {
    if (i >= k) return sum;
    return flushed(std::fma(flushed(ToFloat(lhs[i])), flushed(ToFloat(rhs[i])), sum));
  };
  float sum = 0;
  if (kernel.lhs.width == 32) {  // bf16_amx
    for (int64_t first = 0; first < k; first += 32) {
      float even = 0, odd = 0;
      for (int64_t i = first; i < std::min(k, first + 32); i += 2) {
        even = fma(i, even);
        odd = fma(i + 1, odd);
      }
      sum = flushed(sum + flushed(even + odd));
    }
  } else {
    for (int64_t i = 0; i < k; i += 2) sum = fma(i, fma(i + 1, sum));
  }
  return sum;
}

TEST_P(GemmBf16Test, SumsAreTheStepsOfTheTable) {
  const GemmKernel& kernel = *GetParam();
  for (const Shape& s : kShapes) {
    const std::vector<BFloat16> lhs = RandomBf16(s.batch * s.m * s.k, 41), rhs = RandomBf16(s.batch * s.n * s.k, 42);
    Product product(kernel, s, DType::kBF16, lhs.data(), rhs.data());
    const std::vector<float> got = product.Run<float>(kernel);
    ThreadPool pool(3);
    EXPECT_EQ(product.Run<float>(kernel, &pool), got);
    int64_t wrong = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); i += 1 + i % 3) {
      const int64_t row = i / s.n, column = i / (s.m * s.n) * s.n + i % s.n;
      wrong += got[i] != Bf16Sum(kernel, lhs.data() + row * s.k, rhs.data() + column * s.k, s.k);
    }
    EXPECT_EQ(wrong, 0) << ::testing::PrintToString(s);
  }
}

TEST_P(GemmBf16Test, AddsTheMatricesOfABatch) {
  const Shape s = {3, 40, 70, 40};
  ExpectAdds(*GetParam(), s, RandomS8(s.batch * s.m * s.k, 57), RandomS8(s.batch * s.n * s.k, 58));
}

TEST_P(GemmBf16Test, ErrorsStayBelowTheBound) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {1, 33, 40, 1300};
  std::vector<float> lhs = RandomF32(s.m * s.k, 43), rhs = RandomF32(s.n * s.k, 44);
  for (float& x : lhs) x = ToFloat(RoundToBFloat16(x));
  for (float& x : rhs) x = ToFloat(RoundToBFloat16(x));
  std::vector<double> want(s.m * s.n), magnitude(want.size());
  ReferenceGemmF32(1, s.m, s.n, s.k, lhs.data(), rhs.data(), want.data(), magnitude.data());
  std::vector<BFloat16> a, b;
  for (const float x : lhs) a.push_back(RoundToBFloat16(x));
  for (const float x : rhs) b.push_back(RoundToBFloat16(x));
  const std::vector<float> got = Product(kernel, s, DType::kBF16, a.data(), b.data()).Run<float>(kernel);
  const double steps = static_cast<double>(s.k + 2) * 0x1p-24, bound = steps / (1 - steps);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::fabs(got[i] - want[i]), bound * magnitude[i] + s.k * 0x1p-126) << i;
  }
}

TEST_P(GemmBf16Test, NanAndInfinityStayInTheirRows) {
  const GemmKernel& kernel = *GetParam();
  const Shape s = {1, 35, 37, 70};
  std::vector<BFloat16> lhs(s.m * s.k, RoundToBFloat16(1)), rhs(s.n * s.k, RoundToBFloat16(1));
  lhs[0] = RoundToBFloat16(kInf);
  lhs[s.k + 69] = RoundToBFloat16(std::nanf(""));
  const std::vector<float> out = Product(kernel, s, DType::kBF16, lhs.data(), rhs.data()).Run<float>(kernel);
  for (int64_t n = 0; n < s.n; ++n) {
    EXPECT_EQ(out[n], kInf);
    EXPECT_TRUE(std::isnan(out[s.n + n]));
    for (int64_t m = 2; m < s.m; ++m) EXPECT_EQ(out[m * s.n + n], 70.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmBf16Test, ::testing::ValuesIn(Rows(GemmSums::kF32, Element::kBF16, Element::kBF16)),
                         KernelName);

}  // namespace
}  // namespace aqt::kernels
