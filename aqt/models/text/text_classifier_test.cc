#include "aqt/models/text/text_classifier.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/models/text/text_embedder.h"
#include "aqt/models/text/token_classifier.h"
#include "aqt/runtime/prepared_program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/models/";  // ids 5, 6, ... are w5, w6, ...

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// What CrossEncoder.predict gives for these pairs; the folders allow at most 15 to 20 tokens.
class CrossEncoderGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(CrossEncoderGolden, EqualsPredict) {
  const std::string folder = std::string(kGolden) + GetParam();
  const absl::StatusOr<TextClassifier> classifier = TextClassifier::Open(Fs(), folder);
  ASSERT_TRUE(classifier.ok()) << classifier.status();
  EXPECT_TRUE(classifier->model().head()->cross_encoder);
  const io::SafetensorsReader file = *io::SafetensorsReader::Open(Fs(), io::JoinPath(folder, "expected.safetensors"));
  const Array want = *file.ReadArray("predicted");
  const std::pair<const char*, const char*> pairs[] = {
      {"w7 w8 w9", "w10"},
      {"w20", "w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31 w32 w33 w34 w35 w36 w37"},
      {"w11 w12 w13 w14 w15 w16 w17 w18", "w19 w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30 w31"}};
  std::vector<float> got;
  for (const auto& [first, second] : pairs) {
    const absl::StatusOr<TextClasses> classes = classifier->Classify(first, second);
    ASSERT_TRUE(classes.ok()) << classes.status();
    got.insert(got.end(), classes->scores.begin(), classes->scores.end());
    EXPECT_LE(classes->tokens, classifier->max_length());
  }
  ASSERT_EQ(got.size(), want.num_elements());
  // As in encoder_model_test.cc; scores that are logits are up to 5.
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want.View<float>()[i], 5e-5) << i;
}

INSTANTIATE_TEST_SUITE_P(Folders, CrossEncoderGolden,
                         ::testing::Values("bert_pairs", "xlm_roberta_pairs", "modernbert_pairs"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TextClassifierTest, LabelsAndScores) {
  const TextClassifier classifier = *TextClassifier::Open(Fs(), std::string(kGolden) + "bert_classes");
  EXPECT_THAT(classifier.labels(), ElementsAre("negative", "neutral", "positive"));
  EXPECT_FALSE(classifier.model().head()->cross_encoder);
  const TextClasses classes = *classifier.Classify("w7 w8  w9");
  EXPECT_EQ(classes.tokens, 5);
  EXPECT_EQ(classes.truncated, 0);
  // The softmax of the logits that the program has without padding.
  const EncoderModel& model = classifier.model();
  const Array ids = Array::Of<int32_t>({2, 7, 8, 9, 3}, {1, 5});
  const Array logits = model.Serve({*model.LogitsProgram(1, 5)}, InjectConfig())
                           ->Eval({{kIds, ids}, {kLengths, Array::Of<int32_t>({5}, {1})}})
                           ->at(kLogits);
  double sum = 0, largest = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(classes.logits[i], logits.View<float>()[i], 1e-5);
    sum += std::exp(double{logits.View<float>()[i]});
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(classes.scores[i], std::exp(double{logits.View<float>()[i]}) / sum, 1e-5);
    largest = std::max<double>(largest, classes.scores[i]);
  }
  EXPECT_EQ(classes.scores[classes.best], static_cast<float>(largest));
}

// The second text of a pair is another segment.
TEST(TextClassifierTest, APairHasSegments) {
  const TextClassifier classifier = *TextClassifier::Open(Fs(), std::string(kGolden) + "bert_classes");
  const TextClasses pair = *classifier.Classify("w7", "w8");
  const EncoderModel& model = classifier.model();
  const Array logits = model.Serve({*model.LogitsProgram(1, 5, /*types=*/true)}, InjectConfig())
                           ->Eval({{kIds, Array::Of<int32_t>({2, 7, 3, 8, 3}, {1, 5})},
                                   {kTypes, Array::Of<int32_t>({0, 0, 0, 1, 1}, {1, 5})},
                                   {kLengths, Array::Of<int32_t>({5}, {1})}})
                           ->at(kLogits);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(pair.logits[i], logits.View<float>()[i], 1e-5);
}

TEST(TextClassifierTest, TheLongerTextIsCutOff) {
  const TextClassifier classifier = *TextClassifier::Open(Fs(), std::string(kGolden) + "bert_classes");
  EXPECT_EQ(classifier.max_length(), 20);  // of the model
  std::string longer;
  for (int i = 0; i < 30; ++i) longer += "w9 ";
  const TextClasses cut = *classifier.Classify("w7 w8", longer);
  EXPECT_EQ(cut.tokens, 20);
  EXPECT_EQ(cut.truncated, 15);
  const std::string shorter = "w9 w9 w9 w9 w9 w9 w9 w9 w9 w9 w9 w9 w9 w9 w9";
  EXPECT_EQ(cut.scores, classifier.Classify("w7 w8", shorter)->scores);
}

