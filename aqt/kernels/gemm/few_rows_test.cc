#include "aqt/kernels/gemm/few_rows.h"

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
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

struct Case {
  int64_t batch, m, n, k;
  bool rhs_in_place;  // rows of the rhs have stride 1
};

// RandomF32 with some zeros and subnormal values.
std::vector<float> Values(int64_t n, uint32_t seed) {
  std::vector<float> values = RandomF32(n, seed);
  for (int64_t i = 0; i < n; i += 7) values[i] = i % 3 == 0 ? -1e-40f : i % 3 == 1 ? -0.0f : 3e-39f;
  return values;
}

bool TakesFewRows(const GemmKernel& kernel, const Operand& lhs, const Operand& rhs) {
  return Choose(kernel, GemmProblem::Of(lhs, rhs, {}), {}, Machine(), /*threads=*/1).strategy == GemmStrategy::kFewRows;
}

// The f32 kernels with FMA on this machine.
std::vector<const GemmKernel*> Kernels() {
  std::vector<const GemmKernel*> kernels;
  for (const GemmKernel* kernel : AllGemmKernels()) {
    const Operand x = Operand::Dense(nullptr, DType::kF32, 1, 1);
    if (TakesFewRows(*kernel, x, x)) kernels.push_back(kernel);
  }
  return kernels;
}

class FewRowsTest : public ::testing::Test {
 protected:
  // Computes the product both ways and compares.
  void Compare(const GemmKernel& kernel, const Case& c, Epilogue epilogue, Executor* executor, bool zeros = true) {
    const std::vector<float> x = Values(c.batch * c.m * c.k, 1), w = Values(c.batch * c.n * c.k, 2);
    const Operand lhs = Operand::Dense(x.data(), DType::kF32, c.m, c.k, c.batch);
    const Operand rhs = c.rhs_in_place ? Operand::Transposed(w.data(), DType::kF32, c.n, c.k, c.batch)
                                       : Operand::Dense(w.data(), DType::kF32, c.n, c.k, c.batch);
    const std::vector<float> row_scale = RandomF32(c.m, 3), col_scale = RandomF32(c.n, 4);
    epilogue.lhs_scale = row_scale.data();
    epilogue.rhs_scale = col_scale.data();
    std::vector<float> expected(c.batch * c.m * c.n, 0.5f), got = expected;
    GemmProblem problem = GemmProblem::Of(lhs, rhs, GemmOutput::Dense(expected.data(), DType::kF32, c.m, c.n, c.batch));
    problem.epilogue = epilogue;
    problem.subnormals_are_zero = zeros;
    if (epilogue.adds) problem.out.batch = AxisGroup::Of(c.batch, 0);

    const PackedOperands panels(kernel, lhs, rhs, zeros);
    RunGemm(kernel, problem, panels.Panels(kernel, problem), nullptr);

    problem.out.data = got.data();
    std::vector<float> lhs_rows(FewRowsFloats(lhs));
    MultiplyFewRows(kernel, problem, lhs_rows.data(), executor);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
        << absl::StrCat(kernel.name, " ", c.batch, " x ", c.m, " x ", c.n, " x ", c.k, c.rhs_in_place ? "" : " packed",
                        zeros ? "" : " with subnormals");
  }
};

TEST_F(FewRowsTest, GivesTheBitsOfPackedPanels) {
  ThreadPool threads(2);
  std::mt19937 rng(5);
  const auto any = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(rng); };
  for (const GemmKernel* kernel : Kernels()) {
    for (int i = 0; i < 100; ++i) {
      const Case c = {any(1, 3), any(1, kMaxFewRows), any(1, 150), any(0, 300), i % 2 == 0};
      const Epilogue epilogue = {
          .rhs_first = any(0, 1) == 1, .subnormals_are_zero = any(0, 1) == 1, .adds = any(0, 3) == 0};
      Compare(*kernel, c, epilogue, i % 3 == 0 ? &threads : nullptr, /*zeros=*/any(0, 1) == 1);
    }
    // Several chunks of columns, and enough work for two threads.
    for (const bool in_place : {true, false}) {
      Compare(*kernel, {1, 5, 2 * kFewRowsChunk + 33, 257, in_place}, {}, &threads);
      Compare(*kernel, {2, 12, kFewRowsChunk + 1, 130, in_place}, {.adds = true}, &threads);
    }
  }
}

TEST_F(FewRowsTest, OthersArePacked) {
  for (const GemmKernel* kernel : AllGemmKernels()) {
    const Operand x = Operand::Dense(nullptr, DType::kF32, kMaxFewRows, 8);
    const Operand many = Operand::Dense(nullptr, DType::kF32, kMaxFewRows + 1, 8);
    const Operand in_place = Operand::Transposed(nullptr, DType::kF32, 8, 8);
    const Operand large = Operand::Dense(nullptr, DType::kF32, kMinPieces / 8, 8);
    const bool fma = std::strncmp(kernel->name, "f32_avx", 7) == 0;
    EXPECT_EQ(TakesFewRows(*kernel, x, in_place), fma) << kernel->name;
    EXPECT_EQ(TakesFewRows(*kernel, x, large), fma) << kernel->name;
    EXPECT_FALSE(TakesFewRows(*kernel, x, x)) << kernel->name;
    EXPECT_FALSE(TakesFewRows(*kernel, many, in_place)) << kernel->name;
    EXPECT_FALSE(TakesFewRows(*kernel, x, Operand::Dense(nullptr, DType::kBF16, 8, 8))) << kernel->name;
  }
}

}  // namespace
}  // namespace aqt::kernels
