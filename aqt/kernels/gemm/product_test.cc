#include "aqt/kernels/gemm/product.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/machine.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/schedule.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

using Element = PanelFormat::Element;

struct Case {
  int64_t batch, m, n, k;
  bool rhs_in_place = true;  // rows of the rhs have stride 1
  bool lhs_is_packed = false, rhs_is_packed = false;
  bool zeros = true;  // subnormal values count as zeros
  bool adds = false;
  bool has_blocks = false;  // a block epilogue
};

GemmProblem ProblemOf(const Case& c, const GemmKernel& kernel, void* out = nullptr) {
  const DType dtype = kernel.sums == GemmSums::kS32 ? DType::kS32 : DType::kF32;
  GemmProblem problem = GemmProblem::Dense(c.batch, c.m, c.n, c.k, dtype, out);
  problem.epilogue.adds = c.adds;
  problem.subnormals_are_zero = c.zeros;
  return problem;
}

// On a machine with the default caches.
GemmStrategy StrategyOf(const GemmKernel& kernel, const Case& c, int64_t threads) {
  return Choose(kernel, ProblemOf(c, kernel), {}, Machine(), threads).strategy;
}

// Values for a kernel's operand; some floats are subnormal.
std::vector<char> Values(Element element, int64_t n, uint32_t seed) {
  if (element != Element::kF32 && element != Element::kBF16) {
    const std::vector<int8_t> values = RandomS8(n, seed);
    std::vector<char> bytes(values.begin(), values.end());
    if (element == Element::kS4) {
      for (char& v : bytes) v = static_cast<char>(v >> 4);
    }
    return bytes;
  }
  std::vector<float> values = RandomF32(n, seed);
  for (int64_t i = 0; i < n; i += 7) values[i] = i % 2 == 0 ? -1e-40f : 3e-39f;
  std::vector<char> bytes(n * (element == Element::kF32 ? 4 : 2));
  for (int64_t i = 0; i < n; ++i) {
    if (element == Element::kF32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const BFloat16 rounded = RoundToBFloat16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &rounded, 2);
    }
  }
  return bytes;
}

DType DTypeOf(Element element) {
  switch (element) {
    case Element::kF32: return DType::kF32;
    case Element::kBF16: return DType::kBF16;
    case Element::kS4: return DType::kS4;
    default: return DType::kS8;
  }
}

// PackAndMultiply beside RunGemm of what Pack packed.
void Compare(const GemmKernel& kernel, const Case& c, Executor* executor) {
  const DType lhs_dtype = DTypeOf(kernel.lhs.element), rhs_dtype = DTypeOf(kernel.rhs.element);
  const std::vector<char> x = Values(kernel.lhs.element, c.batch * c.m * c.k, 1);
  const std::vector<char> w = Values(kernel.rhs.element, c.batch * c.n * c.k, 2);
  const Operand lhs = Operand::Dense(x.data(), lhs_dtype, c.m, c.k, c.batch);
  const Operand rhs = c.rhs_in_place ? Operand::Transposed(w.data(), rhs_dtype, c.n, c.k, c.batch)
                                     : Operand::Dense(w.data(), rhs_dtype, c.n, c.k, c.batch);
  const PackedOperands panels(kernel, lhs, rhs, c.zeros);
  std::vector<float> expected(c.batch * c.m * c.n, 0.5f), got = expected;
  GemmProblem problem = ProblemOf(c, kernel, expected.data());
  RunGemm(kernel, problem, panels.Panels(kernel, problem), nullptr);

  problem = ProblemOf(c, kernel, got.data());
  if (!c.lhs_is_packed) problem.lhs = lhs;
  if (!c.rhs_is_packed) problem.rhs = rhs;
  FlipBits flip(got.data());
  if (c.has_blocks) {
    problem.epilogue.block = &flip;
    FlipBits::Flip(reinterpret_cast<uint32_t*>(expected.data()), static_cast<int64_t>(expected.size()));
  }
  const ProductBytes bytes = ProductBytesOf(kernel, c.batch, c.m, c.n, c.k);
  AlignedBytes lhs_buffer(c.rhs_is_packed ? panels.lhs.size() : bytes.lhs), rhs_buffer(bytes.rhs);
  PackAndMultiply(
      kernel, problem,
      {.lhs = c.lhs_is_packed ? panels.lhs.data() : nullptr, .rhs = c.rhs_is_packed ? panels.rhs.data() : nullptr},
      {lhs_buffer.data(), rhs_buffer.data()}, executor);
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << absl::StrCat(
      kernel.name, " ", c.batch, " x ", c.m, " x ", c.n, " x ", c.k, c.rhs_in_place ? "" : " transposed",
      c.lhs_is_packed ? ", lhs packed" : "", c.rhs_is_packed ? ", rhs packed" : "", c.zeros ? "" : ", with subnormals",
      c.adds ? ", added" : "", c.has_blocks ? ", block epilogue" : "");
}