TEST(TokenClassifierTest, TokensHavePlacesAndLabels) {
  const TokenClassifier classifier = *TokenClassifier::Open(Fs(), std::string(kGolden) + "bert_tokens");
  EXPECT_THAT(classifier.labels(), ElementsAre("O", "B-PER", "I-PER"));
  const std::string text = "w7  W8,w9";
  const TokenClasses classes = *classifier.Classify(text);
  EXPECT_EQ(classes.tokens, 6);
  const EncoderModel& model = classifier.model();
  const Array logits =
      model.Serve({*model.LogitsProgram(1, 6)}, InjectConfig())
          ->Eval({{kIds, Array::Of<int32_t>({2, 7, 8, 1, 9, 3}, {1, 6})}, {kLengths, Array::Of<int32_t>({6}, {1})}})
          ->at(kLogits);
  std::vector<std::string> pieces;
  for (size_t i = 0; i < classes.found.size(); ++i) {
    const TokenClass& token = classes.found[i];
    pieces.push_back(text.substr(token.begin, token.end - token.begin));
    double sum = 0;
    for (int j = 0; j < 3; ++j) sum += std::exp(double{logits.View<float>()[3 * (i + 1) + j]});
    for (int j = 0; j < 3; ++j) {
      EXPECT_NEAR(token.scores[j], std::exp(double{logits.View<float>()[3 * (i + 1) + j]}) / sum, 1e-5);
      EXPECT_LE(token.scores[j], token.score);
    }
    EXPECT_EQ(token.scores[token.label], token.score);
  }
  EXPECT_THAT(pieces, ElementsAre("w7", "W8", ",", "w9"));
}

TEST(TextClassifierTest, EachFolderHasItsClass) {
  const std::string bert = std::string(kGolden) + "bert", tokens = std::string(kGolden) + "bert_tokens",
                    classes = std::string(kGolden) + "bert_classes";
  EXPECT_TRUE(absl::IsFailedPrecondition(TextClassifier::Open(Fs(), bert).status()));
  EXPECT_THAT(std::string(TextClassifier::Open(Fs(), bert).status().message()), HasSubstr("use TextEmbedder"));
  EXPECT_THAT(std::string(TextClassifier::Open(Fs(), tokens).status().message()), HasSubstr("use TokenClassifier"));
  EXPECT_THAT(std::string(TokenClassifier::Open(Fs(), classes).status().message()), HasSubstr("use TextClassifier"));
  EXPECT_TRUE(TextEmbedder::Open(Fs(), classes).ok());  // the mean, without the head
}

// Other versions of sentence-transformers name the activation in other files.
class CrossEncoderVersions : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = io::JoinPath(::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    (void)io::RemoveTree(Fs(), folder_);
    ASSERT_TRUE(Fs().CreateFolder(folder_).ok());
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
      ASSERT_TRUE(io::CopyFile(Fs(), std::string(kGolden) + "bert_pairs/" + file, io::JoinPath(folder_, file)).ok());
    }
  }
  void TearDown() override { (void)io::RemoveTree(Fs(), folder_); }
  void AddField(const std::string& field) {
    const std::string path = io::JoinPath(folder_, "config.json");
    const std::string edited =
        absl::StrReplaceAll(*io::ReadFile(Fs(), path, 1 << 20), {{R"("hidden_act")", field + R"(, "hidden_act")"}});
    ASSERT_TRUE(io::WriteFile(Fs(), path, edited, {.overwrite = true}).ok());
  }
  absl::StatusOr<TextClassifier> Open() const { return TextClassifier::Open(Fs(), folder_); }

  std::string folder_;
};

TEST_F(CrossEncoderVersions, Four) {
  AddField(R"("sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"})");
  const TextClassifier classifier = *Open();
  EXPECT_TRUE(classifier.model().head()->cross_encoder);
  const TextClasses classes = *classifier.Classify("w7", "w8");
  EXPECT_EQ(classes.scores, classes.logits);
}

TEST_F(CrossEncoderVersions, Two) {
  AddField(R"("sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh")");
  const TextClasses classes = *Open()->Classify("w7", "w8");
  EXPECT_EQ(classes.scores[0], std::tanh(classes.logits[0]));
}

// Without any of these files the model is one of transformers, which takes the sigmoid of one label, too.
TEST_F(CrossEncoderVersions, None) {
  const TextClassifier classifier = *Open();
  EXPECT_FALSE(classifier.model().head()->cross_encoder);
  const TextClasses classes = *classifier.Classify("w7", "w8");
  EXPECT_EQ(classes.scores[0], 1.0f / (1.0f + std::exp(-classes.logits[0])));
}

TEST_F(CrossEncoderVersions, OtherActivationsAreRefused) {
  AddField(R"("sentence_transformers": {"activation_fn": "mine.Square"})");
  EXPECT_THAT(std::string(Open().status().message()),
              HasSubstr("sentence_transformers.activation_fn is \"mine.Square\"; expected torch.nn.modules"));
}

TEST_F(CrossEncoderVersions, UnknownFieldsAreRefused) {
  AddField(R"("sentence_transformers": {"scaling": 2})");
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("sentence_transformers: scaling is not known"));
}

}  // namespace
}  // namespace aqt::models
