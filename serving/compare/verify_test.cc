#include "serving/compare/verify.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "aqt/core/array_ops.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/convert/convert_job.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

class VerifyTest : public FolderTest {
 protected:
  void Convert(const std::string& preset) {
    ConvertJob job;
    job.recipe.preset = preset;
    RunJob(std::move(job));
  }
  // Converts with one rule for all weights.
  void ConvertBy(const std::string& weights) {
    WriteText(At("config.textproto"),
              "schema: 1 default_ignore: false rule { match: '.*' quantize { weights { " + weights + " } } }");
    ConvertJob job;
    job.recipe.config_file = At("config.textproto");
    RunJob(std::move(job));
  }
  void RunJob(ConvertJob job) {
    job.input = At("in");
    job.output = At("out");
    job.force = true;
    const absl::Status status = RunConvertJob(Fs(), job).status();
    ASSERT_TRUE(status.ok()) << status;
  }
  void WriteInput(const NamedArrays& tensors) {
    ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
    WriteTensors(At("in/model.safetensors"), tensors);
  }
  absl::StatusOr<VerifyReport> Run(VerifyOptions options = {}) {
    const io::Checkpoint in = *io::Checkpoint::Open(Fs(), At("in")), out = *io::Checkpoint::Open(Fs(), At("out"));
    return Verify(Fs(), in, *FilesToCarry(in), out, options);
  }
  // Rewrites the output's tensors, changed by `edit`.
  template <class Edit>
  void EditOutput(Edit edit) {
    NamedArrays tensors;
    {
      const io::Checkpoint out = *io::Checkpoint::Open(Fs(), At("out"));
      for (const auto& tensor : out.tensors()) tensors.emplace_back(tensor.name, *out.ReadArray(tensor));
    }
    edit(tensors);
    WriteTensors(At("out/model.safetensors"), tensors);
  }
};

TEST_F(VerifyTest, FiguresByHand) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  // absmax 127.5: scale 1. 0.25 and 100.5 (a tie, to 100) are off by 0.25 and 0.5, 127.5 by 0.5.
  WriteTensors(At("in/model.safetensors"), {{"a.weight", Array::Of<float>({127.5f, 0.25f, 100.5f, -3}, {1, 4})}});
  Convert("w8a8_dynamic");
  const VerifyReport report = *Run();
  EXPECT_THAT(report.problems, IsEmpty());
  ASSERT_EQ(report.weights.size(), 1u);
  const double ww = 127.5 * 127.5 + 0.25 * 0.25 + 100.5 * 100.5 + 9, ee = 0.25 * 0.25 + 0.5 * 0.5 + 0.5 * 0.5;
  const double dd = 127.0 * 127 + 100 * 100 + 9, wd = 127.5 * 127 + 100.5 * 100 + 9;
  EXPECT_NEAR(report.weights[0].snr_db, 10 * std::log10(ww / ee), 1e-9);
  EXPECT_NEAR(report.weights[0].cosine, wd / std::sqrt(ww * dd), 1e-12);
  EXPECT_EQ(report.weights[0].max_abs_error, 0.5);
  EXPECT_EQ(report.weights[0].clipped_percent, 0);
}

constexpr double kExact = std::numeric_limits<double>::infinity();

