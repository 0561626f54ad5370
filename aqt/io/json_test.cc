#include "aqt/io/json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

// Records the events as text.
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

std::string ValueOf(const std::string& text, const JsonObjectText::Member& member) {
  return text.substr(member.begin, member.end - member.begin);
}

TEST(ScanJsonObjectTest, FindsTheValuesAsTheyAreWritten) {
  const std::string text =
      "{ \"a\" : NaN,\n\t\"b\\u0031\":[-Infinity, {\"NaN\": \"Infinity\"}] ,\"c\":\"}\\\",\" , "
      "\"d\":123456789012345678901234567890,\"e\": {} , \"f\":1E-5}\n";
  const absl::StatusOr<JsonObjectText> object = ScanJsonObject(text, 3);
  ASSERT_TRUE(object.ok()) << object.status();
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& member : object->members) members.emplace_back(member.key, ValueOf(text, member));
  EXPECT_THAT(members,
              ElementsAre(Pair("a", "NaN"), Pair("b1", "[-Infinity, {\"NaN\": \"Infinity\"}]"), Pair("c", "\"}\\\",\""),
                          Pair("d", "123456789012345678901234567890"), Pair("e", "{}"), Pair("f", "1E-5")));
  EXPECT_EQ(text[object->members[1].key_begin], '"');
  EXPECT_EQ(object->standard, absl::StrReplaceAll(text, {{"NaN,", "\"NaN\","}, {"-Infinity,", "\"-Infinity\","}}));
}

TEST(ScanJsonObjectTest, NumbersOfAnySize) {
  const std::string digits(400, '7');
  EXPECT_EQ(ScanJsonObject("{\"a\":[1e999,-1E+999,1e-999,1.5]}", 2)->standard,
            "{\"a\":[\"1e999\",\"-1E+999\",1e-999,1.5]}");
  EXPECT_EQ(ScanJsonObject("{\"a\":" + digits + "}", 1)->standard, "{\"a\":\"" + digits + "\"}");
  EXPECT_EQ(ScanJsonObject("{\"a\":1}", 1)->standard, "{\"a\":1}");
  EXPECT_TRUE(ScanJsonObject("{}", 1)->members.empty());
}

TEST(ScanJsonObjectTest, RefusesWithLineAndColumn) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "line 1, column 1: "},
      {"[]", "line 1, column 1: a JSON object is expected"},
      {" NaN", "line 1, column 2: a JSON object is expected"},
      {"{", "line 1, column 2: "},
      {"{\"a\":", "line 1, column 6: while parsing value - unexpected end of input; expected '[', '{', or a literal"},
      {"{\"a\" 1}", "line 1, column 6: while parsing object separator - unexpected number literal; expected ':'"},
      {"{\"a\": 1,}", "line 1, column 9: "},
      {"{\"a\": NaN,\n \"b\": nan}", "line 2, column 8: "},
      {"{\"a\": [NaN, Infinity],\n \"b\": [NaN, 01]}", "line 2, column 14: "},
      {"{NaN: 1}", "line 1, column 2: "},
      {"{\"a\": +Infinity}", "line 1, column 7: "},
      {"{\"a\": 01e999}", "line 1, column 12: "},
      {"{\"a\": 1.e999}", "line 1, column 9: "},
      {"{\"a\": 1} x", "line 1, column 10: "},
      {"{\"a\": 1}\n{}", "line 2, column 1: "},
      {"{\"a\": 1 \"b\": 2}", "line 1, column "},
      {"}{", "line 1, column 1: "},
      {"{\"a\": 1, \"\\u0061\": 2}", "line 1, column 10: the key 'a' occurs twice"},
      {"{\"a\": {\"b\": 1,\n\"b\": 2}}", "line 2, column 1: the key 'b' occurs twice"},
      {"{\"a\":\n [[0]]}", "line 2, column 3: nested deeper than 2 levels"},
      {"\xef\xbb\xbf{}", "line 1, column 1: a byte order mark"},
      {std::string("\xff\xfe{\0}\0", 6), "line 1, column 1: the text is in UTF-16"},
      {std::string("{}\n\0", 4), "line 2, column 1: a NUL byte"},
      {"{\n\"a\": \"\xff\"}", "line 2, column 7: "},
      {"{\"a\": \"\x1b\"}", "line 1, column 8: "},
      {"{\"a\": \"", "line 1, column 8: "},
      {"{\"a\": \"\\", "line 1, column "},
      {"{\"a\": '1'}", "line 1, column 7: "},
      {"{\"a\": 1 // c\n}", "line 1, column 9: "},
  };
  for (const auto& [text, expected] : cases) {
    const absl::Status status = ScanJsonObject(text, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith(expected)) << text;
    EXPECT_LT(status.message().size(), 200u);
  }
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
