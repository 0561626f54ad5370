#include "serving/plan/whole_checkpoint.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

NamedArrays Named(const std::vector<std::string>& names) {
  NamedArrays tensors;
  for (const std::string& name : names) tensors.emplace_back(name, Array::Zeros(DType::kF32, {1}));
  return tensors;
}

class WholeCheckpointTest : public FolderTest {
 protected:
  // Checks a file or a folder in the test's folder.
  absl::StatusOr<std::vector<std::string>> Check(const std::string& name) {
    return CheckWhole(Fs(), io::Checkpoint::Open(Fs(), At(name)).value());
  }
  void ExpectRefused(const std::string& name, Code code, const std::string& cause) {
    const absl::Status status = Check(name).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(cause));
  }
};

TEST_F(WholeCheckpointTest, AnAdapterIsRefused) {
  const std::string cause = "merge it into its base model first";
  ASSERT_TRUE(Fs().CreateFolder(At("folder")).ok());
  WriteTensors(At("folder/adapter_model.safetensors"), Named({"prompt"}));
  ExpectRefused("folder", Code::kUnimplemented, cause);
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"base_model.model.a.lora_A.weight", "base_model.model.a.lora_B.weight", "base_model.model.lm_head.weight"},
           {"lora_unet_a.lora_down.weight", "lora_unet_a.lora_up.weight", "lora_unet_a.alpha"},
           {"unet.a.to_q_lora.down.weight", "unet.a.to_q_lora.up.weight"},
           {"model.layers.0.q_proj.lora_a", "model.layers.0.q_proj.lora_b"},
           {"base_model.model.h.0.mlp.ia3_l"},
           {"a.lokr_w1", "a.lokr_w2"}}) {
    WriteTensors(At("x.safetensors"), Named(names));
    ExpectRefused("x.safetensors", Code::kUnimplemented, cause);
  }
  // A model that contains an adapter.
  WriteTensors(At("x.safetensors"), Named({"a.base_layer.weight", "a.lora_A.vision.weight", "a.lora_B.vision.weight"}));
  EXPECT_TRUE(Check("x.safetensors").ok());
}

TEST_F(WholeCheckpointTest, AFileOfASetIsRefused) {
  WriteShardedModel(At("in"), DType::kF32);
  ExpectRefused("in/model-00001-of-00002.safetensors", Code::kInvalidArgument,
                "is one of the 2 files of a checkpoint, as model.safetensors.index.json beside it says; a part of a "
                "model cannot be converted: give its folder, " +
                    At("in"));
  ASSERT_TRUE(Fs().Remove(At("in/model.safetensors.index.json")).ok());
  ASSERT_TRUE(Fs().Remove(At("in/model-00002-of-00002.safetensors")).ok());
  ExpectRefused("in/model-00001-of-00002.safetensors", Code::kNotFound,
                "model-00002-of-00002.safetensors is missing beside it");
}

