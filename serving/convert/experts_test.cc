// Conversions of models that have all experts of a layer in one tensor.

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/compare/verify.h"
#include "serving/convert/carried_files.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/job_test_util.h"
#include "serving/convert/model_input.h"
#include "serving/convert/plan_input.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kGptOss[] = "tests/golden/foreign/gptoss_mxfp4";

class ExpertsTest : public JobTest {
 protected:
  // Two layers of three experts in two files: a shard may have a part of a layer. `type` is also that of config.json.
  void WriteModel(const std::string& folder, const std::string& type, bool in_out, bool biases) {
    constexpr int64_t kExperts = 3, kHidden = 32, kInner = 48;
    ASSERT_TRUE(fs_.CreateFolder(folder).ok());
    std::vector<NamedArrays> files(2);
    for (int layer = 0; layer < 2; ++layer) {
      const std::string mlp = absl::StrCat("model.layers.", layer, ".mlp."), experts = mlp + "experts.";
      const auto add = [&](int file, const std::string& name, const Shape& shape) {
        files[file].emplace_back(name,
                                 MakeWeight(DType::kBF16, shape, static_cast<int>(files[file].size()) + 10 * file));
      };
      add(layer, absl::StrCat("model.layers.", layer, ".self_attn.o_proj.weight"), {kHidden, kHidden});
      add(layer, mlp + "router.weight", {kExperts, kHidden});
      add(layer, mlp + "shared_expert.up_proj.weight", {kInner, kHidden});
      add(layer, experts + "gate_up_proj",
          in_out ? Shape{kExperts, kHidden, 2 * kInner} : Shape{kExperts, 2 * kInner, kHidden});
      if (biases) add(layer, experts + "gate_up_proj_bias", {kExperts, 2 * kInner});
      add(1, experts + "down_proj", in_out ? Shape{kExperts, kInner, kHidden} : Shape{kExperts, kHidden, kInner});
    }
    std::string map;
    for (int i = 0; i < 2; ++i) {
      const std::string file = absl::StrCat("model-0000", i + 1, "-of-00002.safetensors");
      WriteTensors(io::JoinPath(folder, file), files[i]);
      for (const auto& [name, array] : files[i]) {
        absl::StrAppend(&map, map.empty() ? "" : ", ", "\"", name, "\": \"", file, "\"");
      }
    }
    WriteText(io::JoinPath(folder, "model.safetensors.index.json"), absl::StrCat(R"({"weight_map": {)", map, "}}"));
    WriteText(io::JoinPath(folder, "config.json"),
              absl::StrCat(R"({"model_type": ")", type, R"(", "num_local_experts": 3, "torch_dtype": "bfloat16"})"));
  }
  // The same model with one weight for each expert.
  void WriteSplit(const std::string& from, const std::string& to) {
    const io::Checkpoint checkpoint = *io::Checkpoint::Open(fs_, from);
    ModelInput input = *ModelInput::Open(fs_, checkpoint, {});
    ASSERT_TRUE(input.Split().ok());
    ASSERT_NE(input.split(), nullptr);
    NamedArrays tensors;
    for (const io::TensorInfo& tensor : input.tensors().tensors()) {
      tensors.emplace_back(tensor.name, *input.tensors().ReadArray(tensor));
    }
    ASSERT_TRUE(fs_.CreateFolder(to).ok());
    WriteTensors(io::JoinPath(to, "model.safetensors"), tensors);
    WriteText(io::JoinPath(to, "config.json"), ReadText(io::JoinPath(from, "config.json")));
  }
  // Without the order of `ignore`, which is that of the tensors in the files.
  std::vector<std::string> SortedLines(const std::string& path) {
    const std::string text = absl::StrReplaceAll(ReadText(path), {{",\n", "\n"}});
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  ConvertJob Preset(const std::string& in, const std::string& out, const std::string& preset) {
    ConvertJob job;
    job.input = At(in);
    job.output = At(out);
    job.recipe.preset = preset;
    return job;
  }
  ConvertReport Run(const ConvertJob& job) {
    const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.value_or(ConvertReport());
  }
  VerifyReport VerifyOutput(const std::string& in, const std::string& out, const InputOptions& options = {}) {
    const io::Checkpoint input = *io::Checkpoint::Open(fs_, At(in)), output = *io::Checkpoint::Open(fs_, At(out));
    ModelInput original = *ModelInput::Open(fs_, input, options);
    EXPECT_TRUE(original.SplitLike(output).ok());
    CarriedFiles files = *FilesToCarry(input, {});
    original.LeaveOutFiles(files);
    return *Verify(fs_, original.tensors(), files, output, {});
  }
  io::Checkpoint Output(const std::string& out) { return *io::Checkpoint::Open(fs_, At(out)); }

  const io::FileSystem& fs_ = io::LocalFileSystem();
};

// Splitting while converting gives what converting the split model gives.
TEST_F(ExpertsTest, AreConvertedLikeSingleWeights) {
  struct Layout {
    const char* type;
    bool in_out, biases;
  };
  for (const Layout& layout : {Layout{"qwen3_moe", false, false},
                               {"qwen3_vl_moe", true, false},
                               {"llama4_text", true, false},
                               {"gpt_oss", true, true}}) {
    const std::string model = layout.type;
    WriteModel(At(model), model, layout.in_out, layout.biases);
    WriteSplit(At(model), At(model + "-split"));
    for (const char* preset : {"w8a8_dynamic", "nvfp4a16", "mxfp4"}) {
      SCOPED_TRACE(absl::StrCat(model, " ", preset));
      const std::string out = absl::StrCat(model, "-", preset), expected = absl::StrCat(model, "-split-", preset);
      const ConvertReport report = Run(Preset(model, out, preset));
      EXPECT_THAT(report.experts, HasSubstr(absl::StrCat(layout.biases ? 6 : 4, " tensors with all experts of a layer ",
                                                         "split into ", layout.biases ? 30 : 18)));
      // Two of attention, two shared ones, and 18 experts; mxfp4 does not fit 48 columns.
      EXPECT_EQ(report.num_quantized, absl::string_view(preset) == "mxfp4" ? 16 : 22);
      EXPECT_EQ(Run(Preset(model + "-split", expected, preset)).num_quantized, report.num_quantized);
      EXPECT_THAT(DifferentTensors(At(out), At(expected)), IsEmpty());
      EXPECT_EQ(SortedLines(At(out + "/config.json")), SortedLines(At(expected + "/config.json")));
      const VerifyReport verified = VerifyOutput(model, out);
      EXPECT_THAT(verified.problems, IsEmpty());
      EXPECT_EQ(verified.weights.size(), static_cast<size_t>(report.num_quantized));
    }
  }
}

TEST_F(ExpertsTest, TheSameBytesForAnyNumberOfThreadsAndSizeOfFiles) {
  WriteModel(At("in"), "gpt_oss", true, true);
  Run(Preset("in", "one", "w8a8_dynamic"));
  ConvertJob job = Preset("in", "seven", "w8a8_dynamic");
  job.jobs = 7;
  Run(job);
  for (const std::string& file : ListTree(At("one"))) {
    EXPECT_EQ(ReadText(At("one/" + file)), ReadText(At("seven/" + file))) << file;
  }
  EXPECT_THAT(ListTree(At("one")), ElementsAre("config.json", "model-00001-of-00002.safetensors",
                                               "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
  job = Preset("in", "small", "w8a8_dynamic");
  job.max_shard_bytes = 3000;  // the parts of one tensor are in several files
  Run(job);
  EXPECT_GT(ListTree(At("small")).size(), 8u);
  EXPECT_THAT(DifferentTensors(At("one"), At("small")), IsEmpty());
  EXPECT_THAT(VerifyOutput("in", "small").problems, IsEmpty());
}

TEST_F(ExpertsTest, StayInOneTensorIfNothingQuantizesThem) {
  WriteModel(At("in"), "gpt_oss", true, true);
  const std::string fused = "model.layers.1.mlp.experts.gate_up_proj";
  const auto expect_kept = [&](const ConvertJob& job, const std::string& why) {
    const ConvertReport report = Run(job);
    EXPECT_EQ(report.experts, "");
    EXPECT_EQ(report.num_quantized, 4);
    EXPECT_THAT(report.warnings, Contains(HasSubstr("all experts in one tensor, carried over as it is; " + why)));
    EXPECT_NE(Output("out").Find(fused), nullptr);
    EXPECT_THAT(VerifyOutput("in", "out").problems, IsEmpty());
    ASSERT_TRUE(io::RemoveTree(fs_, At("out")).ok());
  };
  ConvertJob keep = Preset("in", "out", "w8a8_dynamic");
  keep.recipe.experts = Experts::kKeep;
  expect_kept(keep, "--experts keep");
  constexpr char kBase[] = "schema: 1 base: 'w8a8_dynamic' ";
  expect_kept(Job(absl::StrCat(kBase, "experts: EXPERTS_KEEP")), "--experts keep");
  // By the names of the single experts, and by those of the tensors.
  expect_kept(Job(absl::StrCat(kBase, R"(ignore: ".*\\.experts\\..*")")), "no rule quantizes them");
  expect_kept(Job(absl::StrCat(kBase, R"(ignore: ".*\\.(?:gate_up|down)_proj")")), "no rule quantizes them");
  expect_kept(Job(absl::StrCat(kBase, R"(ignore: ".*\\.mlp\\.experts")")), "no rule quantizes them");
}

TEST_F(ExpertsTest, AnIgnoredTensorMeansItsParts) {
  WriteModel(At("in"), "gpt_oss", true, true);
  ConvertJob job = Job(R"(schema: 1 base: "w8a8_dynamic" ignore: "model\\.layers\\.0\\.mlp\\.experts\\.gate_up_proj")");
  job.recipe.strict = true;  // the entry has an effect
  const ConvertReport report = Run(job);
  EXPECT_EQ(report.num_quantized, 22 - 6);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("servers load all experts of a layer together")));
  EXPECT_EQ(Output("out").Find("model.layers.0.mlp.experts.2.up_proj.weight")->dtype, io::FileDType::kBF16);
  EXPECT_EQ(Output("out").Find("model.layers.1.mlp.experts.2.up_proj.weight")->dtype, io::FileDType::kI8);
  EXPECT_THAT(VerifyOutput("in", "out").problems, IsEmpty());
}

TEST_F(ExpertsTest, AnUnknownLayoutIsNotGuessed) {
  WriteModel(At("in"), "unheard_of", false, false);
  const ConvertReport report = Run(Preset("in", "out", "w8a8_dynamic"));
  EXPECT_EQ(report.num_quantized, 4);
  EXPECT_NE(Output("out").Find("model.layers.0.mlp.experts.down_proj"), nullptr);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("`fused_experts` of a `family` of the configuration")));
  ConvertJob split = Preset("in", "other", "w8a8_dynamic");
  split.recipe.experts = Experts::kSplit;
  const absl::Status status = RunConvertJob(fs_, split).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers.0.mlp.experts.gate_up_proj [3,96,32], and the "
                                                       "table of model families does not say how the model type "
                                                       "unheard_of stores its experts"));
}

