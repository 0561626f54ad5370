#include "serving/plan/rules.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/formats/weight_formats.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

Scheme Int8() {
  Scheme scheme;
  scheme.format = FindWeightFormat("int-quantized");
  return scheme;
}
Scheme Grouped(int64_t size) {
  Scheme scheme;
  scheme.weights.num_bits = 4;
  scheme.weights.strategy = WeightStrategy::kGroup;
  scheme.weights.group_size = size;
  scheme.format = FindWeightFormat("pack-quantized");
  return scheme;
}
ConfigRule Rule(const std::string& match, std::optional<Scheme> scheme) {
  ConfigRule rule;
  rule.name = rule.match = match;
  rule.scheme = std::move(scheme);
  return rule;
}
const ModuleRoles& NamesOnly() {
  static const auto* const roles = new ModuleRoles();
  return *roles;
}
RuleSet FromRules(std::vector<ConfigRule> rules, std::vector<std::string> ignore = {}) {
  ConvertConfig config;
  config.rules = std::move(rules);
  config.ignore = std::move(ignore);
  return *RuleSet::FromConfig(config, NamesOnly());
}
RuleSet FromTargets(std::vector<ConfigGroup> groups, std::vector<std::string> ignore = {},
                    std::set<std::string, std::less<>> modules = {}) {
  QuantizationConfig config;
  config.groups = std::move(groups);
  config.ignore = std::move(ignore);
  return *RuleSet::FromQuantizationConfig(config, NamesOnly(),
                                          [&](absl::string_view module) { return modules.contains(module); });
}
bool NoModule(absl::string_view) { return false; }
io::TensorSpec Weight(const std::string& name, Shape shape = {64, 64}, io::FileDType dtype = io::FileDType::kF32) {
  return {name, dtype, std::move(shape)};
}

TEST(RulesTest, FirstMatchWins) {
  RuleSet rules = FromRules({Rule(".*\\.up", Grouped(32)), Rule("a\\..*", std::nullopt), Rule(".*", Int8())});
  EXPECT_EQ(rules.Decide(Weight("a.up.weight"), false)->scheme, Grouped(32));
  EXPECT_EQ(rules.Decide(Weight("a.down.weight"), false)->scheme, std::nullopt);
  EXPECT_EQ(rules.Decide(Weight("b.down.weight"), false)->scheme, Int8());
  EXPECT_EQ(rules.Decide(Weight("b.down.weight"), false)->reason, "rule 3 \".*\"");
}

TEST(RulesTest, MatchesTheWholeNameOfModuleOrTensor) {
  RuleSet rules = FromRules({Rule("up", Int8()), Rule(".*\\.gate\\.weight", Int8())});
  EXPECT_TRUE(rules.Decide(Weight("up.weight"), false)->scheme.has_value());
  EXPECT_FALSE(rules.Decide(Weight("a.up.weight"), false)->scheme.has_value());
  EXPECT_FALSE(rules.Decide(Weight("up2.weight"), false)->scheme.has_value());
}

TEST(RulesTest, OnlyWeightsOfRankTwoAndMoreAreCandidates) {
  RuleSet rules = FromRules({Rule(".*", Int8())});
  for (const io::TensorSpec& tensor :
       {Weight("a.bias", {64}), Weight("a.weight", {64}), Weight("a.kernel"), Weight("weight"), Weight(".weight")}) {
    const Decision decision = *rules.Decide(tensor, false);
    EXPECT_FALSE(decision.candidate) << tensor.name;
    EXPECT_FALSE(decision.scheme.has_value());
    EXPECT_FALSE(decision.reason.empty());
    EXPECT_THAT(decision.warning, IsEmpty());
  }
  EXPECT_THAT(rules.Decide(Weight("mlp.experts.gate_up_proj", {4, 8, 8}), false)->warning, HasSubstr("experts"));
}

