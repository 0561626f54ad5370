#include "serving/formats/quantization_config.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/formats/weight_formats.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;

constexpr char kW8A8[] = R"({
  "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"], "unknown_at_top": 1,
  "config_groups": {"group_0": {"targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "dynamic": false},
    "input_activations": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true}}}})";

absl::StatusOr<QuantizationConfig> Edited(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kW8A8, {{from, to}});
  EXPECT_NE(text, kW8A8) << from;
  return ParseQuantizationConfig(text);
}

TEST(QuantizationConfigTest, ReadsAScheme) {
  const QuantizationConfig config = *ParseQuantizationConfig(kW8A8);
  ASSERT_EQ(config.groups.size(), 1u);
  EXPECT_THAT(config.groups[0].targets, ElementsAre("Linear"));
  EXPECT_THAT(config.ignore, ElementsAre("lm_head"));
  EXPECT_THAT(config.notes, IsEmpty());
  Scheme expected;
  expected.input = InputScheme{};
  expected.format = FindWeightFormat("int-quantized");
  EXPECT_EQ(config.groups[0].scheme, expected);
  EXPECT_EQ(Describe(expected), "int8 per channel, input int8 per token dynamic, int-quantized");
}

TEST(QuantizationConfigTest, InfersWhatIsLeftOut) {
  const auto weights = [](const std::string& args) {
    return ParseQuantizationConfig(
               absl::StrCat(R"({"config_groups": {"g": {"targets": ["a"], "weights": )", args, "}}}"))
        ->groups[0]
        .scheme;
  };
  EXPECT_EQ(Describe(weights("{}")), "int8 per tensor, pack-quantized");
  EXPECT_EQ(Describe(weights(R"({"group_size": -1})")), "int8 per channel, pack-quantized");
  EXPECT_EQ(Describe(weights(R"({"group_size": 64, "num_bits": 4, "symmetric": false})")),
            "int4 g64 asymmetric, pack-quantized");
  EXPECT_EQ(
      Describe(weights(R"({"strategy": "channel", "group_size": null, "observer": "minmax", "observer_kwargs": {}})")),
      "int8 per channel, pack-quantized");
}

constexpr char kFp8[] = R"({"config_groups": {"group_0": {"targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "dynamic": true}}}})";

