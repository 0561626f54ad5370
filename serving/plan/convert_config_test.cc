#include "serving/plan/convert_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/formats/weight_formats.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ConvertConfigTest, EveryPresetReadsBackTheSame) {
  const std::vector<std::string> names = ConvertPresetNames();
  EXPECT_THAT(names, Contains("w8a8_dynamic"));
  for (const std::string& name : names) {
    const absl::StatusOr<ConvertConfig> preset = ConvertPreset(name);
    ASSERT_TRUE(preset.ok()) << preset.status();
    const absl::StatusOr<ConvertConfig> again = ParseConvertConfig(preset->text, "effective");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->rules, preset->rules) << name;
    EXPECT_EQ(again->text, preset->text);
  }
}

TEST(ConvertConfigTest, ReadsRules) {
  const absl::StatusOr<ConvertConfig> config = ParseConvertConfig(R"(
schema: 1
rule { name: "head" match: "lm_head" override_ignore: true quantize { weights { num_bits: 8 per_channel {} } } }
rule { match: ".*down.*" keep_float {} }
rule {
  match: ".*"
  quantize {
    weights { num_bits: 4 symmetric: false per_group { size: 64 } }
    input_activations { num_bits: 8 symmetric: false static_per_tensor {} }
    format: FORMAT_PACK_QUANTIZED
  }
  on_unsuitable: ON_UNSUITABLE_KEEP_FLOAT
}
ignore: "a"
ignore: "b"
default_ignore: false
weight_rules: WEIGHT_RULES_AQT
non_finite: NON_FINITE_KEEP_FLOAT)",
                                                                  "x");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->rules.size(), 3u);
  EXPECT_EQ(config->rules[0].name, "head");
  EXPECT_TRUE(config->rules[0].override_ignore);
  EXPECT_EQ(Describe(*config->rules[0].scheme), "int8 per channel, pack-quantized");
  EXPECT_EQ(config->rules[1].name, ".*down.*");
  EXPECT_FALSE(config->rules[1].scheme.has_value());
  EXPECT_EQ(Describe(*config->rules[2].scheme),
            "int4 g64 asymmetric, input int8 per tensor static asymmetric, pack-quantized");
  EXPECT_TRUE(config->rules[2].keep_unsuitable);
  EXPECT_THAT(config->ignore, ElementsAre("a", "b"));
  EXPECT_FALSE(config->default_ignore);
  EXPECT_EQ(config->weight_rules, WeightRules::kAqt);
  EXPECT_TRUE(config->keep_non_finite);
}

TEST(ConvertConfigTest, TypesOfGguf) {
  const auto config = ParseConvertConfig("schema: 1 rule { match: 'a' gguf { type: 'q4_k' } }", "x");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rules[0].gguf, ggml::Type::kQ4K);
  EXPECT_FALSE(config->rules[0].scheme.has_value());
  for (const auto& [preset, type] :
       std::vector<std::pair<std::string, ggml::Type>>{{"gguf_q8_0", ggml::Type::kQ8_0},
                                                       {"gguf_q4_0", ggml::Type::kQ4_0},
                                                       {"gguf_q4_k", ggml::Type::kQ4K},
                                                       {"gguf_q6_k", ggml::Type::kQ6K},
                                                       {"gguf_mxfp4", ggml::Type::kMXFP4}}) {
    EXPECT_EQ(ConvertPreset(preset)->rules[0].gguf, type);
    EXPECT_TRUE(ConvertPreset(preset)->rules[0].keep_unsuitable);
  }
}