// The table says that such a model has the other order. Nobody asked for a split, so the model is converted without it.
TEST_F(ExpertsTest, ALayoutThatDoesNotFitIsKeptUnlessASplitIsAskedFor) {
  WriteModel(At("in"), "qwen3_moe", true, false);
  const ConvertReport report = Run(Preset("in", "out", "w8a8_dynamic"));
  EXPECT_EQ(report.num_quantized, 4);
  EXPECT_EQ(report.experts, "");
  EXPECT_NE(Output("out").Find("model.layers.0.mlp.experts.down_proj"), nullptr);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("they cannot be split: ")));
  ConvertJob split = Preset("in", "other", "w8a8_dynamic");
  split.recipe.experts = Experts::kSplit;
  EXPECT_THAT(std::string(RunConvertJob(fs_, split).status().message()), HasSubstr("model.layers.0.mlp.experts."));
}

TEST_F(ExpertsTest, AFamilyOfTheUserStatesTheLayout) {
  WriteModel(At("in"), "unheard_of", true, false);
  const ConvertJob job = Job(R"(
      schema: 1 base: "w8a8_dynamic"
      family {
        name: "mine" model_type: "unheard_of"
        fused_experts { stored: "gate_up_proj" part: ["w1", "w3"] in_out: true interleaved: true }
        fused_experts { stored: "down_proj" part: "w2" in_out: true }
      })");
  const ConvertReport report = Run(job);
  EXPECT_THAT(report.experts,
              HasSubstr("4 tensors with all experts of a layer split into 18 of single experts (model family mine)"));
  EXPECT_NE(Output("out").Find("model.layers.1.mlp.experts.2.w3.weight_scale"), nullptr);
  const ConvertConfig config = *ParseConvertConfig(ReadText(At("config.textproto")), "");
  InputOptions options;
  options.families = config.families;
  EXPECT_THAT(VerifyOutput("in", "out", options).problems, IsEmpty());
  EXPECT_THAT(VerifyOutput("in", "out").problems, Not(IsEmpty()));  // without it
}

