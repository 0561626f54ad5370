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
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "aqt/io/file.h"
#include "aqt/io/json_value.h"
#include "aqt/tokenizers/splitting/normalizer.h"
#include "aqt/tokenizers/text/text.h"
#include "aqt/tokenizers/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

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

uint64_t Fnv(absl::string_view bytes, uint64_t hash = 0xCBF29CE484222325) {
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  return hash;
}

// Random combinations of parts, around the models of the tokenizers above.
TEST(Pipelines, EqualTheRecording) {
  constexpr size_t kStep = 17;
  const auto read = [](const std::string& name) {
    const auto text = io::ReadFile(io::LocalFileSystem(), kFolder + name + "/tokenizer.json", 1 << 20);
    return nlohmann::json::parse(text.ok() ? *text : "");
  };
  const std::string charsmap = read("xlm_roberta")["normalizer"]["normalizers"][0]["precompiled_charsmap"];
  const std::vector<std::string> lines = Lines("pipelines.txt");
  ASSERT_GE(lines.size(), 200);
  EncodeOptions options;
  options.offsets = true;
  for (size_t i = 0; i < lines.size(); i += 2) {
    const nlohmann::json record = nlohmann::json::parse(lines[i]);
    nlohmann::json json = read(record["base"]);
    json.update(record["changes"]);
    const std::string text = absl::StrReplaceAll(json.dump(), {{"charsmap of xlm_roberta", charsmap}});
    const auto tokenizer = Tokenizer::FromJson(text, absl::StrCat("pipeline ", i / 2));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const std::vector<std::string> hashes = absl::StrSplit(lines[i + 1], ' ');
    ASSERT_EQ(hashes.size(), (Corpus().size() + kStep - 1) / kStep);
    for (size_t k = 0; k < hashes.size(); ++k) {
      const auto encoding = tokenizer->Encode(Corpus()[k * kStep], options);
      ASSERT_TRUE(encoding.ok()) << encoding.status();
      std::vector<std::string> numbers;
      for (size_t t = 0; t < encoding->ids.size(); ++t) {
        numbers.push_back(absl::StrCat(encoding->ids[t]));
        if (record["ids_only"]) continue;
        absl::StrAppend(&numbers.back(), ":", encoding->offsets[t].first, "-", encoding->offsets[t].second);
      }
      const uint64_t hash = Fnv(absl::StrJoin(numbers, " "));
      ASSERT_EQ(absl::StrFormat("%08x", hash >> 32), hashes[k]) << "string " << k * kStep << ", " << lines[i];
    }
  }
}

// All code points, between others that they can join.
TEST(CodePoints, NormalizersEqualTheRecording) {
  for (const std::string& line : Lines("code_points.txt")) {
    const std::vector<std::string> record = absl::StrSplit(line, ' ');
    ASSERT_EQ(record.size(), 3);
    const char* const more =
        record[0] == "BertNormalizer" ? R"(, "clean_text": true, "handle_chinese_chars": true, "lowercase": true)" : "";
    const auto json = io::ParseJsonValue(absl::StrCat("{\"type\": \"", record[0], "\"", more, "}"));
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
      hash = Fnv(bytes, hash);
      size += bytes.size();
    }
    EXPECT_EQ(absl::StrCat(record[0], " ", size, " ", absl::StrFormat("%016x", hash)), line);
  }
}

}  // namespace
}  // namespace aqt::tokenizers
