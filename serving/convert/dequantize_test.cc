// `aqt dequantize` and --allow-requantize, on small hand-made checkpoints.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/native/native_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/job_test_util.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kConfig[] = R"({
  "model_type": "llama",
  "architectures": ["LlamaForCausalLM"],
  "torch_dtype": "bfloat16",
  "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}
}
)";

class DequantizeTest : public JobTest {
 protected:
  // Two layers in fp8 blocks, in two shards.
  void WriteFp8(const std::string& folder) {
    ASSERT_TRUE(io::LocalFileSystem().CreateFolder(folder).ok());
    std::string map;
    for (int layer = 0; layer < 2; ++layer) {
      const std::string module = absl::StrCat("model.layers.", layer, ".mlp.up_proj");
      const std::string file = absl::StrCat("model-0000", layer + 1, "-of-00002.safetensors");
      const NamedArrays tensors = {
          {module + ".weight", Cast(MakeWeight(DType::kF32, {40, 32}, layer), DType::kE4M3FN)},
          {module + ".weight_scale_inv", MakeWeight(DType::kF32, {3, 2}, layer + 7)},
          {absl::StrCat("model.layers.", layer, ".norm.weight"), MakeWeight(DType::kBF16, {32}, 3)}};
      WriteTensors(io::JoinPath(folder, file), tensors);
      for (const auto& [name, array] : tensors) {
        absl::StrAppend(&map, map.empty() ? "" : ", ", "\"", name, "\": \"", file, "\"");
      }
    }
    WriteText(io::JoinPath(folder, "model.safetensors.index.json"), absl::StrCat(R"({"weight_map": {)", map, "}}"));
    WriteText(io::JoinPath(folder, "config.json"), kConfig);
    WriteText(io::JoinPath(folder, "tokenizer.json"), "{}");
    WriteText(io::JoinPath(folder, "hf_quant_config.json"), "{}");
  }
  ConvertJob Dequantize(DType dtype) {
    ConvertJob job;
    job.input = At("in");
    job.output = At("out");
    job.dequantize_to = dtype;
    return job;
  }
  const io::FileSystem& fs_ = io::LocalFileSystem();
};

// The output is a float checkpoint, which can be converted; the metadata no longer describe the weights.
TEST_F(DequantizeTest, OurNativeLayout) {
  native::NativeFile file;
  native::NativeWeight& weight = file.weights["fc.weight"];
  weight.tensor.qvalue = Array::FromSpan<int8_t>(std::vector<int8_t>(64, 3), {4, 16});
  weight.tensor.scale = {Array::Of<float>({0.5f, 1, 2, 0.25f}, {4, 1})};
  weight.bits = 3;
  weight.contracting = {1};
  weight.remaining = {0};
  file.tensors = {{"fc.bias", Array::Of<float>({1, 2, 3, 4}, {4})}};
  ASSERT_TRUE(native::WriteNative(fs_, At("in.safetensors"), file).ok());
  ConvertJob job = Dequantize(DType::kF32);
  job.input = At("in.safetensors");
  job.output = At("out.safetensors");
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_dequantized, 1);
  EXPECT_EQ(report->input_format, "AQT native");
  const io::Checkpoint out = *io::Checkpoint::Open(fs_, job.output);
  EXPECT_TRUE(BitEqual(*out.ReadArray("fc.weight"), *weight.tensor.Dequantize()));
  EXPECT_TRUE(BitEqual(*out.ReadArray("fc.bias"), file.tensors.at("fc.bias")));
  EXPECT_FALSE(native::IsNative(out));

  ConvertJob again = Job("schema: 1 rule { match: '.*' quantize { weights { num_bits: 8 per_channel {} } } }");
  again.input = At("in.safetensors");
  again.output = At("int8.safetensors");
  EXPECT_THAT(RunConvertJob(fs_, again).status().message(), HasSubstr("native layout"));
  again.allow_requantize = true;
  EXPECT_EQ(RunConvertJob(fs_, again)->num_quantized, 1);
}

TEST_F(DequantizeTest, WritesAFloatCheckpoint) {
  WriteFp8(At("in"));
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, Dequantize(DType::kBF16));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_dequantized, 2);
  EXPECT_EQ(report->num_tensors, 4);
  EXPECT_THAT(report->warnings, IsEmpty());
  EXPECT_THAT(ListTree(At("out")),
              ElementsAre("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json", "tokenizer.json"));
  EXPECT_EQ(ReadText(At("out/config.json")),
            "{\n  \"model_type\": \"llama\",\n  \"architectures\": [\"LlamaForCausalLM\"],\n"
            "  \"torch_dtype\": \"bfloat16\"\n}\n");
  const io::Checkpoint in = *io::Checkpoint::Open(fs_, At("in")), out = *io::Checkpoint::Open(fs_, At("out"));
  const Array q = Cast(*in.ReadArray("model.layers.1.mlp.up_proj.weight"), DType::kF32);
  const Array scale = *in.ReadArray("model.layers.1.mlp.up_proj.weight_scale_inv");
  const Array w = *out.ReadArray("model.layers.1.mlp.up_proj.weight");
  ASSERT_EQ(w.dtype(), DType::kBF16);
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t c = 0; c < 32; ++c) {
      const float expected = q.View<float>()[r * 32 + c] * scale.View<float>()[r / 16 * 2 + c / 16];
      EXPECT_EQ(w.View<BFloat16>()[r * 32 + c], RoundToBFloat16(expected));
    }
  }
  EXPECT_THAT(DifferentTensors(At("in"), At("out")),
              ElementsAre("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight_scale_inv",
                          "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight_scale_inv"));
}