TEST(RulesTest, BuiltInIgnores) {
  RuleSet rules = FromRules({Rule(".*", Int8())});
  for (const char* name :
       {"model.embed_tokens", "lm_head", "transformer.wte", "bert.embeddings.word_embeddings", "a.input_layernorm",
        "model.layers.0.mlp.gate", "model.layers.0.mlp.router", "shared", "output", "x.router.layer"}) {
    const Decision decision = *rules.Decide(Weight(std::string(name) + ".weight"), false);
    EXPECT_FALSE(decision.scheme.has_value()) << name;
    EXPECT_TRUE(decision.left_out);
    EXPECT_THAT(decision.reason, HasSubstr("built-in"));
  }
  for (const char* name :
       {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "encoder.layer.0.attention.output.dense", "fc1",
        "model.layers.0.mlp.shared_expert.up_proj"}) {
    EXPECT_TRUE(rules.Decide(Weight(std::string(name) + ".weight"), false)->scheme.has_value()) << name;
  }
}

// Names and patterns that are found by hashing decide, and count as used, as if each were tried in turn.
TEST(RulesTest, NamesDecideInTheirOrder) {
  RuleSet rules = FromTargets({{"g0", {"re:a.b"}, Grouped(32)}, {"g1", {"re:a\\.b$", "c"}, Int8()}},
                              {"c", "d.e", "re:^c$", "re:d", "f"});
  EXPECT_EQ(rules.Decide(Weight("a.b.weight"), false)->reason, "g0 target \"re:a.b\"") << "first in bytewise order";
  EXPECT_EQ(rules.Decide(Weight("axb.weight"), false)->scheme, Grouped(32));
  EXPECT_EQ(rules.Decide(Weight("c.weight"), false)->reason, "ignore \"c\"");
  EXPECT_EQ(rules.Decide(Weight("d.e.weight"), false)->scheme, std::nullopt);
  EXPECT_THAT(rules.Unused(), ElementsAre("g1 target \"c\"", "g1 target \"re:a\\.b$\"", "ignore \"f\""));

  RuleSet own =
      FromRules({Rule("a.b", Int8()), Rule("a\\.b\\.weight", Grouped(32)), Rule(".*", std::nullopt)}, {"c.d"});
  EXPECT_EQ(own.Decide(Weight("a.b.weight"), false)->scheme, Int8());
  EXPECT_EQ(own.Decide(Weight("c_d.weight"), false)->reason, "rule 3 \".*\"");
  EXPECT_THAT(own.Unused(), ElementsAre("rule 2 \"a\\.b\\.weight\""));
}

TEST(RulesTest, IgnoresCanBeOverridden) {
  ConfigRule head = Rule("lm_head", Int8());
  head.override_ignore = true;
  RuleSet rules = FromRules({head, Rule(".*", Grouped(32))}, {"a", "lm_head"});
  EXPECT_EQ(rules.Decide(Weight("lm_head.weight"), false)->scheme, Int8());
  const Decision ignored = *rules.Decide(Weight("a.weight"), false);
  EXPECT_EQ(ignored.scheme, std::nullopt);
  EXPECT_EQ(ignored.reason, "ignore \"a\"");
  EXPECT_FALSE(ignored.left_out) << "the user said so";

  ConvertConfig config;
  config.rules = {Rule(".*", Int8())};
  config.default_ignore = false;
  EXPECT_TRUE(RuleSet::FromConfig(config, NamesOnly())->Decide(Weight("lm_head.weight"), false)->scheme.has_value());
}

TEST(RulesTest, AnUnsuitableWeightIsAnErrorUnlessTheRuleKeepsIt) {
  ConfigRule rule = Rule("a", Grouped(96));
  for (const bool keep : {false, true}) {
    rule.keep_unsuitable = keep;
    struct Case {
      io::TensorSpec tensor;
      std::string message;
      absl::StatusCode code;
    };
    for (const Case& c : std::vector<Case>{
             {Weight("a.weight", {4096, 11008}),
              "group size 96 does not divide 11008 (axis 1); use a group size of 32, 43, 64, 86, 128, 172",
              absl::StatusCode::kInvalidArgument},
             {Weight("a.weight", {8, 96, 96}), "rank 3", absl::StatusCode::kUnimplemented},
             {Weight("a.weight", {8, 96, 3, 3}), "as in a convolution", absl::StatusCode::kUnimplemented},
             {Weight("a.weight", {8, 96}, io::FileDType::kF64), "dtype F64", absl::StatusCode::kUnimplemented},
             {Weight("a.weight", {8, 96}, io::FileDType::kF8E4M3), "dtype F8_E4M3", absl::StatusCode::kUnimplemented},
             {Weight("a.weight", {0, 96}), "no elements", absl::StatusCode::kUnimplemented},
         }) {
      RuleSet rules = FromRules({rule});
      const absl::StatusOr<Decision> decision = rules.Decide(c.tensor, false);
      if (keep) {
        ASSERT_TRUE(decision.ok());
        EXPECT_THAT(decision->warning, HasSubstr(c.message));
        EXPECT_TRUE(decision->left_out);
        EXPECT_EQ(decision->scheme, std::nullopt);
      } else {
        EXPECT_EQ(decision.status().code(), c.code);
        EXPECT_THAT(std::string(decision.status().message()), HasSubstr("a.weight ["));
        EXPECT_THAT(std::string(decision.status().message()), HasSubstr("rule 1 \"a\""));
        EXPECT_THAT(std::string(decision.status().message()), HasSubstr(c.message));
      }
    }
  }
}

