// Conversions of files of PyTorch, NumPy and flax, as their own libraries wrote them.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/convert/convert_job.h"
#include "serving/convert/job_test_util.h"
#include "serving/convert/model_input.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTestData[] = "aqt/io/containers/testdata";

class OtherContainers : public JobTest {
 protected:
  void Copy(absl::string_view name, const std::string& to) {
    io::LocalFileSystem().CreateFolder(At("in")).IgnoreError();  // it may exist
    ASSERT_TRUE(io::CopyFile(io::LocalFileSystem(), io::JoinPath(kTestData, name), At(to)).ok());
  }
  ConvertJob Preset(const std::string& preset) {
    ConvertJob job;
    job.input = At("in");
    job.output = At("out");
    job.recipe.preset = preset;
    return job;
  }
  absl::StatusOr<ConvertReport> Run(const ConvertJob& job) { return RunConvertJob(io::LocalFileSystem(), job); }
  absl::StatusOr<io::Checkpoint> Open(const std::string& name) {
    return io::Checkpoint::Open(io::LocalFileSystem(), At(name), InputFiles(io::LocalFileSystem()));
  }
};

// Property: the container does not change the output.
TEST_F(OtherContainers, TheSameOutputAsFromSafetensors) {
  Copy("state_dict.bin", "in/pytorch_model.bin");
  absl::StatusOr<ConvertReport> report = Run(Preset("w8a16"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_quantized, 1);
  EXPECT_THAT(ListTree(At("out")), ElementsAre("config.json", "model.safetensors"));
  ASSERT_TRUE(io::LocalFileSystem().Remove(At("in/pytorch_model.bin")).ok());
  Copy("state_dict.bin.safetensors", "in/model.safetensors");
  ConvertJob job = Preset("w8a16");
  job.output = At("from_safetensors");
  report = Run(job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(DifferentTensors(At("out"), At("from_safetensors")), IsEmpty());
}

TEST_F(OtherContainers, ShardsAreNamedAsSafetensors) {
  Copy("state_dict.bin", "in/pytorch_model-00001-of-00002.bin");
  Copy("training.pth", "in/pytorch_model-00002-of-00002.bin");
  const absl::StatusOr<ConvertReport> report = Run(Preset("w8a16"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(ListTree(At("out")), ElementsAre("config.json", "model-00001-of-00002.safetensors",
                                               "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
  EXPECT_THAT(report->warnings, Contains(HasSubstr("are left out: 4 values are not tensors")));
  const absl::StatusOr<io::Checkpoint> out = Open("out");
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_NE(out->Find("0.weight_packed"), nullptr);
  EXPECT_NE(out->Find("model.transposed"), nullptr);
}

TEST_F(OtherContainers, RawElementsNeedATypeOfTheirOwn) {
  Copy("bfloat16.npz", "in/weights.npz");
  ConvertJob job = Preset("w8a16");
  EXPECT_THAT(Run(job).status().message(), HasSubstr("--dtype bf16"));
  job.raw_dtype = io::FileDType::kBF16;
  EXPECT_THAT(Run(job).status().message(), HasSubstr("nothing"));  // has no .weight
}

TEST_F(OtherContainers, ServingTreeOfAqt) {
  for (const int bits : {8, 4}) {
    ConvertJob job;
    job.input = io::JoinPath(kTestData, absl::StrCat("frozen_int", bits, ".msgpack"));
    job.output = At(absl::StrCat("out", bits));
    const absl::StatusOr<ConvertReport> report = Run(job);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->num_quantized, 2);
    EXPECT_THAT(report->warnings, Contains(HasSubstr("2 float kernels are left out")));
    EXPECT_THAT(report->warnings, Contains(HasSubstr("dynamic per token")));
    EXPECT_THAT(ReadText(io::JoinPath(job.output, "config.json")),
                AllOf(HasSubstr("\"format\": \"int-quantized\""), HasSubstr(absl::StrCat("\"num_bits\": ", bits)),
                      HasSubstr("\"targets\": ["), HasSubstr("\"Dense_1\"")));
    const absl::StatusOr<io::Checkpoint> out = io::Checkpoint::Open(io::LocalFileSystem(), job.output);
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->tensors().size(), 7u);
    EXPECT_EQ(out->Find("Dense_0.weight")->dtype, io::FileDType::kI8);
    EXPECT_EQ(out->Find("Dense_0.weight")->shape, Shape({6, 8}));
    EXPECT_EQ(out->Find("Dense_0.weight_scale")->shape, Shape({6, 1}));

    // Read as floats, the tree and the output are the same: value times scale.
    ConvertJob floats = job;
    floats.dequantize_to = DType::kF32;
    floats.output = At(absl::StrCat("floats", bits));
    ASSERT_TRUE(Run(floats).ok()) << Run(floats).status();
    floats.input = job.output;
    floats.output = At(absl::StrCat("floats_of_output", bits));
    ASSERT_TRUE(Run(floats).ok());
    EXPECT_THAT(DifferentTensors(At(absl::StrCat("floats", bits)), floats.output), IsEmpty());
    const Array value = Cast(*out->ReadArray("Dense_0.weight"), DType::kF32);
    const Array scale = *out->ReadArray("Dense_0.weight_scale");
    const Array product = *io::Checkpoint::Open(io::LocalFileSystem(), floats.output)->ReadArray("Dense_0.weight");
    for (int64_t i = 0; i < 48; ++i) {
      EXPECT_EQ(product.View<float>()[i], value.View<float>()[i] * scale.View<float>()[i / 8]);
    }
  }
}

TEST_F(OtherContainers, AFlaxModelWithoutFrozenValues) {
  Copy("flax_bert.msgpack", "in/flax_model.msgpack");
  absl::StatusOr<ConvertReport> report = Run(Preset("w8a16"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_quantized, 7);
  // Property: the same output as from the same model in PyTorch's names.
  ASSERT_TRUE(io::LocalFileSystem().Remove(At("in/flax_model.msgpack")).ok());
  Copy("flax_bert.msgpack.torch.safetensors", "in/model.safetensors");
  ConvertJob job = Preset("w8a16");
  job.output = At("from_torch");
  report = Run(job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(DifferentTensors(At("out"), At("from_torch")), IsEmpty());
}

TEST_F(OtherContainers, ServingTreesWithARecipe) {
  ConvertJob job = Preset("w8a16");
  job.input = io::JoinPath(kTestData, "frozen_legacy_int8.msgpack");
  const absl::StatusOr<ConvertReport> refused = Run(job);
  EXPECT_TRUE(absl::IsUnimplemented(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("without a preset writes them as they are"));
  job.allow_requantize = true;
  const absl::StatusOr<ConvertReport> report = Run(job);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_quantized, 3);
  // Without one, only such trees are converted.
  Copy("state_dict.bin", "in/pytorch_model.bin");
  EXPECT_THAT(Run(Preset("")).status().message(), HasSubstr("exactly one of --preset"));
}

}  // namespace
}  // namespace aqt::serving
