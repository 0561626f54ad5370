#include "serving/convert/convert.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array_ops.h"
#include "aqt/io/file.h"
#include "aqt/io/file_testing.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/quant/weights/microscaled.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/job_test_util.h"
#include "serving/formats/weight_codec.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// Quantizes every weight with this scheme.
std::string ConfigText(const std::string& weights, const std::string& rest = "") {
  return absl::StrCat("schema: 1 default_ignore: false rule { match: '.*' quantize { weights { ", weights, " } ", rest,
                      " } }");
}

float AbsMax(const Array& weight) {
  const Array f32 = Cast(weight, DType::kF32);
  float largest = 0;
  for (const float x : f32.View<float>()) largest = std::max(largest, std::abs(x));
  return largest;
}

class ConvertTest : public JobTest {
 protected:
  static void RemoveIfThere(const std::string& path) {
    if (*io::Exists(Fs(), path)) {
      ASSERT_TRUE(io::RemoveTree(Fs(), path).ok());
    }
  }
};

struct BlockCase {
  std::string name, weights, rest;
  WeightRules rules = WeightRules::kCompressedTensors;
  DType dtype = DType::kF32;
};
class ConvertBlocksTest : public ConvertTest, public ::testing::WithParamInterface<BlockCase> {};

// Weights larger than a block get the same bytes as when encoded whole, whatever the number of threads. 65536 columns
// of f32 are 256 KiB: blocks of 4 rows on one thread, and a fifth row that AQT's rule must not get alone.
TEST_P(ConvertBlocksTest, TheResultDoesNotDependOnBlocks) {
  const BlockCase& c = GetParam();
  const NamedArrays tensors = {{"tall.weight", MakeWeight(c.dtype, {5000, 96}, 1)},
                               {"wide.weight", MakeWeight(c.dtype, {5, 65536}, 2)},
                               {"one.weight", MakeWeight(c.dtype, {1, 544}, 3)},
                               {"other", MakeWeight(DType::kF32, {300001}, 4)}};
  WriteTensors(At("in.safetensors"), tensors);
  ConvertJob job = Job(ConfigText(c.weights, c.rest));
  job.input = At("in.safetensors");
  job.recipe.weight_rules = c.rules;
  std::optional<std::string> first;
  for (const int jobs : {1, 3, kMaxJobs}) {
    job.jobs = jobs;
    job.output = At(absl::StrCat("out", jobs, ".safetensors"));
    const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->num_quantized, 3);
    const std::string bytes = ReadText(job.output);
    if (!first.has_value()) first = bytes;
    EXPECT_TRUE(bytes == *first) << jobs << " jobs";
  }
  const Recipe recipe = *LoadRecipe(Fs(), job.recipe);
  const Scheme& scheme = *recipe.config->rules[0].scheme;
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), job.output);
  for (int i = 0; i < 3; ++i) {
    const std::string module(*ModuleOf(tensors[i].first));
    const Array& weight = tensors[i].second;
    const bool global = scheme.weights.scale_type == ScaleType::kE4M3;
    const float global_scale = global ? compressed_tensors::GlobalScaleOf(AbsMax(weight), c.dtype) : 1;
    const std::vector<StoredRows> whole = *EncodeRows(weight, 0, weight.shape(), scheme, c.rules, global_scale);
    for (const StoredRows& part : whole) {
      const std::string name = absl::StrCat(module, part.suffix);
      EXPECT_TRUE(BitEqual(*out.ReadArray(name), part.rows)) << name;
    }
  }
  EXPECT_TRUE(BitEqual(*out.ReadArray("other"), tensors[3].second));
}

