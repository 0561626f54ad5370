#include "aqt/ops/collective/collective_ops.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/thread_group.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::ElementsAre;

std::vector<Value> Exchanges(absl::Span<const Value> in) {
  return {ops::AllReduce(AllReduceKind::kSum, in[0], 2), ops::AllReduce(AllReduceKind::kMax, in[0], 2),
          ops::AllReduce(AllReduceKind::kMin, in[0], 2), ops::AllGather(in[0], 0, 2)};
}

// The array of process `rank`.
Array Own(int rank) { return rank == 0 ? Array::Of<int32_t>({1, 5}, {2}) : Array::Of<int32_t>({3, 2}, {2}); }

TEST(CollectiveOpsTest, ExchangeBetweenProcesses) {
  const Array own[] = {Own(0)};
  const Program program = *testing::TraceWith(Exchanges, own);
  const absl::Status status = RunOnThreads(2, [&](Collective& collective) -> absl::Status {
    const UseCollective use(&collective);
    const Array args[] = {Own(collective.rank())};
    AQT_ASSIGN_OR_RETURN(const std::vector<Array> out, Eval(program, args));
    EXPECT_THAT(out[0].View<int32_t>(), ElementsAre(4, 7));
    EXPECT_THAT(out[1].View<int32_t>(), ElementsAre(3, 5));
    EXPECT_THAT(out[2].View<int32_t>(), ElementsAre(1, 2));
    EXPECT_THAT(out[3].View<int32_t>(), ElementsAre(1, 5, 3, 2));
    return absl::OkStatus();
  });
  EXPECT_THAT(status, IsOk());
}

TEST(CollectiveOpsTest, NeedAGroupOfTheirSize) {
  const Array own[] = {Own(0)};
  const Program program = *testing::TraceWith(Exchanges, own);
  EXPECT_THAT(Eval(program, own),
              FailsWith(absl::StatusCode::kFailedPrecondition, {"all_reduce_sum", "UseCollective"}));
  OneProcess alone;
  const UseCollective use(&alone);
  EXPECT_THAT(Eval(program, own), FailsWith(absl::StatusCode::kFailedPrecondition, {"made for 2", "there are 1"}));
  const UseCollective nobody(nullptr);
  EXPECT_THAT(Eval(program, own), FailsWith(absl::StatusCode::kFailedPrecondition, {"UseCollective"}));
}

TEST(CollectiveOpsTest, RefuseOtherOperands) {
  const Array bf16[] = {Array::Zeros(DType::kBF16, {2})};
  EXPECT_THAT(testing::TraceWith(Exchanges, bf16),
              FailsWith(absl::StatusCode::kInvalidArgument, {"all_reduce_sum", "bf16[2]", "cast it"}));
  const auto wrong_axis = [](absl::Span<const Value> in) { return std::vector<Value>{ops::AllGather(in[0], 1, 2)}; };
  EXPECT_THAT(testing::TraceWith(wrong_axis, bf16),
              FailsWith(absl::StatusCode::kInvalidArgument, {"all_gather", "bf16[2]", "axis 1"}));
}

}  // namespace
}  // namespace aqt
