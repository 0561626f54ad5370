#include "aqt/core/machine/verbose.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

// A product of ones that may report itself, in a process of its own, because the variable is read once per process.
// Exits with 0 if the product and the reading of the variable are right.
void Multiply(const char* variable, const absl::StatusOr<Verbosity>& want) {
  setenv("AQT_VERBOSE", variable, /*replace=*/1);
  const GemmKernel& kernel = ChooseGemm({}, Target::kScalar, 2);
  const std::vector<int8_t> values(2 * 7, 1);
  const AlignedBytes lhs = Packed(kernel.target, kernel.lhs, Operand::Dense(values.data(), DType::kS8, 2, 7));
  const AlignedBytes rhs = Packed(kernel.target, kernel.rhs, Operand::Dense(values.data(), DType::kS8, 1, 7));
  std::vector<float> out(2);
  const GemmProblem problem = GemmProblem::Dense(1, 2, 1, 7, DType::kF32, out.data());
  RunGemm(kernel, problem, {.lhs = lhs.data(), .rhs = rhs.data()}, nullptr);
  std::exit(out == std::vector<float>(2, 7.0f) && VerbosityFromEnvironment() == want ? 0 : 1);
}

const auto kSucceeded = ::testing::ExitedWithCode(0);

TEST(VerboseDeathTest, IsOffByDefault) { EXPECT_EXIT(Multiply("", Verbosity::kOff), kSucceeded, "^$"); }

TEST(VerboseDeathTest, Dispatch) {
  EXPECT_EXIT(Multiply("dispatch", Verbosity::kDispatch), kSucceeded, "^aqt: emulated_s8_avx2 1 x 2 x 1 x 7\n$");
}

TEST(VerboseDeathTest, Profile) {
  EXPECT_EXIT(Multiply("profile", Verbosity::kProfile), kSucceeded,
              "^aqt: emulated_s8_avx2 1 x 2 x 1 x 7 [0-9]+\\.[0-9] us [0-9]+ GOP/s\n$");
}

TEST(VerboseDeathTest, AnUnknownWordIsAnErrorAndReportsNothing) {
  EXPECT_EXIT(Multiply("loud", absl::InvalidArgumentError(
                                   "environment variable AQT_VERBOSE is \"loud\"; expected dispatch or profile")),
              kSucceeded, "^$");
}

}  // namespace
}  // namespace aqt::kernels