// In the order of the checkpoint, each with all of a weight's blocks, whatever the number of threads.
TEST_F(ConvertTest, WarnsOfWhatWeightsLose) {
  std::vector<float> tall(5000 * 96, 1.0f);
  for (const int row : {7, 2000, 2001, 4999}) tall[row * 96] = 30000;
  std::vector<float> largest = {65504, -65504, 20000, 20000};
  WriteTensors(At("in.safetensors"), {{"b.weight", Cast(Array::FromSpan<float>(tall, {5000, 96}), DType::kF16)},
                                      {"a.weight", Cast(Array::FromSpan<float>(largest, {1, 4}), DType::kF16)},
                                      {"c.weight", MakeWeight(DType::kF16, {8, 64}, 1)}});
  ConvertJob job = Job(ConfigText("num_bits: 4 per_channel {}"));
  job.input = At("in.safetensors");
  for (const int jobs : {1, 3, kMaxJobs}) {
    job.jobs = jobs;
    job.output = At(absl::StrCat("out", jobs, ".safetensors"));
    const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(
        report->warnings,
        ElementsAre("a.weight: values of 1 of 1 rows (row 0) overflow F16 when multiplied out: -8 x 8736 at "
                    "[0,1]; keep this weight in floating point",
                    "b.weight: in 4 of 5000 rows outliers make all other values 0: 30000 at [7,0], 30000 at "
                    "[2000,0], 30000 at [2001,0], ...; use smaller groups, or keep this weight in floating point"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schemes, ConvertBlocksTest,
    ::testing::Values(
        BlockCase{"Int8Channel", "num_bits: 8 per_channel {}",
                  "input_activations { num_bits: 8 dynamic_per_token {} }"},
        BlockCase{"Int8ChannelAsymmetric", "num_bits: 8 symmetric: false per_channel {}",
                  "format: FORMAT_INT_QUANTIZED"},
        BlockCase{"Int8Tensor", "num_bits: 8 per_tensor {}", "format: FORMAT_INT_QUANTIZED"},
        BlockCase{"Int8TensorBf16", "num_bits: 8 symmetric: false per_tensor {}", "format: FORMAT_INT_QUANTIZED",
                  WeightRules::kCompressedTensors, DType::kBF16},
        BlockCase{"Packed4Group", "num_bits: 4 per_group { size: 32 }", ""},
        BlockCase{"Packed4GroupAsymmetricF16", "num_bits: 4 symmetric: false per_group { size: 16 }", "",
                  WeightRules::kCompressedTensors, DType::kF16},
        BlockCase{"Packed3ChannelAsymmetric", "num_bits: 3 symmetric: false per_channel {}", ""},
        BlockCase{"FloatChannel", "num_bits: 8 type: NUMBER_TYPE_FLOAT per_channel {}", ""},
        BlockCase{"FloatTensorBf16", "num_bits: 8 type: NUMBER_TYPE_FLOAT per_tensor {}",
                  "input_activations { num_bits: 8 type: NUMBER_TYPE_FLOAT dynamic_per_token {} }",
                  WeightRules::kCompressedTensors, DType::kBF16},
        BlockCase{"FloatHugeBlock",
                  "num_bits: 8 type: NUMBER_TYPE_FLOAT per_block { rows: 4294967295 columns: 4294967295 }", ""},
        BlockCase{"FloatBlockF16", "num_bits: 8 type: NUMBER_TYPE_FLOAT per_block { rows: 96 columns: 128 }", "",
                  WeightRules::kCompressedTensors, DType::kF16},
        BlockCase{"PackedBlockAsymmetric", "num_bits: 4 symmetric: false per_block { rows: 96 columns: 130 }", ""},
        BlockCase{"MxFp4", "num_bits: 4 type: NUMBER_TYPE_FLOAT per_mx_group {}", ""},
        BlockCase{"MxFp6F16", "num_bits: 6 type: NUMBER_TYPE_FLOAT per_mx_group {}", "",
                  WeightRules::kCompressedTensors, DType::kF16},
        BlockCase{"MxFp8Bf16", "num_bits: 8 type: NUMBER_TYPE_FLOAT per_mx_group {}",
                  "input_activations { num_bits: 8 type: NUMBER_TYPE_FLOAT dynamic_per_mx_group {} }",
                  WeightRules::kCompressedTensors, DType::kBF16},
        BlockCase{"NvFp4", "num_bits: 4 type: NUMBER_TYPE_FLOAT per_nvfp4_group {}", ""},
        BlockCase{"NvFp4Bf16", "num_bits: 4 type: NUMBER_TYPE_FLOAT per_nvfp4_group {}", "",
                  WeightRules::kCompressedTensors, DType::kBF16},
        BlockCase{"AqtChannel", "num_bits: 8 per_channel {}", "", WeightRules::kAqt},
        BlockCase{"AqtGroupBf16", "num_bits: 4 per_group { size: 32 }", "", WeightRules::kAqt, DType::kBF16},
        BlockCase{"AqtTensor", "num_bits: 8 per_tensor {}", "", WeightRules::kAqt}),
    [](const auto& info) { return info.param.name; });

TEST_F(ConvertTest, AqtRulesStayWithinTheSymmetricRange) {
  WriteTensors(At("in.safetensors"), {{"a.weight", Array::Of<float>({-127.5f, 0.5f, 127.5f, -127.5f}, {2, 2})}});
  ConvertJob job = Job(ConfigText("num_bits: 8 per_channel {}", "format: FORMAT_INT_QUANTIZED"));
  job.input = At("in.safetensors");
  for (const WeightRules rules : {WeightRules::kCompressedTensors, WeightRules::kAqt}) {
    job.recipe.weight_rules = rules;
    job.output = At(absl::StrCat(std::string(ToString(rules)), ".safetensors"));
    ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
    const Array q = *io::Checkpoint::Open(Fs(), job.output)->ReadArray("a.weight");
    EXPECT_EQ(q.View<int8_t>()[0], rules == WeightRules::kAqt ? -127 : -128);
  }
  job = Job(ConfigText("num_bits: 8 symmetric: false per_channel {}"));
  job.input = At("in.safetensors");
  job.recipe.weight_rules = WeightRules::kAqt;
  EXPECT_EQ(RunConvertJob(Fs(), job).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(ConvertTest, StaticFloatInputs) {
  WriteTensors(At("in.safetensors"), {{"a.weight", MakeWeight(DType::kBF16, {4, 8}, 1)}});
  ConvertJob job = Job(ConfigText("num_bits: 8 type: NUMBER_TYPE_FLOAT per_tensor {}",
                                  "input_activations { num_bits: 8 type: NUMBER_TYPE_FLOAT static_per_tensor {} }"));
  job.input = At("in.safetensors");
  job.output = At("out.safetensors");
  job.calibration = At("ranges.safetensors");
  WriteTensors(job.calibration,
               {{"a.input_min", Array::Of<float>({-896}, {1})}, {"a.input_max", Array::Of<float>({3}, {1})}});
  const absl::Status status = RunConvertJob(Fs(), job).status();
  ASSERT_TRUE(status.ok()) << status;
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), job.output);
  EXPECT_TRUE(BitEqual(*out.ReadArray("a.input_scale"), Cast(Array::Of<float>({2}, {1}), DType::kBF16)));
  EXPECT_EQ(out.Find("a.input_zero_point"), nullptr);
  EXPECT_EQ(out.Find("a.weight")->dtype, io::FileDType::kF8E4M3);
}

// The parts of a fused set are in different files, and differ in size.
TEST_F(ConvertTest, AGlobalScaleIsSharedAcrossFiles) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  const Array q = MakeWeight(DType::kBF16, {4, 32}, 1);
  std::vector<float> wide(2 * 32, 0.5f);
  wide[40] = -40;
  const Array large = Cast(Array::FromSpan<float>(wide, {2, 32}), DType::kBF16);
  WriteTensors(At("in/model-00001-of-00002.safetensors"), {{"l.attn.q_proj.weight", q}, {"l.attn.o_proj.weight", q}});
  WriteTensors(At("in/model-00002-of-00002.safetensors"), {{"l.attn.v_proj.weight", large}});
  WriteText(At("in/config.json"), "{}");
  WriteText(At("in/model.safetensors.index.json"), R"({"metadata": {}, "weight_map": {
      "l.attn.q_proj.weight": "model-00001-of-00002.safetensors",
      "l.attn.o_proj.weight": "model-00001-of-00002.safetensors",
      "l.attn.v_proj.weight": "model-00002-of-00002.safetensors"}})");
  ConvertJob job = Job("schema: 1 base: 'nvfp4a16'");
  const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), job.output);
  const auto global = [&](const char* module) {
    return out.ReadArray(absl::StrCat("l.attn.", module, ".weight_global_scale"))->View<float>()[0];
  };
  EXPECT_EQ(global("v_proj"), compressed_tensors::GlobalScaleOf(40, DType::kBF16));
  EXPECT_EQ(global("q_proj"), global("v_proj"));
  EXPECT_EQ(global("o_proj"), compressed_tensors::GlobalScaleOf(AbsMax(q), DType::kBF16));
}

