#include "serving/families/module_name.h"

#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

TEST(ModuleNameTest, PartsOfAPath) {
  EXPECT_EQ(ParentOf("layers.0.mlp.up"), "layers.0.mlp");
  EXPECT_EQ(ParentOf("up"), "");
  EXPECT_EQ(LastPartOf("layers.0.mlp.up"), "up");
  EXPECT_EQ(LastPartOf("up"), "up");
}

TEST(ModuleNameTest, Numbers) {
  EXPECT_EQ(WithoutTrailingNumbers("decoder.lm_heads.2"), "decoder.lm_heads");
  EXPECT_EQ(WithoutTrailingNumbers("a.1.2"), "a");
  EXPECT_EQ(WithoutTrailingNumbers("layers.0.fc1"), "layers.0.fc1");
  EXPECT_EQ(WithoutTrailingNumbers("3"), "3");
  EXPECT_EQ(WithoutTrailingNumbers("3.4"), "3.4");
  EXPECT_EQ(WithoutTrailingNumbers(""), "");
  EXPECT_EQ(BeforeFirstNumber("model.layers.0.mlp.2"), "model.layers");
  EXPECT_EQ(BeforeFirstNumber("0.mlp"), "");
  EXPECT_EQ(BeforeFirstNumber("a.b1"), "a.b1");
  EXPECT_EQ(WithoutNumbers("layers.10.experts.3.w1"), "layers.#.experts.#.w1");
  EXPECT_EQ(WithoutNumbers("7"), "#");
  EXPECT_EQ(WithoutNumbers(".a"), ".a");
}

TEST(ModuleNameTest, Experts) {
  EXPECT_EQ(ExpertsOf("layers.0.mlp.experts.7.up_proj"), "layers.0.mlp.experts");
  EXPECT_EQ(ExpertsOf("layers.0.mlp.experts.gate_up_proj"), "layers.0.mlp.experts");
  EXPECT_EQ(ExpertsOf("experts"), "experts");
  EXPECT_EQ(ExpertsOf("layers.0.mlp.shared_experts.up_proj"), "");
}

}  // namespace
}  // namespace aqt::serving
