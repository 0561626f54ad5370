#include "serving/families/module_roles.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/families/zero_tensors.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Model {
  Model(const char* config, const TensorShapes& shapes)
      : source(ZeroTensors(shapes)), roles(source, ParseModelConfig(config)->facts) {}
  ModuleRole Of(const std::string& module) const {
    const io::TensorInfo* tensor = source.Find(absl::StrCat(module, ".weight"));
    return roles.Of(module, tensor != nullptr ? tensor->shape : source.Find(module)->shape);
  }

  io::MemoryTensorSource source;
  ModuleRoles roles;
};

Role ByName(const char* module, Shape shape = {64, 64}) { return ModuleRoles().Of(module, shape).role; }

TEST(ModuleRolesTest, NamesThatAreTheSameInEveryModel) {
  EXPECT_EQ(ByName("model.embed_tokens"), Role::kEmbedding);
  EXPECT_EQ(ByName("lm_head"), Role::kHead);
  EXPECT_EQ(ByName("output"), Role::kHead);
  EXPECT_EQ(ByName("layers.0.attention.output"), Role::kLinear);
  EXPECT_EQ(ByName("layers.0.mlp.gate"), Role::kRouter);
  EXPECT_EQ(ByName("layers.0.mlp.gate_proj"), Role::kLinear);
  EXPECT_EQ(ByName("classifier"), Role::kClassifier);
  EXPECT_EQ(ByName("pre_classifier"), Role::kLinear);
  EXPECT_EQ(ByName("a.relative_attention_bias"), Role::kPositions);
  EXPECT_EQ(ByName("conv", {8, 4, 3}), Role::kConvolution);
  EXPECT_EQ(ByName("mlp.experts.up", {4, 8, 8}), Role::kExperts);
}

TEST(ModuleRolesTest, NamesAreReadPastNumbers) {
  EXPECT_EQ(ByName("decoder.embed_tokens.0"), Role::kEmbedding);
  EXPECT_EQ(ByName("lm_heads.2"), Role::kHead);
  EXPECT_EQ(ByName("heads.2"), Role::kLinear);
}

TEST(ModuleRolesTest, TheFamilyKnowsItsModules) {
  const Model rwkv(R"({"model_type": "rwkv"})", {{"head.weight", {96, 64}}, {"emb.weight", {96, 64}}});
  EXPECT_EQ(rwkv.Of("head").role, Role::kHead);
  EXPECT_EQ(rwkv.Of("head").why, "model family RWKV");
  EXPECT_EQ(rwkv.roles.description(), "model family: RWKV (rwkv)");
  const Model vit(R"({"model_type": "vit"})", {{"head.weight", {96, 64}}});
  EXPECT_EQ(vit.Of("head").role, Role::kLinear);
}

TEST(ModuleRolesTest, TheFileMaySayThatAModuleIsAnEmbedding) {
  const io::MemoryTensorSource source(ZeroTensors({{"codes.weight", {96, 64}}, {"fc.weight", {96, 64}}}));
  ModelFacts facts;
  facts.embeddings = {"codes"};
  const ModuleRoles roles(source, facts);
  EXPECT_EQ(roles.Of("codes", {96, 64}).role, Role::kEmbedding);
  EXPECT_EQ(roles.Of("codes", {96, 64}).why, "its parameter is called `embedding`");
  EXPECT_EQ(roles.Of("fc", {96, 64}).role, Role::kLinear);
}

TEST(ModuleRolesTest, AsManyRowsAsTheVocabulary) {
  const Model model(
      R"({"model_type": "mine", "vocab_size": 96, "hidden_size": 64})",
      {{"to_words.weight", {96, 64}}, {"blocks.0.wide.weight", {96, 64}}, {"to_hidden.weight", {64, 64}}});
  EXPECT_EQ(model.Of("to_words").role, Role::kHead);
  EXPECT_EQ(model.Of("to_words").why, "96 rows = vocab_size");
  EXPECT_EQ(model.Of("blocks.0.wide").role, Role::kLinear) << "it is in a layer";
  EXPECT_EQ(model.Of("to_hidden").role, Role::kLinear);
  EXPECT_EQ(model.roles.unknown_type(), "mine");
}

TEST(ModuleRolesTest, AsManyRowsAsTheEmbedding) {
  const Model model("{}", {{"wte.weight", {96, 64}}, {"to_words.weight", {96, 64}}, {"proj.weight", {64, 96}}});
  EXPECT_EQ(model.Of("to_words").why, "96 rows = the rows of wte");
  EXPECT_EQ(model.Of("proj").role, Role::kLinear);
  EXPECT_EQ(model.roles.unknown_type(), "") << "nothing is said of the type";
}