TEST_F(ConvertTest, Nvfp4InputsFromACalibration) {
  WriteTensors(At("in.safetensors"), {{"a.weight", MakeWeight(DType::kBF16, {4, 32}, 1)}});
  ConvertJob job = Job("schema: 1 base: 'nvfp4'");
  job.input = At("in.safetensors");
  job.output = At("out.safetensors");
  EXPECT_THAT(std::string(RunConvertJob(Fs(), job).status().message()), HasSubstr("missing for a"));
  job.calibration = At("ranges.safetensors");
  WriteTensors(job.calibration,
               {{"a.input_min", Array::Of<float>({-5}, {1})}, {"a.input_max", Array::Of<float>({4}, {1})}});
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), job.output);
  EXPECT_EQ(out.ReadArray("a.input_global_scale")->View<float>()[0], 0.2f * 2688);
  EXPECT_EQ(out.Find("a.input_scale"), nullptr);
}

// Found while the global scales are looked for, before anything is written.
TEST_F(ConvertTest, ANonFiniteWeightWithAGlobalScale) {
  std::vector<float> values(4 * 32, 0.5f);
  values[70] = std::nanf("");
  WriteTensors(At("in.safetensors"), {{"a.weight", Array::FromSpan<float>(values, {4, 32})}});
  ConvertJob job = Job("schema: 1 base: 'nvfp4a16'");
  job.input = At("in.safetensors");
  const absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("a.weight [4,32] holds a NaN or an infinity at [2,6]"));
}

