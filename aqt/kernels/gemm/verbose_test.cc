#include "aqt/core/machine/verbose.h"

#include <cstdint>
#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/gemm/gemm_testing.h"
#include "aqt/kernels/gemm/table.h"
#include "aqt/kernels/panels/operand.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

// The variable is read once per process, so the BUILD file runs this test with several values.
TEST(Verbose, ReportsWhatWasAskedFor) {
  const char* variable = std::getenv("AQT_VERBOSE");
  const std::string text = variable == nullptr ? "" : variable;
  const GemmKernel& kernel = ChooseGemm({}, Target::kScalar, 2);
  const std::vector<int8_t> values(2 * 7, 1);
  const AlignedBytes lhs = Packed(kernel.target, kernel.lhs, Operand::Dense(values.data(), DType::kS8, 2, 7));
  const AlignedBytes rhs = Packed(kernel.target, kernel.rhs, Operand::Dense(values.data(), DType::kS8, 1, 7));
  std::vector<float> out(2);
  GemmArgs args;
  args.m = 2;
  args.n = 1;
  args.k = 7;
  args.lhs = lhs.data();
  args.rhs = rhs.data();
  args.out = out.data();
  args.out_rows = AxisGroup::Of(2, 1);

  ::testing::internal::CaptureStderr();
  RunGemm(kernel, args, nullptr);
  const std::string report = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(out, std::vector<float>(2, 7.0f));

  const absl::StatusOr<Verbosity> verbosity = VerbosityFromEnvironment();
  if (text == "loud") {
    EXPECT_EQ(verbosity.status(),
              absl::InvalidArgumentError("environment variable AQT_VERBOSE is \"loud\"; expected dispatch or profile"));
    EXPECT_EQ(report, "");
  } else if (text == "dispatch") {
    EXPECT_EQ(report, "aqt: emulated_s8_avx2 1 x 2 x 1 x 7\n");
  } else if (text == "profile") {
    const std::regex line("aqt: emulated_s8_avx2 1 x 2 x 1 x 7 [0-9]+\\.[0-9] us [0-9]+ GOP/s\n");
    EXPECT_TRUE(std::regex_match(report, line)) << report;
  } else {
    EXPECT_EQ(*verbosity, Verbosity::kOff);
    EXPECT_EQ(report, "");
  }
}

}  // namespace
}  // namespace aqt::kernels
