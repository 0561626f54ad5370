#include "serving/plan/plan.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "re2/re2.h"
#include "serving/families/module_roles.h"
#include "serving/families/zero_tensors.h"
#include "serving/formats/quantization_config.h"
#include "serving/plan/convert_config.h"
#include "serving/plan/recipe.h"
#include "serving/plan/rules.h"
#include "serving/plan/tensor_plan.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr char kInt8[] = "schema: 1 base: 'w8a8_dynamic' ";

// The plan for tensors of zeros, with the text of a configuration and of a config.json.
struct Planned {
  Planned(const TensorShapes& shapes, const std::string& config, const std::string& model = "{}")
      : source(ZeroTensors(shapes)) {
    recipe.config = *ParseConvertConfig(config, "config");
    plan = MakePlan(source, *ParseModelConfig(model), recipe);
  }
  std::set<std::string> Quantized() const {
    std::set<std::string> names;
    for (const TensorPlan& tensor : plan->tensors) {
      if (tensor.quantized()) names.emplace(tensor.module());
    }
    return names;
  }
  const std::vector<std::string>& Ignore() const { return plan->quantization_config.ignore; }
  // As in loaders: an equal name, or a pattern that matches from the start.
  bool Ignores(const std::string& module) const {
    for (const std::string& entry : Ignore()) {
      if (entry == module) return true;
      if (absl::StartsWith(entry, "re:") &&
          RE2(entry.substr(3)).Match(module, 0, module.size(), RE2::ANCHOR_START, nullptr, 0)) {
        return true;
      }
    }
    return false;
  }
  std::string Error() const { return std::string(plan.status().message()); }

  io::MemoryTensorSource source;
  Recipe recipe;
  absl::StatusOr<Plan> plan;
};

TensorShapes Attention(int64_t k_columns = 64) {
  return {{"l.0.attn.q_proj.weight", {64, 64}},
          {"l.0.attn.k_proj.weight", {64, k_columns}},
          {"l.0.attn.v_proj.weight", {64, 64}}};
}

TEST(PlanTest, WeightsThatShareAGlobalScale) {
  TensorShapes shapes = Attention();
  for (const char* name : {"l.0.attn.o_proj", "l.0.mlp.gate_proj", "l.0.mlp.up_proj", "l.0.moe.experts.0.w1",
                           "l.0.moe.experts.0.w2", "l.0.moe.experts.0.w3", "l.1.mlp.experts.0.gate_proj",
                           "l.1.mlp.experts.0.up_proj", "l.1.attn.wq_a", "l.1.attn.wkv_a_with_mqa"}) {
    shapes.push_back({absl::StrCat(name, ".weight"), {64, 64}});
  }
  const Planned planned(shapes, "schema: 1 base: 'nvfp4a16'");
  ASSERT_TRUE(planned.plan.ok()) << planned.plan.status();
  std::vector<std::string> sets;
  for (const TensorPlan& tensor : planned.plan->tensors) sets.push_back(tensor.scale_set);
  EXPECT_THAT(sets,
              ElementsAre("l.0.attn.(q_proj, k_proj, v_proj)", "l.0.attn.(q_proj, k_proj, v_proj)",
                          "l.0.attn.(q_proj, k_proj, v_proj)", "l.0.attn.o_proj", "l.0.mlp.(gate_proj, up_proj)",
                          "l.0.mlp.(gate_proj, up_proj)", "l.0.moe.experts.0.(w1, w3)", "l.0.moe.experts.0.w2",
                          "l.0.moe.experts.0.(w1, w3)", "l.1.mlp.experts.0.gate_proj", "l.1.mlp.experts.0.up_proj",
                          "l.1.attn.(wq_a, wkv_a_with_mqa)", "l.1.attn.(wq_a, wkv_a_with_mqa)"));
  EXPECT_THAT(PlanToJson(*planned.plan), HasSubstr("\"global_scale_of\": \"l.0.attn.(q_proj, k_proj, v_proj)\""));
  EXPECT_THAT(PlanToJson(*Planned(shapes, "schema: 1 base: 'mxfp4a16'").plan), Not(HasSubstr("global_scale_of")));
}