TEST_F(ConvertTest, StaticInputsFromACalibration) {
  WriteTensors(At("in.safetensors"), {{"a.weight", MakeWeight(DType::kBF16, {4, 8}, 1)}});
  ConvertJob job = Job(ConfigText("num_bits: 8 per_tensor {}",
                                  "input_activations { num_bits: 8 symmetric: false static_per_tensor {} }"));
  job.input = At("in.safetensors");
  job.output = At("out.safetensors");
  absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("missing for a"));

  job.calibration = At("ranges.safetensors");
  const auto range = [&](float min, float max) {
    WriteTensors(job.calibration,
                 {{"a.input_min", Array::Of<float>({min}, {1})}, {"a.input_max", Array::Of<float>({max}, {1})}});
    return RunConvertJob(Fs(), job).status();
  };
  EXPECT_EQ(range(2, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(range(0, std::numeric_limits<float>::infinity()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(range(0, std::nanf("")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(range(-3.4e38f, 3.4e38f).message()), HasSubstr("overflows bf16"));
  WriteTensors(job.calibration, {{"a.input_min", Array::Of<float>({0}, {1})}});
  EXPECT_THAT(std::string(RunConvertJob(Fs(), job).status().message()), HasSubstr("a.input_max is missing"));
  WriteTensors(job.calibration, {{"a.range", Array::Of<float>({0}, {1})}});
  EXPECT_THAT(std::string(RunConvertJob(Fs(), job).status().message()), HasSubstr("unexpected tensor a.range"));

  ASSERT_TRUE(range(-1, 4.1f).ok());
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), job.output);
  // In bf16: 4.1 is 4.09375; 5.09375 / 255 = 0.01997549 is 0.02001953 (0x3ca4); -128 - -1 / that = -78.05 is -78.
  EXPECT_EQ(out.ReadArray("a.input_scale")->View<BFloat16>()[0].bits, 0x3ca4);
  EXPECT_EQ(out.ReadArray("a.input_zero_point")->View<int8_t>()[0], -78);
}

TEST_F(ConvertTest, AFolderKeepsItsShardsAndFiles) {
  WriteShardedModel(At("in"), DType::kBF16);
  WriteText(At("in/pytorch_model.bin"), "float weights");
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->warnings, Contains(HasSubstr("pytorch_model.bin was not copied")));
  EXPECT_THAT(ListTree(At("out")),
              ElementsAre("1_Pooling", "1_Pooling/config.json", "config.json", "model-00001-of-00002.safetensors",
                          "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"));
  EXPECT_EQ(ReadText(At("out/1_Pooling/config.json")), ReadText(At("in/1_Pooling/config.json")));
  const std::string config = ReadText(At("out/config.json"));
  EXPECT_THAT(config, HasSubstr("\"hidden_size\": 32"));
  EXPECT_THAT(config, HasSubstr("\"ignore\": [\n      \"lm_head\"\n    ]"));
  EXPECT_THAT(config, HasSubstr("\"Linear\""));
  const io::Checkpoint in = *io::Checkpoint::Open(Fs(), At("in")), out = *io::Checkpoint::Open(Fs(), At("out"));
  const auto* weight = out.Find("model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(weight->dtype, io::FileDType::kI8);
  EXPECT_EQ(weight->shard, in.Find("model.layers.0.self_attn.q_proj.weight")->shard);
  EXPECT_EQ(out.Find("model.layers.0.self_attn.q_proj.weight_scale")->shard, weight->shard);
  EXPECT_EQ(*io::ReadFile(Fs(), At("in/pytorch_model.bin"), 100), "float weights") << "the input stays as it was";
}

TEST_F(ConvertTest, NamesOfFilesAndWhatTheIndexSaysAreKept) {
  WriteShardedModel(At("in"), DType::kBF16);
  ASSERT_TRUE(
      Fs().Rename(At("in/model.safetensors.index.json"), At("in/diffusion_pytorch_model.safetensors.index.json")).ok());
  std::string index = ReadText(At("in/diffusion_pytorch_model.safetensors.index.json"));
  index.insert(index.find("\"total_size\""), "\"total_parameters\": 12345, ");
  WriteText(At("in/diffusion_pytorch_model.safetensors.index.json"), index);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_THAT(ListTree(At("out")), Contains("diffusion_pytorch_model.safetensors.index.json"));
  EXPECT_THAT(ReadText(At("out/diffusion_pytorch_model.safetensors.index.json")),
              HasSubstr("\"total_parameters\": 12345"));
  EXPECT_TRUE(io::Checkpoint::Open(Fs(), At("out")).ok());
  job.force = true;
  EXPECT_TRUE(RunConvertJob(Fs(), job).ok()) << "an earlier output";
  job.output = At("out2");
  job.max_shard_bytes = 3000;
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_THAT(io::Checkpoint::Open(Fs(), At("out2"))->shard_names()[0], HasSubstr("diffusion_pytorch_model-00001-of-"));
}

TEST_F(ConvertTest, ASetWithoutAnIndexGetsOne) {
  WriteShardedModel(At("in"), DType::kBF16);
  ASSERT_TRUE(Fs().Remove(At("in/model.safetensors.index.json")).ok());
  ASSERT_TRUE(RunConvertJob(Fs(), Job("schema: 1 base: 'w8a8_dynamic'")).ok());
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), At("out"));
  EXPECT_TRUE(out.has_index());
  EXPECT_EQ(out.shards().size(), 2u);
}

