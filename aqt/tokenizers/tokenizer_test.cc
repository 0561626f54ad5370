// Exact: what is read and refused, and small texts by hand. Property: many threads, places inside the text, truncation.

#include "aqt/tokenizers/tokenizer.h"

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/io/file.h"
#include "aqt/io/file_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace aqt::tokenizers {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

const char kWordPiece[] = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 1, "content": "[M]", "single_word": false, "lstrip": true, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                 "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[S]", 3], "cls": ["[C]", 2]},
  "decoder": null,
  "model": {"type": "WordPiece", "unk_token": "[U]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 8,
            "vocab": {"[U]": 0, "[M]": 1, "[C]": 2, "[S]": 3, "un": 4, "##able": 5, "##a": 6, "cafe": 7, "!": 8, "漢": 9}}
})";

Tokenizer Make(const Json& json) {
  auto tokenizer = Tokenizer::FromJson(json.dump(), "t.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string ErrorOf(const Json& json) {
  const auto tokenizer = Tokenizer::FromJson(json.dump(), "t.json");
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tokenizer.status().message());
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, absl::string_view text) {
  EncodeOptions options;
  options.add_special_tokens = false;
  const auto encoding = tokenizer.Encode(text, options);
  EXPECT_TRUE(encoding.ok()) << encoding.status();
  return encoding->ids;
}

TEST(Tokenizer, WordPiece) {
  const Tokenizer tokenizer = Make(Json::parse(kWordPiece));
  EncodeOptions options;
  options.offsets = true;
  const auto encoding = tokenizer.Encode("Unable CAF\xC3\x89! \xE6\xBC\xA2x [M]", options);
  ASSERT_TRUE(encoding.ok()) << encoding.status();
  EXPECT_THAT(encoding->ids, ElementsAre(2, 4, 5, 7, 8, 9, 0, 1, 3));
  EXPECT_THAT(encoding->type_ids, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(encoding->attention_mask, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1));
  using Place = std::pair<uint32_t, uint32_t>;
  EXPECT_THAT(encoding->offsets, ElementsAre(Place(0, 0), Place(0, 2), Place(2, 6), Place(7, 12), Place(12, 13),
                                             Place(14, 17), Place(17, 18), Place(18, 22), Place(0, 0)));
  EXPECT_EQ(encoding->num_truncated, 0);
  EXPECT_EQ(tokenizer.num_ids(), 10);
  EXPECT_EQ(tokenizer.Find("cafe"), 7);
  EXPECT_EQ(tokenizer.Find("x"), std::nullopt);
  EXPECT_THAT(Ids(tokenizer, "unaaaaaa"), ElementsAre(4, 6, 6, 6, 6, 6, 6));
  EXPECT_THAT(Ids(tokenizer, "unaaaaaaa"), ElementsAre(0));  // nine characters
}

// The package takes the second line break, too, which the first token has already taken with it.
TEST(Tokenizer, AddedTokensMayTakeTheSameSpaces) {
  Json json = Json::parse(kWordPiece);
  Json token = json["added_tokens"][0];
  token.update({{"id", 10}, {"content", "\n"}, {"lstrip", false}, {"rstrip", true}});
  json["added_tokens"].push_back(token);
  EXPECT_THAT(Ids(Make(json), "\n\n"), ElementsAre(10, 10));
  EXPECT_THAT(Ids(Make(json), "\n\n un!"), ElementsAre(10, 10, 4, 8));
}

