#include "aqt/models/encoder_model.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/io/file.h"
#include "aqt/io/mapped_files.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/models/head.h"
#include "aqt/models/text/padded_length.h"
#include "aqt/runtime/prepared_program.h"
#include "aqt/testing/random.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "aqt/transforms/quantize/serve.h"
#include "aqt/transforms/row_dependence.h"
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
  std::optional<Array> embeddings, logits, scores;
  int64_t batch = 0, length = 0;
  bool types = false;
};

// The batches in expected.safetensors: "ids", "ids.1", ...
std::vector<Recorded> ReadRecorded(const std::string& folder) {
  const io::SafetensorsReader file = *io::SafetensorsReader::Open(Fs(), io::JoinPath(folder, "expected.safetensors"));
  std::vector<Recorded> batches;
  for (const std::string suffix : {"", ".1"}) {
    const auto read = [&](const std::string& name) -> std::optional<Array> {
      if (file.Find(name + suffix) == nullptr) return std::nullopt;
      return *file.ReadArray(name + suffix);
    };
    if (!read("ids").has_value()) continue;
    Recorded recorded;
    recorded.inputs[kIds] = *read("ids");
    recorded.inputs[kLengths] = *read("lengths");
    const std::optional<Array> types = read("types");
    recorded.types = types.has_value();
    if (recorded.types) recorded.inputs[kTypes] = *types;
    recorded.hidden = *read("hidden");
    recorded.embeddings = read("embeddings");
    recorded.logits = read("logits");
    recorded.scores = read("scores");
    recorded.batch = recorded.inputs[kIds].shape()[0];
    recorded.length = recorded.inputs[kIds].shape()[1];
    batches.push_back(std::move(recorded));
  }
  return batches;
}

// The largest difference relative to the largest element. Of arrays [batch, length, ...] only the tokens that count.
double Difference(const Array& got, const Array& want, const Array& lengths) {
  EXPECT_EQ(got.shape(), want.shape());
  if (got.shape() != want.shape()) return 1;
  const bool of_tokens = want.shape().rank() == 3;
  const int64_t length = of_tokens ? want.shape()[1] : 1, width = want.shape()[want.shape().rank() - 1];
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (of_tokens && i / width % length >= lengths.View<int32_t>()[i / width / length]) continue;
    const double a = got.View<float>()[i], b = want.View<float>()[i];
    largest = std::max(largest, std::fabs(b));
    if (!(std::fabs(a - b) <= difference)) difference = std::fabs(a - b);
  }
  return difference / largest;
}

// Sums of up to 256 products in another order, through up to four layers: the results of two correct programs in f32
// differ by some units of 2^-24 times the square root of the number of roundings.
constexpr double kBound = 1e-5;

class EncoderModelGolden : public ::testing::TestWithParam<const char*> {
 protected:
  static Array Run(const EncoderModel& model, const Recorded& recorded, const Slot& output,
                   const InjectConfig& config) {
    const absl::StatusOr<Program> program =
        output == kHidden       ? model.HiddenProgram(recorded.batch, recorded.length, recorded.types)
        : output == kEmbeddings ? model.EmbeddingProgram(recorded.batch, recorded.length, recorded.types)
                                : model.LogitsProgram(recorded.batch, recorded.length, recorded.types);
    EXPECT_TRUE(program.ok()) << program.status();
    const absl::StatusOr<PreparedProgram> served = model.Serve({*program}, config);
    EXPECT_TRUE(served.ok()) << served.status();
    return served->Eval(recorded.inputs)->at(output);
  }
};

TEST_P(EncoderModelGolden, EqualsTransformers) {
  const std::string folder = std::string(kGolden) + GetParam();
  const absl::StatusOr<EncoderModel> model = ModelFromFolder(Fs(), folder);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Recorded& recorded : ReadRecorded(folder)) {
    const Array& lengths = recorded.inputs.at(kLengths);
    EXPECT_LE(Difference(Run(*model, recorded, kHidden, {}), recorded.hidden, lengths), kBound);
    if (recorded.embeddings.has_value()) {
      const Array got = Run(*model, recorded, kEmbeddings, {});
      EXPECT_EQ(got.shape()[1], model->pooling().width);
      EXPECT_LE(Difference(got, *recorded.embeddings, lengths), kBound);
    }
    ASSERT_EQ(model->head().has_value(), recorded.logits.has_value());
    if (!recorded.logits.has_value()) continue;
    const Array logits = Run(*model, recorded, kLogits, {});
    EXPECT_LE(Difference(logits, *recorded.logits, lengths), kBound);
    std::vector<float> scores;
    const auto classes = static_cast<int64_t>(model->head()->labels.size());
    for (int64_t i = 0; i < logits.num_elements(); i += classes) {
      const std::vector<float> row = Scores(logits.View<float>().subspan(i, classes), model->head()->scores);
      scores.insert(scores.end(), row.begin(), row.end());
    }
    EXPECT_LE(Difference(Array::FromSpan(absl::MakeConstSpan(scores), logits.shape()), *recorded.scores, lengths),
              kBound);
  }
}

