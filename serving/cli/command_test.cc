#include "serving/cli/command.h"

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/io/file.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/quant/config/builders.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/cli/command_test_fixture.h"
#include "serving/tools/exit_code.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class AqtTest : public CommandTest {
 protected:
  AqtTest() : CommandTest(AqtMain) {}
};

TEST_F(AqtTest, AFirstSession) {
  EXPECT_EQ(Run({"inspect", "in"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("in: 6 tensors"), HasSubstr("F32: 6 tensors"), HasSubstr("format = pt")));
  const std::vector<std::string> before = ListTree(root_);
  EXPECT_EQ(Run({"plan", "in", "--preset", "w8a8_dynamic"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("int8 per channel, input int8 per token dynamic"),
                          HasSubstr("built-in ignore list (embedding)"), HasSubstr("6 tensors, 2 to be quantized")));
  EXPECT_EQ(ListTree(root_), before);
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("out: 2 of 6 tensors quantized"), HasSubstr("MB/s"), HasSubstr("peak memory")));
  EXPECT_THAT(err_, IsEmpty());
  EXPECT_EQ(Run({"verify", "in", "out", "--min-snr", "30"}), 0);
  EXPECT_THAT(out_, HasSubstr("2 weights quantized"));
  EXPECT_EQ(Run({"verify", "in", "out", "--min-snr", "60"}), 1);
  EXPECT_THAT(err_, AllOf(HasSubstr("error: model.layers.0.mlp.up_proj.weight: SNR"), HasSubstr("q_proj.weight: SNR")));
  EXPECT_EQ(Run({"verify", "in", "out", "--min-row-snr", "60"}), 1);
  EXPECT_THAT(err_, HasSubstr("up_proj.weight: row "));
  EXPECT_EQ(Run({"inspect", "out", "--stats"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("group_0: int8 per channel"), HasSubstr("ignored: lm_head"), HasSubstr("absmax")));
}

TEST_F(AqtTest, HelpAndVersion) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("Exit codes"), HasSubstr("130"), HasSubstr("aqt convert model/")));
  for (const char* command : {"inspect", "plan", "convert", "verify", "explain", "diff", "config", "program", "run",
                              "bench", "serve", "completion", "man"}) {
    EXPECT_EQ(Run({command, "--help"}), 0);
    EXPECT_THAT(out_, HasSubstr(absl::StrCat("Examples:\n  aqt ", command)));
  }
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("aqt "), HasSubstr("SIMD target: ")));
}

TEST_F(AqtTest, UsageErrors) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("subcommand"), HasSubstr("Usage: aqt")));
  ExpectError({"frobnicate"}, 2, "frobnicate");
  ExpectError({"convert"}, 2, "IN is missing");
  ExpectError({"convert", "in", "--preset", "w8a16"}, 2, "OUT is missing");
  ExpectError({"convert", "in", "out"}, 2, "--preset NAME");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--scheme-from", "x"}, 2, "one of --preset");
  ExpectError({"convert", "in", "out", "--preset", "w1"}, 2, "presets are");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--rules", "mine"}, 2, "mine");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--jobs", "0"}, 2, "--jobs");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--jobs", "65"}, 2, "--jobs");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--max-shard-size", "many"}, 2,
              "--max-shard-size many is not a valid size");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--bogus"}, 2, "--bogus");
  ExpectError({"convert", "in", "out", "--preset=", "w8a16"}, 2, "--preset= has no value");
  ExpectError({"inspect"}, 2, "IN");
  ExpectError({"verify", "in"}, 2, "OUT");
  ExpectError({"explain", "in", "nothing", "--preset", "w8a16"}, 2, "has no tensor nothing");
}

TEST_F(AqtTest, ConfigurationErrors) {
  WriteText("wrong.textproto", "schema: 1\nrule { match: '.*' quantise {} }\n");
  ExpectError({"convert", "in", "out", "--config", "wrong.textproto"}, 2, "wrong.textproto:2:");
  ExpectError({"convert", "in", "out", "--config", "missing.textproto"}, 4, "missing.textproto");
  ExpectError({"convert", "in", "out", "--scheme-from", "missing.json"}, 4, "missing.json");
  ExpectError({"convert", "in", "out", "--scheme-from", "in"}, 2, "in/config.json: there is no quantization_config");
  WriteText("unmatched.textproto",
            "schema: 1\nrule { match: 'gone' quantize { weights { num_bits: 8 per_channel {} } } }\nrule { match: "
            "'.*up_proj' quantize { weights { num_bits: 8 per_channel {} } } }");
  ExpectError({"convert", "in", "out", "--config", "unmatched.textproto", "--strict"}, 2,
              "rule 1 \"gone\" has no effect");
  EXPECT_EQ(Run({"convert", "in", "out", "--config", "unmatched.textproto", "--progress", "never"}), 0);
  EXPECT_THAT(err_, HasSubstr("warning: rule 1 \"gone\" has no effect"));
  WriteText("nothing.textproto",
            "schema: 1\nrule { match: 'gone' quantize { weights { num_bits: 8 per_channel {} } } }");
  ExpectError({"convert", "in", "out2", "--config", "nothing.textproto"}, 2, "nothing would be quantized");
  WriteText("odd.textproto",
            "schema: 1\nrule { match: '.*' quantize { weights { num_bits: 4 per_group { size: 48 } } } }");
  ExpectError({"convert", "in", "out2", "--config", "odd.textproto"}, 2,
              "model.layers.0.mlp.up_proj.weight [7,32], by rule 1");
}