// One scale of 100: 0.25 and 100 become 0 and 100.
TEST_F(VerifyTest, TheWorstRow) {
  WriteInput({{"a.weight", Array::Of<float>({0, 0, 12750, 100, 25, 30, 0, -25, 25, 200}, {5, 2})}});
  ConvertBy("num_bits: 8 per_tensor {}");
  const VerifyReport report = *Run({.min_row_snr_db = 10});
  ASSERT_EQ(report.weights.size(), 1u);
  const WeightQuality& weight = report.weights[0];
  EXPECT_GT(weight.snr_db, 40);
  EXPECT_EQ(weight.rows.count, 5);
  EXPECT_EQ(weight.rows.worst_snr_db, 0);
  EXPECT_EQ(weight.rows.worst, 2) << "a row of zeros is exact";
  EXPECT_EQ(weight.rows.below, 2);
  EXPECT_EQ(weight.rows.zeroed, 2);
  EXPECT_EQ(weight.rows.first_zeroed, 2);
  EXPECT_EQ(weight.rows.lone, 1);
  EXPECT_EQ(weight.rows.first_lone, 4);
  EXPECT_FALSE(weight.groups.has_value());
  EXPECT_THAT(report.problems, ElementsAre("a.weight: row 2: SNR 0.00 dB is below 10 dB (2 of 5 rows are)"));
  EXPECT_THAT(report.warnings, ElementsAre("a.weight: all values of 2 of 5 rows became 0; the first is row 2",
                                           "a.weight: all values but one of 1 of 5 rows became 0; the first is row 4"));
  EXPECT_THAT(Run({.min_snr_db = 30})->problems, IsEmpty());
  EXPECT_THAT(Run({.min_row_snr_db = 0})->problems, IsEmpty());
  EXPECT_EQ(Run({.min_row_snr_db = std::nan("")})->weights[0].rows.below, 5) << "no row reaches a threshold of NaN";
  std::ostringstream out;
  PrintVerify(report, out);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("  worst row    cosine"), HasSubstr("  0.00, row 2  "),
                               HasSubstr("\nworst row: 0.00 dB, row 2 of a.weight\n"), Not(HasSubstr("group"))));
  const nlohmann::json json = nlohmann::json::parse(VerifyToJson(report));
  EXPECT_EQ(json["weights"][0]["worst_row"],
            nlohmann::json::parse(R"({"snr_db": 0, "row": 2, "of": 5, "below": 2, "zeroed": 2})"));
  EXPECT_EQ(json["weights"][0]["worst_group"], nullptr);
  EXPECT_EQ(json["warnings"].size(), 2u);
}

TEST_F(VerifyTest, TheWorstGroup) {
  // Scales of 2: 14 and 2 have codes, 1 becomes 0 (a tie), 3 becomes 4.
  WriteInput({{"a.weight", Array::Of<float>({15, 2, 15, 2, 15, 3, 15, 2, 15, 1, 0, 0}, {3, 4})}});
  ConvertBy("num_bits: 4 per_group { size: 2 }");
  const VerifyReport report = *Run({.min_group_snr_db = 23.7});
  const WeightQuality& weight = report.weights[0];
  ASSERT_TRUE(weight.groups.has_value());
  EXPECT_EQ(weight.groups->count, 6);
  EXPECT_EQ(weight.groups->worst, 4);
  EXPECT_NEAR(weight.groups->worst_snr_db, 10 * std::log10((15. * 15 + 1) / 2), 1e-9);
  EXPECT_EQ(weight.groups->below, 5) << "all but the zeros";
  EXPECT_EQ(weight.rows.worst, 2);
  EXPECT_NEAR(weight.rows.worst_snr_db, 10 * std::log10((15. * 15 + 1) / 2), 1e-9);
}

TEST_F(VerifyTest, TheWorstBlockAtTheEdge) {
  // Blocks of 2 x 2: the last column and the last row form their own blocks. 17 becomes 16.
  WriteInput({{"a.weight", Array::Of<float>({448, 2, 448, 4, 2, 2, 448, 17, 448}, {3, 3})}});
  ConvertBy("num_bits: 8 type: NUMBER_TYPE_FLOAT per_block { rows: 2 columns: 2 }");
  const VerifyReport report = *Run({.min_group_snr_db = 60});
  const PartsQuality& blocks = *report.weights[0].groups;
  EXPECT_EQ(blocks.count, 4);
  EXPECT_EQ(blocks.worst, 2);
  EXPECT_NEAR(blocks.worst_snr_db, 10 * std::log10(448. * 448 + 17 * 17), 1e-9);
  EXPECT_EQ(blocks.below, 1);
  EXPECT_THAT(report.problems,
              ElementsAre("a.weight: block [2:3,0:2]: SNR 53.03 dB is below 60 dB (1 of 4 blocks are)"));
  std::ostringstream out;
  PrintVerify(report, out);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("worst group or block"), HasSubstr("53.03, [2:3,0:2]")));
  EXPECT_EQ(nlohmann::json::parse(VerifyToJson(report))["weights"][0]["worst_group"]["at"], "[2:3,0:2]");
}

TEST_F(VerifyTest, ExactWeightsHaveNoWorstRow) {
  WriteInput({{"a.weight", Array::Of<float>({0, 0, 0, 0}, {2, 2})}});
  ConvertBy("num_bits: 8 per_group { size: 2 }");
  const VerifyReport report = *Run({.min_row_snr_db = 100, .min_group_snr_db = 100});
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(report.warnings, IsEmpty());
  EXPECT_EQ(report.weights[0].rows.worst_snr_db, kExact);
  EXPECT_EQ(report.weights[0].groups->worst_snr_db, kExact);
  std::ostringstream out;
  PrintVerify(report, out);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("exact      exact"), Not(HasSubstr("worst row:"))));
}