TEST(QuantizationConfigTest, ReadsFloats) {
  const auto edited = [](const std::string& from, const std::string& to) {
    return ParseQuantizationConfig(absl::StrReplaceAll(kFp8, {{from, to}}));
  };
  const auto described = [&](const std::string& from, const std::string& to) {
    const absl::StatusOr<QuantizationConfig> config = edited(from, to);
    return config.ok() ? Describe(config->groups[0].scheme) : config.status().ToString();
  };
  EXPECT_EQ(described("", ""), "fp8 per 128x64 block, input fp8 g128 dynamic, float-quantized");
  EXPECT_EQ(described("[128, 64]", "\"128x64\""), "fp8 per 128x64 block, input fp8 g128 dynamic, float-quantized");
  EXPECT_EQ(described(R"("block", "block_structure": [128, 64])", R"("tensor")"),
            "fp8 per tensor, input fp8 g128 dynamic, float-quantized");
  EXPECT_EQ(described(R"("input_activations")", R"("format": "naive-quantized", "input_activations")"),
            "fp8 per 128x64 block, input fp8 g128 dynamic, naive-quantized");
  EXPECT_EQ(*ParseQuantizationConfig(QuantizationConfigToJson(*edited("", ""))), *edited("", ""));

  struct Case {
    std::string from, to, message;
  };
  for (const Case& c : std::vector<Case>{
           {R"("type": "float", "strategy": "block")", R"("type": "float", "symmetric": false, "strategy": "block")",
            "asymmetric floats"},
           {R"("block", "block_structure": [128, 64])", R"("group", "group_size": 64)", "floats, strategy group"},
           {R"("type": "float", "strategy": "group")", R"("type": "int", "strategy": "group")",
            "weights of type float with input_activations of type int"},
           {R"("float", "strategy": "group")", R"("float", "symmetric": false, "strategy": "group")",
            "input_activations: asymmetric floats"},
           {R"("num_bits": 8, "type": "float", "strategy": "group")",
            R"("num_bits": 4, "type": "float", "strategy": "group")",
            "input_activations: floats of 4 bits are not supported"},
           {R"("type": "float", "strategy": "block")",
            R"("type": "float", "zp_dtype": "torch.int8", "strategy": "block")", "zp_dtype"},
       }) {
    const absl::Status status = edited(c.from, c.to).status();
    EXPECT_EQ(status.code(), kUnimplemented) << c.to << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(QuantizationConfigTest, GroupFormatGoesBeforeTheCommonOne) {
  EXPECT_EQ(Edited(R"("targets")", R"("format": "pack-quantized", "targets")")->groups[0].scheme.format,
            FindWeightFormat("pack-quantized"));
  EXPECT_EQ(Edited(R"("format": "int-quantized")", R"("format": "mixed-precision")")->groups[0].scheme.format,
            FindWeightFormat("int-quantized"));
  EXPECT_EQ(Edited(R"("format": "int-quantized")", R"("format": "pack-quantized")")->groups[0].scheme.format,
            FindWeightFormat("pack-quantized"));
}

// A replacement in the configuration of Edited, and a part of the message.
struct Refusal {
  std::string from, to;
  absl::StatusCode code;
  std::string message;
};

void ExpectRefused(const std::vector<Refusal>& refusals) {
  for (const Refusal& c : refusals) {
    const absl::StatusOr<QuantizationConfig> config = Edited(c.from, c.to);
    EXPECT_EQ(config.status().code(), c.code) << c.to << ": " << config.status();
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.message));
  }
}

TEST(QuantizationConfigTest, RefusesByName) {
  ExpectRefused({
      {R"("type": "int")", R"("type": "float")", kUnimplemented,
       "config_groups.group_0: int-quantized with weights of type float is not supported"},
      {R"("num_bits": 8, "type": "int")", R"("num_bits": 4, "type": "float")", kUnimplemented,
       "config_groups.group_0: weights: WeightScheme: floats of 4 bits with scales in the dtype of the weight"},
      {R"("num_bits": 8, "type": "int")", R"("num_bits": 5, "type": "float")", kUnimplemented,
       "config_groups.group_0.weights: 5-bit floats"},
      {R"("type": "int")", R"("type": "complex")", kInvalid, "weights.type = \"complex\""},
      {R"("int-quantized")", R"("marlin-24")", kUnimplemented,
       "format = \"marlin-24\" is not supported; \"mxfp4-pack-quantized\", \"mxfp6-pack-quantized\", "
       "\"mxfp8-quantized\", \"nvfp4-pack-quantized\", \"int-quantized\", \"pack-quantized\", \"float-quantized\" and "
       "\"naive-quantized\" are"},
      {R"("int-quantized")", R"("mxfp8-quantized")", kUnimplemented,
       "mxfp8-quantized with such weights is not supported; it holds floats of 8 bits in groups of 32"},
      {R"("int-quantized")", R"("nvfp4-pack-quantized")", kUnimplemented,
       "nvfp4-pack-quantized with such weights is not supported; it holds floats of 4 bits in groups of 16"},
      {R"("targets")", R"("extra": 1, "targets")", kInvalid, "unknown field config_groups.group_0.extra"},
      {R"("num_bits": 8)", R"("num_bits": 9)", kInvalid, "num_bits"},
      {R"("num_bits": 8)", R"("num_bits": "8")", kInvalid, "weights.num_bits = \"8\""},
      {R"("dynamic": false)", R"("dynamic": true)", kInvalid, "weights.dynamic"},
      {R"("dynamic": false)", R"("dynamic": false, "actorder": "group")", kUnimplemented,
       "weights.actorder = \"group\""},
      {R"("dynamic": false)", R"("dynamic": false, "scale_dtype": "torch.float32")", kUnimplemented,
       "weights.scale_dtype = \"torch.float32\" is not supported; null"},
      {R"("targets": ["Linear"])", R"("targets": [])", kInvalid, "targets is missing or empty"},
      {R"("targets": ["Linear"])", R"("targets": [3])", kInvalid, "targets = [3]"},
      {R"("targets")", R"("output_activations": {}, "targets")", kUnimplemented, "output_activations"},
      {R"("compressed-tensors")", R"("gptq")", kUnimplemented,
       "quant_method = \"gptq\" is not supported; \"compressed-tensors\" and \"fp8\" are"},
      {R"("unknown_at_top")", R"("kv_cache_scheme")", kUnimplemented,
       "kv_cache_scheme = 1 is not supported; set it to null to continue: the weights do not depend on it"},
      {R"("unknown_at_top")", R"("moe_sparsity_config")", kUnimplemented, "moe_sparsity_config = 1"},
      {R"("unknown_at_top": 1)", R"("sparsity_config": {"format": "sparse-24-bitmask"})", kUnimplemented,
       "sparsity_config"},
      {R"("unknown_at_top": 1)", R"("transform_config": {"config_groups": {"a": {}}})", kUnimplemented,
       "transform_config"},
      {R"("unknown_at_top")", R"("format")", kInvalid, "the key 'format' occurs twice"},
      {R"("config_groups")", R"("groups")", kInvalid, "config_groups = null"},
      {"{\n", "[\n", kInvalid, "line 2, column 17"},
  });
}