TEST_F(AqtTest, FilesAreListedAndExcluded) {
  ASSERT_TRUE(io::LocalFileSystem().CreateFolder("in/checkpoint-5").ok());
  WriteText("in/checkpoint-5/optimizer.pt", std::string(5000, 'x'));
  EXPECT_EQ(Run({"plan", "in", "--preset", "w8a8_dynamic"}), 0);
  EXPECT_THAT(out_, HasSubstr("to be copied: 3 other files, 4.9 KiB: checkpoint-5/ 4.9 KiB, "));
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  EXPECT_THAT(out_, HasSubstr("copied: 3 other files, 4.9 KiB: checkpoint-5/ 4.9 KiB, "));
  const std::vector<std::string> args = {"convert", "--exclude", "checkpoint-*/", "in",         "--exclude", "token*",
                                         "lean",    "--preset",  "w8a8_dynamic",  "--progress", "never"};
  EXPECT_EQ(Run(args), 0) << err_;
  EXPECT_THAT(ListTree("lean"), ElementsAre("1_Pooling", "1_Pooling/config.json", "config.json", "model.safetensors"));
  EXPECT_EQ(Run({"verify", "in", "lean"}), 1);
  EXPECT_THAT(err_, HasSubstr("checkpoint-5/optimizer.pt of the input is missing"));
  EXPECT_EQ(Run({"verify", "in", "lean", "--exclude", "checkpoint-*/", "--exclude", "token*"}), 0) << err_;
  ExpectError({"convert", "in", "out2", "--preset", "w8a16", "--exclude", "*.json"}, 2, "matches config.json");
  ExpectError({"plan", "in", "--preset", "w8a16", "--exclude", "../x"}, 2, "is not a pattern of files in IN");
}

TEST_F(AqtTest, PartsOfAModelAreRefused) {
  WriteShardedModel("set", DType::kF32);
  const std::string part = "set/model-00001-of-00002.safetensors";
  for (const std::vector<std::string>& tail : std::vector<std::vector<std::string>>{
           {"plan"}, {"convert", "out"}, {"convert", "out.safetensors"}, {"explain", "lm_head"}}) {
    std::vector<std::string> args = tail;
    args.insert(args.begin() + 1, part);
    args.insert(args.end(), {"--preset", "w8a16"});
    ExpectError(args, 2, "is one of the 2 files of a checkpoint");
  }
  EXPECT_EQ(Run({"inspect", part}), 0) << "a look does no harm";
}

TEST_F(AqtTest, DamagedInput) {
  WriteText("short.safetensors", "abc");
  std::string truncated = ReadText("in/model.safetensors");
  truncated.resize(truncated.size() - 1);
  WriteText("truncated.safetensors", truncated);
  for (const std::vector<std::string>& tail :
       std::vector<std::vector<std::string>>{{"inspect"},
                                             {"plan", "--preset", "w8a16"},
                                             {"convert", "out.safetensors", "--preset", "w8a16"},
                                             {"explain", "x", "--preset", "w8a16"}}) {
    for (const char* file : {"short.safetensors", "truncated.safetensors"}) {
      std::vector<std::string> args = tail;
      args.insert(args.begin() + 1, file);
      ExpectError(args, 3, file);
    }
  }
  ExpectError({"verify", "in", "truncated.safetensors"}, 3, "truncated.safetensors");
  WriteText("in/config.json", "{\"a\": 1,}");
  ExpectError({"convert", "in", "out", "--preset", "w8a16"}, 3, "in/config.json: line 1, column 9: ");
}

TEST_F(AqtTest, FileErrors) {
  ExpectError({"inspect", "gone"}, 4, "gone");
  ExpectError({"convert", "gone", "out", "--preset", "w8a16"}, 4, "gone");
  ExpectError({"convert", "in", "missing/out", "--preset", "w8a16"}, 4, "missing");
  ExpectError({"convert", "in", "/dev/full", "--preset", "w8a16"}, 4, "/dev/full");
  WriteText("there.safetensors", "x");
  ExpectError({"convert", "in", "there.safetensors", "--preset", "w8a16"}, 4, "--force");
  ExpectError({"convert", "in", "in", "--preset", "w8a16", "--force"}, 2, "is the input");
  ASSERT_TRUE(io::LocalFileSystem().CreateFolder("empty").ok());
  ExpectError({"inspect", "empty"}, 4, "empty");
}

TEST_F(AqtTest, UnsupportedSchemes) {
  WriteText("fp4.json", R"({"quantization_config": {"config_groups": {"group_0": {"targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "strategy": "channel"}}}}})");
  ExpectError({"convert", "in", "out", "--scheme-from", "fp4.json"}, 5, "floats of 4 bits");
  ExpectError({"plan", "in", "--scheme-from", "fp4.json"}, 5, "with scales in the dtype of the weight");
  ExpectError({"plan", "in", "--preset", "fp8_dynamic", "--rules", "aqt"}, 5,
              "AQT's weight rules are for integers; use integers, or the compressed_tensors rules");
}

