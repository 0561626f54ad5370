// Outputs that bypass the caches.

#include <cstdint>
#include <cstring>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kM = 4100, kN = 1040, kK = 8;

// [kM, kN] of f32; memory around the output keeps its bytes.
GemmProblem ProblemFor(char* out) { return GemmProblem::Dense(1, kM, kN, kK, DType::kF32, out); }

TEST(StreamTest, LargeOutputsOfWholeLinesAreStreamed) {
  alignas(64) char out[128];
  GemmProblem problem = ProblemFor(out);
  EXPECT_TRUE(internal::StreamsOutput(problem, 32));
  problem.m = 512;
  EXPECT_FALSE(internal::StreamsOutput(problem, 32));
  problem.batch = 8;
  EXPECT_TRUE(internal::StreamsOutput(problem, 32));
  problem.out.batch = AxisGroup::Of(8, 512 * kN + 1);
  EXPECT_FALSE(internal::StreamsOutput(problem, 32));
  problem = ProblemFor(out);
  problem.out.rows = AxisGroup::Of(kM, kN + 1);
  EXPECT_FALSE(internal::StreamsOutput(problem, 32));
  problem = ProblemFor(out + 4);
  EXPECT_FALSE(internal::StreamsOutput(problem, 32));
  problem = ProblemFor(out);
  problem.epilogue.adds = true;
  EXPECT_FALSE(internal::StreamsOutput(problem, 32));
  EXPECT_FALSE(internal::StreamsOutput(ProblemFor(out), 8));
}

TEST(StreamTest, GivesTheBitsOfOtherStores) {
  ThreadPool threads(2);
  const std::vector<int8_t> bytes = RandomS8((kM + kN) * kK, 1);
  const std::vector<float> floats = RandomF32((kM + kN) * kK, 2);
  const std::vector<float> row_scale = RandomF32(kM, 3), col_scale = RandomF32(kN, 4);
  for (const GemmKernel* kernel : AllGemmKernels()) {
    // f32 x f32 or s8 x s8.
    const bool f32 = kernel->rhs.element == PanelFormat::Element::kF32;
    const bool s8 = kernel->sums == GemmSums::kS32 && kernel->rhs.ElementBits() >= 8;
    if (kernel->emulated || (!f32 && !s8)) continue;
    const DType dtype = f32 ? DType::kF32 : DType::kS8;
    const void* const x = f32 ? static_cast<const void*>(floats.data()) : bytes.data();
    const char* const w = static_cast<const char*>(x) + kM * kK * SizeOf(dtype);
    const AlignedBytes lhs = Packed(kernel->target, kernel->lhs, Operand::Dense(x, dtype, kM, kK));
    const AlignedBytes rhs = Packed(kernel->target, kernel->rhs, Operand::Dense(w, dtype, kN, kK));
    AlignedBytes streamed(kM * kN * 4 + 64), stored(kM * kN * 4 + 64);
    for (const bool streams : {false, true}) {
      GemmProblem problem = ProblemFor(streams ? streamed.data() : stored.data() + 4);
      problem.epilogue.lhs_scale = row_scale.data();
      problem.epilogue.rhs_scale = col_scale.data();
      RunGemm(*kernel, problem, {.lhs = lhs.data(), .rhs = rhs.data()}, &threads);
    }
    EXPECT_EQ(std::memcmp(streamed.data(), stored.data() + 4, kM * kN * 4), 0) << kernel->name;
    EXPECT_EQ(streamed.data()[kM * kN * 4], 0x5a) << kernel->name;
  }
}

}  // namespace
}  // namespace aqt::kernels
