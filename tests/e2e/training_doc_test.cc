// The code of docs/training.md, word for word. The last test compares the two, so that the page stays correct.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "aqt/aqt.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "aqt/parallel.h"
#include "aqt/precision.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::IsOk;

constexpr int64_t kExamples = 96;

// The examples with these numbers.
SlotValues BatchOf(const std::vector<int64_t>& rows) {
  const Array x = testing::RandomArray({DType::kF32, {kExamples, 64}}, 1);
  const Array labels = testing::RandomArray({DType::kF32, {kExamples, 10}}, 2, 0, 1);
  const std::vector<int32_t> numbers(rows.begin(), rows.end());
  const Value taken(Array::FromSpan(absl::MakeConstSpan(numbers), {static_cast<int64_t>(rows.size())}));
  return {{{SlotKind::kData, "x"}, *ops::Take(Value(x), taken).ToArray()},
          {{SlotKind::kData, "labels"}, *ops::Take(Value(labels), taken).ToArray()}};
}

// clang-format off
Value Model(const Value& x) {  // [rows, 64] -> [rows, 10]
  const Value hidden = ops::Relu(nn::Dense(x, "fc1", {.features = 128}));
  return nn::Dense(hidden, "logits", {.features = 10});
}
std::vector<Value> ModelFn(absl::Span<const Value> in) { return {Model(in[0])}; }
std::vector<Value> LossFn(absl::Span<const Value> in) { return {ops::SoftmaxCrossEntropy(Model(in[0]), in[1])}; }

absl::Status TrainTogether(Collective& collective, const Program& quantized, const SlotValues& params) {
  AQT_ASSIGN_OR_RETURN(nn::Trainer trainer, nn::Trainer::Make(quantized, nn::Sgd{.learning_rate = 0.05}, params, MakeKey(1),
                                                              {.collective = &collective}));
  while (trainer.steps() < 3) {
    const std::vector<int64_t> rows = nn::RowsOfStep(MakeKey(2), kExamples, 32, trainer.steps());
    AQT_RETURN_IF_ERROR(trainer.Step(BatchOf(nn::ShareOf(rows, collective.rank(), collective.size()))).status());
  }
  return trainer.Save(io::LocalFileSystem(), "together.safetensors");  // process 0 writes it
}

