// Golden: the ids, type ids and places that the `tokenizers` package gives for the strings of
// tests/golden/tokenizers/corpus.txt, with each of the tokenizers beside it (README.md there).

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "aqt/io/file.h"
#include "aqt/tokenizers/json_value.h"
#include "aqt/tokenizers/normalizer.h"
#include "aqt/tokenizers/text.h"
#include "aqt/tokenizers/tokenizer.h"
#include "gtest/gtest.h"

namespace aqt::tokenizers {
namespace {

const std::string kFolder = "tests/golden/tokenizers/";

std::vector<std::string> Lines(const std::string& file) {
  const auto text = io::ReadFile(io::LocalFileSystem(), kFolder + file, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  if (!text.ok()) return {};
  std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  lines.pop_back();
  return lines;
}

const std::vector<std::string>& Corpus() {
  static const std::vector<std::string>* const corpus = [] {
    auto* const strings = new std::vector<std::string>(Lines("corpus.txt"));
    for (std::string& line : *strings) {
      std::string bytes;
      EXPECT_TRUE(absl::Base64Unescape(line, &bytes));
      line = bytes;
    }
    return strings;
  }();
  return *corpus;
}

std::string Places(const Encoding& encoding) {
  return absl::StrJoin(encoding.offsets, " ", [](std::string* out, const auto& place) {
    absl::StrAppend(out, place.first, "-", place.second);
  });
}

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, EqualsTheRecording) {
  const auto tokenizer = Tokenizer::Open(io::LocalFileSystem(), kFolder + GetParam());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<std::string>& corpus = Corpus();
  ASSERT_GT(corpus.size(), 2000);
  EncodeOptions with_offsets, plain, short_ones;
  with_offsets.offsets = true;
  plain.add_special_tokens = false;
  short_ones.max_length = 9;
  size_t i = 0;  // one more than the number of the string
  absl::StatusOr<Encoding> last;
  int failures = 0;
  for (const std::string& line : Lines(absl::StrCat(GetParam(), "/expected.txt"))) {
    const std::pair<std::string, std::string> record = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    std::string expected = record.second;
    const auto pair = [&](const EncodeOptions& options) {
      return tokenizer->Encode(corpus[i - 1], corpus[i % corpus.size()], options);
    };
    switch (record.first[0]) {
      case 'e': last = tokenizer->Encode(corpus[i++]); break;
      case 'o': last = tokenizer->Encode(corpus[i - 1], with_offsets); break;
      case 'p':
      case 'y': last = pair({}); break;
      case 'n':
      case 'x': last = pair(plain); break;
      case 't': break;
      case 'm':
      case 'q': {
        const std::pair<std::string, std::string> numbered = absl::StrSplit(record.second, absl::MaxSplits(' ', 1));
        ASSERT_TRUE(absl::SimpleAtoi(numbered.first, &i));
        ++i;
        expected = numbered.second;
        last = record.first == "m" ? tokenizer->Encode(corpus[i - 1], short_ones) : pair(short_ones);
        break;
      }
      default: FAIL() << "no record: " << line;
    }
    if (record.first == "x" || record.first == "y") {
      EXPECT_FALSE(last.ok()) << i - 1;
      continue;
    }
    ASSERT_TRUE(last.ok()) << last.status() << " for string " << i - 1;
    const std::string found = record.first == "o"   ? Places(*last)
                              : record.first == "t" ? absl::StrJoin(last->type_ids, " ")
                                                    : absl::StrJoin(last->ids, " ");
    if (found == expected) continue;
    ADD_FAILURE() << record.first << ", string " << i - 1 << ": \"" << absl::CHexEscape(corpus[i - 1])
                  << "\"\n    found " << found << "\n expected " << expected;
    if (++failures == 10) break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest,
                         testing::Values("bert_uncased", "bert_cased", "bert_vocab", "roberta", "modernbert", "qwen",
                                         "llama3", "clip", "xlm_roberta", "t5", "llama", "fused", "parts"),
                         [](const auto& info) { return std::string(info.param); });

// All code points, between others that they can join.
TEST(CodePoints, NormalizersEqualTheRecording) {
  for (const std::string& line : Lines("code_points.txt")) {
    const std::vector<std::string> record = absl::StrSplit(line, ' ');
    ASSERT_EQ(record.size(), 3);
    const char* const more =
        record[0] == "BertNormalizer" ? R"(, "clean_text": true, "handle_chinese_chars": true, "lowercase": true)" : "";
    const auto json = ParseJsonObject(absl::StrCat("{\"type\": \"", record[0], "\"", more, "}"));
    ASSERT_TRUE(json.ok()) << json.status();
    const auto normalizer = ParseNormalizer(*json, record[0]);
    ASSERT_TRUE(normalizer.ok()) << normalizer.status();
    uint64_t hash = 0xCBF29CE484222325, size = 0;
    Text text;
    std::string bytes;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if (code >= 0xD800 && code < 0xE000) continue;
      text = {{'a', 0, 1}, {code, 1, 2}, {0x301, 2, 3}, {0x323, 3, 4}, {'b', 4, 5}};
      ASSERT_TRUE((*normalizer)->Normalize(GrowthLimit(text.size()), text).ok());
      bytes.clear();
      for (const Char& c : text) AppendUtf8(c.code, bytes);
      for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
      size += bytes.size();
    }
    EXPECT_EQ(absl::StrCat(record[0], " ", size, " ", absl::StrFormat("%016x", hash)), line);
  }
}

}  // namespace
}  // namespace aqt::tokenizers
