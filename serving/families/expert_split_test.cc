#include "serving/families/expert_split.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelFacts Facts(const std::vector<std::string>& types) {
  ModelFacts facts;
  facts.model_types = types;
  return facts;
}

using Arrays = std::vector<std::pair<std::string, Array>>;

// Element i is i: each of a tensor's elements is another one.
Array Count(const Shape& shape) {
  ArrayBuilder builder = ArrayBuilder::ForOverwrite({DType::kF32, shape});
  auto* const data = static_cast<float*>(builder.data());
  for (int64_t i = 0; i < shape.num_elements(); ++i) data[i] = static_cast<float>(i);
  return std::move(builder).Build();
}

std::vector<std::string> Names(const io::TensorSource& source) {
  std::vector<std::string> names;
  for (const io::TensorInfo& tensor : source.tensors()) names.push_back(tensor.name);
  return names;
}

absl::StatusOr<std::unique_ptr<io::ViewSource>> Split(const io::TensorSource& source, const std::string& type) {
  return SplitExperts(source, ExpertLayoutOf(Facts({type})));
}

std::string ErrorOf(const Arrays& arrays, const std::string& type) {
  const io::MemoryTensorSource source("model", arrays);
  const auto split = Split(source, type);
  EXPECT_EQ(split.status().code(), absl::StatusCode::kDataLoss) << split.status();
  return std::string(split.status().message());
}

TEST(ExpertSplit, TheFamilyStatesTheLayout) {
  EXPECT_EQ(ExpertLayoutOf(Facts({"gpt_oss"})).family, "gpt-oss");
  EXPECT_TRUE(ExpertLayoutOf(Facts({"gpt_oss"})).tensors[0].interleaved);
  EXPECT_TRUE(ExpertLayoutOf(Facts({"qwen3_vl_moe", "qwen3_vl_moe_text"})).tensors[0].in_out);
  EXPECT_FALSE(ExpertLayoutOf(Facts({"qwen3_moe"})).tensors[0].in_out);
  // A part of a model whose outermost type says nothing about experts.
  EXPECT_EQ(ExpertLayoutOf(Facts({"internvl", "gpt_oss"})).family, "gpt-oss");
  for (const char* type : {"mixtral", "dbrx", "granitemoe", "jetmoe", "aria", "llama", "unheard_of"}) {
    EXPECT_TRUE(ExpertLayoutOf(Facts({type})).tensors.empty()) << type;
  }
  EXPECT_TRUE(ExpertLayoutOf({}).tensors.empty());
  ModelFamily own;
  own.name = "mine";
  own.model_types = {"gpt_oss"};
  own.fused_experts = {{.stored = "w13", .parts = {"gate_proj", "up_proj"}}};
  EXPECT_EQ(ExpertLayoutOf(Facts({"gpt_oss"}), {own}).family, "mine");
}

// The parts of [experts, ...] by their definition, for random sizes: h may be 2i, and i may be h.
TEST(ExpertSplit, EveryElementIsWhereTheLayoutSays) {
  std::mt19937 rng(3);
  const auto pick = [&](int64_t most) { return 1 + static_cast<int64_t>(rng() % most); };
  struct Layout {
    const char* type;
    bool in_out, interleaved;
  };
  for (const Layout& layout : {Layout{"qwen3_moe", false, false},
                               {"llama4", true, false},
                               {"qwen3_vl_moe", true, false},
                               {"gpt_oss", true, true}}) {
    for (int round = 0; round < 12; ++round) {
      const int64_t experts = pick(4), i = pick(7), h = round == 0 ? 2 * i : round == 1 ? i : pick(9);
      const Shape up_shape = layout.in_out ? Shape{experts, h, 2 * i} : Shape{experts, 2 * i, h};
      const Shape down_shape = layout.in_out ? Shape{experts, i, h} : Shape{experts, h, i};
      const io::MemoryTensorSource source("model", {{"m.experts.down_proj", Count(down_shape)},
                                                    {"m.experts.gate_up_proj", Count(up_shape)},
                                                    {"m.experts.gate_up_proj_bias", Count({experts, 2 * i})},
                                                    {"m.router.weight", Count({experts, h})}});
      const auto split = *Split(source, layout.type);
      ASSERT_EQ(split->num_views(), experts * 5);
      const auto element = [&](const std::string& name, int64_t r, int64_t c) {
        const Array array = *split->ReadArray(name);
        return array.View<float>()[r * (array.shape().rank() == 2 ? array.shape()[1] : 1) + c];
      };
      for (int64_t e = 0; e < experts; ++e) {
        const std::string expert = absl::StrCat("m.experts.", e, ".");
        ASSERT_EQ(split->Find(expert + "gate_proj.weight")->shape, (Shape{i, h}));
        ASSERT_EQ(split->Find(expert + "down_proj.weight")->shape, (Shape{h, i}));
        for (int64_t n = 0; n < i; ++n) {
          for (const auto& [part, name] : {std::pair<int64_t, const char*>{0, "gate_proj"}, {1, "up_proj"}}) {
            const int64_t out = layout.interleaved ? 2 * n + part : part * i + n;
            EXPECT_EQ(element(absl::StrCat(expert, name, ".bias"), n, 0), e * 2 * i + out);
            for (int64_t k = 0; k < h; ++k) {
              EXPECT_EQ(element(absl::StrCat(expert, name, ".weight"), n, k),
                        layout.in_out ? (e * h + k) * 2 * i + out : (e * 2 * i + out) * h + k);
            }
          }
          for (int64_t k = 0; k < h; ++k) {
            EXPECT_EQ(element(expert + "down_proj.weight", k, n),
                      layout.in_out ? (e * i + n) * h + k : (e * h + k) * i + n);
          }
        }
      }
    }
  }
}