// int8 in every contraction, with one scale for each row and each column, is near the floats: the angle between the
// vectors of 24 numbers. Each of the products of a layer adds noise of about 1/200 of its result.
TEST_P(EncoderModelGolden, Int8IsNear) {
  const std::string folder = std::string(kGolden) + GetParam();
  const EncoderModel model = *ModelFromFolder(Fs(), folder);
  const Recorded recorded = ReadRecorded(folder)[0];
  const Array got = Run(model, recorded, kHidden, *InjectConfigFromPreset("int8_all"));
  const absl::Span<const float> a = got.View<float>(), b = recorded.hidden.View<float>();
  double ab = 0, aa = 0, bb = 0;
  for (int64_t i = 0; i < recorded.hidden.num_elements(); ++i) {
    if (b[i] == 0) continue;  // of a token that does not count
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  EXPECT_GE(ab / std::sqrt(aa * bb), 0.99);
}

// Ids and segments after the end of each text, replaced by others.
SlotValues WithOtherPadding(const Recorded& recorded, const EncoderFacts& facts) {
  SlotValues inputs = recorded.inputs;
  for (const auto& [slot, count] : {std::pair(kIds, facts.vocabulary), std::pair(kTypes, facts.types)}) {
    const auto it = inputs.find(slot);
    if (it == inputs.end()) continue;
    std::vector<int32_t> values(it->second.View<int32_t>().begin(), it->second.View<int32_t>().end());
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      const bool counts = i % recorded.length < inputs.at(kLengths).View<int32_t>()[i / recorded.length];
      if (!counts) values[i] = static_cast<int32_t>((values[i] + 1 + i % (count - 1)) % count);
    }
    it->second = Array::FromSpan<int32_t>(values, it->second.shape());
  }
  return inputs;
}

// Arrays [batch, length, ...] are compared only in the tokens that count.
bool BitsAreEqual(const Array& a, const Array& b, const Array& lengths) {
  if (a.aval() != b.aval() || a.shape().rank() != 3) return BitEqual(a, b);
  const int64_t length = a.shape()[1], width = a.shape()[2];
  for (int64_t row = 0; row < a.shape()[0]; ++row) {
    const size_t bytes = sizeof(float) * lengths.View<int32_t>()[row] * width;
    if (std::memcmp(&a.View<float>()[row * length * width], &b.View<float>()[row * length * width], bytes) != 0) {
      return false;
    }
  }
  return true;
}