TEST_F(ExpertsTest, WhatDoesNotFitNamesTheWayOut) {
  WriteModel(At("in"), "gpt_oss", true, true);
  const ConvertJob job = Job(R"(schema: 1
      rule { match: ".*" quantize { weights { num_bits: 4 per_group { size: 32 } } } })");
  const absl::Status status = RunConvertJob(fs_, job).status();
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("experts.0.down_proj.weight [32,48]"), HasSubstr("; --experts keep leaves")));
}

TEST_F(ExpertsTest, ExplainNamesThePartsOfATensor) {
  WriteModel(At("in"), "gpt_oss", true, true);
  const io::Checkpoint checkpoint = *io::Checkpoint::Open(fs_, At("in"));
  const auto explain = [&](Experts experts, const std::string& name) {
    ModelInput input = *ModelInput::Open(fs_, checkpoint, {});
    RecipeSource recipe_source;
    recipe_source.preset = "w8a8_dynamic";
    Recipe recipe = *LoadRecipe(fs_, recipe_source);
    recipe.experts = experts;
    std::ostringstream text;
    PrintExplanation(*ExplainInput(input, recipe, name), text);
    return text.str();
  };
  EXPECT_THAT(explain(Experts::kAuto, "model.layers.0.mlp.experts.gate_up_proj"),
              HasSubstr("split into one weight for each expert, from model.layers.0.mlp.experts.0.gate_proj.weight to "
                        "model.layers.0.mlp.experts.2.up_proj.weight"));
  EXPECT_THAT(explain(Experts::kAuto, "model.layers.0.mlp.experts.1.down_proj"), HasSubstr("=> int8 per channel"));
  EXPECT_THAT(explain(Experts::kKeep, "model.layers.0.mlp.experts.gate_up_proj"),
              HasSubstr("=> carried over as it is"));
}

