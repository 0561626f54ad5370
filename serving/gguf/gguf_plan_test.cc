#include "serving/gguf/gguf_plan.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/gguf_testing.h"
#include "gtest/gtest.h"
#include "serving/plan/convert_config.h"

namespace aqt::serving {
namespace {

using ggml::Type;

class GgufPlanTest : public gguf::GgufTest {
 protected:
  // A model of F16 tensors that are not read.
  gguf::GgufModel Model(const std::vector<gguf::GgufTensorSpec>& specs) const {
    std::vector<gguf::TestTensor> tensors;
    for (const gguf::GgufTensorSpec& spec : specs) {
      tensors.push_back({spec, std::string(static_cast<size_t>(*gguf::TensorBytes(spec.type, spec.shape)), '\0')});
    }
    return gguf::GgufModel::Open(fs_, WriteModel("m.gguf", {}, tensors)).value();
  }
  static ConvertConfig Config(const std::string& text) {
    auto config = ParseConvertConfig("schema: 1 " + text, "test");
    EXPECT_TRUE(config.ok()) << config.status();
    return *std::move(config);
  }
  static std::map<std::string, std::string> TypesOf(const gguf::GgufModel& model, const GgufPlan& plan) {
    std::map<std::string, std::string> types;
    for (const GgufTensorPlan& t : plan.tensors) {
      types[model.files()[t.file].tensors()[t.tensor].name] = std::string(ggml::InfoOf(t.type).name);
    }
    return types;
  }
  void ExpectError(const gguf::GgufModel& model, const ConvertConfig& config, absl::string_view part,
                   const GgufPlanOptions& options = {}) const {
    const absl::Status status = MakeGgufPlan(model, config, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  }
};

TEST_F(GgufPlanTest, APresetChangesTheWeightsOfLayers) {
  const gguf::GgufModel model = Model({{"token_embd.weight", Type::kF16, {8, 256}},
                                       {"output.weight", Type::kF16, {8, 256}},
                                       {"blk.0.attn_q.weight", Type::kF16, {2, 256}},
                                       {"blk.0.attn_q.bias", Type::kF32, {2}},
                                       {"blk.0.attn_norm.weight", Type::kF32, {256}},
                                       {"blk.0.ffn_gate_inp.weight", Type::kF32, {4, 256}},
                                       {"blk.0.ffn_up_exps.weight", Type::kBF16, {4, 2, 256}},
                                       {"blk.0.ffn_down.weight", Type::kF32, {2, 64}},
                                       {"blk.0.ffn_odd.weight", Type::kF16, {2, 48}},
                                       {"blk.0.ints.weight", Type::kI32, {2, 256}}});
  const auto plan = MakeGgufPlan(model, ConvertPreset("gguf_q4_k").value(), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(TypesOf(model, *plan), (std::map<std::string, std::string>{{"token_embd.weight", "F16"},
                                                                       {"output.weight", "F16"},
                                                                       {"blk.0.attn_q.weight", "Q4_K"},
                                                                       {"blk.0.attn_q.bias", "F32"},
                                                                       {"blk.0.attn_norm.weight", "F32"},
                                                                       {"blk.0.ffn_gate_inp.weight", "F32"},
                                                                       {"blk.0.ffn_up_exps.weight", "Q4_K"},
                                                                       {"blk.0.ffn_down.weight", "Q8_0"},
                                                                       {"blk.0.ffn_odd.weight", "F16"},
                                                                       {"blk.0.ints.weight", "I32"}}));
  EXPECT_EQ(plan->num_changed, 3);
  ASSERT_EQ(plan->warnings.size(), 2u);
  EXPECT_EQ(plan->warnings[0],
            "blk.0.ffn_down.weight becomes Q8_0: rows of 64 values do not fill blocks of Q4_K, which have 256");
  EXPECT_EQ(plan->warnings[1],
            "blk.0.ffn_odd.weight stays as it is: rows of 48 values do not fill blocks of Q4_K, which have 256");
  EXPECT_EQ(plan->tensors[0].reason, "the built-in ignore list");
  EXPECT_EQ(plan->tensors[4].reason, "rank 1");
}

TEST_F(GgufPlanTest, EachPresetIsItsType) {
  const gguf::GgufModel model = Model({{"blk.0.attn_q.weight", Type::kF32, {1, 256}}});
  for (const auto& [preset, type] : std::map<std::string, std::string>{{"gguf_q8_0", "Q8_0"},
                                                                       {"gguf_q4_0", "Q4_0"},
                                                                       {"gguf_q4_k", "Q4_K"},
                                                                       {"gguf_q6_k", "Q6_K"},
                                                                       {"gguf_mxfp4", "MXFP4"}}) {
    const auto plan = MakeGgufPlan(model, ConvertPreset(preset).value(), {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(TypesOf(model, *plan)["blk.0.attn_q.weight"], type);
  }
}

TEST_F(GgufPlanTest, TheFirstRuleThatMatchesDecides) {
  const gguf::GgufModel model = Model({{"token_embd.weight", Type::kF16, {8, 256}},
                                       {"output.weight", Type::kF16, {8, 256}},
                                       {"blk.0.attn_v.weight", Type::kF16, {2, 256}},
                                       {"blk.1.attn_v.weight", Type::kF16, {2, 256}},
                                       {"blk.2.attn_v.weight", Type::kF16, {2, 256}}});
  const auto plan = MakeGgufPlan(model, Config(R"(
      rule { match: "output" gguf { type: "q6_k" } override_ignore: true }
      rule { match: "blk\\.0\\..*" keep_float {} }
      rule { match: ".*" gguf { type: "BF16" } }
      ignore: "blk\\.2\\..*")"),
                                 {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(TypesOf(model, *plan), (std::map<std::string, std::string>{{"token_embd.weight", "F16"},
                                                                       {"output.weight", "Q6_K"},
                                                                       {"blk.0.attn_v.weight", "F16"},
                                                                       {"blk.1.attn_v.weight", "BF16"},
                                                                       {"blk.2.attn_v.weight", "F16"}}));
  EXPECT_TRUE(plan->warnings.empty());
  const auto all =
      MakeGgufPlan(model, Config(R"(default_ignore: false rule { match: ".*" gguf { type: "Q8_0" } })"), {});
  EXPECT_EQ(all->num_changed, 5);
}

TEST_F(GgufPlanTest, WhatIsRefused) {
  const gguf::GgufModel model = Model({{"blk.0.attn_q.weight", Type::kQ4_0, {2, 96}}});
  const ConvertConfig q8 = Config(R"(rule { match: ".*" gguf { type: "Q8_0" } })");
  ExpectError(model, q8, "1 of the weights are quantized already (blk.0.attn_q.weight: Q4_0); --allow-requantize");
  const auto allowed = MakeGgufPlan(model, q8, {.allow_requantize = true});
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  EXPECT_EQ(allowed->num_requantized, 1);
  EXPECT_EQ(allowed->warnings.size(), 1u);
  // To floats, nothing is rounded twice.
  EXPECT_TRUE(MakeGgufPlan(model, Config(R"(rule { match: ".*" gguf { type: "F16" } })"), {}).ok());

  ExpectError(model, Config(R"(rule { match: ".*" gguf { type: "Q4_0" } })"), "no tensor of '");
  ExpectError(model, Config(R"(rule { match: ".*" gguf { type: "Q6_K" } })"),
              "tensor blk.0.attn_q.weight: rows of 96 values do not fill blocks of Q6_K, which have 256");
  ExpectError(model, ConvertPreset("w8a16").value(), "quantizes for safetensors, and OUT is a GGUF file");
  const ConvertConfig unused = Config(R"(rule { match: "x" keep_float {} } rule { match: ".*" gguf { type: "F16" } })");
  ExpectError(model, unused, "rule 1 \"x\" has no effect on this file", {.strict = true});
  EXPECT_EQ(MakeGgufPlan(model, unused, {})->warnings,
            std::vector<std::string>{"rule 1 \"x\" has no effect on this file"});
}

}  // namespace
}  // namespace aqt::serving