TEST(Tokenizer, PairsAndTruncation) {
  const Tokenizer tokenizer = Make(Json::parse(kWordPiece));
  EncodeOptions options;
  options.max_length = 7;
  const auto pair = tokenizer.Encode("un un un un un", "cafe ! ! !", options);
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_THAT(pair->ids, ElementsAre(2, 4, 4, 3, 7, 8, 3));
  EXPECT_THAT(pair->type_ids, ElementsAre(0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(pair->special_tokens_mask, ElementsAre(1, 0, 0, 1, 0, 0, 1));
  EXPECT_EQ(pair->num_truncated, 5);
  options.max_length = 2;
  EXPECT_THAT(tokenizer.Encode("un", options)->ids, ElementsAre(2, 3));
  options.max_length = 1;
  EXPECT_EQ(tokenizer.Encode("un", options).status().message(),
            "max_length is 1; the special tokens alone are 2: raise it");
}

TEST(Tokenizer, TheCallerMayWantTheLongerTextCut) {
  Json json = Json::parse(kWordPiece);
  json["truncation"] = {{"max_length", 7}, {"strategy", "OnlySecond"}, {"stride", 0}, {"direction", "Right"}};
  const Tokenizer tokenizer = Make(json);
  EXPECT_FALSE(tokenizer.Encode("un un un un un", "cafe ! ! !").ok());
  EncodeOptions options;
  options.longest_first = true;
  EXPECT_THAT(tokenizer.Encode("un un un un un", "cafe ! ! !", options)->ids, ElementsAre(2, 4, 4, 3, 7, 8, 3));
}

TEST(Tokenizer, TheFilesTruncationAndPadding) {
  Json json = Json::parse(kWordPiece);
  json["truncation"] = {{"direction", "Left"}, {"max_length", 4}, {"strategy", "OnlyFirst"}, {"stride", 0}};
  json["padding"] = {
      {"strategy", "BatchLongest"}, {"direction", "Left"}, {"pad_to_multiple_of", nullptr}, {"pad_id", 8},
      {"pad_type_id", 1},           {"pad_token", "!"}};
  const Tokenizer tokenizer = Make(json);
  EXPECT_THAT(tokenizer.Encode("un cafe !")->ids, ElementsAre(2, 7, 8, 3));
  EXPECT_THAT(tokenizer.Encode("un", "un").status().message(),
              HasSubstr("the strategy OnlyFirst cannot shorten them to 1"));
  EncodeOptions options;
  options.max_length = 3;
  EXPECT_THAT(tokenizer.Encode("un cafe !", options)->ids, ElementsAre(2, 8, 3));
  EXPECT_EQ(tokenizer.padding().id, 8);
  EXPECT_EQ(tokenizer.padding().type_id, 1);
  EXPECT_TRUE(tokenizer.padding().left);
}

TEST(Tokenizer, BytesThatAreNotUtf8) {
  // Each becomes U+FFFD, which is a token here; the clean_text of BERT would remove it.
  Json json = Json::parse(kWordPiece);
  json["normalizer"] = nullptr;
  json["model"]["vocab"]["\xEF\xBF\xBD"] = 10;
  json["model"]["vocab"]["##\xEF\xBF\xBD"] = 11;
  const Tokenizer tokenizer = Make(json);
  EXPECT_THAT(Ids(tokenizer, "\xFF"), ElementsAre(10));
  EXPECT_THAT(Ids(tokenizer, "un\xE2\x82"), ElementsAre(4, 11));  // one sequence that is cut
  EXPECT_THAT(Ids(tokenizer, "\xC0\xAF\xED\xA0\x80"), ElementsAre(10, 11, 11, 11, 11));
  EncodeOptions options;
  options.offsets = true;
  const auto encoding = tokenizer.Encode("\xF0\x9F\x98 cafe", options);
  EXPECT_EQ(encoding->offsets[1], std::make_pair(uint32_t{0}, uint32_t{3}));
  EXPECT_EQ(encoding->offsets[2], std::make_pair(uint32_t{4}, uint32_t{8}));
}

struct Refusal {
  const char* patch;    // RFC 7396, onto kWordPiece
  const char* message;  // a part of it
};

TEST(Tokenizer, NamesWhatIsNotRead) {
  const Refusal refusals[] = {
      {R"({"version": "2.0"})", "t.json: version is \"2.0\"; only 1.0 is read"},
      {R"({"extra": 1})", "t.json: extra is 1; this field is not known"},
      {R"({"normalizer": {"type": "Magic"}})", "t.json: normalizer.type is \"Magic\"; read are BertNormalizer"},
      {R"({"normalizer": {"shout": true}})", "t.json: normalizer.shout is true; this field is not known"},
      {R"({"normalizer": {"lowercase": 1}})", "t.json: normalizer.lowercase is 1; expected true or false"},
      {R"({"pre_tokenizer": {"type": "UnicodeScripts"}})",
       "t.json: pre_tokenizer.type is \"UnicodeScripts\"; read are"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a++"}, "behavior": "Isolated", "invert": false}})",
       "t.json: pre_tokenizer.pattern.Regex is \"a++\"; a quantifier after a quantifier is not read"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a|"}, "behavior": "Isolated", "invert": false}})",
       "matches the empty text"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}})",
       "replacement is \"ab\"; expected one character"},
      {R"({"post_processor": {"cls": ["[C]", 99]}})", "post_processor.cls is 99; expected an id below 10"},
      {R"({"post_processor": {"type": "Other"}})", "t.json: post_processor.type is \"Other\"; read are BertProcessing"},
      {R"({"model": {"type": "WordLevel"}})",
       "t.json: model.type is \"WordLevel\"; read are BPE, Unigram and WordPiece"},
      {R"({"model": {"unk_token": "?"}})", "the token for unknown words, ?, is not in the vocabulary"},
      {R"({"model": {"vocab": {"un": -1}}})", "model.vocab[un] is -1; expected an id below 2147483647"},
      {R"({"model": {"max_input_chars_per_word": "8"}})", "max_input_chars_per_word is \"8\"; expected an integer"},
      {R"({"added_tokens": [{"id": 5, "content": "[M]", "single_word": false, "lstrip": true, "rstrip": false,
           "normalized": false, "special": true}]})",
       "t.json: added_tokens[0].id is 5; the vocabulary gives [M] the id 1"},
      {R"({"truncation": {"max_length": 4, "strategy": "Random", "stride": 0}})",
       "t.json: truncation.strategy is \"Random\"; read are LongestFirst, OnlyFirst, OnlySecond"},
      {R"({"model": {"type": "BPE", "dropout": 0.1, "unk_token": null, "continuing_subword_prefix": null,
           "max_input_chars_per_word": null, "merges": []}})",
       "model.dropout is 0.1; only null and 0 are read"},
      {R"({"model": {"type": "BPE", "unk_token": null, "continuing_subword_prefix": null,
           "max_input_chars_per_word": null, "merges": ["un cafe"]}})",
       "model.merges[0] is \"un cafe\"; the joined token must be in the vocabulary"},
      {R"({"model": {"type": "Unigram", "unk_id": 3, "unk_token": null, "continuing_subword_prefix": null,
           "max_input_chars_per_word": null, "vocab": [["a", 0.5]]}})",
       "model.unk_id is 3; the vocabulary has 1 tokens"},
  };
  for (const Refusal& refusal : refusals) {
    Json json = Json::parse(kWordPiece);
    json.merge_patch(Json::parse(refusal.patch));
    EXPECT_THAT(ErrorOf(json), HasSubstr(refusal.message));
  }
  EXPECT_THAT(Tokenizer::FromJson("<html>", "t.json").status().message(), HasSubstr("t.json"));
  EXPECT_THAT(Tokenizer::FromJson(R"({"model": {}, "model": {}})", "t.json").status().message(), HasSubstr("model"));
}