TEST(ModuleRolesTest, AsManyRowsAsExperts) {
  const Model model("{}", {{"l.0.moe.choose.weight", {4, 64}},
                           {"l.0.moe.small.weight", {5, 64}},
                           {"l.0.other.choose.weight", {4, 64}},
                           {"l.0.moe.experts.0.up.weight", {4, 64}},
                           {"l.0.moe.experts.3.up.weight", {64, 64}}});
  EXPECT_EQ(model.Of("l.0.moe.choose").role, Role::kRouter);
  EXPECT_EQ(model.Of("l.0.moe.small").role, Role::kLinear);
  EXPECT_EQ(model.Of("l.0.other.choose").role, Role::kLinear) << "no experts beside it";
  EXPECT_EQ(model.Of("l.0.moe.experts.0.up").role, Role::kLinear) << "it is a part of an expert";
  const Model fused(R"({"num_experts": 6})", {{"l.0.moe.both", {6, 8, 8}}, {"l.0.conv", {5, 8, 8}}});
  EXPECT_EQ(fused.Of("l.0.moe.both").role, Role::kExperts);
  EXPECT_EQ(fused.Of("l.0.conv").role, Role::kConvolution);
}

TEST(ModuleRolesTest, ABiasShowsTheOrderOfAWeight) {
  const Model model("{}", {{"h.0.a.in.weight", {64, 192}},
                           {"h.0.a.in.bias", {192}},
                           {"h.0.a.out.weight", {64, 64}},
                           {"h.0.a.out.bias", {64}},
                           {"h.0.b.square.weight", {64, 64}},
                           {"h.1.a.in.weight", {64, 192}},
                           {"other.weight", {64, 32}}});
  EXPECT_EQ(model.Of("h.0.a.in").role, Role::kTransposed);
  EXPECT_THAT(model.Of("h.0.a.in").why, HasSubstr("192 columns"));
  EXPECT_EQ(model.Of("h.1.a.in").role, Role::kTransposed) << "like the same module of another layer";
  EXPECT_EQ(model.Of("h.0.a.out").role, Role::kTransposed) << "square, beside one that shows it";
  EXPECT_EQ(model.Of("h.0.b.square").role, Role::kTransposed) << "in a layer where nothing shows the contrary";
  EXPECT_EQ(model.Of("other").role, Role::kLinear);
}

TEST(ModuleRolesTest, AModuleThatShowsTheUsualOrderIsLinear) {
  const Model model("{}", {{"h.0.a.in.weight", {64, 192}},
                           {"h.0.a.in.bias", {192}},
                           {"h.0.b.up.weight", {256, 64}},
                           {"h.0.b.up.bias", {256}},
                           {"h.0.b.square.weight", {64, 64}}});
  EXPECT_EQ(model.Of("h.0.a.in").role, Role::kTransposed);
  EXPECT_EQ(model.Of("h.0.b.up").role, Role::kLinear);
  EXPECT_EQ(model.Of("h.0.b.square").role, Role::kLinear);
}

TEST(ModuleRolesTest, TheHiddenSizeShowsTheOrderOfAnMlp) {
  const Model transposed("{}",
                         {{"wte.weight", {96, 64}}, {"h.0.fc1.weight", {64, 256}}, {"h.0.fc2.weight", {256, 64}}});
  EXPECT_EQ(transposed.Of("h.0.fc1").role, Role::kTransposed);
  EXPECT_EQ(transposed.Of("h.0.fc2").role, Role::kTransposed);
  const Model alone("{}", {{"wte.weight", {96, 64}}, {"h.0.fc1.weight", {64, 256}}, {"h.0.fc2.weight", {64, 128}}});
  EXPECT_EQ(alone.Of("h.0.fc1").role, Role::kLinear) << "the other weight does not lead back";
  const Model usual("{}", {{"wte.weight", {96, 64}}, {"h.0.fc1.weight", {256, 64}}, {"h.0.fc2.weight", {64, 256}}});
  EXPECT_EQ(usual.Of("h.0.fc1").role, Role::kLinear);
  EXPECT_EQ(usual.Of("h.0.fc2").role, Role::kLinear);
}

TEST(ModuleRolesTest, MultiheadAttentionReadsItsWeights) {
  const Model model(
      "{}", {{"a.in_proj_weight", {192, 64}}, {"a.out_proj.weight", {64, 64}}, {"b.out_proj.weight", {64, 64}}});
  EXPECT_EQ(model.Of("a.out_proj").role, Role::kMultihead);
  EXPECT_EQ(model.Of("b.out_proj").role, Role::kLinear);
}

