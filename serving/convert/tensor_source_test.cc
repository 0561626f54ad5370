// Plans, conversions and comparisons of tensors that do not come from a safetensors file.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/compare/inspect.h"
#include "serving/compare/verify.h"
#include "serving/convert/carried_files.h"
#include "serving/convert/convert.h"
#include "serving/convert/job_test_util.h"
#include "serving/convert/output.h"
#include "serving/plan/plan.h"
#include "serving/plan/recipe.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::IsEmpty;

const io::FileSystem& Fs() { return io::LocalFileSystem(); }

class TensorSourceTest : public JobTest {
 protected:
  // Converts in memory, without other files.
  absl::Status ConvertMemory(const io::MemoryTensorSource& source, const RecipeSource& recipe_source,
                             OutputPlace place) {
    const absl::StatusOr<Recipe> recipe = LoadRecipe(Fs(), recipe_source);
    if (!recipe.ok()) return recipe.status();
    CheckpointPlanOptions options;
    options.single_file = place.is_file;
    const absl::StatusOr<Plan> plan = MakePlan(source, ModelConfig(), *recipe, options);
    if (!plan.ok()) return plan.status();
    return Convert(Fs(), source, CarriedFiles(), *plan, *recipe, Calibration(), place, ConvertOptions());
  }
};

TEST_F(TensorSourceTest, AConversionFromMemoryEqualsTheOneFromFiles) {
  NamedArrays tensors = SmallModel(DType::kBF16);
  tensors.emplace_back("large.weight", MakeWeight(DType::kF32, {2500, 512}, 7));  // 5 MB: several blocks
  const io::Metadata metadata = {{"format", "pt"}, {"made_by", "a test"}};
  ASSERT_TRUE(Fs().CreateFolder(At("in")).ok());
  WriteTensors(At("in/model.safetensors"), tensors, metadata);
  std::reverse(tensors.begin(), tensors.end());  // the order is the writer's, not the source's
  const io::MemoryTensorSource source("memory", tensors, metadata);
  for (const char* base : {"w8a8_dynamic", "w4a16_g32", "fp8_block128"}) {
    SCOPED_TRACE(base);
    ConvertJob job = Job(absl::StrCat("schema: 1 base: '", base, "'"));
    for (const bool is_file : {false, true}) {
      const std::string suffix = absl::StrCat(base, is_file ? ".safetensors" : "");
      job.output = At(absl::StrCat("files_", suffix));
      const absl::Status from_files = RunConvertJob(Fs(), job).status();
      ASSERT_TRUE(from_files.ok()) << from_files;
      OutputPlace place;
      place.path = place.target = At(absl::StrCat("memory_", suffix));
      place.is_file = is_file;
      const absl::Status from_memory = ConvertMemory(source, job.recipe, place);
      ASSERT_TRUE(from_memory.ok()) << from_memory;
      if (is_file) {
        EXPECT_TRUE(ReadText(place.path) == ReadText(job.output));
        continue;
      }
      const std::vector<std::string> files = ListTree(place.path);
      EXPECT_EQ(files, ListTree(job.output));
      for (const std::string& file : files) {
        EXPECT_TRUE(ReadText(io::JoinPath(place.path, file)) == ReadText(io::JoinPath(job.output, file))) << file;
      }
    }
  }
  EXPECT_LE(source.largest_read(), 1 << 20) << "blocks of rows, not whole weights";
}

TEST_F(TensorSourceTest, ErrorsNameTheSource) {
  const io::MemoryTensorSource source("memory.gguf", {{"a.weight", Array::Zeros(DType::kS8, {4, 4})}});
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  const absl::Status status = ConvertMemory(source, job.recipe, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StartsWith(status.message(), "memory.gguf is quantized already")) << status;
}

TEST_F(TensorSourceTest, AnOutputIsComparedWithMemory) {
  NamedArrays tensors = SmallModel(DType::kF32);
  ConvertJob job = Job("schema: 1 base: 'w8a8_dynamic'");
  OutputPlace place;
  place.path = place.target = job.output;
  const io::MemoryTensorSource source("memory", tensors);
  ASSERT_TRUE(ConvertMemory(source, job.recipe, place).ok());
  const io::Checkpoint out = *io::Checkpoint::Open(Fs(), job.output);
  absl::StatusOr<VerifyReport> report = Verify(Fs(), source, CarriedFiles(), out, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_EQ(report->weights.size(), 2u);
  tensors.back().second = MakeWeight(DType::kF32, tensors.back().second.shape(), 99);  // lm_head.weight, copied
  report = Verify(Fs(), io::MemoryTensorSource("memory", tensors), CarriedFiles(), out, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->problems.size(), 1u);
}

TEST_F(TensorSourceTest, InspectListsMemory) {
  const io::MemoryTensorSource source("memory", SmallModel(DType::kF16), {{"key", "value"}});
  InspectOptions options;
  options.stats = true;
  const absl::StatusOr<InspectReport> report = Inspect(source, ModelConfig(), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->path, "memory");
  EXPECT_EQ(report->tensors.size(), source.tensors().size());
  EXPECT_EQ(report->bytes, source.total_bytes());
  EXPECT_EQ(report->metadata.size(), 1u);
  EXPECT_TRUE(report->tensors[0].stats.has_value());
}

}  // namespace
}  // namespace aqt::serving
