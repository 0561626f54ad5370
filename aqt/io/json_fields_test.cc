#include "aqt/io/json_fields.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/json_value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JsonValue Value(const std::string& json) { return (*ParseJsonValue(absl::StrCat(R"({"v": )", json, "}")))["v"]; }

TEST(JsonValueTest, NumbersKeepTheirBits) {
  EXPECT_EQ(Value("18446744073709551615").integer(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Value("9223372036854775807").int64(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Value("9223372036854775808").int64(), std::nullopt);
  EXPECT_EQ(Value("-9223372036854775808").int64(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Value("-9007199254740993").int64(), -9007199254740993);
  EXPECT_EQ(Value("-3").number(), -3);
  EXPECT_EQ(Value("1.0").int64(), std::nullopt);
  EXPECT_EQ(Value("0.1").Shown(), "0.1");
  EXPECT_EQ(Value("-3").Shown(), "-3");
}

TEST(JsonValueTest, EqualByValue) {
  EXPECT_EQ(Value("1"), Value("1.0"));
  EXPECT_EQ(Value("-2"), Value("-2e0"));
  EXPECT_EQ(Value(R"({"a": [1, {}], "b": null})"), Value(R"({"b": null, "a": [1.0, {}]})"));
  for (const char* other : {"2", "true", "\"1\"", "null", "[1]", "{}"})
    EXPECT_FALSE(Value("1") == Value(other)) << other;
  EXPECT_FALSE(Value(R"({"a": 1, "b": 2})") == Value(R"({"a": 1, "c": 2})"));
  EXPECT_FALSE(Value(R"({"a": 1})") == Value(R"({"a": 1, "b": 2})"));
}

TEST(JsonValueTest, WhatIsNotAnObjectIsDamaged) {
  for (const char* text : {"", "[]", "3", "{", R"({"a": 1, "a": 2})", "{\"a\": 1}x"}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseJsonValue(text).status())) << text;
  }
}

TEST(JsonFieldsTest, ReadsWhatIsThere) {
  const JsonValue value = Value(R"({"text": "a", "on": true, "n": -3, "huge": 1e30, "x": 0.5, "texts": ["a", "b"],
      "list": [1, "b"], "word": "Left", "null": null})");
  JsonFields fields(value, "f.json");
  EXPECT_EQ(fields.Text("text"), "a");
  EXPECT_EQ(fields.Text("absent", "b"), "b");
  EXPECT_EQ(fields.Text("null", "c"), "c");
  EXPECT_TRUE(fields.Bool("on"));
  EXPECT_TRUE(fields.Bool("absent", true));
  EXPECT_EQ(fields.OptionalBool("null"), std::nullopt);
  EXPECT_EQ(fields.Int("n", -3, -3), -3);
  EXPECT_EQ(fields.Int("huge"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(fields.OptionalInt("absent"), std::nullopt);
  EXPECT_EQ(fields.OptionalNumber("x"), 0.5);
  EXPECT_EQ(fields.OptionalNumber("null"), std::nullopt);
  EXPECT_THAT(fields.Texts("texts"), ElementsAre("a", "b"));
  EXPECT_THAT(fields.Texts("absent"), ElementsAre());
  EXPECT_EQ(fields.Array("list").size(), 2u);
  EXPECT_EQ(fields.Word("word", {"Right", "Left"}, 9), 1u);
  EXPECT_EQ(fields.Word("absent", {"Right", "Left"}, 0), 0u);
  EXPECT_TRUE(fields.Has("on"));
  EXPECT_FALSE(fields.Has("null"));
  EXPECT_THAT(fields.Unread(), ElementsAre());
  EXPECT_TRUE(fields.Finish().ok()) << fields.Finish();
}

TEST(JsonFieldsTest, FieldsThatNobodyReadsAreNamed) {
  const JsonValue value = Value(R"({"a": 1, "b": [2], "c": 3})");
  JsonFields fields(value, "f.json");
  fields.Any("a");
  EXPECT_THAT(fields.Unread(), ElementsAre("b", "c"));
  EXPECT_EQ(fields.Finish().message(), "f.json: b is [2]; this field is not known; known are a");
}

TEST(JsonFieldsTest, TheFirstMistakeIsKept) {
  const auto error = [](const std::string& json, const std::function<void(JsonFields&)>& read,
                        const std::string& where = "f.json") {
    const JsonValue value = Value(json);
    JsonFields fields(value, where);
    read(fields);
    fields.Fail("later", "expected nothing");
    EXPECT_TRUE(absl::IsInvalidArgument(fields.status())) << json;
    EXPECT_EQ(fields.status(), fields.Finish());
    return std::string(fields.status().message());
  };
  const auto text = [](JsonFields& f) { f.Text("k"); };
  EXPECT_EQ(error("{}", text), "f.json: k is missing; expected a string");
  EXPECT_EQ(error(R"({"k": null})", text), "f.json: k is null; expected a string");
  EXPECT_EQ(error(R"({"k": 3})", text, "f.json: part"), "f.json: part.k is 3; expected a string");
  EXPECT_EQ(error("[]", text), "f.json is []; expected an object");
  EXPECT_EQ(error(R"({"k": 1})", [](JsonFields& f) { f.Text("k", "absent"); }), "f.json: k is 1; expected a string");
  EXPECT_EQ(error(R"({"k": 1})", [](JsonFields& f) { f.Bool("k", true); }), "f.json: k is 1; expected true or false");
  EXPECT_EQ(error(R"({"k": 1.5})", [](JsonFields& f) { f.Int("k"); }),
            "f.json: k is 1.5; expected an integer from 0 on");
  EXPECT_EQ(error(R"({"k": 9})", [](JsonFields& f) { f.OptionalInt("k", 1, 8); }),
            "f.json: k is 9; expected an integer from 1 to 8");
  EXPECT_THAT(error(R"({"k": "x"})", [](JsonFields& f) { f.OptionalNumber("k"); }), HasSubstr("a finite number"));
  EXPECT_THAT(error(R"({"k": ["x", 1]})", [](JsonFields& f) { f.Texts("k"); }), HasSubstr("a list of strings"));
  EXPECT_THAT(error(R"({"k": "x"})", [](JsonFields& f) { f.Texts("k"); }), HasSubstr("expected a list"));
  EXPECT_EQ(error(R"({"k": "Up"})",
                  [](JsonFields& f) {
                    f.Word("k", {"Left", "Right"}, 0);
                  }),
            "f.json: k is \"Up\"; read are Left, Right");
}

}  // namespace
}  // namespace aqt::io
