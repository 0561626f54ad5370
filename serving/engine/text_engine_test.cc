#include "serving/engine/text_engine.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/models/text/text_embedder.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

constexpr char kFolder[] = "tests/golden/models/bert";  // ids 5, 6, ... are w5, w6, ...

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

TEST(TextEngineTest, EqualsTheEmbedderOfSingleTexts) {
  const models::TextEmbedder embedder = *models::TextEmbedder::Open(Fs(), kFolder);
  const std::unique_ptr<TextEngine> engine = *TextEngine::Open(Fs(), kFolder, {.engine = {.threads = 2}});
  EXPECT_EQ(engine->max_length(), embedder.max_length());
  EXPECT_TRUE(engine->model().weights().empty());
  std::vector<TextRequest> requests;
  std::string text;
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&text, "w", 5 + i, " ");
    requests.push_back({.text = text});
  }
  const std::vector<absl::StatusOr<TextAnswer>> answers = engine->RunAll(requests);
  ASSERT_EQ(answers.size(), 30);
  for (int i = 0; i < 30; ++i) {
    const models::TextEmbedding want = *embedder.Embed(requests[i].text);
    ASSERT_THAT(answers[i], IsOk());
    EXPECT_EQ(answers[i]->outputs.at(models::kEmbeddings).View<float>(), absl::MakeConstSpan(want.values)) << i;
    EXPECT_EQ(answers[i]->tokens(), want.tokens);
    EXPECT_EQ(answers[i]->truncated(), want.truncated);
  }
}

TEST(TextEngineTest, OtherProgramsOfTheModel) {
  const auto hidden = [](const models::EncoderModel& model, int64_t batch, int64_t length, bool types) {
    return model.HiddenProgram(batch, length, types);
  };
  const std::unique_ptr<TextEngine> engine = *TextEngine::Open(Fs(), kFolder, {.program = hidden});
  const absl::StatusOr<TextAnswer> answer = engine->Run({.text = "w7 w8"});
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->outputs.at(models::kHidden).shape(), Shape({4, 24}));  // as long as the text
}

TEST(TextEngineTest, Pairs) {
  const std::unique_ptr<TextEngine> engine = *TextEngine::Open(Fs(), kFolder);
  const absl::StatusOr<TextAnswer> pair = engine->Run({.text = "w7", .second = "w8"});
  ASSERT_THAT(pair, IsOk());
  EXPECT_EQ(pair->tokens(), 5);  // [CLS] w7 [SEP] w8 [SEP]
  // The second text is in another segment.
  const Array ids = Array::Of<int32_t>({2, 7, 3, 8, 3}, {1, 5}), types = Array::Of<int32_t>({0, 0, 0, 1, 1}, {1, 5});
  const models::EncoderModel model = *models::ModelFromFolder(Fs(), kFolder);
  const SlotValues want =
      *model.Serve({*model.EmbeddingProgram(1, 5, true)}, {})
           ->Eval({{models::kIds, ids}, {models::kTypes, types}, {models::kLengths, Array::Of<int32_t>({5}, {1})}});
  for (int i = 0; i < 24; ++i) {
    // Padding changes the order of sums.
    EXPECT_NEAR(pair->outputs.at(models::kEmbeddings).View<float>()[i], want.at(models::kEmbeddings).View<float>()[i],
                1e-6);
  }
}

TEST(TextEngineTest, ErrorsOfATextAreAnswers) {
  const std::unique_ptr<TextEngine> engine = *TextEngine::Open(Fs(), kFolder);
  const TextTicket ticket = engine->Submit({.text = "w7", .deadline = absl::InfinitePast()});
  EXPECT_TRUE(absl::IsDeadlineExceeded(ticket.Wait().status()));
  // What is wrong with the request itself is known without computing.
  const TextTicket wrong = engine->Submit({.ids = std::vector<int32_t>()});
  EXPECT_TRUE(wrong.WaitUntil(absl::InfinitePast()));
  EXPECT_TRUE(absl::IsInvalidArgument(wrong.Wait().status()));
  EXPECT_FALSE(wrong.Cancel());
  EXPECT_TRUE(absl::IsNotFound(TextEngine::Open(Fs(), "tests/golden/models/roberta").status()));
}

}  // namespace
}  // namespace aqt::serving