TEST(QuantizationConfigTest, RefusesStrategiesByName) {
  ExpectRefused({
      {R"("strategy": "channel")", R"("strategy": "tensor_group")", kInvalid,
       "weights.group_size = null; a positive size with strategy \"tensor_group\""},
      {R"("strategy": "channel")", R"("strategy": "tensor_group", "group_size": 16)", kUnimplemented,
       "ints of 8 bits, strategy group, group_size 16, with scales as e4m3fn (NVFP4); supported"},
      {R"("strategy": "channel")", R"("strategy": "attn_head")", kUnimplemented, "weights.strategy = \"attn_head\""},
      {R"("strategy": "channel")", R"("strategy": "block")", kInvalid,
       "weights.block_structure = null; [rows, columns]"},
      {R"("strategy": "channel")", R"("strategy": "block", "block_structure": [128, 0])", kInvalid,
       "weights.block_structure = [128,0]; [rows, columns]"},
      {R"("strategy": "channel")", R"("strategy": "block", "block_structure": [128, 18446744073709551615])", kInvalid,
       "block_structure"},
      {R"("strategy": "channel")", R"("strategy": "block", "block_structure": "128")", kInvalid, "block_structure"},
      {R"("strategy": "channel")", R"("strategy": "channel", "block_structure": [128, 128])", kInvalid,
       "weights.block_structure = [128,128]; null with strategy \"channel\""},
      {R"("strategy": "token")", R"("strategy": "block", "block_structure": [128, 128])", kUnimplemented,
       "input_activations.strategy = \"block\""},
      {R"("strategy": "channel")", R"("strategy": "row")", kInvalid, "weights.strategy = \"row\""},
      {R"("strategy": "channel")", R"("strategy": "token")", kInvalid, "weights.strategy = \"token\""},
      {R"("strategy": "channel")", R"("strategy": "group")", kInvalid, "weights.group_size = null"},
      {R"("strategy": "channel")", R"("strategy": "channel", "group_size": 32)", kInvalid, "weights.group_size = 32"},
      {R"("strategy": "channel")", R"("strategy": "channel", "group_size": 0)", kInvalid, "weights.group_size = 0"},
      {R"("strategy": "channel")", R"("strategy": "channel", "extra": 1)", kInvalid,
       "unknown field config_groups.group_0.weights.extra"},
      {R"("strategy": "channel")", R"("group_size": 18446744073709551615)", kInvalid,
       "group_size = 18446744073709551615; an integer"},
      {R"("strategy": "channel")", R"("group_size": 1e400)", kInvalid, "group_size = \"1e400\"; an integer"},
      {R"("strategy": "channel")", R"("group_size": -2)", kInvalid, "group_size = -2; a positive size"},
      {R"("strategy": "channel")", R"("group_size": 32.0)", kInvalid, "group_size = 32.0; an integer"},
      {R"("strategy": "channel")", R"("strategy": "group", "group_size": -1)", kInvalid,
       "group_size = -1; a positive size with strategy \"group\""},
      {R"("strategy": "token")", R"("strategy": "token", "group_size": 0)", kInvalid,
       "input_activations.group_size = 0"},
      {R"("dynamic": true)", R"("dynamic": false)", kInvalid, "\"token\" cannot be static"},
      {R"("dynamic": true)", R"("dynamic": "local")", kInvalid,
       "input_activations.dynamic = \"local\"; true or false with strategy \"token\""},
      {R"("dynamic": false)", R"("dynamic": "local")", kInvalid,
       "weights.dynamic = \"local\"; true or false with strategy \"channel\""},
      {R"("strategy": "token")", R"("strategy": "channel")", kUnimplemented, "input_activations.strategy"},
  });
}