// The stored tensor is quantized for both uses, so the head is a target and not ignored.
TEST(PlanTest, TiedEmbeddingsAreQuantizedOnRequest) {
  const char* const model = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96,
      "tie_word_embeddings": true})";
  const TensorShapes shapes = {{"model.embed_tokens.weight", {96, 64}},
                               {"model.layers.0.mlp.up_proj.weight", {64, 64}}};
  const std::string rule =
      "schema: 1 rule { match: '.*' override_ignore: true quantize { weights { num_bits: 8 "
      "per_channel {} } } ";
  EXPECT_THAT(Planned(shapes, rule + "}", model).Error(), HasSubstr("tie_word_embeddings"));
  const Planned planned(shapes, rule + "quantize_tied: true }", model);
  ASSERT_TRUE(planned.plan.ok()) << planned.plan.status();
  EXPECT_THAT(planned.Quantized(), UnorderedElementsAre("model.embed_tokens", "model.layers.0.mlp.up_proj"));
  EXPECT_THAT(planned.plan->quantization_config.groups[0].targets,
              ElementsAre("Linear", "model.embed_tokens", "lm_head"));
  EXPECT_THAT(planned.Ignore(), IsEmpty());
}

TEST(PlanTest, IgnoreCoversTheNamesOfSingleExperts) {
  const Planned fused({{"l.0.mlp.experts.gate_up_proj", {4, 64, 128}}, {"l.0.q.weight", {64, 64}}}, kInt8);
  EXPECT_THAT(fused.Ignore(), UnorderedElementsAre("l.0.mlp.experts", "re:(?:.*\\.)?l\\.0\\.mlp\\.experts\\..*"));
  EXPECT_TRUE(fused.Ignores("l.0.mlp.experts.3.down_proj"));
  EXPECT_FALSE(fused.Ignores("l.10.mlp.experts.3.down_proj"));

  TensorShapes shapes = {{"l.0.q.weight", {64, 64}}};
  for (const char* part : {"0.w1", "0.w2", "0.w3", "1.w1", "1.w2", "1.w3"}) {
    shapes.push_back({absl::StrCat("l.0.moe.experts.", part, ".weight"), {64, 64}});
  }
  const Planned kept(shapes, absl::StrCat(kInt8, "ignore: '.*experts.*'"));
  EXPECT_TRUE(kept.Ignores("l.0.moe.experts.1.gate_proj"));
  EXPECT_TRUE(kept.Ignores("l.0.moe.experts.1.w2"));
}

TEST(PlanTest, IgnoreNamesNoParentOfWhatIsQuantized) {
  const Planned plan({{"l.0.mlp.experts.0.w1.weight", {64, 64}},
                      {"l.0.mlp.experts.1.w1.weight", {64, 64}},
                      {"l.0.mlp.experts.both", {2, 64, 64}}},
                     absl::StrCat(kInt8, "ignore: '.*experts\\\\.1\\\\.w1'"));
  EXPECT_THAT(plan.Quantized(), ElementsAre("l.0.mlp.experts.0.w1"));
  EXPECT_FALSE(plan.Ignores("l.0.mlp.experts"));
  EXPECT_FALSE(plan.Ignores("l.0.mlp.experts.0.w1"));
  EXPECT_TRUE(plan.Ignores("l.0.mlp.experts.1.w1"));
  EXPECT_TRUE(plan.Ignores("l.0.mlp.experts.1.gate_proj"));
}

TEST(PlanTest, TargetsHaveTheNamesThatServersAskFor) {
  const Planned plan({{"l.0.experts.0.w1.weight", {64, 64}}, {"l.0.q.weight", {64, 64}}},
                     "schema: 1 rule { match: '.*w1' quantize { weights { num_bits: 8 per_channel {} } } } "
                     "rule { match: '.*' quantize { weights { num_bits: 4 per_channel {} } } }");
  ASSERT_TRUE(plan.plan.ok()) << plan.plan.status();
  EXPECT_THAT(plan.plan->quantization_config.groups[0].targets,
              ElementsAre("l.0.experts.0.w1", "l.0.experts.0.gate_proj"));
  EXPECT_THAT(plan.plan->quantization_config.groups[1].targets, ElementsAre("l.0.q"));
}

TEST(PlanTest, PartsOfAModelMayHaveOtherPrefixes) {
  const Planned plan({{"visual.blocks.0.qkv.weight", {192, 64}},
                      {"language_model.lm_head.weight", {96, 64}},
                      {"language_model.model.layers.0.mlp.gate.weight", {4, 64}},
                      {"language_model.model.layers.0.q.weight", {64, 64}}},
                     kInt8,
                     R"({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {},
                         "text_config": {"tie_word_embeddings": false}})");
  EXPECT_THAT(plan.Quantized(), ElementsAre("language_model.model.layers.0.q"));
  for (const char* name : {"visual.blocks.0.qkv", "model.visual.blocks.0.qkv", "lm_head", "language_model.lm_head",
                           "model.language_model.layers.3.mlp.gate"}) {
    EXPECT_TRUE(plan.Ignores(name)) << name;
  }
  EXPECT_FALSE(plan.Ignores("model.language_model.layers.0.q"));
  EXPECT_THAT(AllWarnings(*plan.plan), Contains(HasSubstr("visual: 1 weight of this vision or audio part")));
}