TEST_F(ConvertTest, AFileTakesTheConfigBesideIt) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(Fs().Rename(At("in/model.safetensors"), At("in/weights.safetensors")).ok());
  job.input = At("in/weights.safetensors");
  absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->warnings, ElementsAre(HasSubstr("only config.json was copied")));
  EXPECT_THAT(ListTree(At("out")), ElementsAre("config.json", "weights.safetensors"));
  EXPECT_THAT(ReadText(At("out/config.json")), HasSubstr("\"hidden_size\": 32"));
  ASSERT_TRUE(Fs().Remove(At("in/config.json")).ok());
  job.output = At("out2");
  report = RunConvertJob(Fs(), job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->warnings, ElementsAre(HasSubstr("there is no config.json beside the weights")));
  EXPECT_THAT(ListTree(At("out2")), ElementsAre("config.json", "model.safetensors"));
  job.output = At("out3");
  job.max_shard_bytes = 3000;
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_THAT(ListTree(At("out3")), Contains("model.safetensors.index.json"));
}

TEST_F(ConvertTest, AFileOfAnotherMethodRefusesTheFolder) {
  WriteSmallModel(At("in"), DType::kF32);
  WriteText(At("in/quantize_config.json"), "{}");
  const ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  for (const bool has_config : {true, false}) {
    if (!has_config) RemoveIfThere(At("in/config.json"));
    const absl::Status status = RunConvertJob(Fs(), job).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << has_config;
    EXPECT_THAT(std::string(status.message()), HasSubstr("there is a quantize_config.json")) << has_config;
  }
}

