// `aqt run` for models with classes, and for folders that `aqt convert` has written.

#include "serving/cli/models/given_text.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/models/encoder_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/cli/command.h"
#include "serving/cli/command_test_fixture.h"
#include "serving/cli/models/text_output.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

models::Head MakeHead(std::vector<std::string> labels, models::ScoreFunction scores, bool cross_encoder = false) {
  models::Head head;
  head.labels = std::move(labels);
  head.scores = scores;
  head.cross_encoder = cross_encoder;
  return head;
}

TEST(TextOutputTest, LinesOfClasses) {
  using models::ScoreFunction;
  models::TextClasses classes;
  classes.scores = {0.5f, 0.25f, 0.75f};
  classes.best = 2;
  const auto line = [&](const models::Head& head) { return ClassesOutput(head, classes).text; };
  EXPECT_EQ(line(MakeHead({"a", "b", "c"}, ScoreFunction::kSoftmax)), "c\t0.75\n");
  EXPECT_EQ(line(MakeHead({"a", "b", "c"}, ScoreFunction::kSigmoid)), "c\t0.75\ta\t0.5\n");
  EXPECT_EQ(line(MakeHead({"a", "b", "c"}, ScoreFunction::kIdentity)), "0.5 0.25 0.75\n");
  EXPECT_EQ(line(MakeHead({"a", "b", "c"}, ScoreFunction::kIdentity, /*cross_encoder=*/true)), "c\t0.75\n");
  classes.scores = {0.25f};
  classes.best = 0;
  EXPECT_EQ(line(MakeHead({"a"}, ScoreFunction::kSigmoid)), "0.25\n");
  classes.scores = {0.1f, 0.2f};
  EXPECT_EQ(line(MakeHead({"a", "b"}, ScoreFunction::kSigmoid)), "\n");  // none of them
}

TEST(GivenTextsTest, TextsLinesAndPairs) {
  models::Head head = MakeHead({"a", "b"}, models::ScoreFunction::kSoftmax);
  Flags flags;
  flags.texts = {"one\ttext"};
  const std::vector<std::string> texts = {"one\ttext", "a\tb\tc", "alone"};
  std::vector<GivenText> given = *GivenTexts(texts, &head, flags);
  EXPECT_FALSE(given[0].second.has_value());
  EXPECT_EQ(given[1].text, "a");
  EXPECT_EQ(given[1].second, "b\tc");
  EXPECT_FALSE(given[2].second.has_value());
  flags.pairs = {"its pair"};
  EXPECT_EQ((*GivenTexts(texts, &head, flags))[0].second, "its pair");
  flags.pairs = {"x", "y"};
  EXPECT_THAT(std::string(GivenTexts(texts, &head, flags).status().message()),
              HasSubstr("there are 1 --text and 2 --pair"));
  flags.pairs = {"x"};
  head.cross_encoder = true;
  EXPECT_THAT(std::string(GivenTexts(texts, &head, flags).status().message()), HasSubstr("text 3 is alone"));
  head.layers.reads = models::HeadLayers::Reads::kEach;
  EXPECT_THAT(std::string(GivenTexts(texts, &head, flags).status().message()), HasSubstr("leave --pair out"));
  flags.pairs.clear();
  head.cross_encoder = false;
  EXPECT_EQ((*GivenTexts(texts, &head, flags))[1].text, "a\tb\tc");
}

class RunModelTest : public CommandTest {
 protected:
  RunModelTest() : CommandTest(AqtMain) {}
  std::string Model(const std::string& name) const { return golden_ + name; }

  const std::string golden_ = std::filesystem::absolute("tests/golden/models").string() + "/";
};

TEST_F(RunModelTest, ClassesOfTexts) {
  ASSERT_EQ(Run({"run", Model("bert_classes"), "--text", "w7 w8", "--text", "w9 w10 w11"}), 0) << err_;
  EXPECT_THAT(out_, MatchesRegex("(negative|neutral|positive)\t0\\.[0-9]+\n(negative|neutral|positive)\t0\\.[0-9]+\n"));
  const std::string lines = out_;
  WriteText("texts.txt", "w7 w8\nw9 w10 w11\n");
  ASSERT_EQ(Run({"run", Model("bert_classes"), "--file", "texts.txt"}), 0) << err_;
  EXPECT_EQ(out_, lines);
}