TEST(Tokenizer, OldFilesDoNotNameTheModel) {
  Json json = Json::parse(kWordPiece);
  json["model"].erase("type");
  EXPECT_THAT(Ids(Make(json), "unable"), ElementsAre(4, 5));
  json["model"] = {{"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"[C]", 3}}}, {"merges", {"a b"}}};
  json["added_tokens"] = nullptr;
  json["post_processor"] = nullptr;
  EXPECT_THAT(Ids(Make(json), "abb"), ElementsAre(2, 1));
  json["model"] = Json::parse(R"({"unk_id": 0, "vocab": [["?", 0.0], ["a", -1.5], ["b", -1.0], ["ab", -2.0]]})");
  EXPECT_THAT(Ids(Make(json), "abbzz"), ElementsAre(3, 2, 0));
  json["model"] = {{"vocab", {{"a", 0}}}};
  EXPECT_THAT(ErrorOf(json), HasSubstr("t.json: model.type is missing; read are BPE, Unigram and WordPiece"));
}

TEST(Tokenizer, AGrowingTextIsRefused) {
  Json json = Json::parse(kWordPiece);
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {replace, replace, replace, replace, replace, replace}}};
  const Tokenizer tokenizer = Make(json);
  EXPECT_EQ(tokenizer.Encode("a").status().code(), absl::StatusCode::kResourceExhausted);
}