TEST(PlanTest, AHeadThatIsNotStoredHasItsRealName) {
  const TensorShapes shapes = {{"model.decoder.embed_tokens.weight", {96, 64}},
                               {"model.decoder.layers.0.q_proj.weight", {64, 64}}};
  EXPECT_THAT(
      Planned(shapes, kInt8, R"({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]})")
          .Ignore(),
      ElementsAre("proj_out"));
  EXPECT_THAT(Planned(shapes, kInt8, R"({"model_type": "mine", "architectures": ["MyForCausalLM"]})").Ignore(),
              ElementsAre("lm_head"));
  EXPECT_THAT(Planned(shapes, kInt8, R"({"architectures": ["MyModel"]})").Ignore(), IsEmpty());
}

TEST(PlanTest, ASplitGroupIsAWarning) {
  const Planned plan(Attention(50), "schema: 1 base: 'w4a16_g32'");
  EXPECT_THAT(plan.Quantized(), ElementsAre("l.0.attn.q_proj", "l.0.attn.v_proj"));
  EXPECT_THAT(AllWarnings(*plan.plan),
              Contains(AllOf(HasSubstr("l.0.attn.(q_proj, k_proj, v_proj): "), HasSubstr("together, as one weight"),
                             HasSubstr("k_proj: in floating point"))));
  EXPECT_THAT(AllWarnings(*Planned(Attention(), "schema: 1 base: 'w4a16_g32'").plan), IsEmpty());
}

TEST(PlanTest, SplitGroupsOfManyLayersShareALine) {
  TensorShapes shapes;
  for (int layer = 0; layer < 3; ++layer) {
    for (const auto& [part, columns] : {std::pair("gate_proj", 64), {"up_proj", 64}, {"down_proj", 50}}) {
      shapes.push_back({absl::StrCat("l.", layer, ".experts.0.", part, ".weight"), {64, columns}});
    }
  }
  const std::vector<std::string> warnings = AllWarnings(*Planned(shapes, "schema: 1 base: 'w4a16_g32'").plan);
  EXPECT_THAT(warnings,
              Contains(AllOf(HasSubstr("l.0.experts and 2 like it: "), HasSubstr("0.down_proj: in floating point"))));
  EXPECT_THAT(warnings, Contains(HasSubstr("l.0.experts.0.down_proj.weight and 2 like it: group size 32")));
  EXPECT_EQ(warnings.size(), 2u);
}