absl::StatusOr<QuantizationConfig> WithGroups(const std::string& groups, const std::string& more = "") {
  return ParseQuantizationConfig(absl::StrCat(R"({"config_groups": )", groups, more, "}"));
}

TEST(QuantizationConfigTest, ReadsPresetsByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"W8A8", "int8 per channel, input int8 per token dynamic, int-quantized"},
      {"int8", "int8 per channel, input int8 per token dynamic, int-quantized"},
      {"W8A16", "int8 g128, pack-quantized"},
      {"w4a16", "int4 g128, pack-quantized"},
      {"W4A16_ASYM", "int4 g128 asymmetric, pack-quantized"},
      {"W4A8", "int4 g128, input int8 per token dynamic, int-quantized"},
      {"W4A4", "int4 g128, input int4 per token dynamic, int-quantized"},
      {"W3A16", "int3 g128, pack-quantized"},
      {"FP8", "fp8 per tensor, input fp8 per tensor static, float-quantized"},
      {"FP8_DYNAMIC", "fp8 per channel, input fp8 per token dynamic, float-quantized"},
      {"FP8_BLOCK", "fp8 per 128x128 block, input fp8 g128 dynamic, float-quantized"},
  };
  for (const auto& [name, scheme] : cases) {
    const absl::StatusOr<QuantizationConfig> config =
        WithGroups(absl::StrCat("{\"", name, R"(": ["Linear", "re:x"]})"));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(Describe(config->groups[0].scheme), scheme) << name;
    EXPECT_EQ(config->groups[0].name, name);
    EXPECT_THAT(config->groups[0].targets, ElementsAre("Linear", "re:x"));
    EXPECT_EQ(*ParseQuantizationConfig(QuantizationConfigToJson(*config)), *config) << name;
  }
  EXPECT_EQ(Describe(WithGroups(R"({"W8A8": ["a"]})", R"(, "format": "pack-quantized")")->groups[0].scheme),
            "int8 per channel, input int8 per token dynamic, pack-quantized");
  EXPECT_EQ(
      WithGroups(R"({"W8A8": ["a"], "group_1": {"targets": ["b"], "weights": {}}})", R"(, "format": "mixed-precision")")
          ->groups.size(),
      2u);
}