// Blocks of MXFP4 are read in the order in which they are stored.
TEST_F(ExpertsTest, AreSplitWhileTheyAreDequantized) {
  ASSERT_TRUE(fs_.CreateFolder(At("in")).ok());
  for (const char* file : {"config.json", "model.safetensors"}) {
    ASSERT_TRUE(io::CopyFile(fs_, io::JoinPath(kGptOss, file), At(absl::StrCat("in/", file))).ok());
  }
  ConvertJob dequantize = Preset("in", "float", "");
  dequantize.dequantize_to = DType::kF32;
  dequantize.recipe.experts = Experts::kSplit;
  EXPECT_THAT(Run(dequantize).experts, HasSubstr("8 tensors with all experts of a layer split into 48"));
  ConvertJob job = Preset("in", "out", "nvfp4a16");
  job.allow_requantize = true;
  Run(job);
  Run(Preset("float", "expected", "nvfp4a16"));
  EXPECT_THAT(DifferentTensors(At("out"), At("expected")), IsEmpty());
  // Servers have a global scale for each part of an expert.
  const io::Checkpoint out = Output("out");
  const std::string expert = "model.layers.0.mlp.experts.0.";
  EXPECT_NE(out.ReadArray(expert + "gate_proj.weight_global_scale")->View<float>()[0],
            out.ReadArray(expert + "up_proj.weight_global_scale")->View<float>()[0]);
  InputOptions options;
  options.dequantize = true;
  EXPECT_THAT(VerifyOutput("in", "out", options).problems, IsEmpty());
  // Without being asked to dequantize, the input is refused as before.
  job.allow_requantize = false;
  job.output = At("other");
  EXPECT_THAT(std::string(RunConvertJob(fs_, job).status().message()), HasSubstr("is quantized already"));
}

}  // namespace
}  // namespace aqt::serving