absl::StatusOr<Array> TrainAndServe(const std::vector<SlotValues>& batches, const Array& pixels) {
  const Input x{{SlotKind::kData, "x"}, {DType::kF32, {32, 64}}};
  const Input labels{{SlotKind::kData, "labels"}, {DType::kF32, {32, 10}}};
  AQT_ASSIGN_OR_RETURN(InjectConfig config, InjectConfigFromText(R"(
      schema: 1
      rules { scope: "logits" keep: true }
      rules { scope: "fc.*" dot_general { base: "fully_quantized_int8" } }
      arithmetic: ARITHMETIC_IEEE)"));
  AQT_ASSIGN_OR_RETURN(Program loss, Trace(LossFn, {x, labels}));
  AQT_ASSIGN_OR_RETURN(Program quantized, Inject(loss, config));  // before gradients are taken
  AQT_ASSIGN_OR_RETURN(SlotValues params, nn::InitParams(LossFn, {x, labels}, MakeKey(0)));
  AQT_ASSIGN_OR_RETURN(nn::Trainer trainer, nn::Trainer::Make(quantized, nn::Sgd{.learning_rate = 0.05}, params, MakeKey(1)));
  for (const SlotValues& batch : batches) AQT_RETURN_IF_ERROR(trainer.Step(batch).status());
  AQT_RETURN_IF_ERROR(trainer.Save(io::LocalFileSystem(), "state.safetensors"));  // Restore() continues

  const nn::AdamW optimizer = {
      .learning_rate = nn::WarmupCosineSchedule{.peak_value = 3e-3, .warmup_steps = 10, .decay_steps = 200},
      .weight_decay = 0.1,
      .decays = ".*/kernel"};  // a regular expression for paths: biases do not decay
  const nn::StepOptions step = {.accumulate_steps = 2, .clip_norm = 1, .ema = nn::Ema{.decay = 0.99}};
  AQT_ASSIGN_OR_RETURN(nn::Trainer adamw, nn::Trainer::Make(quantized, optimizer, params, MakeKey(1), {.step = step}));

  for (const SlotValues& batch : batches) AQT_RETURN_IF_ERROR(adamw.Step(batch).status());
  AQT_ASSIGN_OR_RETURN(SlotValues averages, adamw.ema_params());
  EXPECT_EQ(averages.size(), params.size());

  AQT_ASSIGN_OR_RETURN(Program model, Trace(ModelFn, {x}));
  AQT_ASSIGN_OR_RETURN(SlotValues frozen, Freeze(model, config, trainer.state()));  // quantizes the weights, once
  AQT_RETURN_IF_ERROR(nn::SaveState(io::LocalFileSystem(), "served.safetensors", {.state = frozen}));

  kernels::ThreadPool pool(4);
  const UseExecutor threads(&pool);  // during its lifetime; bits do not depend on it

  AQT_ASSIGN_OR_RETURN(nn::StateFile file, nn::LoadState(io::LocalFileSystem(), "served.safetensors"));
  AQT_ASSIGN_OR_RETURN(Program one_row, Trace(ModelFn, {{x.slot, {DType::kF32, {1, 64}}}}));
  AQT_ASSIGN_OR_RETURN(Program program, ServeProgram(one_row, config, file.state));
  SlotValues inputs = file.state;
  inputs[x.slot] = pixels;

  AQT_ASSIGN_OR_RETURN(SlotValues out, EvalSlots(program, inputs));

  AQT_ASSIGN_OR_RETURN(PreparedProgram prepared, nn::Serve({one_row}, config, file.state));
  AQT_ASSIGN_OR_RETURN(SlotValues logits, prepared.Eval({{x.slot, pixels}}));
  EXPECT_TRUE(BitEqual(logits.begin()->second, out.begin()->second));
  return out.begin()->second;
}

absl::Status LoadAndSaveWeights(const Program& loss) {
  AQT_ASSIGN_OR_RETURN(nn::WeightsMap map, nn::WeightsMapFromText(R"(
      schema: 1
      rules { tensor: "(.*)\\.weight"  param: "\\1/kernel"  transpose: [1, 0] }  # torch has [out, in]
      rules { tensor: "(.*)\\.bias"  param: "\\1/bias" }
      rules { tensor: "num_batches_tracked"  ignore: true })"));
  AQT_ASSIGN_OR_RETURN(io::Checkpoint checkpoint, io::Checkpoint::Open(io::LocalFileSystem(), "torch.safetensors"));
  AQT_ASSIGN_OR_RETURN(SlotValues weights, nn::LoadWeights(map, checkpoint, loss));

  AQT_RETURN_IF_ERROR(nn::SaveWeights(map, checkpoint, loss, weights, io::LocalFileSystem(), "trained.safetensors"));
  EXPECT_EQ(weights.size(), 4u);
  return absl::OkStatus();
}
// clang-format on

// Weights as torch stores them, in bf16.
void WriteTorchWeights(const std::string& path) {
  const std::vector<std::pair<std::string, Array>> arrays = {
      {"fc1.weight", testing::RandomArray({DType::kBF16, {128, 64}}, 1)},
      {"fc1.bias", testing::RandomArray({DType::kBF16, {128}}, 2)},
      {"logits.weight", testing::RandomArray({DType::kBF16, {10, 128}}, 3)},
      {"logits.bias", testing::RandomArray({DType::kBF16, {10}}, 4)},
      {"num_batches_tracked", Array::Scalar<int32_t>(7)}};
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, array] : arrays) specs.push_back({name, *io::ToFileDType(array.dtype()), array.shape()});
  auto writer = io::SafetensorsWriter::Create(io::LocalFileSystem(), path, specs, {.output = {.overwrite = true}});
  ASSERT_THAT(writer, IsOk());
  for (const auto& [name, array] : arrays) ASSERT_THAT((*writer)->WriteArray(name, array), IsOk());
  ASSERT_THAT((*writer)->Finish(), IsOk());
}