TEST(QuantizationConfigTest, ScalesOfEightBits) {
  for (const auto& [groups, scheme] : std::vector<std::pair<std::string, std::string>>{
           {R"({"NVFP4": ["Linear"]})", "nvfp4 g16, input nvfp4 g16 local, nvfp4-pack-quantized"},
           {R"({"nvfp4a16": ["Linear"]})", "nvfp4 g16, nvfp4-pack-quantized"},
           {R"({"MXFP4": ["Linear"]})", "mxfp4 g32, input mxfp4 g32 dynamic, mxfp4-pack-quantized"},
           {R"({"MXFP4xFP8": ["Linear"]})", "mxfp4 g32, input fp8 g128 dynamic, mxfp4-pack-quantized"},
           {R"({"MXFP6A8": ["Linear"]})", "mxfp6 g32, input mxfp8 g32 dynamic, mxfp6-pack-quantized"},
           {R"({"MXFP8A16": ["Linear"]})", "mxfp8 g32, mxfp8-quantized"},
           {R"({"W4AFP8": ["Linear"]})", "int4 g128, input fp8 per token dynamic, int-quantized"},
           // As older versions of the package wrote them, without scale_dtype.
           {R"({"group_0": {"targets": ["Linear"], "weights":
               {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}})",
            "nvfp4 g16, nvfp4-pack-quantized"},
           {R"({"group_0": {"targets": ["Linear"], "weights":
               {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "zp_dtype": "torch.uint8"}}})",
            "mxfp4 g32, mxfp4-pack-quantized"}}) {
    const absl::StatusOr<QuantizationConfig> config = WithGroups(groups);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(Describe(config->groups[0].scheme), scheme);
    EXPECT_EQ(*ParseQuantizationConfig(QuantizationConfigToJson(*config)), *config);
  }
  const std::string json = QuantizationConfigToJson(*WithGroups(R"({"NVFP4": ["Linear"]})"));
  for (const char* text : {R"("dynamic": "local")", R"("scale_dtype": "torch.float8_e4m3fn")",
                           R"("strategy": "tensor_group")", R"("format": "nvfp4-pack-quantized")"}) {
    EXPECT_THAT(json, HasSubstr(text));
  }
  const std::string wrong = R"({"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float",
      "strategy": "tensor_group", "group_size": 16}, "input_activations": {"num_bits": 4, "type": "float",
      "strategy": "tensor_group", "group_size": 16, "dynamic": true}}})";
  EXPECT_THAT(std::string(WithGroups(wrong).status().message()),
              HasSubstr("input_activations.dynamic = true is not supported; \"local\" is"));
}

TEST(QuantizationConfigTest, RefusesGroupsByName) {
  struct Case {
    std::string groups;
    absl::StatusCode code;
    std::string message;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"UNQUANTIZED": ["Linear"]})", kUnimplemented, "list its targets under \"ignore\""},
           {R"({"group_0": ["Linear"]})", kInvalid, "needs the name of a preset, and \"group_0\" is not one"},
           {R"({"W8A8": []})", kInvalid, "config_groups.W8A8 = []; at least one target"},
           {R"({"W8A8": [1]})", kInvalid, "config_groups.W8A8 = [1]; a list of strings"},
           {R"({"W8A8": null})", kInvalid, "config_groups.W8A8 = null; an object with targets and weights, or a list"},
           {R"({"W8A8": "Linear"})", kInvalid, "config_groups.W8A8 = \"Linear\"; an object"},
           {R"([{"targets": ["Linear"]}])", kInvalid, "config_groups = [{\"targets\":[\"Linear\"]}]; an object"},
           {"{}", kInvalid, "an object with at least one group"},
       }) {
    const absl::Status status = WithGroups(c.groups).status();
    EXPECT_EQ(status.code(), c.code) << c.groups << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
  EXPECT_EQ(WithGroups(R"({"FP8": ["a"]})", R"(, "format": "pack-quantized")").status().code(), kUnimplemented);
}