// What comes after a text changes none of its bits, unless WhyPaddingCounts says so; in floating point it never does.
TEST_P(EncoderModelGolden, PaddingKeepsBits) {
  const std::string folder = std::string(kGolden) + GetParam();
  const EncoderModel model = *ModelFromFolder(Fs(), folder);
  Recorded recorded = ReadRecorded(folder)[0];
  std::vector<int32_t> lengths;  // each text ends before its last token
  for (const int32_t length : recorded.inputs.at(kLengths).View<int32_t>()) lengths.push_back(std::max(1, length - 1));
  recorded.inputs[kLengths] = Array::FromSpan<int32_t>(lengths, {recorded.batch});
  const SlotValues other = WithOtherPadding(recorded, model.facts());
  EXPECT_FALSE(BitEqual(recorded.inputs.at(kIds), other.at(kIds)));
  for (const std::string preset : {"", "int8_hadamard", "int8_all"}) {
    SCOPED_TRACE(preset);
    const InjectConfig rules = model.Rules(preset.empty() ? InjectConfig() : *InjectConfigFromPreset(preset));
    const Program program = *model.OutputProgram(recorded.batch, recorded.length, recorded.types);
    const SlotValues frozen = *Freeze(program, rules, model.weights());
    const auto text = [&](int64_t length) { return *ServeProgram(*model.OutputProgram(1, length), rules, frozen); };
    const auto [length, other_length] = LengthsToCompare(model.facts().max_length);
    const std::string why = *WhyPaddingCounts(text(length), text(other_length));
    if (preset != "int8_all") {
      EXPECT_EQ(why, "");
    }
    if (!why.empty()) continue;
    const PreparedProgram served = *PreparedProgram::Make({*ServeProgram(program, rules, frozen)}, frozen);
    const Array a = served.Eval(recorded.inputs)->begin()->second, b = served.Eval(other)->begin()->second;
    EXPECT_TRUE(BitsAreEqual(a, b, recorded.inputs.at(kLengths)));
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, EncoderModelGolden,
                         ::testing::Values("bert", "bert_relu_bf16", "roberta", "xlm_roberta", "distilbert",
                                           "distilbert_f16", "mpnet", "mpnet_long", "modernbert", "modernbert_mlm_bf16",
                                           "nomic", "nomic_partial_f16", "bert_classes", "roberta_classes",
                                           "camembert_classes", "distilbert_classes", "mpnet_classes",
                                           "modernbert_classes", "nomic_classes", "bert_pairs", "xlm_roberta_pairs",
                                           "modernbert_pairs", "bert_tokens", "roberta_tokens", "distilbert_tokens",
                                           "mpnet_tokens", "modernbert_tokens", "nomic_tokens", "bert_prompt",
                                           "roberta_padding", "mpnet_padding", "bert_last", "roberta_weighted",
                                           "modernbert_5", "nomic_5", "bert_w8", "modernbert_w4"),
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
  EXPECT_THAT(Message(), HasSubstr("is_decoder is true; expected false"));
  Edit("config.json", R"("is_decoder": true)", R"("is_decoder": false)");
  EXPECT_TRUE(Open().ok()) << Open();
  Edit("config.json", R"("hidden_act": "gelu")", R"("hidden_act": "mish")");
  EXPECT_THAT(Message(), HasSubstr("hidden_act is"));
}

TEST_F(EncoderModelTest, OtherArchitecturesAreNamed) {
  Edit("config.json", R"("model_type": "bert")", R"("model_type": "llama")");
  EXPECT_TRUE(absl::IsUnimplemented(Open()));
  EXPECT_THAT(Message(),
              HasSubstr("'llama'; encoders of these types can be run: bert, camembert, distilbert, modernbert, mpnet, "
                        "nomic_bert, roberta, xlm-roberta"));
}

TEST_F(EncoderModelTest, ATypeOfTheWrongKindIsNotMissing) {
  Edit("config.json", R"("model_type": "bert")", R"("model_type": 3)");
  EXPECT_THAT(Message(), HasSubstr("model_type is 3; expected a string"));
}

TEST_F(EncoderModelTest, WeightsMustFit) {
  Edit("config.json", R"("num_hidden_layers": 2)", R"("num_hidden_layers": 3)");
  EXPECT_THAT(Message(), HasSubstr("layer2/attention/query/kernel"));
  Edit("config.json", R"("num_hidden_layers": 3)", R"("num_hidden_layers": 1)");
  EXPECT_THAT(Message(), HasSubstr("encoder.layer.1."));
}

TEST_F(EncoderModelTest, NumbersThatAreNoWeightsAreRefused) {
  const std::string path = io::JoinPath(folder_, "model.safetensors"), name = "encoder.layer.1.output.dense.bias";
  const io::SafetensorsReader reader = *io::SafetensorsReader::Open(Fs(), path);
  const auto write = [&](io::FileDType dtype, const Array& replacement) {
    std::vector<io::TensorSpec> specs(reader.tensors().begin(), reader.tensors().end());
    for (io::TensorSpec& spec : specs) {
      if (spec.name == name) spec.dtype = dtype;
    }
    const auto writer = *io::SafetensorsWriter::Create(Fs(), path, specs, {.output = {.overwrite = true}});
    for (const io::TensorSpec& spec : specs) {
      const Array array = spec.name == name ? replacement : *reader.ReadArray(spec.name);
      ASSERT_TRUE(writer->WriteArray(spec.name, array).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
  };
  for (const float bad : {std::nanf(""), -HUGE_VALF}) {
    std::vector<float> values(24, 0.5f);
    values[23] = bad;
    write(io::FileDType::kF32, Array::FromSpan(absl::MakeConstSpan(values), {24}));
    EXPECT_TRUE(absl::IsDataLoss(Open()));
    EXPECT_THAT(Message(), HasSubstr(absl::StrCat("tensor '", name, "' F32[24] has a NaN")));
  }
  // Integers are not taken for floats: nothing says how they are scaled.
  write(io::FileDType::kI32, Array::Zeros(DType::kS32, {24}));
  EXPECT_TRUE(absl::IsInvalidArgument(Open()));
  EXPECT_THAT(Message(), HasSubstr(absl::StrCat("tensor '", name, "' I32[24] has no floats")));
}

TEST_F(EncoderModelTest, StepsThatAreNotComputedAreRefused) {
  Edit("1_Pooling/config.json", R"("mean")", R"("lastword")");
  EXPECT_THAT(Message(), HasSubstr("1_Pooling/config.json: pooling_mode is"));
  Edit("1_Pooling/config.json", R"("lastword")", R"("mean")");
  Edit("modules.json", "Normalize\"", "WordWeights\"");
  EXPECT_THAT(Message(), HasSubstr("module 'WordWeights' at position 2"));
  Edit("modules.json", "1_Pooling", "../1_Pooling");
  EXPECT_THAT(Message(), HasSubstr("leaves the model's folder"));
  Edit("modules.json", "../1_Pooling", "1_Pooling");
  Edit("modules.json", R"("path": "")", R"("path": "0_Transformer")");
  EXPECT_THAT(Message(), HasSubstr("the path of the model is '0_Transformer'"));
}

// A pooling that leaves out the prompt matters only where there is one.
TEST_F(EncoderModelTest, PoolingWithoutThePrompt) {
  Edit("1_Pooling/config.json", R"("include_prompt": true)", R"("include_prompt": false)");
  EXPECT_TRUE(Open().ok()) << Open();
  ASSERT_TRUE(io::WriteFile(Fs(), io::JoinPath(folder_, "config_sentence_transformers.json"),
                            R"({"default_prompt_name": "query", "prompts": {"query": "q: "}})")
                  .ok());
  EXPECT_TRUE(absl::IsUnimplemented(Open()));
  EXPECT_THAT(Message(), HasSubstr("include_prompt of the pooling is false; expected true"));
}

TEST_F(EncoderModelTest, AMissingFileIsAnError) {
  ASSERT_TRUE(Fs().Remove(io::JoinPath(folder_, "1_Pooling/config.json")).ok());
  EXPECT_TRUE(absl::IsNotFound(Open()));
}

// The table of words is so large that it stays in the file.
TEST_F(EncoderModelTest, MappedFilesHaveTheSameWeights) {
  constexpr int64_t kWords = 1500;
  const std::string path = io::JoinPath(folder_, "model.safetensors"), table = "embeddings.word_embeddings.weight";
  const io::SafetensorsReader reader = *io::SafetensorsReader::Open(Fs(), path);
  std::vector<io::TensorSpec> specs(reader.tensors().begin(), reader.tensors().end());
  for (io::TensorSpec& spec : specs) {
    if (spec.name == table) spec.shape = {kWords, 24};
  }
  const auto writer = *io::SafetensorsWriter::Create(Fs(), path, specs, {.output = {.overwrite = true}});
  for (const io::TensorSpec& spec : specs) {
    const Array array =
        spec.name == table ? testing::RandomArray({DType::kF32, {kWords, 24}}, 1) : *reader.ReadArray(spec.name);
    ASSERT_TRUE(writer->WriteArray(spec.name, array).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  Edit("config.json", R"("vocab_size": 50)", absl::StrCat(R"("vocab_size": )", kWords));

  const EncoderModel read = *ModelFromFolder(Fs(), folder_);
  const EncoderModel mapped = *ModelFromFolder(io::MappedFiles(Fs()), folder_);
  const int64_t page = sysconf(_SC_PAGESIZE);
  const io::SafetensorsReader written = *io::SafetensorsReader::Open(Fs(), path);
  const int64_t data_begin = Fs().Stat(path)->size - written.total_bytes();
  int64_t in_the_file = 0;
  for (const auto& [slot, array] : read.weights()) {
    const Array& other = mapped.weights().at(slot);
    EXPECT_TRUE(BitEqual(array, other)) << slot.ToString();
    if (array.num_elements() != kWords * 24) continue;
    ++in_the_file;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(other.data()) % page, (data_begin + written.Find(table)->begin) % page);
  }
  EXPECT_EQ(in_the_file, 1);
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
