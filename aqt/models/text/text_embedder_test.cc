#include "aqt/models/text/text_embedder.h"

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/quant/config/builders.h"
#include "aqt/runtime/prepared_program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::models {
namespace {

using ::testing::HasSubstr;

constexpr char kFolder[] = "tests/golden/models/bert";  // ids 5, 6, ... are w5, w6, ...

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

TEST(TextEmbedderTest, EqualsTheProgramOfItsTokens) {
  const absl::StatusOr<TextEmbedder> embedder = TextEmbedder::Open(Fs(), kFolder);
  ASSERT_TRUE(embedder.ok()) << embedder.status();
  EXPECT_EQ(embedder->max_length(), 12);  // of sentence_bert_config.json
  const absl::StatusOr<TextEmbedding> got = embedder->Embed("w7 W8  w9");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->tokens, 5);
  EXPECT_EQ(got->truncated, 0);
  const EncoderModel& model = embedder->model();
  const Array ids = Array::Of<int32_t>({2, 7, 8, 9, 3}, {1, 5});
  const SlotValues want = *model.Serve({*model.EmbeddingProgram(1, 5)}, InjectConfig())
                               ->Eval({{kIds, ids}, {kLengths, Array::Of<int32_t>({5}, {1})}});
  ASSERT_EQ(got->values.size(), 24);
  double square = 0;
  for (int i = 0; i < 24; ++i) {
    // Padding changes the order of sums.
    EXPECT_NEAR(got->values[i], want.at(kEmbeddings).View<float>()[i], 1e-6);
    square += got->values[i] * got->values[i];
  }
  EXPECT_NEAR(square, 1, 1e-5);  // Normalize
}

// The int8 values of an attention share a scale over the positions, which padding would change.
TEST(TextEmbedderTest, PaddingDoesNotChangeAScale) {
  InjectConfig config;
  config.rules.push_back({.scope = ".*", .dot_general = DotGeneralMake(8, 8)});
  const TextEmbedder embedder = *TextEmbedder::Open(Fs(), kFolder, config);
  const Array ids = Array::Of<int32_t>({2, 7, 8, 9, 3}, {1, 5});
  const SlotValues want = *embedder.model()
                               .Serve({*embedder.model().EmbeddingProgram(1, 5)}, config)
                               ->Eval({{kIds, ids}, {kLengths, Array::Of<int32_t>({5}, {1})}});
  const absl::Span<const float> values = want.at(kEmbeddings).View<float>();
  EXPECT_EQ(embedder.Embed("w7 w8 w9")->values, std::vector<float>(values.begin(), values.end()));
}

TEST(TextEmbedderTest, LongTextsAreCutOff) {
  const TextEmbedder embedder = *TextEmbedder::Open(Fs(), kFolder);
  std::string text;
  for (int i = 0; i < 30; ++i) absl::StrAppend(&text, "w", 5 + i, " ");
  const TextEmbedding embedding = *embedder.Embed(text);
  EXPECT_EQ(embedding.tokens, 12);
  EXPECT_EQ(embedding.truncated, 20);
  EXPECT_EQ(embedding.values, embedder.Embed("w5 w6 w7 w8 w9 w10 w11 w12 w13 w14")->values);
}

// What encode of sentence-transformers gives for a folder that it has written, with a prompt before each text and at
// most 9 tokens.
TEST(TextEmbedderTest, EqualsEncodeWithAPrompt) {
  const std::string folder = "tests/golden/models/bert_prompt";
  const TextEmbedder embedder = *TextEmbedder::Open(Fs(), folder);
  EXPECT_EQ(embedder.max_length(), 9);
  const Array want = *io::SafetensorsReader::Open(Fs(), folder + "/expected.safetensors")->ReadArray("encoded");
  const char* const texts[] = {"w7 w8", "w9 w10 w11 w12 w13 w14 w15 w16"};
  for (int i = 0; i < 2; ++i) {
    const TextEmbedding embedding = *embedder.Embed(texts[i]);
    EXPECT_EQ(embedding.truncated, i == 0 ? 0 : 4);
    // As in encoder_model_test.cc; the numbers are below 3.
    for (int j = 0; j < 24; ++j) EXPECT_NEAR(embedding.values[j], want.View<float>()[24 * i + j], 3e-5);
  }
}

TEST(TextEmbedderTest, ManyThreadsGetTheSameBits) {
  const TextEmbedder embedder = *TextEmbedder::Open(Fs(), kFolder);
  const std::vector<float> want = TextEmbedder::Open(Fs(), kFolder)->Embed("w7 w8")->values;
  std::vector<std::vector<float>> got(8);
  std::vector<std::thread> threads;
  for (std::vector<float>& values : got) {
    threads.emplace_back([&embedder, &values] { values = embedder.Embed("w7 w8")->values; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& values : got) EXPECT_EQ(values, want);
}

TEST(TextEmbedderTest, FoldersWithoutATokenizerOrWithAnother) {
  EXPECT_TRUE(absl::IsNotFound(TextEmbedder::Open(Fs(), "tests/golden/models/roberta").status()));
  const std::string folder = io::JoinPath(::testing::TempDir(), "other_vocabulary");
  (void)io::RemoveTree(Fs(), folder);
  ASSERT_TRUE(Fs().CreateFolder(folder).ok());
  for (const char* file : {"config.json", "model.safetensors"}) {
    ASSERT_TRUE(io::CopyFile(Fs(), io::JoinPath(kFolder, file), io::JoinPath(folder, file)).ok());
  }
  std::string vocabulary = *io::ReadFile(Fs(), io::JoinPath(kFolder, "vocab.txt"), 1 << 20) + "one_more\n";
  ASSERT_TRUE(io::WriteFile(Fs(), io::JoinPath(folder, "vocab.txt"), vocabulary).ok());
  EXPECT_THAT(std::string(TextEmbedder::Open(Fs(), folder).status().message()),
              HasSubstr("the tokenizer has ids up to 50, and the model knows 50"));
}

}  // namespace
}  // namespace aqt::models