TEST(RulesTest, TiedEmbeddingsStayTogether) {
  ConfigRule rule = Rule("model\\.embed_tokens", Int8());
  rule.override_ignore = true;
  EXPECT_TRUE(FromRules({rule}).Decide(Weight("model.embed_tokens.weight"), false)->scheme.has_value());
  const absl::Status status = FromRules({rule}).Decide(Weight("model.embed_tokens.weight"), true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tie_word_embeddings"));
  rule.keep_unsuitable = true;
  EXPECT_THAT(FromRules({rule}).Decide(Weight("model.embed_tokens.weight"), true)->warning, HasSubstr("tied"));
  rule.quantize_tied = true;
  EXPECT_TRUE(FromRules({rule}).Decide(Weight("model.embed_tokens.weight"), true)->scheme.has_value());
  // Other weights are not affected.
  EXPECT_TRUE(FromRules({Rule(".*", Int8())}).Decide(Weight("fc.weight"), true)->scheme.has_value());
}

TEST(RulesTest, TargetsOfAQuantizationConfig) {
  RuleSet rules = FromTargets({{"group_0", {"Linear"}, Int8()}, {"group_1", {"re:.*up", "a.down"}, Grouped(32)}},
                              {"b.up", "re:c\\."});
  EXPECT_EQ(rules.Decide(Weight("a.up.weight"), false)->scheme, Grouped(32));       // patterns precede classes
  EXPECT_EQ(rules.Decide(Weight("a.up_proj.weight"), false)->scheme, Grouped(32));  // anchored only at the start
  EXPECT_EQ(rules.Decide(Weight("a.down.weight"), false)->scheme, Grouped(32));
  EXPECT_EQ(rules.Decide(Weight("a.down2.weight"), false)->scheme, Int8());
  EXPECT_EQ(rules.Decide(Weight("b.up.weight"), false)->scheme, std::nullopt);
  EXPECT_EQ(rules.Decide(Weight("c.fc.weight"), false)->scheme, std::nullopt);
  EXPECT_EQ(rules.Decide(Weight("a.c.fc.weight"), false)->scheme, Int8());
}

TEST(RulesTest, ExactTargetsGoBeforePatterns) {
  RuleSet rules = FromTargets({{"group_0", {"re:a.*"}, Int8()}, {"group_1", {"a.up"}, Grouped(32)}});
  EXPECT_EQ(rules.Decide(Weight("a.up.weight"), false)->scheme, Grouped(32));
}

TEST(RulesTest, TheClassLinearLeavesOutWhatIsNotLinear) {
  RuleSet rules = FromTargets({{"group_0", {"Linear"}, Grouped(32)}});
  EXPECT_TRUE(rules.Decide(Weight("lm_head.weight"), false)->left_out);
  EXPECT_FALSE(rules.Decide(Weight("lm_head.weight"), false)->scheme.has_value());
  EXPECT_THAT(rules.Decide(Weight("odd.weight", {6, 50}), false)->warning, HasSubstr("group size 32"));
  EXPECT_THAT(rules.Decide(Weight("experts.weight", {4, 64, 64}), false)->warning, HasSubstr("rank"));
  // An explicit target counts, whatever its name.
  RuleSet named = FromTargets({{"group_0", {"lm_head"}, Int8()}, {"group_1", {"re:.*odd"}, Grouped(32)}});
  EXPECT_TRUE(named.Decide(Weight("lm_head.weight"), false)->scheme.has_value());
  EXPECT_FALSE(named.Decide(Weight("odd.weight", {6, 50}), false).ok());
}

TEST(RulesTest, TheClassLinearCoversClassifiers) {
  RuleSet by_class = FromTargets({{"group_0", {"Linear"}, Int8()}});
  EXPECT_TRUE(by_class.Decide(Weight("classifier.weight"), false)->scheme.has_value());
  RuleSet by_pattern = FromRules({Rule(".*", Int8())});
  EXPECT_FALSE(by_pattern.Decide(Weight("classifier.weight"), false)->scheme.has_value());
}

TEST(RulesTest, ModulesOfAnyName) {
  // Plain names, as some tools write them, even one that looks like a class, if a module has that name.
  RuleSet rules = FromTargets({{"group_0", {"Dense_0", "Encoder", "layers/0"}, Int8()}}, {}, {"Encoder"});
  for (const char* name : {"Dense_0", "Encoder", "layers/0"}) {
    EXPECT_EQ(rules.Decide(Weight(std::string(name) + ".weight"), false)->scheme, Int8()) << name;
  }
  EXPECT_FALSE(rules.Decide(Weight("Dense_01.weight"), false)->scheme.has_value());
}

TEST(RulesTest, TargetsStandForOneModule) {
  const std::vector<std::string> names = {"a.b",  "Dense_0",     "layers/0", "lm_head",  "Linear", "Module",
                                          "re:x", "re:^Linear$", "Linear.0", "\xc3\xa9", "",       "re:a.b\nc"};
  for (const std::string& name : names) {
    const std::string target = TargetOf(name);
    RuleSet rules = FromTargets({{"group_0", {target}, Int8()}}, {}, {});
    RuleSet ignored = FromTargets({{"group_0", {"re:.*"}, Int8()}}, {target});
    for (const std::string& other : names) {
      if (other.empty()) continue;
      EXPECT_EQ(rules.Decide(Weight(other + ".weight"), false)->scheme.has_value(), other == name) << target << other;
      EXPECT_EQ(ignored.Decide(Weight(other + ".weight"), false)->scheme.has_value(), other != name) << target << other;
    }
  }
  EXPECT_EQ(TargetOf("Linear"), "re:^Linear$");
  EXPECT_EQ(TargetOf("re:x"), "re:^re\\:x$");
  EXPECT_EQ(TargetOf("Dense_0"), "Dense_0");
}

TEST(RulesTest, TheClassLinearIsNoEmbedding) {
  RuleSet rules = FromTargets({{"group_0", {"model.embed_tokens", "a"}, Int8()}}, {"Linear"});
  EXPECT_TRUE(rules.Decide(Weight("model.embed_tokens.weight"), false)->scheme.has_value());
  EXPECT_FALSE(rules.Decide(Weight("a.weight"), false)->scheme.has_value());
}

TEST(RulesTest, GroupsFillTheRows) {
  struct Case {
    int64_t size;
    std::string message;
  };
  for (const Case& c :
       std::vector<Case>{{96, "group size 96 does not divide 256 (axis 1); use a group size of 32, 64, 128, 256, "},
                         {512, "group size 512 exceeds 256 (axis 1); use a group size of 64, 128, 256, "},
                         {int64_t{1} << 62, "exceeds 256 (axis 1); use a group size of 64, 128, 256, "}}) {
    RuleSet weights = FromRules({Rule(".*", Grouped(c.size))});
    EXPECT_THAT(std::string(weights.Decide(Weight("a.weight", {4, 256}), false).status().message()),
                HasSubstr(c.message + "one scale per channel"));
    Scheme scheme = Int8();
    scheme.input = InputScheme{8, true, true, InputStrategy::kGroup, c.size};
    RuleSet inputs = FromRules({Rule(".*", scheme)});
    EXPECT_THAT(std::string(inputs.Decide(Weight("a.weight", {4, 256}), false).status().message()),
                AllOf(HasSubstr("input_activations: group size"), HasSubstr(c.message + "one scale per token")));
  }
}

// As in the package: the stored tensors do not depend on the groups of dynamic activations.
TEST(RulesTest, GroupsOfActivationsUnderATargetByName) {
  Scheme scheme = Int8();
  scheme.input = InputScheme{8, true, true, InputStrategy::kGroup, 16};
  RuleSet rules = FromTargets({{"group_0", {"re:odd", "Linear"}, scheme}});
  const Decision named = *rules.Decide(Weight("odd.weight", {6, 50}), false);
  EXPECT_EQ(named.scheme, scheme);
  EXPECT_THAT(named.warning, HasSubstr("input_activations: group size 16 does not divide 50"));
  const Decision of_class = *rules.Decide(Weight("other.weight", {6, 50}), false);
  EXPECT_EQ(of_class.scheme, std::nullopt);
  EXPECT_THAT(of_class.warning, HasSubstr("group size 16"));
  EXPECT_EQ(rules.Decide(Weight("odd.weight", {6, 64}), false)->warning, "");
}

TEST(RulesTest, NamesInMessagesArePrintable) {
  RuleSet rules = FromRules({Rule("(?s).*", Grouped(96))});
  const std::string message(rules.Decide(Weight("a\x1b[2J\n.weight"), false).status().message());
  EXPECT_THAT(message, StartsWith("a\\x1b[2J\\n.weight [64,64], by rule 1"));
}

TEST(RulesTest, TheClassEmbedding) {
  RuleSet rules = FromTargets({{"group_0", {"Embedding"}, Int8()}, {"group_1", {"Linear"}, Grouped(32)}}, {"wpe"});
  EXPECT_EQ(rules.Decide(Weight("model.embed_tokens.weight"), false)->scheme, Int8());
  EXPECT_EQ(rules.Decide(Weight("a.relative_attention_bias.weight"), false)->scheme, Int8());
  EXPECT_EQ(rules.Decide(Weight("wpe.weight"), false)->scheme, std::nullopt);
  EXPECT_EQ(rules.Decide(Weight("a.up.weight"), false)->scheme, Grouped(32));
  EXPECT_EQ(rules.Decide(Weight("lm_head.weight"), false)->scheme, std::nullopt);
  const Decision tied = *rules.Decide(Weight("model.embed_tokens.weight"), true);
  EXPECT_EQ(tied.scheme, std::nullopt);
  EXPECT_TRUE(tied.left_out);
  EXPECT_THAT(tied.warning, HasSubstr("quantize_tied"));
}

TEST(RulesTest, RefusesTargetsItCannotApply) {
  QuantizationConfig config;
  config.groups = {{"group_0", {"LlamaAttention"}, Int8()}};
  EXPECT_EQ(RuleSet::FromQuantizationConfig(config, NamesOnly(), NoModule).status().code(),
            absl::StatusCode::kUnimplemented);
  config.groups[0].targets = {"re:^(?!.*head).*"};
  const absl::Status status = RuleSet::FromQuantizationConfig(config, NamesOnly(), NoModule).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("look-around"));
}