TEST_F(ConvertTest, MaxShardSizeSplitsAndKeepsTheTensorsOfAWeightTogether) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w4a16_g32'");
  job.max_shard_bytes = 3000;
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  job.max_shard_bytes = 0;
  job.output = At("whole");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), At("out"));
  EXPECT_TRUE(out.has_index());
  EXPECT_GT(out.shards().size(), 1u);
  EXPECT_EQ(out.shard_names()[0], absl::StrCat("model-00001-of-0000", out.shards().size(), ".safetensors"));
  EXPECT_THAT(DifferentTensors(At("out"), At("whole")), IsEmpty());
  for (const auto& tensor : out.tensors()) {
    const std::string packed = ".weight_packed";
    if (absl::EndsWith(tensor.name, packed)) {
      const std::string module = tensor.name.substr(0, tensor.name.size() - packed.size());
      EXPECT_EQ(out.Find(module + ".weight_scale")->shard, tensor.shard);
      EXPECT_EQ(out.Find(module + ".weight_shape")->shard, tensor.shard);
    }
  }
  EXPECT_THAT(ReadText(At("out/model.safetensors.index.json")),
              HasSubstr(absl::StrCat("\"total_size\": ", out.total_bytes())));
}

TEST_F(ConvertTest, AConvertedModelTellsHowItWasMade) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  // With the output's own quantization_config, the same input gives the same bytes again.
  job.recipe = {};
  job.recipe.scheme_from = At("out");
  job.output = At("again");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_THAT(DifferentTensors(At("out"), At("again")), IsEmpty());
  EXPECT_EQ(ReadText(At("out/config.json")), ReadText(At("again/config.json")));
  // It is refused as the input of a second quantization.
  job.input = At("out");
  job.output = At("twice");
  EXPECT_EQ(RunConvertJob(Fs(), job).status().code(), absl::StatusCode::kUnimplemented);
  // A single file records this in its metadata.
  job.input = At("in");
  job.output = At("out.safetensors");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  const io::Checkpoint file = *io::Checkpoint::Open(Fs(), At("out.safetensors"));
  EXPECT_THAT(file.shards()[0].metadata, Contains(std::make_pair(std::string("format"), std::string("pt"))));
  EXPECT_TRUE(ReadModelConfig(Fs(), file)->quantization_config.has_value());
  EXPECT_THAT(DifferentTensors(At("out"), At("out.safetensors")), IsEmpty());
}

TEST_F(ConvertTest, DifferentSchemesBecomeGroupsByName) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job =
      Job("schema: 1 rule { match: '.*up_proj' quantize { weights { num_bits: 4 per_group { size: 32 } } } } "
          "rule { match: '.*' quantize { weights { num_bits: 8 per_channel {} } } }");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  job.recipe = {};
  job.recipe.scheme_from = At("out");
  job.output = At("again");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_THAT(DifferentTensors(At("out"), At("again")), IsEmpty());
  const QuantizationConfig config =
      *ParseQuantizationConfig(*ParseModelConfig(ReadText(At("out/config.json")))->quantization_config);
  ASSERT_EQ(config.groups.size(), 2u);
  const ConfigGroup& int4 = config.groups[config.groups[0].scheme.weights.num_bits == 4 ? 0 : 1];
  EXPECT_THAT(int4.targets, ElementsAre("model.layers.0.mlp.up_proj"));
  EXPECT_THAT(config.ignore, ElementsAre("lm_head"));
}

TEST_F(ConvertTest, AQuantizedHeadIsATargetByName) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job =
      Job("schema: 1 default_ignore: false rule { match: '.*' quantize { weights { num_bits: 8 per_channel {} } } }");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  job.recipe = {};
  job.recipe.scheme_from = At("out");
  job.output = At("again");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  EXPECT_THAT(DifferentTensors(At("out"), At("again")), IsEmpty());
  EXPECT_NE(io::Checkpoint::Open(Fs(), At("again"))->Find("lm_head.weight_packed"), nullptr);
}