TEST_F(AqtTest, ThreeDimensionalExperts) {
  NamedArrays tensors = SmallModel(DType::kF32);
  tensors.emplace_back("model.layers.0.mlp.experts.weight", MakeWeight(DType::kF32, {4, 32, 32}, 9));
  tensors.emplace_back("model.layers.0.mlp.experts.gate_up_proj", MakeWeight(DType::kF32, {4, 32, 32}, 10));
  WriteTensors("in/model.safetensors", tensors);
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  EXPECT_THAT(err_, AllOf(HasSubstr("warning: model.layers.0.mlp.experts.weight: only weights of rank 2"),
                          HasSubstr("warning: model.layers.0.mlp.experts.gate_up_proj: rank 3")));
  EXPECT_EQ(Run({"verify", "in", "out"}), 0) << err_;
  EXPECT_THAT(ReadText("out/config.json"), HasSubstr("\"model.layers.0.mlp.experts\"")) << "in `ignore`, for loaders";
  WriteText("experts.textproto",
            "schema: 1 rule { match: '.*experts' quantize { weights { num_bits: 8 per_channel {} } } }");
  ExpectError({"convert", "in", "out2", "--config", "experts.textproto"}, 5,
              "model.layers.0.mlp.experts.weight [4,32,32]");
}