// Rows with a high SNR, dominated by their largest value.
TEST_F(VerifyTest, ValuesBesideAnOutlier) {
  std::vector<float> values(4 * 8, 1.0f);
  for (int row : {1, 3}) values[row * 8 + row] = 10000;
  WriteInput({{"a.weight", Array::FromSpan<float>(values, {4, 8})}});
  Convert("w8a16");
  const VerifyReport report = *Run();
  EXPECT_GT(report.weights[0].rows.worst_snr_db, 40);
  EXPECT_THAT(report.warnings, ElementsAre("a.weight: all values but one of 2 of 4 rows became 0; the first is row 1"));
}

TEST_F(VerifyTest, EveryPresetVerifies) {
  WriteSmallModel(At("in"), DType::kBF16);
  const std::pair<const char*, double> presets[] = {
      {"w8a8_dynamic", 35}, {"w8a16", 35}, {"w4a16_g32", 12}, {"w4a8_g32", 12}, {"fp8_dynamic", 28}};
  for (const auto& [preset, min_snr_db] : presets) {
    Convert(preset);
    for (const int jobs : {1, 4}) {
      VerifyOptions options;
      options.jobs = jobs;
      options.min_snr_db = min_snr_db;
      const VerifyReport report = *Run(options);
      EXPECT_THAT(report.problems, IsEmpty()) << preset;
      EXPECT_EQ(report.weights.size(), 2u);
      EXPECT_EQ(report.num_carried, 4);
      EXPECT_LE(report.weights[0].snr_db, report.weights[1].snr_db);
      for (const WeightQuality& w : report.weights) EXPECT_GT(w.cosine, 0.97);
    }
  }
}

TEST_F(VerifyTest, NamesTheWeightsBelowTheThreshold) {
  WriteSmallModel(At("in"), DType::kF32);
  Convert("w4a16_g32");
  VerifyOptions options;
  options.min_snr_db = 90;
  const VerifyReport report = *Run(options);
  EXPECT_THAT(report.problems,
              ElementsAre(HasSubstr("mlp.up_proj.weight: SNR"), HasSubstr("self_attn.q_proj.weight: SNR")));
  options.min_snr_db = std::nan("");
  EXPECT_EQ(Run(options)->problems.size(), 2u) << "no weight reaches a threshold of NaN";
}

TEST_F(VerifyTest, FindsWhatDoesNotAgree) {
  WriteSmallModel(At("in"), DType::kF32);
  const auto problems = [&](auto edit) {
    Convert("w8a8_dynamic");
    EditOutput(edit);
    return Run()->problems;
  };
  const std::string up = "model.layers.0.mlp.up_proj.";
  const auto find = [](NamedArrays& tensors, const std::string& name) -> Array& {
    for (auto& [n, array] : tensors) {
      if (n == name) return array;
    }
    ADD_FAILURE() << name;
    return tensors[0].second;
  };
  EXPECT_THAT(problems([&](NamedArrays& t) {
                find(t, "lm_head.weight") = Array::Zeros(DType::kF32, {16, 32});
              }),
              ElementsAre(HasSubstr("lm_head.weight differs from the input at byte 0")));
  EXPECT_THAT(problems([&](NamedArrays& t) {
                find(t, "lm_head.weight") = Array::Zeros(DType::kBF16, {16, 32});
              }),
              ElementsAre(HasSubstr("lm_head.weight was F32[16,32] and is BF16[16,32]")));
  EXPECT_THAT(
      problems([&](NamedArrays& t) { std::erase_if(t, [](const auto& x) { return x.first == "lm_head.weight"; }); }),
      ElementsAre(HasSubstr("lm_head.weight is missing")));
  EXPECT_THAT(problems([&](NamedArrays& t) { t.emplace_back("more", Array::Zeros(DType::kF32, {1})); }),
              ElementsAre(HasSubstr("more is in the output")));
  EXPECT_THAT(problems([&](NamedArrays& t) {
                std::erase_if(t, [&](const auto& x) { return x.first == up + "weight_scale"; });
              }),
              ElementsAre(HasSubstr("weight_scale is missing")));
  EXPECT_THAT(problems([&](NamedArrays& t) { find(t, up + "weight_scale") = Array::Zeros(DType::kF32, {7}); }),
              ElementsAre(HasSubstr("weight_scale is F32[7]")));
  EXPECT_THAT(problems([&](NamedArrays& t) {
                find(t, up + "weight_scale") =
                    Cast(Array::FromSpan<float>(std::vector<float>(7, INFINITY), {7, 1}), DType::kF32);
              }),
              ElementsAre(HasSubstr("weight_scale holds a NaN or an infinity")));
  EXPECT_THAT(problems([&](NamedArrays& t) {
                find(t, up + "weight") = Array::Zeros(DType::kF32, {7, 32});
              }),
              ElementsAre(HasSubstr("up_proj.weight is F32[7,32]")));
}

