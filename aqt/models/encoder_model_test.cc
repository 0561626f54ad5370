#include "aqt/models/encoder_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::models {
namespace {

using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/models/";

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

struct Recorded {
  SlotValues inputs;
  Array hidden;
  std::optional<Array> embeddings;
  int64_t batch = 0, length = 0;
  bool types = false;
};

Recorded ReadRecorded(const std::string& folder) {
  const io::SafetensorsReader file = *io::SafetensorsReader::Open(Fs(), io::JoinPath(folder, "expected.safetensors"));
  Recorded recorded;
  recorded.inputs[kIds] = *file.ReadArray("ids");
  recorded.inputs[kLengths] = *file.ReadArray("lengths");
  recorded.types = file.Find("types") != nullptr;
  if (recorded.types) recorded.inputs[kTypes] = *file.ReadArray("types");
  recorded.hidden = *file.ReadArray("hidden");
  if (file.Find("embeddings") != nullptr) recorded.embeddings = *file.ReadArray("embeddings");
  recorded.batch = recorded.inputs[kIds].shape()[0];
  recorded.length = recorded.inputs[kIds].shape()[1];
  return recorded;
}

// The largest difference of the rows that count, relative to the largest element.
double Difference(const Array& got, const Array& want, const Array& lengths) {
  EXPECT_EQ(got.shape(), want.shape());
  const int64_t length = want.shape()[1], width = want.shape()[2];
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (i / width % length >= lengths.View<int32_t>()[i / width / length]) continue;
    const double a = got.View<float>()[i], b = want.View<float>()[i];
    largest = std::max(largest, std::fabs(b));
    if (!(std::fabs(a - b) <= difference)) difference = std::fabs(a - b);
  }
  return difference / largest;
}

// Sums of up to 40 products in another order, through two layers: the results of two correct programs in f32 differ by
// some units of 2^-24 times the square root of the number of roundings.
constexpr double kBound = 1e-5;

class EncoderModelGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(EncoderModelGolden, EqualsTransformers) {
  const std::string folder = std::string(kGolden) + GetParam();
  const absl::StatusOr<EncoderModel> model = ModelFromFolder(Fs(), folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const Recorded recorded = ReadRecorded(folder);
  const Program program = *model->HiddenProgram(recorded.batch, recorded.length, recorded.types);
  const absl::StatusOr<PreparedProgram> served = model->Serve({program}, InjectConfig());
  ASSERT_TRUE(served.ok()) << served.status();
  const SlotValues out = *served->Eval(recorded.inputs);
  EXPECT_LE(Difference(out.at(kHidden), recorded.hidden, recorded.inputs.at(kLengths)), kBound);

  if (!recorded.embeddings.has_value()) return;
  const Program pooled = *model->EmbeddingProgram(recorded.batch, recorded.length, recorded.types);
  const SlotValues pooled_out = *model->Serve({pooled}, InjectConfig())->Eval(recorded.inputs);
  const Array& got = pooled_out.at(kEmbeddings);
  ASSERT_EQ(got.shape(), recorded.embeddings->shape());
  EXPECT_EQ(got.shape()[1], model->pooling().width);
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    const double want = recorded.embeddings->View<float>()[i];
    largest = std::max(largest, std::fabs(want));
    difference = std::max(difference, std::fabs(got.View<float>()[i] - want));
  }
  EXPECT_LE(difference / largest, kBound);
}

INSTANTIATE_TEST_SUITE_P(Folders, EncoderModelGolden,
                         ::testing::Values("bert", "bert_relu_bf16", "roberta", "xlm_roberta", "distilbert",
                                           "distilbert_f16", "mpnet", "mpnet_long"),
                         [](const auto& info) { return std::string(info.param); });

class EncoderModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = io::JoinPath(::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    (void)io::RemoveTree(Fs(), folder_);
    ASSERT_TRUE(Fs().CreateFolder(folder_).ok());
    for (const char* file : {"config.json", "model.safetensors", "modules.json"}) Copy(file);
    ASSERT_TRUE(Fs().CreateFolder(io::JoinPath(folder_, "1_Pooling")).ok());
    ASSERT_TRUE(Fs().CreateFolder(io::JoinPath(folder_, "2_Normalize")).ok());
    Copy("1_Pooling/config.json");
  }
  void TearDown() override { (void)io::RemoveTree(Fs(), folder_); }
  void Copy(const std::string& file) {
    ASSERT_TRUE(io::CopyFile(Fs(), std::string(kGolden) + "bert/" + file, io::JoinPath(folder_, file)).ok());
  }
  void Edit(const std::string& file, const std::string& from, const std::string& to) {
    const std::string path = io::JoinPath(folder_, file);
    const std::string text = *io::ReadFile(Fs(), path, 1 << 20);
    const std::string edited = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(text, edited);
    ASSERT_TRUE(io::WriteFile(Fs(), path, edited, {.overwrite = true}).ok());
  }
  absl::Status Open() const { return ModelFromFolder(Fs(), folder_).status(); }
  std::string Message() const { return std::string(Open().message()); }

  std::string folder_;
};