TEST(ModuleRolesTest, TowersInFrontOfALanguageModel) {
  const TensorShapes shapes = {{"visual.blocks.0.qkv.weight", {192, 64}},
                               {"model.layers.0.visual.fc.weight", {64, 64}}};
  const Model model(R"({"model_type": "mine", "vision_config": {}})", shapes);
  EXPECT_EQ(model.Of("visual.blocks.0.qkv").role, Role::kTower);
  EXPECT_EQ(model.Of("visual.blocks.0.qkv").tower, "visual");
  EXPECT_EQ(model.Of("model.layers.0.visual.fc").role, Role::kLinear) << "in a layer";
  EXPECT_EQ(Model(R"({"model_type": "llava"})", shapes).Of("visual.blocks.0.qkv").role, Role::kTower);
  EXPECT_EQ(Model(R"({"model_type": "clip", "vision_config": {}})", shapes).Of("visual.blocks.0.qkv").role,
            Role::kLinear)
      << "the tower is the model";
  EXPECT_EQ(Model(R"({"model_type": "llama"})", shapes).Of("visual.blocks.0.qkv").role, Role::kLinear);
}

TEST(ModuleRolesTest, HeadsThatShareTheEmbedding) {
  const TensorShapes shapes = {{"embed_tokens.weight", {96, 64}}, {"l.0.q.weight", {64, 64}}};
  const auto heads = [&](const char* config) { return Model(config, shapes).roles.HeadsWithoutWeight(/*tied=*/false); };
  EXPECT_THAT(heads(R"({"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]})"),
              ElementsAre("proj_out"));
  EXPECT_THAT(heads(R"({"model_type": "bert", "architectures": ["BertModel"]})"), IsEmpty());
  EXPECT_THAT(heads(R"({"model_type": "mine", "architectures": ["MyForCausalLM"]})"), IsEmpty());
  EXPECT_THAT(heads("{}"), ElementsAre("lm_head")) << "nothing is known, and a head may use the embedding";
  EXPECT_THAT(Model(R"({"model_type": "mine"})", shapes).roles.HeadsWithoutWeight(/*tied=*/true),
              ElementsAre("lm_head"));

  const Model bias(R"({"model_type": "mine", "vocab_size": 96})",
                   {{"embed_tokens.weight", {96, 64}}, {"to_words.bias", {96}}, {"other.bias", {64}}});
  EXPECT_THAT(bias.roles.HeadsWithoutWeight(/*tied=*/false), ElementsAre("to_words"));
  const Model in_layer(R"({"model_type": "mine", "vocab_size": 96})",
                       {{"embed_tokens.weight", {96, 64}}, {"l.0.conv.weight_v", {96, 8, 3}}, {"l.0.conv.bias", {96}}});
  EXPECT_THAT(in_layer.roles.HeadsWithoutWeight(/*tied=*/false), IsEmpty());
  const Model parent(R"({"model_type": "mine", "vocab_size": 96})",
                     {{"embed_tokens.weight", {96, 64}}, {"head.bias", {96}}, {"head.dense.weight", {64, 64}}});
  EXPECT_THAT(parent.roles.HeadsWithoutWeight(/*tied=*/false), ElementsAre("head", "head.decoder"));
}

TEST(ModuleRolesTest, NamesOfLoaders) {
  const Model model(R"({"model_type": "whisper"})", {{"m.experts.0.w1.weight", {8, 8}}});
  EXPECT_TRUE(model.roles.IsLoaderName("proj_out"));
  EXPECT_TRUE(model.roles.IsLoaderName("m.experts"));
  EXPECT_TRUE(model.roles.IsLoaderName("m.experts.0.gate_proj"));
  EXPECT_FALSE(model.roles.IsLoaderName("m.experts.0.other"));
  EXPECT_FALSE(model.roles.IsLoaderName("n.experts"));
  EXPECT_EQ(model.roles.AskedName("w2"), "down_proj");
  EXPECT_THAT(std::string(model.roles.AskedName("up_proj")), IsEmpty());
}

TEST(ModuleRolesTest, OnlyCertainNamesAreEmbeddingsForEveryLoader) {
  for (const char* name :
       {"model.embed_tokens", "wte", "shared", "bert.embeddings.word_embeddings", "embed_tokens.3"}) {
    EXPECT_TRUE(IsEmbeddingName(name)) << name;
  }
  for (const char* name :
       {"embedding_hidden_mapping_in", "vision_model.embeddings.patch_embedding", "embed_out", "lm_head"}) {
    EXPECT_FALSE(IsEmbeddingName(name)) << name;
  }
}

}  // namespace
}  // namespace aqt::serving