TEST_F(VerifyTest, FindsMissingFilesAndOtherWeights) {
  WriteSmallModel(At("in"), DType::kF32);
  ASSERT_TRUE(Fs().CreateFolder(At("in/2_Dense")).ok());
  WriteTensors(At("in/2_Dense/model.safetensors"), {{"linear.weight", MakeWeight(DType::kF32, {4, 8}, 1)}});
  WriteText(At("in/pytorch_model.bin"), "not carried over");
  Convert("w8a8_dynamic");
  EXPECT_THAT(Run()->problems, IsEmpty());
  WriteTensors(At("out/2_Dense/model.safetensors"), {{"linear.weight", MakeWeight(DType::kF32, {4, 8}, 2)}});
  EXPECT_THAT(Run()->problems, ElementsAre("the file 2_Dense/model.safetensors differs from the input's"));
  ASSERT_TRUE(Fs().Remove(At("out/2_Dense/model.safetensors")).ok());
  ASSERT_TRUE(Fs().Remove(At("out/tokenizer.json")).ok());
  EXPECT_THAT(Run()->problems, ElementsAre("the file 2_Dense/model.safetensors of the input is missing from the output",
                                           "the file tokenizer.json of the input is missing from the output"));
}

TEST_F(VerifyTest, FindsValuesOutsideTheirBits) {
  WriteSmallModel(At("in"), DType::kF32);
  Convert("w4a8_g32");
  EditOutput([](NamedArrays& tensors) {
    for (auto& [name, array] : tensors) {
      if (name == "model.layers.0.mlp.up_proj.weight")
        array = Array::FromSpan<int8_t>(std::vector<int8_t>(7 * 32, 8), {7, 32});
    }
  });
  EXPECT_THAT(Run()->problems, ElementsAre(HasSubstr("up_proj.weight holds 8, which does not fit in 4 bits")));
}

TEST_F(VerifyTest, CountsClippedValues) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  WriteTensors(At("in/model.safetensors"), {{"a.weight", Array::Of<float>({127.5f, -127.5f, 2, 1}, {1, 4})}});
  Convert("w8a8_dynamic");
  EditOutput([](NamedArrays& tensors) {
    for (auto& [name, array] : tensors) {
      if (name == "a.weight_scale") array = Array::Of<float>({0.5f}, {1, 1});
    }
  });
  EXPECT_EQ(Run()->weights[0].clipped_percent, 50);
}

TEST_F(VerifyTest, FloatsInBlocks) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  // The scales of the blocks of 2 x 2 are 1, 2 and 1, 1. 17 becomes 16; the others have codes.
  WriteTensors(At("in/model.safetensors"),
               {{"a.weight", Array::Of<float>({448, 17, 896, 2, 3, 4, 448, -8, 448}, {3, 3})}});
  WriteText(At("config.textproto"),
            "schema: 1 rule { match: '.*' quantize { weights { num_bits: 8 type: NUMBER_TYPE_FLOAT "
            "per_block { rows: 2 columns: 2 } } } }");
  ConvertJob job;
  job.input = At("in");
  job.output = At("out");
  job.recipe.config_file = At("config.textproto");
  ASSERT_TRUE(RunConvertJob(Fs(), job).ok());
  const VerifyReport report = *Run();
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.weights[0].max_abs_error, 1);
  EXPECT_EQ(report.weights[0].clipped_percent, 0);
  const auto edit = [&](const std::string& name, const Array& to) {
    EditOutput([&](NamedArrays& tensors) {
      for (auto& [n, array] : tensors) {
        if (n == name) array = to;
      }
    });
    return *Run();
  };
  // The largest value of each block is at the end. With half its scale 896 is far away, with 15/16 of it 448 only by
  // 28; the last step is 32 scales.
  const VerifyReport clipped = edit("a.weight_scale", Array::Of<float>({0.9375f, 1, 1, 1}, {2, 2}));
  EXPECT_EQ(clipped.weights[0].clipped_percent, 100.0 / 9);
  std::vector<Float8E4M3FN> values(9);
  values[4].bits = 0xff;
  EXPECT_THAT(edit("a.weight", Array::FromSpan<Float8E4M3FN>(values, {3, 3})).problems,
              Contains(HasSubstr("a.weight holds a NaN")));
}

