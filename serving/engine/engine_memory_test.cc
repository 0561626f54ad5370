// After the first call of a program nothing packs weights or allocates.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/testing/allocation_count.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "gtest/gtest.h"
#include "serving/engine/batch_runner.h"
#include "serving/engine/engine.h"
#include "serving/engine/engine_testing.h"

namespace aqt::serving {
namespace {

using ::aqt::testing::AllocationCount;
using ::aqt::testing::IsOk;

std::shared_ptr<const RowModel> Encoder(const std::string& folder, const std::string& preset) {
  const models::EncoderModel model =
      *models::ModelFromFolder(io::LocalFileSystem(), io::JoinPath("tests/golden/models", folder));
  return *MakeRowModel(
      TracedModel{.trace = [model](int64_t batch, int64_t length) { return model.OutputProgram(batch, length); },
                  .weights = model.weights(),
                  .config = model.Rules(preset.empty() ? InjectConfig() : *InjectConfigFromPreset(preset)),
                  .max_length = model.facts().max_length});
}

// A row of the encoder with memory for its output.
struct EncoderRow {
  explicit EncoderRow(int64_t of_length) : length(of_length), output(kMostOutputs) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int32_t>(5 + i));
    inputs = {Array::FromSpan(absl::MakeConstSpan(ids), {length}), Array::Scalar(static_cast<int32_t>(length))};
    outputs = {output.data()};
  }
  static constexpr size_t kMostOutputs = 1024;
  RowMemory memory() const { return {inputs, outputs, length}; }
  int64_t length;
  std::vector<float> output;
  std::vector<Array> inputs;
  std::vector<void*> outputs;
};

TEST(EngineMemoryTest, LaterCallsOfAProgramNeitherPackNorAllocate) {
  struct Case {
    const char* folder;
    const char* preset;
    bool packs = false;  // products of two activations pack one of them in each call, if they are quantized
  };
  const Case cases[] = {
      {"bert", ""},
      {"bert", "int8_hadamard"},
      {"bert", "int8_all", /*packs=*/true},
      {"bert_classes", "int8_hadamard"},
      {"roberta_tokens", "int8_hadamard"},
      {"mpnet", ""},
      {"mpnet_tokens", "int8_all", /*packs=*/true},
      {"modernbert", "int8_hadamard"},
      {"nomic_classes", "int8_hadamard"},
      {"bert_ct_w8a8", ""},  // also tables of integers
      {"modernbert_w4", ""},
  };
  for (const auto& [folder, preset, packs] : cases) {
    SCOPED_TRACE(absl::StrCat(folder, " ", preset));
    const std::shared_ptr<const RowModel> model = Encoder(folder, preset);
    const RowProgram large(*model->Compile(4, 12), model->facts(), 4, 12);
    const RowProgram small(*model->Compile(1, 10), model->facts(), 1, 10);
    const EncoderRow a(10), b(7), c(3);
    const std::vector<RowMemory> rows = {a.memory(), b.memory(), c.memory()}, one = {a.memory()};
    BatchRunner runner(model->facts());
    ASSERT_THAT(runner.Run(large, rows), IsOk());
    ASSERT_THAT(runner.Run(small, one), IsOk());
    const int64_t before = AllocationCount();
    const CountPacks counted;
    bool ok = true;
    for (int i = 0; i < 3; ++i) ok = runner.Run(large, rows).ok() && runner.Run(small, one).ok() && ok;
    EXPECT_EQ(AllocationCount(), before);
    EXPECT_TRUE(ok);
    if (packs) continue;
    EXPECT_EQ(counted.counts().rhs, 0);  // weights
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