// Every layout of the table has a name in the configuration.
TEST(ConvertConfigTest, EveryFormatCanBeChosen) {
  for (const WeightFormat* format : WeightFormats()) {
    std::string name = absl::AsciiStrToUpper(format->name());
    std::replace(name.begin(), name.end(), '-', '_');
    int chosen = 0;
    for (const char* weights :
         {"num_bits: 8 per_channel {}", "num_bits: 8 type: NUMBER_TYPE_FLOAT per_channel {}",
          "num_bits: 4 type: NUMBER_TYPE_FLOAT per_mx_group {}", "num_bits: 6 type: NUMBER_TYPE_FLOAT per_mx_group {}",
          "num_bits: 8 type: NUMBER_TYPE_FLOAT per_mx_group {}",
          "num_bits: 4 type: NUMBER_TYPE_FLOAT per_nvfp4_group {}"}) {
      const absl::StatusOr<ConvertConfig> config =
          ParseConvertConfig(absl::StrCat("schema: 1 rule { match: '.*' quantize { weights { ", weights,
                                          " } format: FORMAT_", name, " } }"),
                             "x");
      if (!config.ok()) {
        EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented) << config.status();
        continue;
      }
      EXPECT_EQ(config->rules[0].scheme->format, format);
      ++chosen;
    }
    EXPECT_GT(chosen, 0) << format->name();
  }
}

TEST(ConvertConfigTest, PresetsOfThePackage) {
  const auto described = [](absl::string_view name) {
    const absl::StatusOr<ConvertConfig> preset = ConvertPreset(name);
    return preset.ok() ? Describe(*preset->rules[0].scheme) : preset.status().ToString();
  };
  EXPECT_EQ(described("W4A16"), "int4 g128, pack-quantized");
  EXPECT_EQ(described("W8A16"), "int8 g128, pack-quantized");
  EXPECT_EQ(described("w8a16"), "int8 per channel, pack-quantized") << "names in small letters are ours";
  EXPECT_EQ(described("W4A16_ASYM"), "int4 g128 asymmetric, pack-quantized");
  EXPECT_EQ(described("W3A8"), "int3 g128, input int8 per token dynamic, int-quantized");
  EXPECT_EQ(described("FP8"), described("fp8_static"));
  EXPECT_EQ(described("FP8_DYNAMIC"), described("fp8_dynamic"));
  EXPECT_EQ(described("FP8_BLOCK"), described("fp8_block128"));
  EXPECT_EQ(described("W8A8"), described("w8a8_dynamic"));
  for (const char* name : {"NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP6A16", "MXFP8", "MXFP8A16", "W4AFP8"}) {
    EXPECT_EQ(described(name), described(absl::AsciiStrToLower(name))) << name;
  }
  EXPECT_EQ(described("w3a16_g64"), "int3 g64, pack-quantized");
  EXPECT_THAT(described("Nvfp4"), HasSubstr("there is no preset \"Nvfp4\"; presets are "));
  const absl::StatusOr<ConvertConfig> based = ParseConvertConfig("schema: 1 base: 'MXFP8' ignore: 'a'", "x");
  ASSERT_TRUE(based.ok()) << based.status();
  EXPECT_EQ(Describe(*based->rules[0].scheme), described("MXFP8"));
}

TEST(ConvertConfigTest, ReadsFloats) {
  const auto described = [](const std::string& weights, const std::string& rest) {
    const absl::StatusOr<ConvertConfig> config = ParseConvertConfig(
        absl::StrCat("schema: 1 rule { match: '.*' quantize { weights { num_bits: 8 type: NUMBER_TYPE_FLOAT ", weights,
                     " } ", rest, " } }"),
        "x");
    return config.ok() ? Describe(*config->rules[0].scheme) : config.status().ToString();
  };
  EXPECT_EQ(described("per_block { rows: 128 columns: 64 }", ""), "fp8 per 128x64 block, naive-quantized");
  EXPECT_EQ(
      described("per_tensor {}", "input_activations { num_bits: 8 type: NUMBER_TYPE_FLOAT static_per_tensor {} }"),
      "fp8 per tensor, input fp8 per tensor static, float-quantized");
  EXPECT_EQ(Describe(*ConvertPreset("fp8_dynamic")->rules[0].scheme),
            "fp8 per channel, input fp8 per token dynamic, float-quantized");
  EXPECT_EQ(Describe(*ConvertPreset("fp8_static")->rules[0].scheme),
            "fp8 per tensor, input fp8 per tensor static, float-quantized");
  EXPECT_EQ(Describe(*ConvertPreset("fp8_block128")->rules[0].scheme),
            "fp8 per 128x128 block, input fp8 g128 dynamic, float-quantized");
  EXPECT_THAT(described("per_block { rows: 128 }", ""), HasSubstr("per_block needs positive rows and columns"));
  EXPECT_THAT(described("per_group { size: 32 }", ""), HasSubstr("floats, strategy group"));
  EXPECT_THAT(described("per_channel {}", "input_activations { num_bits: 8 dynamic_per_token {} }"),
              HasSubstr("weights of type float with input_activations of type int are not supported"));
}