TEST_F(EncoderModelTest, APlainFolderHasTheMean) {
  ASSERT_TRUE(Fs().Remove(io::JoinPath(folder_, "modules.json")).ok());
  const absl::StatusOr<EncoderModel> model = ModelFromFolder(Fs(), folder_);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->pooling().steps.size(), 1);
  EXPECT_EQ(std::get<PoolTokens>(model->pooling().steps[0]).modes, std::vector<PoolMode>{PoolMode::kMean});
}

TEST_F(EncoderModelTest, FieldsThatChangeTheArithmeticAreRefusedByName) {
  Edit("config.json", R"("vocab_size": 50)", R"("vocab_size": 50, "rotary_dim": 4)");
  EXPECT_TRUE(absl::IsUnimplemented(Open()));
  EXPECT_THAT(Message(), HasSubstr("config.json: rotary_dim is not known for this model"));
  Edit("config.json", R"("rotary_dim": 4)", R"("is_decoder": true)");
  EXPECT_THAT(Message(), HasSubstr("is_decoder is 'true', expected false"));
  Edit("config.json", R"("is_decoder": true)", R"("is_decoder": false)");
  EXPECT_TRUE(Open().ok()) << Open();
  Edit("config.json", R"("hidden_act": "gelu")", R"("hidden_act": "mish")");
  EXPECT_THAT(Message(), HasSubstr("hidden_act is"));
}

TEST_F(EncoderModelTest, OtherArchitecturesAreNamed) {
  Edit("config.json", R"("model_type": "bert")", R"("model_type": "llama")");
  EXPECT_TRUE(absl::IsUnimplemented(Open()));
  EXPECT_THAT(Message(),
              HasSubstr("'llama'; encoders of these types can be run: bert, camembert, distilbert, mpnet, roberta, "
                        "xlm-roberta"));
}

TEST_F(EncoderModelTest, WeightsMustFit) {
  Edit("config.json", R"("num_hidden_layers": 2)", R"("num_hidden_layers": 3)");
  EXPECT_THAT(Message(), HasSubstr("layer2/attention/query/kernel"));
  Edit("config.json", R"("num_hidden_layers": 3)", R"("num_hidden_layers": 1)");
  EXPECT_THAT(Message(), HasSubstr("encoder.layer.1."));
}

TEST_F(EncoderModelTest, StepsThatAreNotComputedAreRefused) {
  Edit("1_Pooling/config.json", R"("mean")", R"("lasttoken")");
  EXPECT_THAT(Message(), HasSubstr("1_Pooling/config.json: pooling_mode is"));
  Edit("1_Pooling/config.json", R"("lasttoken")", R"("mean")");
  Edit("modules.json", "Normalize\"", "WordWeights\"");
  EXPECT_THAT(Message(), HasSubstr("module 'WordWeights' at position 2"));
  Edit("modules.json", "1_Pooling", "../1_Pooling");
  EXPECT_THAT(Message(), HasSubstr("leaves the model's folder"));
}

TEST_F(EncoderModelTest, AMissingFileIsAnError) {
  ASSERT_TRUE(Fs().Remove(io::JoinPath(folder_, "1_Pooling/config.json")).ok());
  EXPECT_TRUE(absl::IsNotFound(Open()));
}

TEST_F(EncoderModelTest, ShapesOutOfRange) {
  const EncoderModel model = *ModelFromFolder(Fs(), folder_);
  EXPECT_THAT(model.HiddenProgram(1, 21).status().message(), HasSubstr("at most the 20 tokens of the model"));
  EXPECT_TRUE(absl::IsInvalidArgument(model.HiddenProgram(0, 5).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(model.Serve({}, InjectConfig()).status()));
  const EncoderModel distilbert = *ModelFromFolder(Fs(), std::string(kGolden) + "distilbert");
  EXPECT_THAT(distilbert.HiddenProgram(1, 5, /*types=*/true).status().message(), HasSubstr("segments"));
}

// The rows of a batch do not depend on each other, nor on the padding after them.
TEST_F(EncoderModelTest, ARowDoesNotDependOnItsBatchOrPadding) {
  const EncoderModel model = *ModelFromFolder(Fs(), folder_);
  const Array ids = Array::Of<int32_t>({7, 8, 9, 0, 0, 11, 12, 13, 14, 15}, {2, 5});
  const auto run = [&](int64_t batch, int64_t length, const Array& these, const Array& lengths) {
    return model.Serve({*model.EmbeddingProgram(batch, length)}, InjectConfig())
        ->Eval({{kIds, these}, {kLengths, lengths}})
        ->at(kEmbeddings);
  };
  const Array together = run(2, 5, ids, Array::Of<int32_t>({3, 5}, {2}));
  const Array alone = run(1, 3, Array::Of<int32_t>({7, 8, 9}, {1, 3}), Array::Of<int32_t>({3}, {1}));
  for (int64_t i = 0; i < 24; ++i) EXPECT_NEAR(together.View<float>()[i], alone.View<float>()[i], 1e-6);
}

}  // namespace
}  // namespace aqt::models