TEST_F(AqtTest, ExpertsOfAKnownFamilyAreSplit) {
  ASSERT_TRUE(io::LocalFileSystem().CreateFolder("moe").ok());
  WriteTensors("moe/model.safetensors", {{"layers.0.experts.gate_up_proj", MakeWeight(DType::kBF16, {2, 64, 16}, 1)},
                                         {"layers.0.experts.down_proj", MakeWeight(DType::kBF16, {2, 16, 32}, 2)},
                                         {"layers.0.up_proj.weight", MakeWeight(DType::kBF16, {32, 16}, 3)}});
  WriteText("moe/config.json", R"({"model_type": "qwen3_moe"})");
  EXPECT_EQ(Run({"plan", "moe", "--preset", "w8a16"}), 0) << err_;
  constexpr char kSplit[] =
      "experts: 2 tensors with all experts of a layer split into 6 of single experts (model family Qwen MoE)\n";
  EXPECT_THAT(out_, AllOf(HasSubstr("layers.0.experts.1.up_proj.weight"), HasSubstr(kSplit)));
  EXPECT_EQ(Run({"plan", "moe", "--preset", "w8a16", "--json"}), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["tensors"].size(), 7u);
  EXPECT_THAT(std::string(nlohmann::json::parse(out_)["experts"]), HasSubstr("2 tensors with all experts"));
  EXPECT_EQ(Run({"convert", "moe", "out", "--preset", "w8a16"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(kSplit));
  EXPECT_EQ(Run({"verify", "moe", "out"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("7 weights quantized"));
  EXPECT_EQ(Run({"convert", "moe", "kept", "--preset", "w8a16", "--experts", "keep"}), 0) << err_;
  EXPECT_THAT(out_, ::testing::Not(HasSubstr("experts:")));
  EXPECT_THAT(err_, HasSubstr("carried over as it is; --experts keep"));
  EXPECT_EQ(Run({"verify", "moe", "kept"}), 0) << err_;
  EXPECT_EQ(Run({"explain", "moe", "layers.0.experts.down_proj", "--preset", "w8a16"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("split into one weight for each expert, from layers.0.experts.0.down_proj.weight to "
                              "layers.0.experts.1.down_proj.weight"));
  EXPECT_EQ(Run({"plan", "moe", "--preset", "w8a16", "--experts", "split", "--print-effective-config"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("experts: EXPERTS_SPLIT"));
  ExpectError({"plan", "moe", "--preset", "w8a16", "--experts", "fuse"}, 2, "--experts");
}

TEST_F(AqtTest, TiedEmbeddings) {
  NamedArrays tensors = SmallModel(DType::kF32);
  tensors.pop_back();  // lm_head
  WriteTensors("in/model.safetensors", tensors);
  WriteText("in/config.json", R"({"tie_word_embeddings": true})");
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  EXPECT_THAT(ReadText("out/config.json"), HasSubstr("\"ignore\": [\n      \"lm_head\"\n    ]"))
      << "though it is not stored";
  // Without the key, a model of this kind without a stored head is tied.
  WriteText("in/config.json", R"({"architectures": ["GemmaForCausalLM"]})");
  WriteText("embed.textproto",
            "schema: 1 rule { match: '.*embed_tokens' override_ignore: true quantize { weights { num_bits: 8 "
            "per_channel {} } } }");
  ExpectError({"convert", "in", "out2", "--config", "embed.textproto"}, 2,
              "model.embed_tokens.weight [16,32], by rule 1");
}

TEST_F(AqtTest, Explain) {
  EXPECT_EQ(Run({"explain", "in", "lm_head", "--preset", "w8a16"}), 0);
  EXPECT_EQ(out_,
            "lm_head.weight F32[16,32]\n  model family: plain (llama)\n  the module is: output head\n  rule 1 \"linear "
            "weights\": matches, but gives way to built-in ignore list "
            "(output head)\n"
            "  => carried over as it is\n");
  EXPECT_EQ(Run({"explain", "in", "model.layers.0.mlp.up_proj.weight", "--preset", "w8a16"}), 0);
  EXPECT_THAT(out_, HasSubstr("=> int8 per channel, pack-quantized"));
  WriteText("odd.textproto",
            "schema: 1 rule { match: '.*' quantize { weights { num_bits: 4 per_group { size: 48 } } } }");
  EXPECT_EQ(Run({"explain", "in", "model.layers.0.mlp.up_proj", "--config", "odd.textproto"}), 0);
  EXPECT_THAT(out_, HasSubstr("=> error: "));
  EXPECT_EQ(Run({"explain", "in", "up_proj", "--preset", "w8a16"}), 2);
  EXPECT_THAT(err_, HasSubstr("names that contain it: model.layers.0.mlp.up_proj.weight"));
}

TEST_F(AqtTest, Json) {
  EXPECT_EQ(Run({"inspect", "in", "--json", "--stats"}), 0);
  nlohmann::json json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["tensors"].size(), 6u);
  EXPECT_EQ(json["dtypes"]["F32"]["tensors"], 6);
  EXPECT_LT(json["tensors"][0]["min"].get<double>(), 0);
  EXPECT_EQ(Run({"plan", "in", "--json", "--preset", "w4a16_g32"}), 0);
  json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["num_quantized"], 2);
  EXPECT_EQ(json["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"], 32);
  EXPECT_EQ(json["copied"].size(), 2u);
  EXPECT_EQ(json["copied"][0]["name"], "1_Pooling/config.json");
  EXPECT_EQ(json["copied"][0]["bytes"], ReadText("in/1_Pooling/config.json").size());
  EXPECT_EQ(Run({"plan", "in", "--json", "--preset", "w4a16_g32", "--exclude", "1_Pooling/"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_)["copied"].size(), 1u);
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w4a16_g32", "--progress", "never"}), 0);
  EXPECT_EQ(Run({"verify", "in", "out", "--json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(out_)["weights"].size(), 2u);
}

TEST_F(AqtTest, AConfigurationThatPythonWrote) {
  const std::string before =
      "{\n    \"time_step_limit\": [0.0, Infinity],\n    \"x\": NaN,\n    \"id\": 36893488147419103232";
  WriteText("in/config.json", before + "\n}\n");
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a8_dynamic", "--progress", "never"}), 0) << err_;
  EXPECT_THAT(ReadText("out/config.json"), StartsWith(before + ",\n    \"quantization_config\": {\n"));
  EXPECT_EQ(Run({"verify", "in", "out"}), 0) << err_;
  EXPECT_EQ(Run({"convert", "in", "out2", "--scheme-from", "out", "--progress", "never"}), 0) << err_;
  WriteText("in/config.json", "\xef\xbb\xbf{}");
  ExpectError({"convert", "in", "out3", "--preset", "w8a16"}, 3, "in/config.json: line 1, column 1: a byte order mark");
}

TEST_F(AqtTest, QuantizedAlready) {
  ASSERT_EQ(Run({"convert", "in", "out", "--preset", "w8a16", "--progress", "never"}), 0);
  const std::string expected =
      "out is quantized already: it has a quantization_config of compressed-tensors; start from";
  ExpectError({"plan", "out", "--preset", "w8a16"}, 5, expected);
  ExpectError({"convert", "out", "out2", "--preset", "w8a16"}, 5, expected);
  ExpectError({"explain", "out", "lm_head", "--preset", "w8a16"}, 5, expected);
  WriteText("out/config.json", "{}");
  ExpectError({"plan", "out", "--preset", "w8a16"}, 5,
              "out is quantized already: the tensor model.layers.0.mlp.up_proj.");
}

TEST_F(AqtTest, DequantizeAndQuantizeAgain) {
  ASSERT_EQ(Run({"convert", "in", "out", "--preset", "w8a16", "--progress", "never"}), 0);
  EXPECT_EQ(Run({"dequantize", "out", "float", "--dtype", "bf16", "--progress", "never"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("tensors dequantized (compressed-tensors), "));
  EXPECT_THAT(ReadText("float/config.json"), HasSubstr("\"torch_dtype\": \"bfloat16\""));
  EXPECT_THAT(ReadText("float/config.json"), Not(HasSubstr("quantization_config")));
  EXPECT_EQ(Run({"plan", "float", "--preset", "w8a16"}), 0) << err_;
  ExpectError({"dequantize", "out", "float"}, 4, "the output float exists; --force replaces it");
  ExpectError({"dequantize", "in", "float2"}, 2, "in is not quantized: there is nothing to dequantize");
  EXPECT_EQ(Run({"dequantize", "out", "float2", "--dtype", "f64"}), 2);

  EXPECT_EQ(Run({"plan", "out", "--preset", "w8a8_dynamic", "--allow-requantize"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("warning: the input is quantized already (compressed-tensors)"));
  EXPECT_EQ(Run({"explain", "out", "lm_head", "--preset", "w8a16", "--allow-requantize"}), 0) << err_;
  EXPECT_EQ(Run({"convert", "out", "again", "--preset", "w8a8_dynamic", "--allow-requantize", "--progress", "never"}),
            0)
      << err_;
  EXPECT_THAT(err_, HasSubstr("warning: the input is quantized already (compressed-tensors)"));
  EXPECT_EQ(Run({"verify", "out", "again"}), 0) << err_;
}

TEST_F(AqtTest, AShardSizeThatCannotBeKept) {
  ExpectError({"convert", "in", "out.safetensors", "--preset", "w8a16", "--max-shard-size", "1kb"}, 2,
              "--max-shard-size 1000: the output is one file of ");
  EXPECT_EQ(
      Run({"convert", "in", "fits.safetensors", "--preset", "w8a16", "--max-shard-size", "1mb", "--progress", "never"}),
      0);
  EXPECT_THAT(err_, Not(HasSubstr("max-shard-size")));
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a16", "--max-shard-size", "1kb", "--progress", "never"}), 0);
  EXPECT_THAT(err_, HasSubstr("warning: model.layers.0.self_attn.q_proj.weight: its 3"));
  EXPECT_THAT(err_, HasSubstr("bytes stay in one file, which exceeds --max-shard-size 1000"));
}

TEST_F(AqtTest, CalibrationOfModulesThatDoNotExist) {
  const auto write = [](const std::vector<std::string>& modules) {
    NamedArrays ranges;
    for (const std::string& module : modules) {
      ranges.emplace_back(module + ".input_min", Array::Of<float>({-1}, {1}));
      ranges.emplace_back(module + ".input_max", Array::Of<float>({1}, {1}));
    }
    WriteTensors("ranges.safetensors", ranges);
  };
  const std::string up = "model.layers.0.mlp.up_proj", q = "model.layers.0.self_attn.q_proj";
  const std::vector<std::string> args = {
      "convert", "in", "out", "--preset", "w8a8_static", "--calibration", "ranges.safetensors", "--progress", "never"};
  EXPECT_EQ(Run({"plan", "in", "--preset", "w8a8_static"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("static activations of 2 weights: convert reads their ranges from --calibration FILE\n"));
  write({up, q, "lm_head"});
  EXPECT_EQ(Run(args), 0) << err_;
  EXPECT_EQ(err_, "warning: the calibration has ranges of modules without static activations: lm_head\n");
  write({up, q, "model.layers.1.q\n"});
  std::vector<std::string> force = args;
  force.push_back("--force");
  EXPECT_EQ(Run(force), 0);
  EXPECT_EQ(err_,
            "warning: the calibration has ranges of modules that the checkpoint does not have: model.layers.1.q\\n\n");
  force.push_back("--strict");
  ExpectError(force, 2, "that the checkpoint does not have: model.layers.1.q\\n (--strict)");
  write({up, "model.layers.0.attn.q_proj"});
  ExpectError(force, 2,
              absl::StrCat("missing for ", q,
                           "; the file has ranges of modules that do not exist: model.layers.0.attn.q_proj"));
}

// Names that would clear the screen, or look like another line.
TEST_F(AqtTest, NamesAreShownPrintable) {
  const std::string evil = "x\x1b[2J\x07\nerror: \xc2\x9b\xe2\x80\xae";
  NamedArrays tensors = SmallModel(DType::kF32);
  tensors.emplace_back(evil + ".weight", MakeWeight(DType::kF32, {4, 32}, 7));
  tensors.emplace_back(evil + ".odd.weight", MakeWeight(DType::kF32, {4, 33}, 8));
  tensors.emplace_back(evil + std::string(10000, 'y'), MakeWeight(DType::kF32, {4}, 9));
  WriteTensors("in/model.safetensors", tensors, {{evil, evil}});
  WriteText("in/" + evil, "");
  WriteText("in/pytorch_model" + evil + ".bin", "");
  WriteText("evil.json",
            "{\"config_groups\": {\"\\u001b[2J\": {\"targets\": [\"\\u009b\"], \"weights\": {}}, \"g\": "
            "{\"targets\": [\"re:x\"], \"weights\": {}}}, \"ignore\": [\"\\u0007\"]}");
  WriteTensors("ranges.safetensors", {{evil, MakeWeight(DType::kF32, {1}, 7)}});
  const std::vector<std::vector<std::string>> commands = {
      {"inspect", "in", "--stats"},
      {"inspect", "in", "--json"},
      {"plan", "in", "--preset", "w4a16_g32"},
      {"plan", "in", "--preset", "w4a16_g32", "--json"},
      {"plan", "in", "--scheme-from", "evil.json"},
      {"explain", "in", evil, "--preset", "w4a16_g32"},
      {"explain", "in", "x", "--preset", "w4a16_g32"},
      {"explain", "in", evil + "gone", "--preset", "w4a16_g32"},
      {"convert", "in", "out", "--preset", "w4a16_g32"},
      {"convert", "in", "out\x1b", "--preset", "w4a16_g32"},
      {"convert", "in", "static", "--preset", "w8a8_static"},
      {"convert", "in", "static", "--preset", "w8a8_static", "--calibration", "ranges.safetensors"},
      {"verify", "in", "out"},
      {"verify", "in", "out", "--min-snr", "90"},
      {"verify", "in", "out", "--json"},
      {"inspect", "out"},
      {"inspect", evil + "gone"},
      {evil},
      {"convert", "in", "out", "--" + evil},
      {"convert", "in", "out4", "--preset", evil},
      {"convert", "in", "out4", "--config", evil},
      {"config", evil},
      {"config", "convert", evil},
  };
  for (const std::vector<std::string>& args : commands) {
    Run(args);
    for (const std::string& text : {out_, err_}) {
      EXPECT_EQ(text.find_first_of("\x1b\x07\r\t"), std::string::npos) << absl::StrJoin(args, " ") << ": " << text;
      EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos) << absl::StrJoin(args, " ") << ": " << text;
      EXPECT_EQ(text.find("\xe2\x80\xae"), std::string::npos) << absl::StrJoin(args, " ") << ": " << text;
      EXPECT_EQ(text.find("\nerror: \\u009b"), std::string::npos) << absl::StrJoin(args, " ") << ": " << text;
    }
    if (args.back() == "--json") {
      EXPECT_TRUE(nlohmann::json::accept(out_)) << out_;
    } else {
      EXPECT_THAT(absl::StrCat(out_, err_), Not(HasSubstr(std::string(1000, 'y')))) << "far too long";
    }
  }
}

TEST_F(AqtTest, EffectiveConfigurationCanBeUsedAgain) {
  EXPECT_EQ(Run({"plan", "--preset", "w8a8_dynamic", "--print-effective-config"}), 0);
  WriteText("mine.textproto", out_);
  EXPECT_EQ(Run({"convert", "in", "a", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  EXPECT_EQ(Run({"convert", "in", "b", "--config", "mine.textproto", "--progress", "never"}), 0);
  EXPECT_EQ(ReadText("a/model.safetensors"), ReadText("b/model.safetensors"));
  EXPECT_EQ(Run({"convert", "--scheme-from", "a", "--print-effective-config"}), 0);
  WriteText("like.json", out_);
  EXPECT_EQ(Run({"convert", "in", "c", "--scheme-from", "like.json", "--progress", "never"}), 0);
  EXPECT_THAT(DifferentTensors("a", "c"), IsEmpty());
}

TEST_F(AqtTest, EffectiveConfigurationHasTheFlags) {
  EXPECT_EQ(Run({"convert", "--preset", "w8a16", "--rules", "aqt", "--non-finite", "keep", "--print-effective-config"}),
            0);
  EXPECT_THAT(out_, HasSubstr("weight_rules: WEIGHT_RULES_AQT"));
  EXPECT_THAT(out_, HasSubstr("non_finite: NON_FINITE_KEEP_FLOAT"));
  WriteText("mine.textproto", out_);
  EXPECT_EQ(Run({"plan", "--config", "mine.textproto", "--rules", "compressed_tensors", "--print-effective-config"}),
            0);
  EXPECT_THAT(out_, HasSubstr("weight_rules: WEIGHT_RULES_COMPRESSED_TENSORS"));
  EXPECT_EQ(Run({"convert", "in", "a", "--preset", "w8a8_dynamic", "--progress", "never"}), 0);
  ExpectError({"convert", "--scheme-from", "a", "--rules", "aqt", "--print-effective-config"}, 2,
              "cannot express --rules");
}

// One outlier, and every other row becomes zero.
TEST_F(AqtTest, LossIsSeen) {
  std::vector<float> values(64 * 64, 0.5f);
  values[3 * 64 + 3] = 30000;
  WriteTensors("a.safetensors", {{"m.weight", Array::FromSpan<float>(values, {64, 64})}});
  WriteText("t", "schema: 1 rule { match: '.*' quantize { weights { num_bits: 8 per_tensor {} } } }");
  EXPECT_EQ(Run({"convert", "a.safetensors", "o.safetensors", "--config", "t", "--progress", "never"}), 0);
  EXPECT_THAT(err_, HasSubstr("warning: m.weight: a single outlier, 30000 at [3,3], makes all other values 0"));
  EXPECT_EQ(Run({"verify", "a.safetensors", "o.safetensors", "--min-snr", "30"}), 0);
  EXPECT_THAT(out_, HasSubstr("worst row: 0.00 dB, row 0 of m.weight"));
  EXPECT_THAT(err_, HasSubstr("warning: m.weight: all values of 63 of 64 rows became 0; the first is row 0"));
  EXPECT_EQ(Run({"verify", "a.safetensors", "o.safetensors", "--min-snr", "30", "--min-row-snr", "20"}), 1);
  EXPECT_THAT(err_, HasSubstr("error: m.weight: row 0: SNR 0.00 dB is below 20 dB (63 of 64 rows are)"));
}

// As with an unset shell variable.
TEST_F(AqtTest, EmptyValuesAreErrors) {
  ExpectError({"verify", "in", "in", "--min-snr", ""}, 2, "--min-snr is empty");
  ExpectError({"verify", "in", "in", "--min-snr", "nan"}, 2, "--min-snr nan");
  ExpectError({"verify", "in", "in", "--min-row-snr", "nan"}, 2, "--min-row-snr nan");
  ExpectError({"verify", "in", "in", "--min-group-snr", ""}, 2, "--min-group-snr is empty");
  ExpectError({"plan", "in", "--preset", "w8a16", "--config", ""}, 2, "--config is empty");
  ExpectError({"convert", "in", "out", "--preset", "w8a16", "--calibration", ""}, 2, "--calibration is empty");
  ExpectError({"config", "inject", "int8_all", "--program", ""}, 2, "--program is empty");
  ExpectError({"inspect", ""}, 2, "IN is empty");
  ExpectError({"plan", "in", "--preset", "w8a16", "--config", "mine"}, 2, "got 2: leave out all but one");
}

TEST_F(AqtTest, PrintsAndDrawsASavedProgram) {
  const absl::StatusOr<Program> program = Trace(
      [](absl::Span<const Value> in) {
        const NamedScope scope("mlp/fc");
        return std::vector<Value>{ops::AqtDotGeneral(in[0], in[1], MatMulDims(), DotGeneralMake(8, 8))};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {1, 64}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {64, 10}}}});
  WriteText("model.aqtprog", *SaveProgram(*program, ops::ProgramCodecs()));
  EXPECT_EQ(Run({"program", "model.aqtprog"}), 0);
  EXPECT_EQ(out_, ToText(*program));
  EXPECT_EQ(Run({"program", "model.aqtprog", "--draw", "dot"}), 0);
  EXPECT_THAT(out_, HasSubstr("label=\"aqt_dot_general\\nint8 * int8\\nf32[1,10]\", fillcolor=\"#bfe3b8\""));
  EXPECT_EQ(Run({"program", "model.aqtprog", "--draw", "svg", "--depth", "1"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr(">1 equation</text>"), HasSubstr(">@mlp</text>")));
  EXPECT_EQ(Run({"program", "model.aqtprog", "--json"}), 0);
  const nlohmann::json report = nlohmann::json::parse(out_);
  EXPECT_EQ(report["inputs"][1], nlohmann::json::parse(R"({"variable": 1, "dtype": "f32", "shape": [64, 10],
                                                           "kind": "param", "name": "w"})"));
  ASSERT_EQ(report["equations"].size(), 1u);
  EXPECT_EQ(report["equations"][0]["operation"], "aqt_dot_general");
  EXPECT_EQ(report["equations"][0]["scope"], "mlp/fc");
  EXPECT_EQ(report["equations"][0]["inputs"], nlohmann::json({0, 1}));
  EXPECT_EQ(report["outputs"][0]["variable"], report["equations"][0]["outputs"][0]["variable"]);
  ExpectError({"program", "model.aqtprog", "--json", "--draw", "dot"}, 2, "give one of them");
  ExpectError({"program", "model.aqtprog", "--depth", "1"}, 2, "add --draw svg or --draw dot");
  ExpectError({"program", "model.aqtprog", "--draw", "png"}, 2, "png");
  ExpectError({"program", "missing.aqtprog"}, 4, "missing.aqtprog");
  WriteText("model.aqtprog", "no program");
  ExpectError({"program", "model.aqtprog"}, 3, "model.aqtprog: byte 0: no saved program begins so");
}

TEST_F(AqtTest, WhatInjectWouldDoToAProgram) {
  WriteText("model.txt",
            "in %0: f32[1,64] data \"x\"\n"
            "in %1: f32[64,10] param \"fc/kernel\"\n"
            "%2: f32[1,10] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @fc\n"
            "out %2 data \"logits\"\n");
  WriteText("rules.textproto", "schema: 1 rules { name: 'all' dot_general { base: 'int8_fwd' } }");
  EXPECT_EQ(Run({"config", "inject", "rules.textproto", "--program", "model.txt"}), 0);
  EXPECT_EQ(out_,
            "dot_general: 1 of 1 quantized\n"
            "  dot_general [fc] (f32[1,64], f32[64,10]): rule \"all\": lhs int8:s8, rhs int8:s8\n");
  WriteText("rules.textproto", "schema: 1 rules { name: 'none' scope: 'other' dot_general { base: 'int8_fwd' } }");
  EXPECT_EQ(Run({"config", "inject", "rules.textproto", "--program", "model.txt"}), 2);
  EXPECT_THAT(out_, HasSubstr("[fc] (f32[1,64], f32[64,10]): no rule\nrule \"none\" hit nothing\n"));
  EXPECT_THAT(err_, HasSubstr("rule \"none\" hit nothing, which is an error unless the configuration has strict"));
  WriteText("rules.textproto", "schema: 1 rules { name: 'all' dot_general { base: 'int8_fwd' } }");
  const absl::StatusOr<Program> program =
      Trace([](absl::Span<const Value> in) { return std::vector<Value>{ops::MatMul(in[0], in[1])}; },
            {{{SlotKind::kData, "x"}, {DType::kF32, {1, 64}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {64, 10}}}});
  const std::string saved = *SaveProgram(*program);
  WriteText("model.aqtprog", saved);
  EXPECT_EQ(Run({"config", "inject", "rules.textproto", "--program", "model.aqtprog"}), 0);
  EXPECT_THAT(out_, HasSubstr("(f32[1,64], f32[64,10]): rule \"all\": lhs int8:s8, rhs int8:s8\n"));
  // The shapes are checked, and names do not act on a terminal.
  const absl::StatusOr<Program> bytes = Trace(
      [](absl::Span<const Value> in) {
        const NamedScope scope("\x1b[31mred");
        return std::vector<Value>{ops::DotGeneral(in[0], in[1], {{1}, {0}, {}, {}}, DType::kS32)};
      },
      {{{SlotKind::kData, "x"}, {DType::kS8, {1, 64}}}, {{SlotKind::kParam, "w"}, {DType::kS8, {64, 10}}}});
  WriteText("bytes.aqtprog", *SaveProgram(*bytes));
  EXPECT_EQ(Run({"config", "inject", "rules.textproto", "--program", "bytes.aqtprog"}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("bytes.aqtprog: "), HasSubstr("s8, expected f32, bf16 or f16")));
  EXPECT_EQ(Run({"program", "bytes.aqtprog"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("\\x1b[31mred"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(Run({"program", "bytes.aqtprog", "--draw", "svg"}), 0);
  EXPECT_THAT(out_, Not(HasSubstr("\x1b")));
  WriteText("model.aqtprog", saved.substr(0, saved.size() - 1));
  EXPECT_EQ(Run({"config", "inject", "rules.textproto", "--program", "model.aqtprog"}), 3);
  EXPECT_THAT(err_, AllOf(HasSubstr("model.aqtprog: byte "), HasSubstr("the file ends within a record")));
  WriteText("model.txt", "no program");
  EXPECT_EQ(Run({"config", "inject", "rules.textproto", "--program", "model.txt"}), 2);
  EXPECT_THAT(err_, HasSubstr("model.txt: line 1, \"no program\": this is not a line of a program's text"));
  EXPECT_EQ(Run({"config", "dot_general", "int8_fwd", "--program", "model.txt"}), 2);
  EXPECT_THAT(err_, HasSubstr("aqt config inject SOURCE --program FILE"));
  EXPECT_NE(Run({"config", "inject", "rules.textproto", "--program", "missing.txt"}), 0);
  EXPECT_THAT(err_, HasSubstr("missing.txt"));
}

TEST_F(AqtTest, ProgressGoesToStandardError) {
  EXPECT_EQ(Run({"convert", "in", "out", "--preset", "w8a8_dynamic"}), 0);
  EXPECT_THAT(err_, Not(HasSubstr("\r"))) << "no bar without a terminal";
}

TEST_F(AqtTest, AFullStandardOutput) {
  std::ofstream full("/dev/full");
  std::ostringstream err;
  EXPECT_EQ(AqtMain({"inspect", "in"}, io::LocalFileSystem(), {full, err}), 4);
  EXPECT_THAT(err.str(), HasSubstr("standard output cannot be written"));
}

TEST_F(AqtTest, AReaderThatLeavesIsNoError) {
  ASSERT_EQ(Run({"convert", "in", "out", "--preset", "w8a16", "--progress", "never"}), 0);
  std::ofstream full("/dev/full");
  for (const bool gone : {false, true}) {
    const auto run = [&](const std::vector<std::string>& args, std::ostream& err) {
      return AqtMain(args, io::LocalFileSystem(),
                     {full, err, false, nullptr, gone ? +[] { return true; } : +[] { return false; }});
    };
    std::ostringstream err;
    EXPECT_EQ(run({"inspect", "in"}, err), gone ? 0 : 4);
    EXPECT_EQ(err.str(), gone ? "" : "error: standard output cannot be written\n");
    EXPECT_EQ(run({"verify", "in", "out", "--min-snr", "1000"}, err), 1) << "the result counts";
  }
}

TEST_F(AqtTest, Interrupted) {
  const std::vector<std::string> before = ListTree(root_);
  const std::atomic<bool> interrupted{true};
  std::ostringstream out, err;
  EXPECT_EQ(
      AqtMain({"convert", "in", "out", "--preset", "w8a16"}, io::LocalFileSystem(), {out, err, false, &interrupted}),
      130);
  EXPECT_THAT(err.str(), HasSubstr("interrupted"));
  EXPECT_EQ(ListTree(root_), before);
}

TEST_F(AqtTest, InterruptedWhileItReads) {
  ASSERT_EQ(Run({"convert", "in", "out", "--preset", "w8a16", "--progress", "never"}), 0);
  const std::atomic<bool> interrupted{true};
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"verify", "in", "out"},
                                             {"inspect", "in", "--stats"},
                                             {"inspect", "in"},
                                             {"plan", "in", "--preset", "w8a16"},
                                             {"explain", "in", "lm_head", "--preset", "w8a16"}}) {
    std::ostringstream out, err;
    EXPECT_EQ(AqtMain(args, io::LocalFileSystem(), {out, err, false, &interrupted}), 130) << args[0];
    EXPECT_EQ(out.str(), "") << args[0];
    EXPECT_EQ(err.str(), "error: interrupted\n") << args[0];
  }
}

TEST(ExitCodeTest, FollowsFromTheStatus) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), ExitCode::kOk);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), ExitCode::kMalformedInput);
  EXPECT_EQ(ExitCodeOf(absl::UnimplementedError("")), ExitCode::kUnsupported);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError("")), ExitCode::kInterrupted);
  for (const auto code :
       {absl::StatusCode::kNotFound, absl::StatusCode::kAlreadyExists, absl::StatusCode::kPermissionDenied,
        absl::StatusCode::kResourceExhausted, absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnknown}) {
    EXPECT_EQ(ExitCodeOf(absl::Status(code, "x")), ExitCode::kFile);
  }
  EXPECT_EQ(ExitCodeOf(OutputError(absl::DataLossError("x"))), ExitCode::kFile);
  EXPECT_EQ(ExitCodeOf(UsageError(absl::NotFoundError("x"))), ExitCode::kUsage);
}

TEST_F(AqtTest, ConfigPrintsTheWholeConfiguration) {
  for (const char* kind : {"dot_general", "inject", "convert"}) {
    ASSERT_EQ(Run({"config", kind}), 0);
    std::istringstream presets(out_);
    int count = 0;
    for (std::string name; std::getline(presets, name); ++count) {
      ASSERT_EQ(Run({"config", kind, name}), 0) << err_;
      const std::string whole = out_;
      EXPECT_THAT(whole, Not(HasSubstr("base:"))) << kind << " " << name;
      // The printed text is the same configuration.
      std::ofstream("whole.textproto") << whole;
      ASSERT_EQ(Run({"config", kind, "whole.textproto"}), 0) << err_;
      EXPECT_EQ(out_, whole) << kind << " " << name;
    }
    EXPECT_GT(count, 1) << kind;
  }
  std::ofstream("my.textproto") << "schema: 1\nbase: \"config_v4\"\nfwd { lhs { dequant_mode: 7 } }\n";
  ExpectError({"config", "dot_general", "my.textproto"}, 2, "my.textproto:3:");
  ExpectError({"config", "dot_general", "no_such"}, 2,
              "no_such is neither a file nor a preset of dot_general; presets are");
  ExpectError({"config", "layers"}, 2, "layers");
}

}  // namespace
}  // namespace aqt::serving
