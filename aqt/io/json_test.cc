#include "aqt/io/json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Writes the events down as text.
class Recorder final : public JsonHandler {
 public:
  std::string text;

  absl::Status Scalar(const JsonScalar& value) override {
    switch (value.kind) {
      case JsonScalar::kNull: text += "null "; break;
      case JsonScalar::kBool: text += value.unsigned_value ? "true " : "false "; break;
      case JsonScalar::kUnsigned: absl::StrAppend(&text, value.unsigned_value, " "); break;
      case JsonScalar::kNumber: text += "number "; break;
      case JsonScalar::kString:
        if (*value.string == "stop") return absl::CancelledError("stopped");
        absl::StrAppend(&text, "'", *value.string, "' ");
        break;
    }
    return absl::OkStatus();
  }
  absl::Status StartObject() override { return Add("{ "); }
  absl::Status Key(std::string& key) override { return Add(absl::StrCat(key, ": ")); }
  absl::Status EndObject() override { return Add("} "); }
  absl::Status StartArray() override { return Add("[ "); }
  absl::Status EndArray() override { return Add("] "); }

 private:
  absl::Status Add(absl::string_view what) {
    absl::StrAppend(&text, what);
    return absl::OkStatus();
  }
};

TEST(ParseJsonTest, EventsInOrder) {
  Recorder r;
  const absl::Status status = ParseJson(
      R"( {"a":[1,-1,1.0,18446744073709551615,18446744073709551616,null,true,false], "a":{"b\n\u00e9":"\"x"}} )", 2, r);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(r.text,
            "{ a: [ 1 number number 18446744073709551615 number null true false ] a: { b\n\xc3\xa9: '\"x' } } ");
}

TEST(ParseJsonTest, RefusesWithPosition) {
  const std::pair<std::string, absl::string_view> cases[] = {
      {"", "byte 1"},
      {"{", "byte 2"},
      {"[1,]", "byte 4"},
      {"{\"a\":1} x", "byte 9"},
      {"{\"a\":1}{}", "byte 8"},
      {std::string("[1]\0", 4), "byte 4: a NUL"},
      {"\xef\xbb\xbf[]", "byte order mark"},
      {"[1] // c", "byte 5"},
      {"[nan]", "byte 3"},
      {"[01]", "byte 3"},
      {"[1e999]", "overflow"},
      {"[\"\xff\"]", "UTF-8"},
      {"[\"\xc0\x80\"]", "UTF-8"},
      {"[\"\xed\xa0\x80\"]", "UTF-8"},  // a surrogate
      {"[\"\\ud800\"]", "surrogate"},
      {"[\"\n\"]", "control character"},
      {"[[[", "deeper than 2"},
      {"{\"a\":{\"b\":[]}}", "deeper than 2"},
  };
  for (const auto& [text, expected] : cases) {
    Recorder r;
    const absl::Status status = ParseJson(text, 2, r);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(expected))) << text;
  }
}

TEST(ParseJsonTest, MessagesStayShort) {
  Recorder r;
  EXPECT_LT(ParseJson(absl::StrCat("[\"", std::string(100000, 'x')), 2, r).message().size(), 200u);
  EXPECT_LT(ParseJson(absl::StrCat("[", std::string(100000, '9'), "e99999999]"), 2, r).message().size(), 200u);
}

TEST(ParseJsonTest, TheHandlersErrorStopsAndReturns) {
  Recorder r;
  EXPECT_EQ(ParseJson(R"(["a","stop","b"])", 2, r).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(r.text, "[ 'a' ");
}

TEST(ParseJsonTest, DeepTextNeedsNoStack) {
  Recorder r;
  EXPECT_TRUE(ParseJson(absl::StrCat(std::string(1000000, '['), std::string(1000000, ']')), 1000000, r).ok());
}

TEST(JsonQuoteTest, Escapes) {
  EXPECT_EQ(JsonQuote("").value(), "\"\"");
  EXPECT_EQ(JsonQuote("a\"\\/\b\f\n\r\t\x01\x1f\x7f\xc3\xa9").value(),
            "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9\"");
  EXPECT_EQ(JsonQuote(absl::string_view("\0", 1)).value(), "\"\\u0000\"");
  EXPECT_EQ(JsonQuote("\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JsonQuote("a\xc3").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FindDuplicateTest, Finds) {
  const std::string a = "a", b = "b", c = "c", a2 = "a";
  EXPECT_EQ(FindDuplicate({}), nullptr);
  EXPECT_EQ(FindDuplicate({&b, &a, &c}), nullptr);
  EXPECT_EQ(*FindDuplicate({&a, &b, &c, &a2}), "a");
}

TEST(QuoteForMessageTest, EscapesAndCuts) {
  EXPECT_EQ(QuoteForMessage("a\nb"), "'a\\nb'");
  EXPECT_EQ(QuoteForMessage(std::string(100, 'x')), absl::StrCat("'", std::string(100, 'x'), "'"));
  EXPECT_EQ(QuoteForMessage(std::string(101, 'x')), absl::StrCat("'", std::string(100, 'x'), "...'"));
}

}  // namespace
}  // namespace aqt::io
