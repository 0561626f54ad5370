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
GemmArgs ArgsFor(char* out) {
  GemmArgs args;
  args.m = kM;
  args.n = kN;
  args.k = kK;
  args.out = out;
  args.out_rows = AxisGroup::Of(kM, kN);
  args.out_cols = AxisGroup::Of(kN, 1);
  return args;
}

TEST(StreamTest, LargeOutputsOfWholeLinesAreStreamed) {
  alignas(64) char out[128];
  GemmArgs args = ArgsFor(out);
  EXPECT_TRUE(internal::StreamsOutput(args, 32));
  args.m = 512;
  EXPECT_FALSE(internal::StreamsOutput(args, 32));
  args.batch = 8;
  EXPECT_TRUE(internal::StreamsOutput(args, 32));
  args.out_batch = AxisGroup::Of(8, 512 * kN + 1);
  EXPECT_FALSE(internal::StreamsOutput(args, 32));
  args = ArgsFor(out);
  args.out_rows = AxisGroup::Of(kM, kN + 1);
  EXPECT_FALSE(internal::StreamsOutput(args, 32));
  args = ArgsFor(out + 4);
  EXPECT_FALSE(internal::StreamsOutput(args, 32));
  args = ArgsFor(out);
  args.epilogue.adds = true;
  EXPECT_FALSE(internal::StreamsOutput(args, 32));
  EXPECT_FALSE(internal::StreamsOutput(ArgsFor(out), 8));
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
      GemmArgs args = ArgsFor(streams ? streamed.data() : stored.data() + 4);
      args.lhs = lhs.data();
      args.rhs = rhs.data();
      args.epilogue.lhs_scale = row_scale.data();
      args.epilogue.rhs_scale = col_scale.data();
      RunGemm(*kernel, args, &threads);
    }
    EXPECT_EQ(std::memcmp(streamed.data(), stored.data() + 4, kM * kN * 4), 0) << kernel->name;
    EXPECT_EQ(streamed.data()[kM * kN * 4], 0x5a) << kernel->name;
  }
}

}  // namespace
}  // namespace aqt::kernels