TEST(ConvertConfigTest, BaseIsMergedFieldByFieldAndListsReplace) {
  const absl::StatusOr<ConvertConfig> plain = ParseConvertConfig("schema: 1 base: 'w8a8_dynamic'", "x");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->text, ConvertPreset("w8a8_dynamic")->text);
  const ConvertConfig aqt =
      *ParseConvertConfig("schema: 1 base: 'w8a8_dynamic' weight_rules: WEIGHT_RULES_AQT ignore: 'z'", "x");
  EXPECT_EQ(aqt.rules, plain->rules);
  EXPECT_EQ(aqt.weight_rules, WeightRules::kAqt);
  EXPECT_THAT(aqt.ignore, ElementsAre("z"));
  const ConvertConfig rules =
      *ParseConvertConfig("schema: 1 base: 'w8a8_dynamic' rule { match: 'a' keep_float {} }", "x");
  ASSERT_EQ(rules.rules.size(), 1u);
  EXPECT_EQ(rules.rules[0].match, "a");
  EXPECT_EQ(ParseConvertConfig(rules.text, "again")->rules, rules.rules);
}

TEST(ConvertConfigTest, ErrorsHaveLineAndColumn) {
  struct Case {
    std::string text, where, message;
    absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  };
  const std::string rule = "schema: 1\nrule { match: 'a' quantize { ";
  for (const Case& c : std::vector<Case>{
           {"schema: 1\nrul { }", "my.textproto:2:5: ", "rul"},  // the column after the unknown name
           {"schema: 1\nrule { match: 'a' keep_float {} ", "my.textproto:2:", "Expected"},
           {"schema: 2\n base: 'w8a16'", "my.textproto:1:1: ", "schema 2 is not known"},
           {"\nbase: 'w8a16'", "my.textproto:1:1: ", "schema: 1"},
           {"schema: 1\n  base: 'w8a'", "my.textproto:2:3: ", "presets are fp8_block128"},
           {"schema: 1", "my.textproto:1:1: ", "neither a rule nor a base"},
           {"schema: 1\nrule { match: 'a(' keep_float {} }", "my.textproto:2:8: ", "missing )"},
           {"schema: 1\nrule { keep_float {} }", "my.textproto:2:1: ", "needs match"},
           {"schema: 1\nrule { match: 'a' }", "my.textproto:2:1: ", "needs quantize, keep_float or gguf"},
           {"schema: 1\nbase: 'w8a16'\nignore: 'a'\nignore: '['",
            "my.textproto:4:1: ", "not a valid regular expression"},
           {"schema: 1\nrule { match: 'a' keep_float {} on_unsuitable: ON_UNSUITABLE_KEEP_FLOAT }",
            "my.textproto:2:33: ", "on_unsuitable"},
           {rule + "} }", "my.textproto:2:19: ", "needs weights"},
           {rule + "\n weights { per_channel {} } } }", "my.textproto:3:2: ", "num_bits"},
           {rule + "\n weights { num_bits: 8 } } }", "my.textproto:3:2: ", "per_tensor"},
           {rule + "weights { num_bits: 8\n   per_group {} } } }", "my.textproto:3:4: ", "positive size"},
           {rule + "weights { num_bits: 99 per_channel {} } } }", "my.textproto:2:19: ", "num_bits"},
           {rule + "weights { num_bits: 8 per_channel {} }\ninput_activations { num_bits: 8 } } }",
            "my.textproto:3:1: ", "dynamic_per_token"},
           {rule + "weights { num_bits: 8 type: NUMBER_TYPE_FLOAT per_group { size: 32 } } } }",
            "my.textproto:2:19: ", "groups with scales of 8 bits", absl::StatusCode::kUnimplemented},
           {rule + "weights { num_bits: 5 type: NUMBER_TYPE_FLOAT per_mx_group {} } } }",
            "my.textproto:2:19: ", "floats of 4, 6 or 8 bits in groups of 32", absl::StatusCode::kUnimplemented},
           {"schema: 1\nrule { match: 'a' keep_float {} quantize_tied: true }",
            "my.textproto:2:33: ", "quantize_tied is only valid with quantize"},
           {"schema: 1\nrule { match: 'a' gguf { type: 'Q5_0' } }", "my.textproto:2:19: ",
            "gguf has the type \"Q5_0\"; Q8_0, Q4_0, Q4_K, Q6_K, MXFP4, F32, F16, BF16 are written"},
           {"schema: 1\nrule { match: 'a' gguf { type: 'F16' } on_split_group: ON_SPLIT_GROUP_WARN }",
            "my.textproto:2:40: ", "on_split_group is only valid with quantize, not with gguf"},
       }) {
    const absl::StatusOr<ConvertConfig> config = ParseConvertConfig(c.text, "my.textproto");
    EXPECT_EQ(config.status().code(), c.code) << c.text;
    EXPECT_THAT(std::string(config.status().message()), StartsWith(c.where)) << c.text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.message));
  }
}