TEST_F(ConvertTest, NonFiniteWeightsAreRefusedByNameOrKept) {
  for (const float bad :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<float> values(7 * 2000, 0.25f);
      values[5 * 2000 + 1999] = bad;
      WriteTensors(At("in.safetensors"), {{"good.weight", MakeWeight(dtype, {4, 8}, 1)},
                                          {"bad.weight", Cast(Array::FromSpan<float>(values, {7, 2000}), dtype)},
                                          {"bad.bias", Cast(Array::Of<float>({bad}, {1}), dtype)}});
      ConvertJob job = Job(ConfigText("num_bits: 8 per_channel {}", "format: FORMAT_INT_QUANTIZED"));
      job.input = At("in.safetensors");
      job.output = At("out.safetensors");
      job.force = true;
      const absl::Status status = RunConvertJob(Fs(), job).status();
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kMalformedInput);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("bad.weight [7,2000] holds a NaN or an infinity at [5,1999]"));

      job.recipe.keep_non_finite = true;
      const absl::StatusOr<ConvertReport> report = RunConvertJob(Fs(), job);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->num_quantized, 1);
      EXPECT_THAT(report->warnings, Contains(HasSubstr("bad.weight: holds a NaN")));
      EXPECT_THAT(DifferentTensors(At("in.safetensors"), At("out.safetensors")),
                  ElementsAre("good.weight", "good.weight_scale"));
      EXPECT_THAT(*ReadModelConfig(Fs(), *io::Checkpoint::Open(Fs(), job.output))->quantization_config,
                  HasSubstr("\"bad\""));
    }
  }
}

TEST_F(ConvertTest, ARangeThatOverflowsIsRefused) {
  WriteTensors(At("in.safetensors"), {{"a.weight", Array::Of<float>({1, 2, -3e38f, 3e38f}, {2, 2})}});
  ConvertJob job = Job(ConfigText("num_bits: 8 symmetric: false per_channel {}"));
  job.input = At("in.safetensors");
  const absl::Status status = RunConvertJob(Fs(), job).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kMalformedInput);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a.weight: the range of the values in row 1 overflows"));
}