TEST_F(WholeCheckpointTest, AConfigThatIsNone) {
  WriteSmallModel(At("in"), DType::kF32);
  EXPECT_TRUE(Check("in").ok());
  for (const auto& [text, what] : {std::pair("version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
                                   {"<html>", "a web page"},
                                   {"Entry not found", "the error message of a download"}}) {
    WriteText(At("in/config.json"), text);
    ExpectRefused("in", Code::kDataLoss, absl::StrCat("in/config.json: line 1, column 1: "));
    ExpectRefused("in", Code::kDataLoss, absl::StrCat("it looks like ", what));
    EXPECT_TRUE(Check("in/model.safetensors").ok()) << "beside a file it may be another model's";
  }
  ASSERT_TRUE(Fs().Remove(At("in/config.json")).ok());
  EXPECT_TRUE(Check("in").ok());
  ASSERT_EQ(::symlink("../blobs/gone", At("in/config.json").c_str()), 0);
  ExpectRefused("in", Code::kNotFound, "in/config.json is a link to something that does not exist");
  ASSERT_TRUE(Fs().Remove(At("in/config.json")).ok());
  ASSERT_TRUE(Fs().CreateFolder(At("in/config.json")).ok());
  ExpectRefused("in", Code::kFailedPrecondition, "it is a folder, not a regular file");
  ASSERT_TRUE(Fs().Remove(At("in/config.json")).ok());
  WriteText(At("in/params.json"), "{}");
  ExpectRefused("in", Code::kUnimplemented, "has a params.json, and no config.json");
}

// The warnings about a checkpoint with one tensor in each of `layers`.
std::vector<std::string> MissingLayers(const std::string& config, const std::vector<std::string>& layers) {
  NamedArrays tensors;
  for (const std::string& layer : layers) tensors.emplace_back(layer + ".norm.weight", Array::Zeros(DType::kF32, {1}));
  return FindMissingLayers(io::MemoryTensorSource("memory", tensors), config);
}

TEST(MissingLayersTest, AreNamed) {
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 4})", {"model.layers.0", "model.layers.1"}),
              ElementsAre("config.json says num_hidden_layers 4, but layers 2, 3 of model.layers are missing; is the "
                          "checkpoint complete?"));
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 3})", {"model.layers.0", "model.layers.2"}),
              ElementsAre(HasSubstr("layer 1 of model.layers is missing")));
  EXPECT_THAT(MissingLayers(R"({"n_layer": 30})", {"h.0"}),
              ElementsAre(HasSubstr("layers 1, 2, 3, 4, 5, 6, 7, 8 and 21 more of h are missing")));
  for (const char* key : {"num_layers", "n_layers", "num_transformer_layers"}) {
    EXPECT_THAT(MissingLayers(absl::StrCat("{\"", key, "\": 2}"), {"transformer.blocks.0"}),
                ElementsAre(HasSubstr("layer 1 of transformer.blocks is missing")))
        << key;
  }
}

TEST(MissingLayersTest, PartsOfAModel) {
  const std::string config = R"({"num_hidden_layers": 9, "text_config": {"num_hidden_layers": 2},
                                 "vision_config": {"num_hidden_layers": 3, "depth": 3}})";
  const std::vector<std::string> text = {"model.layers.0", "model.layers.1"};
  std::vector<std::string> all = text;
  for (int i = 0; i < 3; ++i) all.push_back(absl::StrCat("vision_tower.encoder.layers.", i));
  EXPECT_THAT(MissingLayers(config, all), IsEmpty());
  EXPECT_THAT(MissingLayers(config, text), IsEmpty()) << "a tower that is not there may have another name";
  all.pop_back();
  EXPECT_THAT(MissingLayers(R"({"vision_config": {"num_hidden_layers": 3}})", all),
              ElementsAre(HasSubstr("vision_config.num_hidden_layers 3, but layer 2 of vision_tower.encoder.layers")));
  all.erase(all.begin() + 1);
  EXPECT_THAT(MissingLayers(R"({"thinker_config": {"text_config": {"num_hidden_layers": 2}}})", all),
              ElementsAre(HasSubstr("layer 1 of model.layers is missing")));
  // An image model has no other layers.
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 2})", {"vit.encoder.layer.0"}),
              ElementsAre(HasSubstr("layer 1 of vit.encoder.layer is missing")));
}

TEST(MissingLayersTest, EncodersAndDecoders) {
  const std::vector<std::string> layers = {"encoder.block.0", "decoder.block.0", "decoder.block.1"};
  EXPECT_THAT(MissingLayers(R"({"num_layers": 1, "num_decoder_layers": 2})", layers), IsEmpty());
  EXPECT_THAT(MissingLayers(R"({"num_layers": 2, "num_decoder_layers": 2})", layers),
              ElementsAre(HasSubstr("num_layers 2, but layer 1 of encoder.block is missing")));
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 7, "encoder_layers": 1, "decoder_layers": 3})", layers),
              ElementsAre(HasSubstr("decoder_layers 3, but layer 2 of decoder.block is missing")));
}

TEST(MissingLayersTest, NothingIsSaidWhereItCannotBeTold) {
  EXPECT_THAT(MissingLayers("", {"model.layers.0"}), IsEmpty());
  EXPECT_THAT(MissingLayers("{}", {"model.layers.0"}), IsEmpty());
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": "4"})", {"model.layers.0"}), IsEmpty());
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 4e9})", {"model.layers.0"}), IsEmpty());
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 12})", {"albert_layer_groups.0"}), IsEmpty()) << "shared layers";
  EXPECT_THAT(MissingLayers(R"({"num_hidden_layers": 1})", {"model.layers.0", "model.layers.1"}), IsEmpty())
      << "more, as for predicting several tokens";
}

}  // namespace
}  // namespace aqt::serving