TEST_F(DequantizeTest, TheBytesDoNotDependOnJobs) {
  WriteFp8(At("in"));
  ConvertJob job = Dequantize(DType::kF32);
  ASSERT_TRUE(RunConvertJob(fs_, job).ok());
  job.output = At("out7");
  job.jobs = 7;
  ASSERT_TRUE(RunConvertJob(fs_, job).ok());
  for (const std::string& file : ListTree(At("out"))) {
    EXPECT_EQ(ReadText(At("out/" + file)), ReadText(At("out7/" + file))) << file;
  }
}

TEST_F(DequantizeTest, AFailureLeavesNothing) {
  WriteFp8(At("in"));
  const std::string shard = At("in/model-00002-of-00002.safetensors");
  WriteTensors(shard,
               {{"model.layers.1.mlp.up_proj.weight", Cast(MakeWeight(DType::kF32, {40, 32}, 1), DType::kE4M3FN)},
                {"model.layers.1.mlp.up_proj.weight_scale_inv", MakeWeight(DType::kF32, {2, 2}, 1)},
                {"model.layers.1.norm.weight", MakeWeight(DType::kBF16, {32}, 3)}});
  const absl::Status status = RunConvertJob(fs_, Dequantize(DType::kF32)).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers.1.mlp.up_proj.weight_scale_inv F32[2,2]"));
  EXPECT_FALSE(*io::Exists(fs_, At("out")));
}

TEST_F(DequantizeTest, AFloatCheckpointIsRefused) {
  WriteSmallModel(At("in"), DType::kF32);
  const absl::Status status = RunConvertJob(fs_, Dequantize(DType::kF32)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not quantized"));
}

TEST_F(DequantizeTest, AMethodThatCannotBeReadIsNotDequantizedFirst) {
  WriteSmallModel(At("in"), DType::kF32);
  WriteText(At("in/config.json"), R"({"model_type": "llama", "quantization_config": {}})");
  const absl::Status status = RunConvertJob(fs_, Dequantize(DType::kF32)).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is quantized already: it has a quantization_config; its method cannot be read"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("aqt dequantize")));
}

// What cannot be dequantized is not recommended to be.
TEST_F(DequantizeTest, ConversionsDoNotRecommendWhatCannotBeRead) {
  WriteSmallModel(At("in"), DType::kF32);
  for (const char* config : {R"({"quantization_config": {"quant_method": "hqq"}})", R"({"quantization_config": {}})"}) {
    WriteText(At("in/config.json"), config);
    for (const Experts experts : {Experts::kAuto, Experts::kKeep}) {
      ConvertJob job = Job("schema: 1 base: \"w8a8_dynamic\"");
      job.recipe.experts = experts;
      const absl::Status status = RunConvertJob(fs_, job).status();
      EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(At("in")), HasSubstr("start from the floating point original"),
                        Not(HasSubstr("aqt dequantize")), Not(HasSubstr("--allow-requantize"))));
    }
  }
  WriteText(At("in/config.json"), R"({"quantization_config": {"quant_method": "fp8"}})");
  EXPECT_THAT(std::string(RunConvertJob(fs_, Job("schema: 1 base: \"w8a8_dynamic\"")).status().message()),
              HasSubstr("or `aqt dequantize` it first"));
}

// Errors in a configuration name the model and the file.
TEST_F(DequantizeTest, ErrorsInTheConfigurationNameTheFolder) {
  WriteFp8(At("in"));
  for (const char* quantization :
       {"7", "[]", R"({"quant_method": 3})", R"({"quant_method": "fp8", "weight_block_size": [0, 1]})",
        R"({"quant_method": "awq", "bits": 3})", R"({"quant_method": "compressed-tensors", "sparsity_config": {"a": 1},
           "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}})"}) {
    WriteText(At("in/config.json"), absl::StrCat("{\"quantization_config\": ", quantization, "}"));
    const absl::Status status = RunConvertJob(fs_, Dequantize(DType::kF32)).status();
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(At("in")), HasSubstr("config.json"))) << quantization;
  }
}

TEST_F(DequantizeTest, RequantizingIsDequantizingAndQuantizing) {
  WriteFp8(At("in"));
  ConvertJob job = Job("schema: 1 base: \"w8a8_dynamic\"");
  const absl::Status refused = RunConvertJob(fs_, job).status();
  EXPECT_TRUE(absl::IsUnimplemented(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--allow-requantize"));
  job.allow_requantize = true;
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_quantized, 2);
  EXPECT_TRUE(std::any_of(report->warnings.begin(), report->warnings.end(), [](const std::string& warning) {
    return absl::StrContains(warning, "quantized already (fp8: blocks of 16 x 16)");
  }));

  ConvertJob first = Dequantize(DType::kF32), second = Job("schema: 1 base: \"w8a8_dynamic\"");
  first.output = second.input = At("float");
  second.output = At("out2");
  ASSERT_TRUE(RunConvertJob(fs_, first).ok());
  ASSERT_TRUE(RunConvertJob(fs_, second).ok());
  EXPECT_THAT(DifferentTensors(At("out"), At("out2")), IsEmpty());
  EXPECT_FALSE(absl::StrContains(ReadText(At("out/config.json")), "weight_block_size"));
  EXPECT_TRUE(absl::StrContains(ReadText(At("out/config.json")), "int-quantized"));
}

}  // namespace
}  // namespace aqt::serving