// Tensors of every file dtype, without elements, axes or a name, whose order by name differs from the file's.
TEST_F(ConvertTest, EverythingElsePassesByteForByte) {
  std::vector<io::TensorSpec> specs = {{"none", io::FileDType::kF32, {0, 3}},
                                       {"scalar", io::FileDType::kBF16, {}},
                                       {"", io::FileDType::kU8, {3}},
                                       {"a.weight", io::FileDType::kF32, {2, 4}}};
  for (int dtype = 0; dtype < io::kNumFileDTypes; ++dtype) {
    specs.push_back({absl::StrCat("t", 99 - dtype), static_cast<io::FileDType>(dtype), {4, 8}});
  }
  auto writer = *io::SafetensorsWriter::Create(Fs(), At("in.safetensors"), specs);
  for (const io::TensorInfo& info : writer->tensors()) {
    std::vector<uint8_t> bytes(info.num_bytes());
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = info.dtype == io::FileDType::kBool ? i % 2 : static_cast<uint8_t>(37 * i);
    if (info.name == "a.weight") std::fill(bytes.begin(), bytes.end(), 0);
    ASSERT_TRUE(writer->Write(info.name, 0, bytes).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
  ConvertJob job = Job(ConfigText("num_bits: 8 per_channel {}"));
  job.input = At("in.safetensors");
  job.output = At("out.safetensors");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  const io::Checkpoint in = *io::Checkpoint::Open(Fs(), job.input), out = *io::Checkpoint::Open(Fs(), job.output);
  for (const io::TensorInfo& tensor : in.tensors()) {
    if (tensor.name == "a.weight") continue;
    const io::TensorInfo* other = out.Find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(other->dtype, tensor.dtype);
    EXPECT_EQ(other->shape, tensor.shape);
    std::vector<uint8_t> a(tensor.num_bytes()), b(a.size());
    ASSERT_TRUE(in.Read(tensor, 0, absl::MakeSpan(a)).ok());
    ASSERT_TRUE(out.Read(*other, 0, absl::MakeSpan(b)).ok());
    EXPECT_EQ(a, b) << tensor.name;
  }
}

TEST_F(ConvertTest, TwoTensorsOfOneName) {
  WriteTensors(At("in.safetensors"),
               {{"a.weight", MakeWeight(DType::kF32, {4, 8}, 1)}, {"a.weight_scale", MakeWeight(DType::kF32, {4}, 1)}});
  ConvertJob job = Job(ConfigText("num_bits: 8 per_channel {}"));
  job.input = At("in.safetensors");
  EXPECT_THAT(std::string(RunConvertJob(Fs(), job).status().message()), HasSubstr("would become a.weight_scale"));
}

TEST_F(ConvertTest, CancellingLeavesNothing) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const std::vector<std::string> before = ListTree(root_);
  const std::atomic<bool> cancelled{true};
  job.cancelled = &cancelled;
  for (const char* output : {"out", "out.safetensors"}) {
    job.output = At(output);
    const absl::Status status = RunConvertJob(Fs(), job).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
    EXPECT_EQ(ListTree(root_), before);
  }
}

// ---- faults

struct FaultCase {
  std::string name;
  bool file = false;   // else a folder
  bool force = false;  // the output exists
};
class ConvertFaultTest : public ConvertTest, public ::testing::WithParamInterface<FaultCase> {};

// Whichever call fails, there is an error, and afterwards the old state, or the complete new one (if only a flush after
// the last rename failed). Never a part of it, and no temporary file.
TEST_P(ConvertFaultTest, LeavesTheOldStateOrTheNewOne) {
  const FaultCase& c = GetParam();
  WriteShardedModel(At("in"), DType::kF32);
  ConvertJob job;
  job.input = At("in");
  job.output = At(c.file ? "out.safetensors" : "out");
  job.recipe.preset = "w4a16_g32";
  job.force = c.force;
  // The complete new state, for comparison.
  ConvertJob complete = job;
  complete.output = At(c.file ? "complete.safetensors" : "complete");
  ASSERT_TRUE(RunConvertJob(Fs(), complete).ok());

  std::vector<std::string> before;  // empty: to be set up
  using Call = io::FileCall;
  for (const Call call : {Call::kOpen, Call::kStat, Call::kRead, Call::kWrite, Call::kReserve, Call::kSync,
                          Call::kSyncFolder, Call::kClose, Call::kRename, Call::kRemove, Call::kCreateFolder,
                          Call::kList, Call::kExchange, Call::kLock, Call::kFreeBytes, Call::kMountPoint}) {
    for (int n = 1;; ++n) {
      ASSERT_LT(n, 2000);
      if (before.empty()) {
        RemoveIfThere(job.output);
        RemoveIfThere(job.output + ".aqt-old");
        if (c.force) {
          ASSERT_TRUE(c.file || Fs().CreateFolder(job.output).ok());
          WriteTensors(c.file ? job.output : io::JoinPath(job.output, "model.safetensors"),
                       {{"old", Array::Zeros(DType::kF32, {1})}});
        }
        before = ListTree(root_);
      }
      io::FaultInjectingFileSystem faulty;
      faulty.FailNth(call, n, EIO);
      const absl::Status status = RunConvertJob(faulty, job).status();
      const std::string what =
          absl::StrCat("call ", static_cast<int>(call), ", n = ", n, ": ", std::string(status.message()));
      const bool reached = faulty.NumCalls(call) >= n;
      ASSERT_TRUE(status.ok() || reached) << what;
      const bool is_new =
          io::Checkpoint::Open(Fs(), job.output).ok() && DifferentTensors(job.output, complete.output).empty();
      if (status.ok()) {  // a fault that the code tolerates, or no more faults
        EXPECT_TRUE(is_new) << what;
      } else {
        EXPECT_THAT(static_cast<int>(ExitCodeOf(status)), ::testing::AnyOf(3, 4)) << what;
        if (!is_new) {
          EXPECT_EQ(ListTree(root_), before) << what;
          EXPECT_EQ(io::Checkpoint::Open(Fs(), job.output).ok(), c.force) << what;
          continue;
        }
      }
      before.clear();
      if (!reached) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Outputs, ConvertFaultTest,
                         ::testing::Values(FaultCase{"Folder"}, FaultCase{"File", true},
                                           FaultCase{"FolderForce", false, true}, FaultCase{"FileForce", true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_F(ConvertTest, AFullDisk) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const std::vector<std::string> before = ListTree(root_);
  for (const int64_t bytes : {0, 1, 1000, 5000}) {
    io::FaultInjectingFileSystem full;
    full.LimitDisk(bytes);
    const absl::Status status = RunConvertJob(full, job).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kFile);
    EXPECT_THAT(std::string(status.message()), HasSubstr("No space left on device"));
    EXPECT_EQ(ListTree(root_), before);
  }
}

TEST_F(ConvertTest, ShortAndInterruptedTransfers) {
  WriteSmallModel(At("in"), DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  io::FaultInjectingFileSystem slow;
  slow.LimitTransfer(17);
  slow.Interrupt();
  job.output = At("out2");
  ASSERT_TRUE(RunConvertJob(slow, job).ok());
  EXPECT_EQ(ReadText(At("out/model.safetensors")), ReadText(At("out2/model.safetensors")));
}

}  // namespace
}  // namespace aqt::serving