TEST(QuantizationConfigTest, ReadsTheMethodFp8) {
  const auto parse = [](const std::string& fields) {
    return ParseQuantizationConfig(absl::StrCat(R"({"quant_method": "fp8")", fields, "}"));
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3")",
       "fp8 per 128x128 block, input fp8 g128 dynamic, float-quantized"},
      {R"(, "weight_block_size": [64, 32])", "fp8 per 64x32 block, input fp8 g32 dynamic, float-quantized"},
      {R"(, "weight_block_size": null)", "fp8 per tensor, input fp8 per token dynamic, float-quantized"},
      {R"(, "activation_scheme": "static")", "fp8 per tensor, input fp8 per tensor static, float-quantized"},
  };
  for (const auto& [fields, scheme] : cases) {
    const absl::StatusOr<QuantizationConfig> config = parse(fields);
    ASSERT_TRUE(config.ok()) << fields << config.status();
    ASSERT_EQ(config->groups.size(), 1u);
    EXPECT_EQ(Describe(config->groups[0].scheme), scheme);
    EXPECT_THAT(config->groups[0].targets, ElementsAre("Linear"));
    EXPECT_THAT(config->notes, IsEmpty());
    EXPECT_EQ(*ParseQuantizationConfig(QuantizationConfigToJson(*config)), *config);
  }
  const QuantizationConfig config =
      *parse(R"(, "scale_fmt": "ue8m0", "modules_to_not_convert": ["lm_head", "model.layers.3.mlp.gate", "visual", )"
             R"("mlp.gate", "model.layers.61", "re:x"], "ignored_layers": ["lm_head", "a.0.b"])");
  EXPECT_THAT(config.ignore,
              ElementsAre("lm_head", "model.layers.3.mlp.gate", "re:(.*\\.)?visual(\\.|$)",
                          "re:(.*\\.)?mlp\\.gate(\\.|$)", "re:model\\.layers\\.61(\\.|$)", "re:x", "a.0.b"));
  EXPECT_THAT(config.notes, ElementsAre(HasSubstr("scale_fmt = \"ue8m0\" has no effect")));

  for (const auto& [fields, code, message] : std::vector<std::tuple<const char*, absl::StatusCode, const char*>>{
           {R"(, "weight_block_size": [128, 0])", kInvalid, "weight_block_size = [128,0]"},
           {R"(, "weight_block_size": 128)", kInvalid, "weight_block_size = 128"},
           {R"(, "weight_block_size": [128, 128], "activation_scheme": "static")", kInvalid,
            "activation_scheme = \"static\"; \"dynamic\" with weight_block_size"},
           {R"(, "activation_scheme": "some")", kInvalid, "activation_scheme = \"some\""},
           {R"(, "fmt": "e5m2")", kUnimplemented, "fmt = \"e5m2\""},
           {R"(, "modules_to_not_convert": "lm_head")", kInvalid, "modules_to_not_convert = \"lm_head\""},
           {R"(, "modules_to_not_convert": [""])", kInvalid, "modules_to_not_convert = [\"\"]"},
           {R"(, "kv_cache_scheme": {})", kUnimplemented, "kv_cache_scheme"},
       }) {
    const absl::Status status = parse(fields).status();
    EXPECT_EQ(status.code(), code) << fields << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(QuantizationConfigTest, SaysWhatHasNoEffect) {
  EXPECT_THAT(Edited(R"("dynamic": false)", R"("dynamic": false, "actorder": "static", "observer": "mse")")->notes,
              ElementsAre(HasSubstr("actorder"), HasSubstr("observer")));
}

TEST(QuantizationConfigTest, WhatIsWrittenReadsBackTheSame) {
  for (const bool symmetric : {false, true}) {
    for (const WeightStrategy strategy : {WeightStrategy::kTensor, WeightStrategy::kChannel, WeightStrategy::kGroup}) {
      for (const int input : {0, 1, 2, 3}) {
        QuantizationConfig config;
        config.groups.push_back({"group_0", {"Linear", "re:.*x"}, {}});
        Scheme& scheme = config.groups[0].scheme;
        scheme.weights.num_bits = symmetric ? 4 : 8;
        scheme.weights.symmetric = symmetric;
        scheme.weights.strategy = strategy;
        scheme.weights.group_size = strategy == WeightStrategy::kGroup ? 32 : 0;
        if (input > 0) scheme.input = InputScheme{};
        if (input == 2) *scheme.input = {8, false, false, InputStrategy::kTensor, 0};
        if (input == 3) *scheme.input = {8, true, true, InputStrategy::kGroup, 128};
        scheme.format = DefaultFormat(scheme.weights, input > 0);
        if (!Validate(scheme).ok()) continue;
        config.ignore = {"lm_head"};
        const absl::StatusOr<QuantizationConfig> back = ParseQuantizationConfig(QuantizationConfigToJson(config));
        ASSERT_TRUE(back.ok()) << back.status();
        EXPECT_EQ(*back, config);
      }
    }
  }
}

// The package's own files: reading one and writing it again gives the same JSON.
TEST(QuantizationConfigTest, ReproducesTheRecordedFiles) {
  for (const char* name :
       {"int_w8a8_dynamic", "int_w8a8_static", "int_w4a8_g32", "pack_w4a16_channel_asym", "pack_w2a16_g32",
        "pack_w4a8_g32", "float_fp8_dynamic", "float_fp8_static", "float_fp8_block8x16", "naive_fp8_weight_only"}) {
    const std::string text = ReadText(absl::StrCat("tests/golden/checkpoints/", name, "/config.json"));
    const nlohmann::json recorded = nlohmann::json::parse(text);
    const absl::StatusOr<ModelConfig> model = ParseModelConfig(text);
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::StatusOr<QuantizationConfig> config = ParseQuantizationConfig(*model->quantization_config);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(nlohmann::json::parse(*SetQuantizationConfig(text, *config)), recorded) << name;
  }
}

TEST(ModelConfigTest, KeepsOtherKeysInOrder) {
  const std::string text =
      *SetQuantizationConfig(R"({"z": 1e-05, "a": [null, "\u00e9"], "big": 18446744073709551615})", {});
  EXPECT_LT(text.find("\"z\": 1e-05"), text.find("\"a\""));
  EXPECT_THAT(text, HasSubstr("18446744073709551615"));
  EXPECT_THAT(text, HasSubstr("\"\\u00e9\""));
  EXPECT_THAT(*SetQuantizationConfig("", {}), HasSubstr("quantization_config"));
}

constexpr char kFromPython[] = R"({
    "architectures": ["NemotronHForCausalLM"],
    "time_step_limit": [0.0, Infinity], "floor": -Infinity,
    "initializer": {"range": NaN, "x":1.50e-05},
    "seed": 340282366920938463463374607431768211456,
    "huge": 1e999,
    "tie_word_embeddings": true,
    "name": "a\u00e9"
}
)";

