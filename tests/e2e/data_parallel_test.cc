// Training on several processes, simulated by threads.

#include <string>

#include "aqt/collective/collective.h"
#include "aqt/collective/thread_group.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/data_parallel_check.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;

class DataParallel : public ::testing::TestWithParam<int> {};

TEST_P(DataParallel, Int8TrainingHasTheBitsOfOneProcess) {
  EXPECT_THAT(RunOnThreads(GetParam(), testing::CheckInt8Training), IsOk());
}
TEST_P(DataParallel, GatheredTrainingHasTheBitsOfOneProcess) {
  EXPECT_THAT(RunOnThreads(GetParam(), testing::CheckGatheredTraining), IsOk());
}
TEST_P(DataParallel, FloatGradientsStayWithinTheirBounds) {
  EXPECT_THAT(RunOnThreads(GetParam(), testing::CheckFloatGradients), IsOk());
}
TEST_P(DataParallel, Fp8ScalesAreThoseOfOneProcess) {
  EXPECT_THAT(RunOnThreads(GetParam(), testing::CheckFp8), IsOk());
}
TEST_P(DataParallel, AFailureOfOneProcessIsOneOfAll) {
  EXPECT_THAT(RunOnThreads(GetParam(), testing::CheckFailures), IsOk());
}
TEST_P(DataParallel, ResumesWithTheSameBytes) {
  const std::string folder = ::testing::TempDir();
  EXPECT_THAT(RunOnThreads(GetParam(), [&](Collective& group) { return testing::CheckResume(group, folder); }), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Processes, DataParallel, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace aqt