TEST_F(VerifyTest, AFloatOutputIsNoQuantizedCheckpoint) {
  WriteSmallModel(At("in"), DType::kF32);
  WriteSmallModel(At("out"), DType::kF32);
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kDataLoss);
  // Its config.json claims that it is quantized, but it is not.
  WriteText(At("out/config.json"),
            R"({"quantization_config": {"config_groups": {"group_0": {"targets": ["nothing"], "weights": {}}}}})");
  EXPECT_THAT(Run()->problems, ElementsAre(HasSubstr("no weight is quantized")));
}

TEST_F(VerifyTest, MeanOfTheFiniteOnes) {
  VerifyReport report;
  for (const double snr : {std::nan(""), -double{INFINITY}, 10.0, 20.0, double{INFINITY}}) {
    WeightQuality weight;
    weight.name = "w";
    weight.snr_db = weight.cosine = weight.max_abs_error = snr;
    report.weights.push_back(weight);
  }
  std::ostringstream out;
  PrintVerify(report, out);
  EXPECT_THAT(out.str(), HasSubstr("5 weights quantized, SNR from 10.00 dB, mean 15.00 dB (3 without a finite SNR: "
                                   "1 exact, 2 NaN or -inf); 0 tensors"));
  const nlohmann::json json = nlohmann::json::parse(VerifyToJson(report));
  EXPECT_EQ(json["mean_snr_db"], 15);
  EXPECT_EQ(json["num_finite_snr"], 2);
  const nlohmann::json expected[] = {nullptr, "-inf", 10, 20, "inf"};
  for (size_t i = 0; i < 5; ++i) {
    for (const char* key : {"snr_db", "cosine", "max_abs_error"}) EXPECT_EQ(json["weights"][i][key], expected[i]) << i;
  }
  report.weights = {report.weights.back()};  // only exact ones
  EXPECT_EQ(nlohmann::json::parse(VerifyToJson(report))["mean_snr_db"], nullptr);
  std::ostringstream exact;
  PrintVerify(report, exact);
  EXPECT_THAT(exact.str(), HasSubstr("1 weights quantized (1 without a finite SNR: 1 exact, 0 NaN or -inf)"));
}

TEST_F(VerifyTest, WhatCannotBeComparedIsAProblem) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  const auto write = [&](float last) {
    WriteTensors(At("in/model.safetensors"), {{"a.weight", Array::Of<float>({2, 1, 0.3f, 1}, {1, 4})},
                                              {"b.weight", Array::Of<float>({2, 1, 0.3f, last}, {1, 4})},
                                              {"c.weight", Array::Of<float>({2, 1, 0.2f, 1}, {1, 4})}});
  };
  write(1);
  Convert("w8a8_dynamic");
  EXPECT_THAT(Run()->problems, IsEmpty());
  for (const float bad : {std::nanf(""), INFINITY}) {
    write(bad);
    const VerifyReport report = *Run();
    EXPECT_THAT(report.problems, ElementsAre("b.weight: the original or its stored form holds a NaN or an "
                                             "infinity"));
    ASSERT_EQ(report.weights.size(), 3u);
    EXPECT_EQ(report.weights[0].name, "b.weight") << "it goes first";
  }
}

