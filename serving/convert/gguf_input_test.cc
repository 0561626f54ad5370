// A GGUF model as the input of conversions.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/gguf/gguf_source.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/job_test_util.h"
#include "serving/convert/model_input.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Written and read by gguf 0.19.0 and transformers: blocks of several types.
constexpr char kLlama[] = "tests/golden/gguf/llama";

class GgufInputTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    job_.input = io::JoinPath(kLlama, "model.gguf");
    job_.output = At("out");
  }
  std::string Refusal() { return std::string(RunConvertJob(fs_, job_).status().message()); }

  const io::FileSystem& fs_ = io::LocalFileSystem();
  ConvertJob job_;
};

TEST_F(GgufInputTest, DequantizesToTheNamesAndValuesOfTransformers) {
  job_.dequantize_to = DType::kF32;
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->num_dequantized, 0);
  EXPECT_LT(report->old_bytes, report->new_bytes);
  EXPECT_THAT(report->input_format, HasSubstr("gguf: "));
  EXPECT_THAT(ReadText(At("out/config.json")), HasSubstr("\"model_type\": \"llama\""));
  const io::Checkpoint out = *io::Checkpoint::Open(fs_, At("out"));
  EXPECT_EQ(out.stem(), "model");
  const io::SafetensorsReader want = *io::SafetensorsReader::Open(fs_, io::JoinPath(kLlama, "dequantized.safetensors"));
  ASSERT_THAT(want.tensors(), Not(IsEmpty()));
  for (const io::TensorInfo& tensor : want.tensors()) {
    const absl::StatusOr<Array> stored = out.ReadArray(tensor.name);
    ASSERT_TRUE(stored.ok()) << stored.status();
    const Array got = Cast(*stored, DType::kF32);
    const Array expected = *want.ReadArray(tensor);
    ASSERT_EQ(got.shape(), expected.shape()) << tensor.name;
    for (int64_t i = 0; i < expected.num_elements(); ++i) {
      ASSERT_EQ(got.View<float>()[i], expected.View<float>()[i]) << tensor.name << " " << i;  // as numbers
    }
  }
}

TEST_F(GgufInputTest, QuantizesAgainOnlyOnRequest) {
  job_.recipe.preset = "w8a16";
  const absl::Status status = RunConvertJob(fs_, job_).status();
  EXPECT_TRUE(absl::IsUnimplemented(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.gguf is quantized already (gguf: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--allow-requantize"));
  job_.allow_requantize = true;
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->num_quantized, 0);
  EXPECT_THAT(report->warnings, ::testing::Contains(HasSubstr("the input is quantized already (gguf: ")));
  EXPECT_THAT(ReadText(At("out/config.json")), HasSubstr("\"quantization_config\""));
}

TEST_F(GgufInputTest, TheSameBytesForAnyNumberOfJobs) {
  job_.dequantize_to = DType::kBF16;
  ASSERT_TRUE(RunConvertJob(fs_, job_).ok());
  job_.output = At("again");
  job_.jobs = 5;
  ASSERT_TRUE(RunConvertJob(fs_, job_).ok());
  EXPECT_EQ(ReadText(At("out/model.safetensors")), ReadText(At("again/model.safetensors")));
}

TEST_F(GgufInputTest, TheNamesOfTheFileOnRequest) {
  job_.dequantize_to = DType::kF16;
  job_.gguf_names = gguf::Names::kFile;
  job_.output = At("out.safetensors");
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NE(io::Checkpoint::Open(fs_, job_.output)->Find("token_embd.weight"), nullptr);
}

TEST_F(GgufInputTest, TheOtherFilesOfAFolderAreCopied) {
  ASSERT_TRUE(fs_.CreateFolder(At("in")).ok());
  ASSERT_TRUE(io::CopyFile(fs_, job_.input, At("in/any-name.gguf")).ok());
  WriteText(At("in/tokenizer.json"), "{}");
  WriteText(At("in/config.json"), "{\"model_type\": \"other\"}");
  job_.input = At("in");
  job_.dequantize_to = DType::kF32;
  const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(ReadText(At("out/tokenizer.json")), "{}");
  EXPECT_THAT(ReadText(At("out/config.json")), HasSubstr("\"model_type\": \"llama\""));
  EXPECT_THAT(report->warnings, ::testing::Contains(HasSubstr("config.json was not copied")));
}

// The same model, split by gguf 0.19.0 into four files, the first of which has no tensor.
constexpr char kSplit[] = "tests/golden/gguf/llama_split";

TEST_F(GgufInputTest, ASetOfFilesIsOneModel) {
  job_.dequantize_to = DType::kF32;
  ASSERT_TRUE(RunConvertJob(fs_, job_).ok());
  for (const std::string& in : {std::string(kSplit), io::JoinPath(kSplit, "model-00003-of-00004.gguf")}) {
    job_.input = in;
    job_.output = At(std::string(io::BaseName(in)));
    const absl::StatusOr<ConvertReport> report = RunConvertJob(fs_, job_);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->num_dequantized, 14);
    EXPECT_THAT(ListTree(job_.output),
                ElementsAre("config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                            "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
    EXPECT_THAT(DifferentTensors(At("out"), job_.output), IsEmpty());
  }
}

TEST_F(GgufInputTest, WhatASetLacksIsNamed) {
  ASSERT_TRUE(fs_.CreateFolder(At("in")).ok());
  for (const char* name : {"model-00001-of-00004.gguf", "model-00002-of-00004.gguf", "model-00004-of-00004.gguf"}) {
    ASSERT_TRUE(io::CopyFile(fs_, io::JoinPath(kSplit, name), io::JoinPath(At("in"), name)).ok());
  }
  job_.dequantize_to = DType::kF32;
  job_.input = At("in");
  EXPECT_THAT(Refusal(), HasSubstr("lacks 1 of 4 files of a checkpoint (model-00003-of-00004.gguf)"));
  job_.input = At("in/model-00001-of-00004.gguf");
  EXPECT_THAT(Refusal(), HasSubstr("is part 1 of 4, and part 3 is missing"));
  // A file of another place in the set.
  ASSERT_TRUE(io::CopyFile(fs_, At("in/model-00002-of-00004.gguf"), At("in/model-00003-of-00004.gguf")).ok());
  for (const std::string& in : {At("in"), At("in/model-00001-of-00004.gguf")}) {
    job_.input = in;
    EXPECT_THAT(Refusal(), HasSubstr("is part 3 of 4 by its name, but its metadata has split.no 1"));
  }
}

TEST_F(GgufInputTest, ADamagedFileIsNamed) {
  WriteText(At("bad.gguf"), "GGUF and no more");
  job_.input = At("bad.gguf");
  job_.dequantize_to = DType::kF32;
  EXPECT_THAT(Refusal(), HasSubstr("bad.gguf"));
}

}  // namespace
}  // namespace aqt::serving