TEST_F(RunModelTest, ScoresOfPairs) {
  ASSERT_EQ(Run({"run", Model("bert_pairs"), "--text", "w7 w8", "--pair", "w9 w10 w11"}), 0) << err_;
  EXPECT_THAT(out_, MatchesRegex("[0-9.e-]+\n"));
  const std::string line = out_;
  WriteText("pairs.txt", "w7 w8\tw9 w10 w11\n");
  ASSERT_EQ(Run({"run", Model("bert_pairs"), "--file", "pairs.txt"}), 0) << err_;
  EXPECT_EQ(out_, line);
  ASSERT_EQ(Run({"run", Model("bert_pairs"), "--file", "pairs.txt", "--json"}), 0) << err_;
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["labels"], nlohmann::json({"LABEL_0"}));
  EXPECT_EQ(absl::StrCat(json["texts"][0]["scores"][0].get<float>()), absl::StrCat(std::stof(line)));
  ExpectError({"run", Model("bert_pairs"), "--text", "w7"}, 2, "text 1 is alone, and the model scores pairs");
  ExpectError({"run", Model("bert"), "--text", "w7", "--pair", "w8"}, 2, "the model embeds single texts");
}

TEST_F(RunModelTest, ClassesOfTokens) {
  ASSERT_EQ(Run({"run", Model("bert_tokens"), "--text", "w7 W8", "--text", "w9"}), 0) << err_;
  EXPECT_THAT(out_,
              MatchesRegex("w7\t(O|B-PER|I-PER)\t0\\.[0-9]+\nW8\t[^\t]+\t0\\.[0-9]+\n\nw9\t[^\t]+\t0\\.[0-9]+\n\n"));
  ASSERT_EQ(Run({"run", Model("bert_tokens"), "--text", "w7 W8", "--json"}), 0) << err_;
  const auto found = nlohmann::json::parse(out_)["texts"][0]["found"];
  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[1]["begin"], 3);
  EXPECT_EQ(found[1]["end"], 5);
}

TEST_F(RunModelTest, WhatIsLeftOutIsSaid) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "w9 ";
  ASSERT_EQ(Run({"run", Model("bert_classes"), "--text", text}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("text 1: the last 12 tokens are left out; the model reads 20"));
}

// Hidden states of the converted folders point where those of the original ones point: noise of 8 bits for each row of
// weights is about 1/200 of a product's result.
TEST_F(RunModelTest, ConvertedFoldersAreNear) {
  for (const char* name : {"bert", "modernbert", "nomic", "roberta_classes"}) {
    for (const char* preset : {"w8a16", "w8a8_dynamic"}) {
      ASSERT_EQ(Run({"convert", Model(name), "out", "--preset", preset, "--progress", "never", "--force"}), 0) << err_;
      const auto hidden = [](const std::string& folder) {
        const absl::StatusOr<models::EncoderModel> model = models::ModelFromFolder(io::LocalFileSystem(), folder);
        EXPECT_TRUE(model.ok()) << folder << ": " << model.status();
        const absl::StatusOr<PreparedProgram> served = model->Serve({*model->HiddenProgram(2, 5)}, InjectConfig());
        const Array ids = Array::Of<int32_t>({7, 8, 9, 10, 11, 20, 21, 22, 23, 24}, {2, 5});
        return served->Eval({{models::kIds, ids}, {models::kLengths, Array::Of<int32_t>({5, 5}, {2})}})
            ->at(models::kHidden);
      };
      const Array a = hidden("out"), b = hidden(Model(name));
      double ab = 0, aa = 0, bb = 0, difference = 0;
      for (int64_t i = 0; i < b.num_elements(); ++i) {
        const double x = a.View<float>()[i], y = b.View<float>()[i];
        ab += x * y;
        aa += x * x;
        bb += y * y;
        difference = std::max(difference, std::fabs(x - y));
      }
      EXPECT_GE(ab / std::sqrt(aa * bb), 0.995) << name << " " << preset;
      EXPECT_GT(difference, 0) << name << " " << preset << ": nothing was quantized";
      std::filesystem::remove_all("out");
    }
  }
}

}  // namespace
}  // namespace aqt::serving