TEST(PlanTest, ARuleSettlesASplitGroup) {
  const auto config = [](const char* what) {
    return absl::StrCat("schema: 1 rule { match: '.*k_proj' keep_float {} } rule { match: '.*' on_split_group: ", what,
                        " quantize { weights { num_bits: 8 per_channel {} } } }");
  };
  TensorShapes shapes = Attention();
  shapes.push_back({"l.0.o_proj.weight", {64, 64}});
  const Planned kept(shapes, config("ON_SPLIT_GROUP_KEEP_FLOAT"));
  EXPECT_THAT(kept.Quantized(), ElementsAre("l.0.o_proj"));
  EXPECT_THAT(AllWarnings(*kept.plan), IsEmpty());
  EXPECT_TRUE(kept.Ignores("l.0.attn.q_proj"));
  const Planned quantized(shapes, config("ON_SPLIT_GROUP_QUANTIZE"));
  EXPECT_THAT(quantized.Quantized(),
              ElementsAre("l.0.attn.k_proj", "l.0.attn.q_proj", "l.0.attn.v_proj", "l.0.o_proj"));
  EXPECT_THAT(quantized.plan->quantization_config.groups[0].targets, ElementsAre("Linear"));
  EXPECT_THAT(AllWarnings(*Planned(shapes, config("ON_SPLIT_GROUP_WARN")).plan),
              Contains(HasSubstr("together, as one weight")));

  const Planned misfit(Attention(50),
                       "schema: 1 rule { match: '.*k_proj' keep_float {} } rule { match: '.*' on_split_group: "
                       "ON_SPLIT_GROUP_QUANTIZE quantize { weights { num_bits: 4 per_group { size: 32 } } } }");
  EXPECT_EQ(misfit.plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(misfit.Error(),
              AllOf(HasSubstr("l.0.attn.k_proj.weight"), HasSubstr("group size 32 does not divide 50")));
}

TEST(PlanTest, WhyNothingWouldBeQuantized) {
  const Planned plan({{"wte.weight", {96, 64}},
                      {"h.0.attn.c_attn.weight", {64, 192}},
                      {"h.0.mlp.c_fc.weight", {64, 256}},
                      {"h.0.ln.weight", {64}}},
                     kInt8, R"({"model_type": "gpt2"})");
  EXPECT_EQ(plan.plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      plan.Error(),
      AllOf(HasSubstr("nothing would be quantized"), HasSubstr("2 tensors: stored transposed, as [in, out]"),
            HasSubstr("1 tensor: built-in ignore list (embedding)"), HasSubstr("1 tensor: not a weight of rank 2")));
}

TEST(PlanTest, AnUnknownTypeIsSaidInOneLine) {
  const TensorShapes shapes = {{"l.0.q.weight", {64, 64}}, {"l.1.q.weight", {64, 64}}};
  EXPECT_THAT(AllWarnings(*Planned(shapes, kInt8, R"({"model_type": "mine"})").plan),
              ElementsAre(HasSubstr("the model type mine is not in the table of model families")));
  EXPECT_THAT(AllWarnings(*Planned(shapes, kInt8, R"({"model_type": "llama"})").plan), IsEmpty());
  const Planned own(shapes, absl::StrCat(kInt8, "family { name: 'mine' model_type: 'mine' router: 'l\\\\.1\\\\.q' }"),
                    R"({"model_type": "mine"})");
  EXPECT_THAT(AllWarnings(*own.plan), IsEmpty());
  EXPECT_THAT(own.Quantized(), ElementsAre("l.0.q"));
}

TEST(PlanTest, ExplainSaysWhichKnowledgeDecides) {
  const Planned plan({{"to_words.weight", {96, 64}}, {"l.0.q.weight", {64, 64}}}, kInt8,
                     R"({"model_type": "llama", "vocab_size": 96})");
  const absl::StatusOr<Explanation> explanation =
      Explain(plan.source, *ParseModelConfig(R"({"model_type": "llama", "vocab_size": 96})"), plan.recipe, "to_words");
  ASSERT_TRUE(explanation.ok());
  EXPECT_EQ(explanation->tensor.name, "to_words.weight");
  EXPECT_EQ(explanation->model, "model family: plain (llama)");
  EXPECT_EQ(explanation->rules[0], "the module is: output head, 96 rows = vocab_size");
  EXPECT_EQ(explanation->scheme, "");
}

TEST(PlanTest, WhatIsReadAgainIsWhatWasPlanned) {
  const TensorShapes shapes = {
      {"visual.0.qkv.weight", {192, 64}},      {"lm_head.weight", {96, 64}},
      {"m.layers.0.mlp.gate.weight", {4, 64}}, {"m.layers.0.mlp.experts.0.w1.weight", {64, 64}},
      {"m.layers.0.q.weight", {128, 64}},      {"m.layers.0.q.bias", {128}},
      {"m.layers.0.odd.weight", {64, 50}},     {"m.layers.0.conv.weight", {64, 1, 4}},
      {"m.embed_tokens.weight", {96, 64}},     {"m.embed_map.weight", {64, 64}},
      {"m.layers.0.a.c.weight", {64, 192}},    {"m.layers.0.a.c.bias", {192}}};
  for (const char* config : {"schema: 1 base: 'w4a16_g32'", "schema: 1 base: 'w4a16_g32' default_ignore: false",
                             "schema: 1 base: 'w4a16_g32' ignore: '.*q'"}) {
    for (const char* model : {"{}", R"({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
                                        "vision_config": {}, "text_config": {"model_type": "llama"}})"}) {
      const Planned plan(shapes, config, model);
      ASSERT_TRUE(plan.plan.ok()) << plan.plan.status();
      // With and without the config.json.
      for (const char* reader : {"{}", model}) {
        const ModuleRoles roles(plan.source, ParseModelConfig(reader)->facts);
        RuleSet rules = *RuleSet::FromQuantizationConfig(plan.plan->quantization_config, roles,
                                                         [](absl::string_view) { return false; });
        for (const TensorPlan& tensor : plan.plan->tensors) {
          EXPECT_EQ(rules.Decide(*tensor.input, /*tied=*/false)->scheme, tensor.decision.scheme)
              << tensor.name() << " by " << config << model << " read with " << reader;
        }
      }
    }
  }
}

}  // namespace
}  // namespace aqt::serving