TEST(ModelConfigTest, ReadsWhatPythonWrites) {
  const absl::StatusOr<ModelConfig> model = ParseModelConfig(kFromPython);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->facts.has_output_head);
  EXPECT_EQ(model->tie_word_embeddings, true);
  // They are also accepted in a quantization_config where they have no effect, and refused where they would have one.
  EXPECT_TRUE(Edited(R"("unknown_at_top": 1)", R"("unknown_at_top": [NaN, 1e999])").ok());
  EXPECT_TRUE(Edited(R"("dynamic": false)", R"("dynamic": false, "observer_kwargs": {"c": -Infinity})").ok());
  EXPECT_THAT(std::string(Edited(R"("num_bits": 8)", R"("num_bits": NaN)").status().message()),
              HasSubstr("num_bits = \"NaN\"; an integer is expected"));
}

TEST(ModelConfigTest, WhatIsNotTouchedKeepsItsText) {
  QuantizationConfig config;
  config.ignore = {"lm_head"};
  const std::string text = kFromPython;
  const std::string added = *SetQuantizationConfig(text, config);
  const size_t end = text.find("\n}\n");  // position of the new key
  EXPECT_EQ(added.substr(0, end), text.substr(0, end));
  EXPECT_THAT(added.substr(end), StartsWith(",\n    \"quantization_config\": {\n        \"config_groups\": {}"));
  EXPECT_THAT(added, EndsWith("\n    }\n}\n"));
  EXPECT_EQ(*SetQuantizationConfig(added, config), added);

  // Replaced in place.
  EXPECT_THAT(*SetQuantizationConfig("{\"quantization_config\":{\"a\": [1]} , \"b\":\t1e2 }", config),
              AllOf(StartsWith("{\"quantization_config\":{\n"), EndsWith("\n  } , \"b\":\t1e2 }")));
  EXPECT_THAT(*SetQuantizationConfig("{\"b\":1}", config), StartsWith("{\"b\":1,\n  \"quantization_config\": {\n"));
  EXPECT_THAT(*SetQuantizationConfig("\n{ \"b\": 1}", config),
              StartsWith("\n{ \"b\": 1,\n  \"quantization_config\": {\n"));
  EXPECT_THAT(*SetQuantizationConfig("{\n\t\"b\": 1\n}", config),
              AllOf(HasSubstr("\n\t\"quantization_config\": {\n\t\t\"config"), EndsWith("\n\t}\n}\n")));
  for (const char* empty : {"", "{}", " {\n} \n", "{ }"}) {
    EXPECT_TRUE(nlohmann::json::parse(*SetQuantizationConfig(empty, config)).contains("quantization_config")) << empty;
  }
}

