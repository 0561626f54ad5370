#include "serving/formats/quantized_already.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class QuantizedAlreadyTest : public ::testing::Test {
 protected:
  // Checks a model with these additional tensors.
  absl::Status Check(const NamedArrays& more, const std::string& file = "", ModelConfig model = {}) {
    const std::string root = MakeTestFolder();
    NamedArrays tensors = SmallModel(DType::kBF16);
    tensors.insert(tensors.end(), more.begin(), more.end());
    WriteTensors(io::JoinPath(root, "model.safetensors"), tensors);
    if (!file.empty()) WriteText(io::JoinPath(root, file), "{}");
    const io::Checkpoint checkpoint = *io::Checkpoint::Open(io::LocalFileSystem(), root);
    model.quantization_file = FindQuantizationFile(checkpoint.other_files());
    return CheckNotQuantized(checkpoint, model);
  }
  void ExpectRefused(const absl::Status& status, const std::string& evidence) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << evidence << ": " << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("is quantized already: "), HasSubstr(evidence),
                                                     HasSubstr("start from the floating point original")));
  }
};

TEST_F(QuantizedAlreadyTest, WhatTheConfigurationsSay) {
  ExpectRefused(Check({}, "", *ParseModelConfig(R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})")),
                "it has a quantization_config of gptq");
  ExpectRefused(
      Check({}, "", *ParseModelConfig(R"({"text_config": {"quantization_config": {"quant_method": "fp8"}}})")),
      "it has a quantization_config of fp8");
  ExpectRefused(Check({}, "", *ParseModelConfig(R"({"compression_config": {}})")), "it has a quantization_config;");
  ExpectRefused(Check({}, "quantize_config.json"), "there is a quantize_config.json");
  ExpectRefused(Check({}, "hf_quant_config.json"), "there is a hf_quant_config.json");
  EXPECT_TRUE(Check({}, "config.json", *ParseModelConfig(R"({"quantization_config": null})")).ok());
}

TEST_F(QuantizedAlreadyTest, WhatTheTensorsSay) {
  const auto zeros = [](DType dtype) { return Array::Zeros(dtype, {8, 8}); };
  const std::pair<NamedArrays, std::string> cases[] = {
      {{{"a.qweight", zeros(DType::kS32)}, {"a.qzeros", zeros(DType::kS32)}, {"a.g_idx", zeros(DType::kS32)}},
       "the tensor a.g_idx is of GPTQ"},
      {{{"a.qweight", zeros(DType::kS32)}, {"a.scales", zeros(DType::kF16)}}, "a.qweight is of GPTQ or AWQ"},
      {{{"a.weight", zeros(DType::kU8)}, {"a.weight.absmax", zeros(DType::kF32)}},
       "a.weight.absmax is of bitsandbytes"},
      {{{"a.weight", zeros(DType::kS8)}, {"a.SCB", zeros(DType::kF32)}}, "a.SCB is of bitsandbytes"},
      {{{"a.weight", zeros(DType::kE4M3FN)}, {"a.weight_scale_inv", zeros(DType::kF32)}}, "is of FP8 in blocks"},
      {{{"a.weight", zeros(DType::kE4M3FN)}, {"a.weight_scale", zeros(DType::kF32)}},
       "a.weight_scale is of compressed-tensors or FP8"},
      {{{"a.weight", zeros(DType::kU8)}, {"a.weight_scale_2", zeros(DType::kF32)}}, "a.weight_scale_2 is of ModelOpt"},
      {{{"a.weight_packed", zeros(DType::kS32)}}, "a.weight_packed is of compressed-tensors"},
      {{{"a.W_q", zeros(DType::kU8)}}, "a.W_q is of HQQ"},
      {{{"mlp.experts.gate_up_proj_blocks", zeros(DType::kU8)}, {"mlp.experts.gate_up_proj_scales", zeros(DType::kU8)}},
       "gate_up_proj_blocks is of MXFP4"},
      {{{"a.weight", zeros(DType::kS8)}, {"a.weight._data", zeros(DType::kS8)}}, "a.weight._data is of Quanto"},
      {{{"a.weight", zeros(DType::kS8)}}, "the weight a.weight is I8[8,8]"},
      {{{"a.weight", zeros(DType::kE5M2)}}, "the weight a.weight is F8_E5M2[8,8]"},
      {{{"a.weight", zeros(DType::kS32)}}, "the weight a.weight is I32[8,8]"},
  };
  for (const auto& [tensors, evidence] : cases) ExpectRefused(Check(tensors), evidence);
}

TEST_F(QuantizedAlreadyTest, FloatingPointModelsHaveSuchNamesToo) {
  const Array f32 = Array::Zeros(DType::kF32, {8, 8});
  EXPECT_TRUE(Check({{"a.weight", f32}, {"a.weight_scale", f32}}).ok()) << "a learned scale";
  EXPECT_TRUE(Check({{"b.weight_scale", f32}, {"attn.W_q", f32}, {"res_blocks", f32}}).ok());
  // One name, or one type, is not enough.
  const Array s32 = Array::Zeros(DType::kS32, {8});
  for (const char* name : {"a.qweight", "a.qzeros", "a.weight_packed", "a.SCB", "a.weight.absmax", "a.weight.quant_map",
                           "a.weight._data", "a.weight.quant_state.bitsandbytes__nf4", "a.g_idx", "a_blocks"}) {
    EXPECT_TRUE(Check({{"a.weight", f32}, {name, f32}, {"a_scales", f32}}).ok()) << name;
  }
  for (const char* name : {"rope.num_blocks", "cache_blocks", "a.g_idx", "a.SCB", "a.weight.absmax"}) {
    EXPECT_TRUE(Check({{"a.weight", f32}, {name, s32}}).ok()) << name;
  }
  EXPECT_TRUE(Check({{"position_ids", Array::Zeros(DType::kS64, {1, 8})},
                     {"mask.weight", Array::Zeros(DType::kBool, {8, 8})},
                     {"steps.weight", Array::Zeros(DType::kS32, {8})}})
                  .ok());
}

}  // namespace
}  // namespace aqt::serving
