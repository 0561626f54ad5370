// After the first call of a program nothing packs weights or allocates.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/testing/allocation_count.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "serving/engine/batch_runner.h"
#include "serving/engine/engine.h"
#include "serving/engine/engine_testing.h"

namespace aqt::serving {
namespace {

using ::aqt::testing::AllocationCount;
using ::aqt::testing::IsOk;

std::shared_ptr<const RowModel> Encoder(const InjectConfig& config) {
  const models::EncoderModel model = *models::ModelFromFolder(io::LocalFileSystem(), "tests/golden/models/bert");
  return *MakeRowModel(
      TracedModel{.trace = [model](int64_t batch, int64_t length) { return model.EmbeddingProgram(batch, length); },
                  .weights = model.weights(),
                  .config = config,
                  .max_length = model.facts().max_length});
}

// A row of the encoder with memory for its output.
struct EncoderRow {
  explicit EncoderRow(int64_t of_length) : length(of_length), output(24) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(5 + i));
    inputs = {Array::FromSpan(absl::MakeConstSpan(ids), {length}), Array::Scalar(static_cast<int32_t>(length))};
    outputs = {output.data()};
  }
  RowMemory memory() const { return {inputs, outputs, length}; }
  int64_t length;
  std::vector<float> output;
  std::vector<Array> inputs;
  std::vector<void*> outputs;
};

// Only products with weights are quantized: products of two activations pack one of them in each call.
InjectConfig Int8Weights() {
  InjectConfig config = Int8();
  config.rules[0].rhs_origin = OperandOrigin::kParam;
  return config;
}

TEST(EngineMemoryTest, LaterCallsOfAProgramNeitherPackNorAllocate) {
  for (const InjectConfig& config : {InjectConfig(), Int8Weights()}) {
    const std::shared_ptr<const RowModel> model = Encoder(config);
    const RowProgram large(*model->Compile(4, 16), model->facts(), 4, 16);
    const RowProgram small(*model->Compile(1, 10), model->facts(), 1, 10);
    const EncoderRow a(10), b(7), c(3);
    const std::vector<RowMemory> rows = {a.memory(), b.memory(), c.memory()}, one = {a.memory()};
    BatchRunner runner(model->facts());
    ASSERT_THAT(runner.Run(large, rows), IsOk());
    ASSERT_THAT(runner.Run(small, one), IsOk());
    const int64_t before = AllocationCount();
    const CountPacks packs;
    bool ok = true;
    for (int i = 0; i < 3; ++i) ok = runner.Run(large, rows).ok() && runner.Run(small, one).ok() && ok;
    EXPECT_EQ(AllocationCount(), before);
    EXPECT_TRUE(ok);
    EXPECT_EQ(packs.counts().rhs, 0);  // weights
  }
}

// The threads of an engine allocate nothing; a request has memory for itself and its answer.
TEST(EngineMemoryTest, ARequestOfAnEngineAllocatesAConstantNumberOfTimes) {
  const std::unique_ptr<Engine> engine = *Engine::Make(*PositionsModel(Int8()), {.threads = 1});
  const Array row = PositionsRow(10, 1);
  const auto allocations = [&](int requests) {
    const int64_t before = AllocationCount();
    for (int i = 0; i < requests; ++i) EXPECT_THAT(engine->Run({.inputs = {{kX, row}}}), IsOk());
    return AllocationCount() - before;
  };
  allocations(2);
  const int64_t ten = allocations(10);
  EXPECT_EQ(allocations(20), 2 * ten);
  EXPECT_LE(ten, 10 * 24);
}

}  // namespace
}  // namespace aqt::serving