TEST(ModelConfigTest, ReadsWhatItSaysOfTheEmbeddings) {
  EXPECT_EQ(ParseModelConfig(R"({"tie_word_embeddings": true})")->tie_word_embeddings, true);
  EXPECT_EQ(ParseModelConfig(R"({"tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}})")
                ->tie_word_embeddings,
            false);
  EXPECT_EQ(ParseModelConfig(R"({"text_config": {"tie_word_embeddings": true}})")->tie_word_embeddings, true);
  EXPECT_EQ(ParseModelConfig("{}")->tie_word_embeddings, std::nullopt);
  EXPECT_TRUE(ParseModelConfig(R"({"architectures": ["GemmaForCausalLM"]})")->facts.has_output_head);
  EXPECT_FALSE(ParseModelConfig(R"({"architectures": ["BertModel", 3]})")->facts.has_output_head);
  EXPECT_FALSE(ParseModelConfig(R"({"architectures": null})")->facts.has_output_head);
}

TEST(ModelConfigTest, FindsTheQuantizationOfAPart) {
  for (const char* text :
       {R"({"quantization_config": {"quant_method": "x"}, "text_config": {"quantization_config": {}}})",
        R"({"compression_config": {"quant_method": "x"}})",
        R"({"text_config": {"quantization_config": {"quant_method": "x"}}})",
        R"({"quantization_config": null, "llm_config": {"compression_config": {"quant_method": "x"}}})",
        R"({"thinker_config": {"a": 1, "text_config": {"quantization_config": {"quant_method": "x"}}}})"}) {
    const ModelConfig model = *ParseModelConfig(text);
    EXPECT_EQ(model.quantization_config, R"({"quant_method":"x"})") << text;
    EXPECT_EQ(model.quant_method, "x");
  }
  EXPECT_EQ(ParseModelConfig(R"({"a": [{"quantization_config": 1}], "text_config": {}})")->quantization_config,
            std::nullopt);
}

TEST(ModelConfigTest, RefusesDamage) {
  for (const std::string text : {"", "[]", "{", "{\"a\": 1, \"a\": 2}", "{} x", "{\"a\": \"\xff\"}"}) {
    EXPECT_EQ(ParseModelConfig(text).status().code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(ParseModelConfig(text).status().message()), StartsWith("line 1, column "));
    EXPECT_EQ(SetQuantizationConfig(text, {}).ok(), text.empty()) << text;
  }
  std::string deep = "1";
  for (int i = 0; i < 100; ++i) deep = "[" + deep + "]";
  EXPECT_THAT(std::string(ParseModelConfig("{\"a\": " + deep + "}").status().message()), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace aqt::serving
