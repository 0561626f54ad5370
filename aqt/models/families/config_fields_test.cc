#include "aqt/models/families/config_fields.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ConfigFields Fields(const std::string& text) { return *ConfigFields::Parse(text, "config.json"); }

TEST(ConfigFieldsTest, ReadsWhatIsThere) {
  ConfigFields fields = Fields(R"({"n": 3, "zero": 0, "eps": 1e-5, "act": "relu", "on": true, "null": null,
      "one": "a", "two": ["a", "b"], "hidden_dropout_prob": 0.1, "architectures": ["X"]})");
  EXPECT_EQ(fields.Count("n"), 3);
  EXPECT_EQ(fields.Count("absent", 7), 7);
  EXPECT_EQ(fields.Count("null", 8), 8);
  EXPECT_EQ(fields.Index("zero", 5), 0);
  EXPECT_EQ(fields.Positive("eps", 1), 1e-5);
  EXPECT_EQ(fields.Text("act", "gelu"), "relu");
  EXPECT_TRUE(fields.Flag("on", false));
  EXPECT_THAT(fields.Texts("one"), ElementsAre("a"));
  EXPECT_THAT(fields.Texts("two"), ElementsAre("a", "b"));
  EXPECT_TRUE(fields.Has("n"));
  EXPECT_FALSE(fields.Has("null"));
  EXPECT_TRUE(fields.Finish().ok()) << fields.Finish();
}

TEST(ConfigFieldsTest, ObjectsAndNumberedTexts) {
  ConfigFields fields = Fields(R"({"id2label": {"1": "b", "0": "a", "2": 3}, "none": null, "factor": 0,
      "block": {"x": 1, "y": 2}, "other": {"z": 1}})");
  EXPECT_THAT(fields.Numbered("id2label"), ElementsAre("a", "b", "3"));
  EXPECT_THAT(fields.Numbered("absent"), ElementsAre());
  EXPECT_TRUE(fields.IsNull("none"));
  EXPECT_FALSE(fields.IsNull("absent"));
  EXPECT_EQ(fields.NotNegative("factor", 1), 0);
  EXPECT_EQ(fields.NotNegative("absent", 1), 1);
  ConfigFields block = fields.Object("block");
  EXPECT_EQ(block.Count("x"), 1);
  EXPECT_THAT(block.Finish().message(), HasSubstr("config.json: block: y is not known"));
  EXPECT_TRUE(fields.Object("absent").Finish().ok());
  fields.NotRead({"other"});
  EXPECT_TRUE(fields.Finish().ok()) << fields.Finish();
}

TEST(ConfigFieldsTest, FieldsThatNobodyReadsAreRefused) {
  ConfigFields fields = Fields(R"({"n": 3, "rope_theta": 1.0, "sliding_window": 5, "use_cache": true})");
  fields.Count("n");
  const absl::Status status = fields.Finish();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(status.message(), HasSubstr("config.json: rope_theta, sliding_window are not known for this model"));
}

TEST(ConfigFieldsTest, WrongValuesAreNamed) {
  const auto error = [](const std::string& text, auto read) {
    ConfigFields fields = Fields(text);
    read(fields);
    const absl::Status status = fields.Finish();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const auto count = [](ConfigFields& f) { f.Count("n"); };
  EXPECT_EQ(error("{}", count), "config.json: n is missing; expected an integer from 1 to 2147483648");
  for (const char* value : {"0", "-1", "1.5", "\"3\"", "3000000000", "[1]", "null"}) {
    EXPECT_THAT(error(std::string("{\"n\": ") + value + "}", count), HasSubstr("config.json: n is ")) << value;
  }
  EXPECT_THAT(error(R"({"n": 1001})", [](ConfigFields& f) { f.Layers("n"); }),
              HasSubstr("config.json: n is 1001; expected an integer from 1 to 1000"));
  EXPECT_THAT(error(R"({"e": 0})", [](ConfigFields& f) { f.Positive("e", 1); }), HasSubstr("a number above 0"));
  EXPECT_THAT(error(R"({"e": "x"})", [](ConfigFields& f) { f.Flag("e", true); }), HasSubstr("true or false"));
  EXPECT_THAT(error(R"({"e": 1})", [](ConfigFields& f) { f.Text("e", ""); }), HasSubstr("a string"));
  EXPECT_THAT(error(R"({"e": ["a", 1]})", [](ConfigFields& f) { f.Texts("e"); }), HasSubstr("a list of strings"));
  for (const char* labels : {R"({"0": "a", "2": "b"})", R"({"a": "x"})", R"({"0": ["a"]})", R"(["a"])", "3"}) {
    EXPECT_THAT(error(std::string("{\"id2label\": ") + labels + "}", [](ConfigFields& f) { f.Numbered("id2label"); }),
                HasSubstr("id2label is "))
        << labels;
  }
  EXPECT_THAT(error(R"({"e": 1})", [](ConfigFields& f) { f.Object("e"); }), HasSubstr("an object"));
  EXPECT_THAT(error(R"({"e": -1})", [](ConfigFields& f) { f.NotNegative("e", 1); }), HasSubstr("a number from 0 on"));
  EXPECT_THAT(error(R"({"e": "rotary"})", [](ConfigFields& f) { f.Only("e", {R"("absolute")"}); }),
              HasSubstr("expected \"absolute\"; other cases are not computed"));
}

TEST(ConfigFieldsTest, WhatIsNotAnObjectIsDamaged) {
  for (const char* text : {"", "[]", "3", "{", R"({"a": 1, "a": 2})"}) {
    EXPECT_TRUE(absl::IsDataLoss(ConfigFields::Parse(text, "config.json").status())) << text;
  }
}

}  // namespace
}  // namespace aqt::models