// As transformers 4.57 does it.
TEST(Tokenizer, TheConfigBesideTheFile) {
  const auto ids = [](const Json& json, const char* config, absl::string_view text) {
    const auto tokenizer = Tokenizer::FromJson(json.dump(), "t.json", config);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    EncodeOptions options;
    options.max_length = 4;
    return tokenizer->Encode(text, options)->ids;
  };
  const Json bert = Json::parse(kWordPiece);
  EXPECT_THAT(ids(bert, R"({})", "UN ! cafe"), ElementsAre(2, 4, 8, 3));
  EXPECT_THAT(ids(bert, R"({"truncation_side": "left"})", "UN ! cafe"), ElementsAre(2, 8, 7, 3));
  EXPECT_THAT(ids(bert, R"({"do_lower_case": false})", "UN caf\u00e9"), ElementsAre(2, 0, 0, 3));
  EXPECT_THAT(ids(bert, R"({"do_lower_case": false, "strip_accents": true})", "UN caf\u00e9"), ElementsAre(2, 0, 7, 3));
  EXPECT_THAT(ids(bert, R"({"strip_accents": false})", "UN caf\u00e9"), ElementsAre(2, 4, 0, 3));
  EXPECT_THAT(ids(bert, R"({"tokenize_chinese_chars": false})", "\u6f22\u6f22"), ElementsAre(2, 0, 3));
  EXPECT_THAT(ids(bert, R"({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false})", "UN"),
              ElementsAre(2, 4, 3));
  Json bytes = Json::parse(kWordPiece);
  bytes["normalizer"] = nullptr;
  bytes["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}};
  EXPECT_THAT(ids(bytes, "", "un"), ElementsAre(2, 0, 3));
  EXPECT_THAT(ids(bytes, R"({"add_prefix_space": false})", "un"), ElementsAre(2, 4, 3));
  EXPECT_THAT(Tokenizer::FromJson(kWordPiece, "t.json", R"({"truncation_side": "middle"})").status().message(),
              HasSubstr("tokenizer_config.json of t.json: truncation_side is \"middle\""));
}

class TokenizerFilesTest : public io::FileTest {};

TEST_F(TokenizerFilesTest, Folders) {
  const io::FileSystem& fs = io::LocalFileSystem();
  EXPECT_THAT(Tokenizer::Open(fs, folder_).status().message(), HasSubstr("has neither tokenizer.json nor vocab.txt"));
  ASSERT_TRUE(io::WriteFile(fs, Path("vocab.txt"), "[UNK]\r\n[CLS]\n[SEP]\nhello\n").ok());
  EXPECT_THAT(Tokenizer::Open(fs, folder_)->Encode("HELLO x")->ids, ElementsAre(1, 3, 0, 2));
  ASSERT_TRUE(io::WriteFile(fs, Path("tokenizer_config.json"), R"({"do_lower_case": false})").ok());
  EXPECT_THAT(Tokenizer::Open(fs, Path("vocab.txt"))->Encode("HELLO hello")->ids, ElementsAre(1, 0, 3, 2));
  io::OutputOptions overwrite;
  overwrite.overwrite = true;
  ASSERT_TRUE(
      io::WriteFile(fs, Path("tokenizer_config.json"), R"({"tokenizer_class": "MPNetTokenizer"})", overwrite).ok());
  EXPECT_THAT(Tokenizer::Open(fs, folder_).status().message(), HasSubstr("tokenizer_class is \"MPNetTokenizer\""));
  ASSERT_TRUE(io::WriteFile(fs, Path("tokenizer.json"), kWordPiece).ok());
  EXPECT_THAT(Tokenizer::Open(fs, folder_)->Encode("un")->ids, ElementsAre(2, 4, 3));
  ASSERT_TRUE(io::WriteFile(fs, Path("tokenizer_config.json"), R"({"do_lower_case": false})", overwrite).ok());
  EXPECT_THAT(Tokenizer::Open(fs, folder_)->Encode("Un")->ids, ElementsAre(2, 0, 3));
}

// The strings of the golden corpus.
std::vector<std::string> Corpus() {
  const auto text = io::ReadFile(io::LocalFileSystem(), "tests/golden/tokenizers/corpus.txt", 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  std::vector<std::string> strings;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    std::string bytes;
    EXPECT_TRUE(absl::Base64Unescape(line, &bytes));
    strings.push_back(bytes);
  }
  return strings;
}

TEST(TokenizerProperty, ThreadsGiveTheSameTokensInsideTheText) {
  const std::vector<std::string> corpus = Corpus();
  for (const char* name : {"bert_uncased", "roberta", "xlm_roberta"}) {
    const auto tokenizer = Tokenizer::Open(io::LocalFileSystem(), absl::StrCat("tests/golden/tokenizers/", name));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EncodeOptions options;
    options.offsets = true;
    std::vector<std::vector<Encoding>> results(4);
    std::vector<std::thread> threads;
    for (std::vector<Encoding>& result : results) {
      threads.emplace_back([&] {
        for (size_t i = 0; i < corpus.size(); i += 4) result.push_back(*tokenizer->Encode(corpus[i], options));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < results[0].size(); ++i) {
      for (const auto& result : results) ASSERT_EQ(result[i].ids, results[0][i].ids);
      for (const auto& [begin, end] : results[0][i].offsets) {
        ASSERT_LE(begin, end);
        ASSERT_LE(end, corpus[4 * i].size());
      }
    }
  }
}

TEST(TokenizerProperty, TruncationKeepsTheFirstTokens) {
  const auto tokenizer = Tokenizer::Open(io::LocalFileSystem(), "tests/golden/tokenizers/xlm_roberta");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string& text : Corpus()) {
    const std::vector<int32_t> all = tokenizer->Encode(text)->ids;
    EncodeOptions options;
    options.max_length = 5;
    const Encoding cut = *tokenizer->Encode(text, options);
    std::vector<int32_t> expected = all;
    if (all.size() > 5) {
      expected.resize(4);
      expected.push_back(all.back());
    }
    EXPECT_EQ(cut.ids, expected);
    EXPECT_EQ(cut.num_truncated, static_cast<int64_t>(all.size() - expected.size()));
  }
}

}  // namespace
}  // namespace aqt::tokenizers