TEST(RulesTest, ReportsWhatHadNoEffect) {
  RuleSet rules = FromRules({Rule("a", Int8()), Rule("nothing", Int8()), Rule("lm_head", Int8())}, {"norm", "gone"});
  ASSERT_TRUE(rules.Decide(Weight("a.weight"), false).ok());
  ASSERT_TRUE(rules.Decide(Weight("norm.weight", {64}), false).ok());
  ASSERT_TRUE(rules.Decide(Weight("lm_head.weight"), false).ok());
  EXPECT_THAT(rules.Unused(), ElementsAre("rule 2 \"nothing\"", "rule 3 \"lm_head\"", "ignore \"gone\""));
}

TEST(RulesTest, TraceShowsEveryRule) {
  RuleSet rules = FromRules({Rule("b", Int8()), Rule(".*", Int8())});
  std::vector<std::string> trace;
  ASSERT_TRUE(rules.Decide(Weight("lm_head.weight"), false, &trace).ok());
  EXPECT_THAT(trace, ElementsAre("the module is: output head", "rule 1 \"b\": does not match",
                                 "rule 2 \".*\": matches, but gives way to built-in ignore list (output head)"));
}

TEST(RulesTest, ATypeOfGgufIsForGgufFiles) {
  ConvertConfig config;
  config.rules.emplace_back();
  config.rules[0].name = "layers";
  config.rules[0].match = ".*";
  config.rules[0].gguf = ggml::Type::kQ4K;
  const absl::Status status = RuleSet::FromConfig(config, NamesOnly()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "rule 1 \"layers\" writes the GGUF type Q4_K, which only GGUF files have: name a GGUF file as IN, "
            "and an OUT that ends in .gguf");
}

}  // namespace
}  // namespace aqt::serving