TEST(TrainingDoc, WeightsComeAndGo) {
  WriteTorchWeights("torch.safetensors");
  const Program loss = *Trace(LossFn, {{{SlotKind::kData, "x"}, {DType::kF32, {32, 64}}},
                                       {{SlotKind::kData, "labels"}, {DType::kF32, {32, 10}}}});
  ASSERT_THAT(LoadAndSaveWeights(loss), IsOk());
  EXPECT_EQ(*io::ReadFile(io::LocalFileSystem(), "torch.safetensors", 1 << 20),
            *io::ReadFile(io::LocalFileSystem(), "trained.safetensors", 1 << 20));
}

TEST(TrainingDoc, TheCodeRuns) {
  const Array pixels = testing::RandomArray({DType::kF32, {1, 64}}, 1);
  std::vector<SlotValues> batches;
  for (int i = 0; i < 3; ++i) {
    batches.push_back({{{SlotKind::kData, "x"}, testing::RandomArray({DType::kF32, {32, 64}}, i)},
                       {{SlotKind::kData, "labels"}, testing::RandomArray({DType::kF32, {32, 10}}, i, 0, 1)}});
  }
  absl::StatusOr<Array> logits = TrainAndServe(batches, pixels);
  ASSERT_THAT(logits, IsOk());
  EXPECT_EQ(logits->aval(), (Aval{DType::kF32, {1, 10}}));
}

TEST(TrainingDoc, TheCodeTrainsOnSeveralProcesses) {
  const std::vector<Input> inputs = {{{SlotKind::kData, "x"}, {DType::kF32, {32, 64}}},
                                     {{SlotKind::kData, "labels"}, {DType::kF32, {32, 10}}}};
  const Program loss = *Trace(LossFn, inputs);
  const SlotValues params = *nn::InitParams(LossFn, inputs, MakeKey(0));
  EXPECT_THAT(RunOnThreads(2, [&](Collective& group) { return TrainTogether(group, loss, params); }), IsOk());
  EXPECT_THAT(nn::LoadState(io::LocalFileSystem(), "together.safetensors"), IsOk());
}

// The plan of an FP8 layer over a mesh.
absl::StatusOr<Fp8DotSharding> PlanOverMesh() {
  AQT_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Make({{"data", 4}, {"model", 2}}));
  const std::vector<AxisRule> rules = {{"batch", "data"}, {"hidden", "model"}};
  return PlanFp8Dot(rules, mesh, /*x_axes=*/{"batch", "embed"}, /*kernel_axes=*/{"hidden", "mlp"});
}

TEST(TrainingDoc, TheCodePlansAnFp8Layer) {
  const absl::StatusOr<Fp8DotSharding> plan = PlanOverMesh();
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ(plan->YSum(), "model");
}

// The lines of a text without their indentation, empty ones left out; each line begins and ends with "\n".
std::string Lines(absl::string_view text) {
  std::string lines = "\n";
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(line);
    if (!stripped.empty()) absl::StrAppend(&lines, stripped, "\n");
  }
  return lines;
}

std::string ReadText(const char* path) {
  absl::StatusOr<std::string> text = io::ReadFile(io::LocalFileSystem(), path, 1 << 20);
  EXPECT_THAT(text, IsOk());
  return text.ok() ? *text : "";
}

TEST(TrainingDoc, ThePageHasThisCode) {
  const std::string source = Lines(ReadText("tests/e2e/training_doc_test.cc"));
  const std::vector<std::string> parts = absl::StrSplit(ReadText("docs/training.md"), "```");
  int blocks = 0;
  for (size_t i = 1; i < parts.size(); i += 2) {  // every other part is a block
    absl::string_view block = parts[i];
    if (!absl::ConsumePrefix(&block, "cpp\n")) continue;
    ++blocks;
    EXPECT_TRUE(absl::StrContains(source, Lines(block))) << "not in this test:\n" << block;
  }
  EXPECT_EQ(blocks, 11);
}

}  // namespace
}  // namespace aqt
