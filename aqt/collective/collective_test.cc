// The functions of collective.h with the engines within one process: OneProcess and threads. mpi_group_test.sh tests
// MPI.

#include "aqt/collective/collective.h"

#include <cstdint>

#include "absl/status/status.h"
#include "aqt/collective/collective_testing.h"
#include "aqt/collective/thread_group.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

TEST(Collective, OneProcessDoesWhatEveryEngineMustDo) {
  OneProcess alone;
  EXPECT_THAT(testing::CheckCollective(alone), IsOk());
}

TEST(Collective, ThreadsDoWhatEveryEngineMustDo) {
  for (const int size : {1, 2, 3, 4, 7}) EXPECT_THAT(RunOnThreads(size, testing::CheckCollective), IsOk()) << size;
}

TEST(Collective, RefusesOtherDtypesAndAxes) {
  OneProcess alone;
  EXPECT_THAT(AllReduce(alone, AllReduceKind::kMax, Array::Zeros(DType::kBF16, {2})),
              FailsWith(absl::StatusCode::kInvalidArgument, {"all_reduce", "bf16[2]", "cast it"}));
  EXPECT_THAT(AllGather(alone, Array::Zeros(DType::kF32, {2}), 1),
              FailsWith(absl::StatusCode::kInvalidArgument, {"all_gather", "f32[2]", "axis 1"}));
}

TEST(ThreadGroup, RefusesAnEmptyGroup) {
  EXPECT_THAT(RunOnThreads(0, testing::CheckCollective), FailsWith(absl::StatusCode::kInvalidArgument, {"0 threads"}));
}

// No process waits for one that has failed.
TEST(ThreadGroup, AFailureEndsTheCallsOfTheOthers) {
  const absl::Status status = RunOnThreads(3, [](Collective& collective) -> absl::Status {
    if (collective.rank() == 1) return absl::DataLossError("a broken file");
    const absl::Status met = AgreeOn(collective, absl::OkStatus());
    EXPECT_THAT(met, FailsWith(absl::StatusCode::kAborted, {"process 1 failed: a broken file"}));
    return met;
  });
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, {"a broken file"}));
}

TEST(ThreadGroup, AFailureEndsTheCallsInPartsOfTheGroup) {
  const absl::Status status = RunOnThreads(4, [](Collective& collective) -> absl::Status {
    const auto half = collective.Split(collective.rank() / 2);
    if (!half.ok()) return half.status();
    if (collective.rank() == 1) return absl::DataLossError("a broken file");
    return AgreeOn(**half, absl::OkStatus());
  });
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, {"a broken file"}));
}

TEST(ThreadGroup, CallsThatDifferAreErrors) {
  const absl::Status status = RunOnThreads(2, [](Collective& collective) {
    int32_t in[2] = {}, out[4];
    return collective.AllGather(in, collective.rank() == 0 ? 4 : 8, out);
  });
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kInvalidArgument, {"AllGather of 4 bytes", "AllGather of 8 bytes"}));
}

}  // namespace
}  // namespace aqt