TEST(ExpertSplit, PartsTakeThePlaceOfTheirTensor) {
  const io::MemoryTensorSource source("model", {{"a.experts.gate_up_proj", Count({2, 6, 4})},
                                                {"a.gate.weight", Count({2, 4})},
                                                {"a.experts.down_proj", Count({2, 4, 3})},
                                                {"a.shared_experts.gate_up_proj", Count({1, 6, 4})},
                                                {"z.weight", Count({3})}});
  const auto split = *Split(source, "qwen3_moe");
  EXPECT_THAT(Names(*split),
              ElementsAre("a.experts.0.gate_proj.weight", "a.experts.0.up_proj.weight", "a.experts.1.gate_proj.weight",
                          "a.experts.1.up_proj.weight", "a.gate.weight", "a.experts.0.down_proj.weight",
                          "a.experts.1.down_proj.weight", "a.shared_experts.gate_up_proj", "z.weight"));
  EXPECT_EQ(DescribeSplit(*split, ExpertLayoutOf(Facts({"qwen3_moe"}))),
            "2 tensors with all experts of a layer split into 6 of single experts (model family Qwen MoE)");
}

TEST(ExpertSplit, NothingToSplit) {
  for (const Arrays& arrays :
       {Arrays{{"m.experts.0.gate_proj.weight", Count({3, 4})}}, Arrays{{"m.experts.gate_up_proj", Count({6, 4})}},
        Arrays{{"m.experts.gate_up_proj", Count({0, 6, 4})}, {"m.experts.down_proj", Count({0, 4, 3})}},
        Arrays{{"m.experts.gate_up_proj.weight", Count({2, 6, 4})}}}) {
    const io::MemoryTensorSource source("model", arrays);
    EXPECT_EQ(*Split(source, "qwen3_moe"), nullptr) << arrays[0].first;
  }
  const io::MemoryTensorSource source("model", {{"m.experts.gate_up_proj", Count({2, 6, 4})}});
  EXPECT_EQ(*Split(source, "mixtral"), nullptr);
}

// transformers 5 saves Qwen3-VL-MoE with [out, in]. The two shapes together leave no doubt.
TEST(ExpertSplit, ShapesDecideWhereAFamilyHasBothOrders) {
  const io::MemoryTensorSource source(
      "model", {{"m.experts.gate_up_proj", Count({1, 6, 4})}, {"m.experts.down_proj", Count({1, 4, 3})}});
  const auto split = *Split(source, "qwen3_vl_moe");
  EXPECT_THAT(split->ReadArray("m.experts.0.up_proj.weight")->View<float>(),
              ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_THAT(
      ErrorOf({{"m.experts.gate_up_proj", Count({1, 6, 4})}, {"m.experts.down_proj", Count({1, 4, 3})}}, "llama4"),
      AllOf(HasSubstr("m.experts.gate_up_proj [1,6,4]"), HasSubstr("m.experts.down_proj [1,4,3]"),
            HasSubstr("the order [experts, in, out] of this family, but the opposite one"),
            HasSubstr("--experts keep")));
}

TEST(ExpertSplit, WhatDoesNotFitIsNamed) {
  const Array up = Count({2, 6, 4}), down = Count({2, 4, 3});
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj", up}}, "qwen3_moe"),
              HasSubstr("incomplete without m.experts.down_proj of rank 3"));
  EXPECT_THAT(ErrorOf({{"m.experts.down_proj", down}}, "qwen3_moe"),
              HasSubstr("incomplete without m.experts.gate_up_proj of rank 3"));
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj_bias", Count({2, 6})}, {"m.experts.down_proj", down}}, "qwen3_moe"),
              HasSubstr("m.experts.gate_up_proj_bias [2,6]: the experts are incomplete"));
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj", Count({3, 6, 4})}, {"m.experts.down_proj", down}}, "qwen3_moe"),
              HasSubstr("m.experts.down_proj [2,4,3]: its number of experts is not the 3 of m.experts.gate_up_proj"));
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj", Count({2, 7, 4})}, {"m.experts.down_proj", down}}, "qwen3_moe"),
              HasSubstr("do not fit the order [experts, out, in]"));
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj", up},
                       {"m.experts.down_proj", down},
                       {"m.experts.gate_up_proj_bias", Count({2, 5})}},
                      "qwen3_moe"),
              AllOf(HasSubstr("m.experts.gate_up_proj_bias [2,5]"), HasSubstr("expected the shape [2,6]")));
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj", up},
                       {"m.experts.down_proj", down},
                       {"m.experts.1.up_proj.weight", Count({3, 4})}},
                      "qwen3_moe"),
              AllOf(HasSubstr("m.experts.gate_up_proj"), HasSubstr("has m.experts.1.up_proj.weight, too")));
  EXPECT_THAT(ErrorOf({{"m.experts.gate_up_proj", Count({20000, 2, 1})}, {"m.experts.down_proj", Count({20000, 1, 1})}},
                      "qwen3_moe"),
              HasSubstr("at most 16384 experts"));
  const std::string module = std::string(100000, 'm') + ".experts.";
  EXPECT_THAT(ErrorOf({{module + "gate_up_proj", Count({1000, 6, 4})}, {module + "down_proj", Count({1000, 4, 3})}},
                      "qwen3_moe"),
              HasSubstr("bytes of names"));
}

}  // namespace
}  // namespace aqt::serving
