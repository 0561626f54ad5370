// An FP8 dense layer divided over a mesh, with threads in the place of processes.

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/collective/collective.h"
#include "aqt/collective/mesh.h"
#include "aqt/collective/thread_group.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/eval.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/fp8_dot.h"
#include "aqt/ops/fp8_sharded_dense.h"
#include "aqt/ops/fp8_sharding.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/fp8_sharding_check.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

class Fp8Sharding : public ::testing::TestWithParam<int> {};

TEST_P(Fp8Sharding, ScalesAreThoseOfOneProcess) {
  EXPECT_THAT(RunOnThreads(GetParam(), testing::CheckFp8Sharding), IsOk());
}
INSTANTIATE_TEST_SUITE_P(Processes, Fp8Sharding, ::testing::Values(2, 4, 8));

// x and the kernel of process `rank` of 2, whose contracted axis is divided.
absl::StatusOr<Program> TraceLayer(const Shape& x, const Shape& kernel, int rank) {
  const Mesh mesh = *Mesh::Make({{"model", 2}});
  return Trace(
      [&](absl::Span<const Value> in) {
        const Fp8ShardedOptions options{
            .sharding = *PlanFp8Dot({{"hidden", "model"}}, mesh, {"batch", "embed"}, {"hidden", "mlp"}), .rank = rank};
        return std::vector<Value>{ops::Fp8ShardedDense(in[0], in[1], std::nullopt, Fp8StateInputs("", 4), options)};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, x}}, {{SlotKind::kData, "k"}, {DType::kF32, kernel}}},
      {{SlotKind::kData, "y"}});
}

TEST(Fp8ShardedDense, RefusesPartsThatDoNotFit) {
  EXPECT_THAT(TraceLayer({2, 7}, {4, 3}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, {"x is [2,7] in all", "2 processes", "pad it"}));
  EXPECT_THAT(TraceLayer({2, 8}, {8, 3}, 0), FailsWith(absl::StatusCode::kInvalidArgument, {"[2,4]", "[8,3]"}));
  EXPECT_THAT(TraceLayer({2, 8}, {4, 3}, 2), FailsWith(absl::StatusCode::kInvalidArgument, {"rank 2", "model 2"}));
}

TEST(Fp8ShardedDense, SaysThatThereIsNoMesh) {
  const Program program = *TraceLayer({2, 8}, {4, 3}, 1);
  SlotValues values = InitialStats(program);
  values[{SlotKind::kData, "x"}] = Array::Zeros(DType::kF32, {2, 8});
  values[{SlotKind::kData, "k"}] = Array::Zeros(DType::kF32, {4, 3});
  EXPECT_THAT(EvalSlots(program, values), FailsWith(absl::StatusCode::kFailedPrecondition, {"along model", "UseMesh"}));
}

}  // namespace
}  // namespace aqt