TEST(ConvertConfigTest, UnknownPreset) {
  EXPECT_EQ(ConvertPreset("w9").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ConvertPreset("w9").status().message()), HasSubstr("w8a8_dynamic"));
}

TEST(ConvertConfigTest, ThePrefixOfAnotherLanguageIsAnError) {
  for (const char* text : {"schema: 1 base: 'w8a16' ignore: 're:.*self_attn.*'",
                           "schema: 1 rule { match: 're:.*self_attn.*' keep_float {} }"}) {
    const absl::Status status = ParseConvertConfig(text, "c.textproto").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("c.textproto:1:"), HasSubstr("the prefix \"re:\""),
                                                     HasSubstr("write \".*self_attn.*\"")));
  }
  EXPECT_TRUE(ParseConvertConfig("schema: 1 base: 'w8a16' ignore: '[r]e:x'", "c").ok());
}

TEST(ConvertConfigTest, FamiliesAndSplitGroups) {
  const absl::StatusOr<ConvertConfig> config =
      ParseConvertConfig("schema: 1 base: 'w8a16' family { name: 'mine' model_type: ['a', 'b'] head: 'out' }", "c");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->families.size(), 1u);
  ASSERT_EQ(config->families[0].patterns.size(), 1u);
  EXPECT_EQ(config->families[0].patterns[0].first, Role::kHead);
  EXPECT_EQ(config->families[0].patterns[0].second, std::vector<std::string>{"out"});
  EXPECT_THAT(
      std::string(
          ParseConvertConfig("schema: 1 base: 'w8a16' family { name: 'mine' head: '(' }", "c").status().message()),
      HasSubstr("c:1:"));
  EXPECT_THAT(std::string(ParseConvertConfig(
                              "schema: 1 rule { match: 'a' keep_float {} on_split_group: ON_SPLIT_GROUP_WARN }", "c")
                              .status()
                              .message()),
              HasSubstr("on_split_group is only valid with quantize"));
}

}  // namespace
}  // namespace aqt::serving