TEST_F(VerifyTest, ScalesOfEightBits) {
  WriteInput({{"l.attn.q_proj.weight", MakeWeight(DType::kF32, {8, 64}, 1)},
              {"l.attn.k_proj.weight", MakeWeight(DType::kF32, {8, 64}, 2)}});
  for (const auto& [preset, least] :
       {std::pair("mxfp4a16", 15), {"nvfp4a16", 18}, {"mxfp6a16", 28}, {"mxfp8a16", 28}, {"NVFP4A16", 18}}) {
    Convert(preset);
    const absl::StatusOr<VerifyReport> report = Run();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->problems, IsEmpty());
    EXPECT_THAT(report->warnings, IsEmpty());
    ASSERT_EQ(report->weights.size(), 2u);
    EXPECT_GT(report->weights[0].snr_db, least) << preset;
    EXPECT_TRUE(report->weights[0].groups.has_value());
  }
  EditOutput([](NamedArrays& tensors) {
    for (auto& [name, array] : tensors) {
      if (name == "l.attn.k_proj.weight_global_scale") array = Array::Of<float>({2}, {1});
    }
  });
  const VerifyReport report = *Run();
  EXPECT_THAT(report.warnings,
              ElementsAre(AllOf(HasSubstr("l.attn.q_proj.weight: its global scale is "),
                                HasSubstr("that of l.attn.k_proj.weight is 2; servers compute both"))));
  EditOutput([](NamedArrays& tensors) {
    for (auto& [name, array] : tensors) {
      if (name == "l.attn.k_proj.weight_global_scale") array = Array::Of<float>({0}, {1});
    }
  });
  EXPECT_THAT(Run()->problems, ElementsAre(HasSubstr("l.attn.k_proj.weight_global_scale is 0; a positive")));
}

TEST_F(VerifyTest, ModulesOfAnyName) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  NamedArrays tensors;
  for (const char* module : {"Dense_0", "Dense_1", "Linear", "Embedding", "layers/0", "re:x", "Linear.0"}) {
    tensors.emplace_back(std::string(module) + ".weight", MakeWeight(DType::kF32, {4, 32}, tensors.size()));
  }
  WriteTensors(At("in/model.safetensors"), tensors);
  // With one scheme: the class, except the ignored modules. With two: every module by name.
  const std::string int8 = "quantize { weights { num_bits: 8 per_channel {} } }";
  const std::string int4 = "quantize { weights { num_bits: 4 per_group { size: 32 } } }";
  const std::pair<std::string, size_t> cases[] = {
      {"schema: 1 ignore: 'Linear' ignore: '[r]e:x' rule { match: '.*' " + int8 + " }", 4},
      {"schema: 1 rule { match: 'Embedding' override_ignore: true " + int8 + " } rule { match: '.*' " + int8 + " }", 7},
      {"schema: 1 rule { match: 'Dense_.*|Linear|re:x' " + int8 + " } rule { match: '.*' override_ignore: true " +
           int4 + " }",
       7},
  };
  for (const auto& [config, quantized] : cases) {
    WriteText(At("config.textproto"), config);
    ConvertJob job;
    job.input = At("in");
    job.output = At("out");
    job.recipe.config_file = At("config.textproto");
    job.force = true;
    const absl::Status status = RunConvertJob(Fs(), job).status();
    ASSERT_TRUE(status.ok()) << status;
    const absl::StatusOr<VerifyReport> report = Run();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->problems, IsEmpty()) << config;
    EXPECT_EQ(report->weights.size(), quantized) << config;
    EXPECT_THAT(ReadText(At("out/config.json")), Not(HasSubstr("\"re:x\"")));
  }
  EXPECT_THAT(ReadText(At("out/config.json")), AllOf(HasSubstr("\"Dense_0\""), HasSubstr("\"re:^Linear$\"")));
}

TEST_F(VerifyTest, NamesInProblemsArePrintable) {
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  const std::string name = "a\x1b[2J\n.bias";
  WriteTensors(At("in/model.safetensors"),
               {{"a.weight", MakeWeight(DType::kF32, {4, 32}, 1)}, {name, MakeWeight(DType::kF32, {4}, 2)}});
  Convert("w8a8_dynamic");
  EditOutput([&](NamedArrays& tensors) { std::erase_if(tensors, [&](const auto& x) { return x.first == name; }); });
  EXPECT_THAT(Run()->problems, ElementsAre("a\\x1b[2J\\n.bias is missing from the output"));
}

TEST_F(VerifyTest, PrintsOneLinePerWeight) {
  WriteSmallModel(At("in"), DType::kF32);
  Convert("w8a8_dynamic");
  std::ostringstream out;
  PrintVerify(*Run(), out);
  EXPECT_THAT(out.str(), HasSubstr("2 weights quantized, SNR from "));
  EXPECT_THAT(out.str(), HasSubstr("4 tensors carried over, equal byte for byte"));
  EXPECT_THAT(VerifyToJson(*Run()), HasSubstr("\"snr_db\": "));
}

}  // namespace
}  // namespace aqt::serving
