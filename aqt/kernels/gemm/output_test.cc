// Outputs that full tiles write in registers: bf16 and s32, for each row count of a tile.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {
namespace {

constexpr int64_t kN = 70, kK = 37;  // full tiles and a remainder
constexpr int64_t kRowStride = 100;
constexpr uint16_t kUntouched = 0x1234, kPositiveNan = 0x7fc0;

class GemmOutputTest : public ::testing::TestWithParam<const GemmKernel*> {
 protected:
  // Runs the product of `rows` rows into output rows that are kRowStride elements apart.
  template <class T>
  std::vector<T> Run(int64_t rows, const AlignedBytes& lhs, const AlignedBytes& rhs, const Epilogue& epilogue,
                     T untouched) {
    std::vector<T> out(rows * kRowStride, untouched);
    GemmProblem problem = GemmProblem::Dense(1, rows, kN, kK, kDTypeOf<T>, out.data());
    problem.out.rows = AxisGroup::Of(rows, kRowStride);
    problem.epilogue = epilogue;
    RunGemm(kernel(), problem, {.lhs = lhs.data(), .rhs = rhs.data()}, nullptr);
    return out;
  }
  const GemmKernel& kernel() const { return *GetParam(); }
  AlignedBytes PackedLhs(int64_t rows, const void* values, DType dtype) const {
    return Packed(kernel().target, kernel().lhs, Operand::Dense(values, dtype, rows, kK));
  }
  AlignedBytes PackedRhs(const void* values, DType dtype) const {
    return Packed(kernel().target, kernel().rhs, Operand::Dense(values, dtype, kN, kK));
  }
  // Integers that every s8 or s4 kernel supports.
  static std::vector<int8_t> Integers(int64_t n, uint32_t seed) {
    std::vector<int8_t> values = RandomS8(n, seed);
    for (int8_t& v : values) v = static_cast<int8_t>(v >> 4);
    return values;
  }
};

// If the epilogue rounds once, the bf16 result is the rounded f32 result.
TEST_P(GemmOutputTest, Bf16IsTheRoundedSum) {
  const bool integers = kernel().sums == GemmSums::kS32;
  const std::vector<int8_t> weights = Integers(kN * kK, 1);
  const AlignedBytes rhs = PackedRhs(weights.data(), DType::kS8);
  for (const int64_t rows : {1, 2, 3, 4, 6, 8, 12, 20, 29, 33}) {
    std::vector<BFloat16> floats;
    for (const int8_t v : Integers(rows * kK, 2)) floats.push_back(RoundToBFloat16(static_cast<float>(v)));
    std::vector<int8_t> bytes = RandomS8(rows * kK, 3);
    if (rows > 2) {
      for (int64_t k = 0; k < kK; ++k) floats[kK + k] = BFloat16{0x0001};  // subnormal sums, or zeros
      floats[2 * kK] = RoundToBFloat16(std::numeric_limits<float>::infinity());
      floats[2 * kK + 1] = BFloat16{0xffc1};
    }
    const AlignedBytes lhs =
        integers ? PackedLhs(rows, bytes.data(), DType::kS8) : PackedLhs(rows, floats.data(), DType::kBF16);
    for (const bool flush : {false, true}) {
      for (const DType sum_dtype : {DType::kF32, DType::kBF16}) {
        Epilogue epilogue;
        epilogue.subnormals_are_zero = flush;
        const std::vector<float> sums = Run<float>(rows, lhs, rhs, epilogue, 0.0f);
        epilogue.sum_dtype = sum_dtype;
        const std::vector<BFloat16> got = Run<BFloat16>(rows, lhs, rhs, epilogue, BFloat16{kUntouched});
        int64_t wrong = 0;
        for (int64_t i = 0; i < rows * kRowStride; ++i) {
          const uint16_t want = i % kRowStride >= kN  ? kUntouched
                                : std::isnan(sums[i]) ? kPositiveNan
                                                      : RoundToBFloat16(sums[i]).bits;
          wrong += got[i].bits != want;
        }
        EXPECT_EQ(wrong, 0) << rows << " rows, flush " << flush << ", " << sum_dtype;
      }
    }
  }
}

TEST_P(GemmOutputTest, IntegersAreTheSums) {
  if (kernel().sums != GemmSums::kS32) GTEST_SKIP() << "sums of floats";
  const std::vector<int8_t> weights = Integers(kN * kK, 4);
  const AlignedBytes rhs = PackedRhs(weights.data(), DType::kS8);
  for (const int64_t rows : {1, 2, 3, 4, 6, 8, 12, 20, 29, 33}) {
    const std::vector<int8_t> x = RandomS8(rows * kK, 5);
    const std::vector<int32_t> got =
        Run<int32_t>(rows, PackedLhs(rows, x.data(), DType::kS8), rhs, {}, int32_t{kUntouched});
    int64_t wrong = 0;
    for (int64_t i = 0; i < rows * kRowStride; ++i) {
      const int64_t m = i / kRowStride, n = i % kRowStride;
      int32_t want = n < kN ? 0 : int32_t{kUntouched};
      for (int64_t k = 0; n < kN && k < kK; ++k) want += x[m * kK + k] * weights[n * kK + k];
      wrong += got[i] != want;
    }
    EXPECT_EQ(wrong, 0) << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(All, GemmOutputTest, ::testing::ValuesIn(AllGemmKernels().begin(), AllGemmKernels().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace aqt::kernels