TEST(ProductTest, GivesTheBitsOfPackedPanels) {
  ThreadPool two(2), three(3);
  std::mt19937 rng(11);
  const auto any = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); };
  for (const GemmKernel* kernel : AllGemmKernels()) {
    const int cases = kernel->emulated ? 10 : 60;
    const int64_t most = kernel->emulated ? 40 : 220;
    for (int i = 0; i < cases; ++i) {
      Case c = {.batch = any(1, 3),
                .m = i % 4 == 0 ? any(1, 12) : any(1, most),
                .n = any(1, most),
                .k = any(0, most),
                .rhs_in_place = any(0, 1) == 1,
                .lhs_is_packed = any(0, 3) == 0,
                .rhs_is_packed = any(0, 3) == 0,
                .zeros = any(0, 1) == 1,
                .adds = kernel->sums == GemmSums::kF32 && any(0, 3) == 0};
      c.has_blocks = !c.adds && any(0, 1) == 1;
      Compare(*kernel, c, i % 3 == 0 ? nullptr : i % 3 == 1 ? &two : &three);
    }
  }
}

// Products packed one block of k at a time: small ones, and ones with a large rhs.
TEST(ProductTest, GivesTheBitsOfPackedPanelsBlockByBlock) {
  ThreadPool threads(2);
  int kernels = 0;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    if (!CanRunLongK(*kernel) || kernel->emulated || kernel->target == Target::kScalar) continue;
    ++kernels;
    const int64_t n = (int64_t{17} << 20) / kernel->rhs.GroupBytes(1) * kernel->rhs.k_group * kernel->rhs.width / 700;
    const Case small[] = {{1, 130, 256, 200}, {1, 200, 300, 129, false}, {1, 129, 256, 250, true, false, false, false}};
    for (Case c : small) {
      EXPECT_EQ(StrategyOf(*kernel, c, 2), GemmStrategy::kLongK) << kernel->name;
      EXPECT_NE(StrategyOf(*kernel, c, 1), GemmStrategy::kLongK) << kernel->name;
      Compare(*kernel, c, &threads);
      c.has_blocks = true;
      Compare(*kernel, c, &threads);
    }
    Case large = {1, 97, n, 700};
    EXPECT_EQ(StrategyOf(*kernel, large, 1), GemmStrategy::kLongK) << kernel->name;
    Compare(*kernel, large, nullptr);
    Compare(*kernel, large, &threads);
    large.has_blocks = true;
    Compare(*kernel, large, &threads);
  }
  EXPECT_GT(kernels, 0);
}

TEST(ProductTest, BuffersHoldPanels) {
  for (const GemmKernel* kernel : AllGemmKernels()) {
    for (const Case& c : {Case{1, 5, 40, 30}, Case{2, 300, 20, 700}, Case{3, 64, 64, 64}}) {
      const ProductBytes bytes = ProductBytesOf(*kernel, c.batch, c.m, c.n, c.k);
      EXPECT_GE(bytes.lhs, c.batch * kernel->lhs.PackedBytes(c.m, c.k)) << kernel->name;
      EXPECT_EQ(bytes.rhs, c.batch * kernel->rhs.PackedBytes(c.n, c.k)) << kernel->name;
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
