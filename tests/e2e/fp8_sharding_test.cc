// An FP8 dense layer divided over a mesh, with threads instead of processes.

#include <cstdint>
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
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/nn/layers/fp8_dense.h"
#include "aqt/nn/layers/fp8_sharded_dense.h"
#include "aqt/nn/layers/parameter.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_sharded_dense.h"
#include "aqt/ops/fp8/fp8_sharding.h"
#include "aqt/ops/functions.h"
#include "aqt/testing/random.h"
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

// ---- the layer with its parameters

const Slot kX{SlotKind::kData, "x"}, kY{SlotKind::kData, "y"};
const nn::Fp8DenseOptions kLayer{.features = {6}, .bias_init = nn::Normal(1), .activation = ops::Relu};

nn::Fp8LayerSharding LayerSharding(int rank) {
  return {
      .mesh = *Mesh::Make({{"data", 2}, {"model", 2}}), .rules = {{"batch", "data"}, {"mlp", "model"}}, .rank = rank};
}

// Its parameters are shards of the complete layer's, and so is its output: these rules do not divide sums.
TEST(Fp8ShardedLayer, StartsAndComputesLikeTheWholeOne) {
  const Array x = testing::RandomArray({DType::kF32, {8, 10}}, 3);
  const std::vector<Input> inputs = {{kX, x.aval()}}, part_inputs = {{kX, {DType::kF32, {4, 10}}}};
  const auto whole = [](absl::Span<const Value> in) { return std::vector<Value>{nn::Fp8Dense(in[0], "fc", kLayer)}; };
  SlotValues params = *nn::InitParams(whole, inputs, MakeKey(2));
  const Program one = *Trace(whole, inputs, {kY});
  SlotValues values = params;
  values.merge(InitialStats(one));
  values[kX] = x;
  const Array want = EvalSlots(one, values)->at(kY);
  const auto check = [&](Collective& collective) -> absl::Status {
    const int rank = collective.rank(), row = rank / 2, column = rank % 2;
    const auto part = [&](absl::Span<const Value> in) {
      return std::vector<Value>{nn::Fp8ShardedDense(in[0], "fc", kLayer, LayerSharding(rank))};
    };
    const auto cut = [](const Array& array, PerAxis start, PerAxis limit) {
      return *ops::Slice(Value(array), start, limit).ToArray();
    };
    SlotValues own = *nn::InitParams(part, part_inputs, MakeKey(2));
    const Slot kernel{SlotKind::kParam, "fc/kernel"}, bias{SlotKind::kParam, "fc/bias"};
    EXPECT_TRUE(BitEqual(own.at(kernel), cut(params.at(kernel), {0, 3 * column}, {10, 3 * column + 3})));
    EXPECT_TRUE(BitEqual(own.at(bias), cut(params.at(bias), {3 * column}, {3 * column + 3})));
    const Program program = *Trace(part, part_inputs, {kY});
    own.merge(InitialStats(program));
    own[kX] = cut(x, {4 * row, 0}, {4 * row + 4, 10});
    const MeshGroups groups = *MeshGroups::Make(LayerSharding(rank).mesh, collective);
    const UseMesh use(&groups);
    const Array got = EvalSlots(program, own)->at(kY);
    EXPECT_TRUE(BitEqual(got, cut(want, {4 * row, 3 * column}, {4 * row + 4, 3 * column + 3})));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunOnThreads(4, check), IsOk());
}

TEST(Fp8ShardedLayer, RefusesWhatItCannotDivide) {
  const auto trace = [](const Shape& x, std::vector<int64_t> features) {
    return Trace(
        [&](absl::Span<const Value> in) {
          return std::vector<Value>{nn::Fp8ShardedDense(in[0], "fc", {.features = features}, LayerSharding(0))};
        },
        {{kX, {DType::kF32, x}}}, {kY});
  };
  EXPECT_THAT(trace({4, 10}, {5}), FailsWith(absl::StatusCode::kInvalidArgument, {"kernel is f32[10,5]", "axis 1"}));
  EXPECT_THAT(trace({4, 2, 10}, {6}), FailsWith(absl::StatusCode::kInvalidArgument, {"a matrix", "reshape"}));
  EXPECT_THAT(trace({4, 10}, {6, 2}), FailsWith(absl::StatusCode::kInvalidArgument, {"features = [6,2]"}));
}

}  // namespace
}  // namespace aqt
