#include "serving/compare/diff.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/checkpoint.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/io/tensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/compare/diff_files.h"
#include "serving/compare/element_values.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Array Floats(const std::vector<float>& values) {
  return Array::FromSpan(absl::MakeConstSpan(values), {static_cast<int64_t>(values.size())});
}

DiffReport Compare(const Array& a, const Array& b, const DiffOptions& options = {}) {
  const io::MemoryTensorSource source_a("a", {{"w", a}}), source_b("b", {{"w", b}});
  absl::StatusOr<DiffReport> report = Diff(source_a, source_b, options);
  EXPECT_TRUE(report.ok()) << report.status();
  return *std::move(report);
}

TEST(DiffTest, NumbersAreComparedAsNumbers) {
  const DiffReport report = Compare(Floats({0.0f, kNan, kInf, 1}), Floats({-0.0f, -kNan, kInf, 1}));
  EXPECT_TRUE(report.same());
  EXPECT_EQ(report.num_equal, 1);
  EXPECT_EQ(report.num_other_bytes, 1);
  DiffOptions bitwise;
  bitwise.bitwise = true;
  const DiffReport bytes = Compare(Floats({0.0f, kNan, kInf, 1}), Floats({-0.0f, -kNan, kInf, 1}), bitwise);
  ASSERT_EQ(bytes.different.size(), 1u);
  EXPECT_EQ(bytes.different[0].count, 16);
  EXPECT_EQ(bytes.different[0].different, 2) << "two sign bits";
  EXPECT_EQ(bytes.different[0].first, 3);
  EXPECT_EQ(bytes.different[0].snr_db, std::nullopt);
}

TEST(DiffTest, Figures) {
  const DiffReport report = Compare(Floats({3, 4, kNan, 0, kInf}), Floats({3, 4.5, 1, 0, -kInf}));
  ASSERT_EQ(report.different.size(), 1u);
  const TensorDiff& diff = report.different[0];
  EXPECT_TRUE(diff.compared);
  EXPECT_EQ(diff.count, 5);
  EXPECT_EQ(diff.different, 3);
  EXPECT_EQ(diff.first, 1);
  EXPECT_EQ(diff.non_finite, 2);
  EXPECT_EQ(diff.max_abs_difference, 0.5);
  EXPECT_EQ(*diff.snr_db, 10 * std::log10(25 / 0.25));
}

TEST(DiffTest, AnotherDtypeIsADifferenceWithFigures) {
  const Array a = Floats({1, 1.00390625f});  // the second is not a bf16
  DiffReport report = Compare(a, Cast(a, DType::kBF16));
  ASSERT_EQ(report.different.size(), 1u);
  EXPECT_EQ(report.different[0].different, 1);
  EXPECT_EQ(report.different[0].max_abs_difference, 0.00390625);
  const Array exact = Floats({1, 2});
  report = Compare(exact, Cast(exact, DType::kF16));
  ASSERT_EQ(report.different.size(), 1u);
  EXPECT_EQ(report.different[0].different, 0);
  EXPECT_EQ(*report.different[0].snr_db, std::numeric_limits<double>::infinity());
  DiffOptions options;
  options.ignore_dtypes = true;
  EXPECT_TRUE(Compare(exact, Cast(exact, DType::kF16), options).same());
}

TEST(DiffTest, AnotherShapeIsNotCompared) {
  const DiffReport report = Compare(Floats({1, 2}), Floats({1, 2, 3}));
  ASSERT_EQ(report.different.size(), 1u);
  EXPECT_FALSE(report.different[0].compared);
}

TEST(DiffTest, SixtyFourBitIntegersAreExact) {
  const int64_t large = (int64_t{1} << 53) + 1;  // a double would round it
  const DiffReport report = Compare(Array::Of<int64_t>({0, large}, {2}), Array::Of<int64_t>({0, large - 1}, {2}));
  ASSERT_EQ(report.different.size(), 1u);
  EXPECT_EQ(report.different[0].different, 1);
  EXPECT_EQ(report.different[0].max_abs_difference, 1);
  EXPECT_EQ(report.different[0].snr_db, std::nullopt) << "no floats";
}

// Tensors of more than one piece; the sums are added in a fixed order.
TEST(DiffTest, TheReportDoesNotDependOnJobs) {
  const Array a = MakeWeight(DType::kF32, {700, 3001}, 1);
  std::vector<float> changed(a.View<float>().begin(), a.View<float>().end());
  for (size_t i = 5; i < changed.size(); i += 977) changed[i] += 1;
  const Array b = Array::FromSpan(absl::MakeConstSpan(changed), a.shape());
  const io::MemoryTensorSource source_a("a", {{"equal", MakeWeight(DType::kF32, {3, 5}, 2)}, {"w", a}});
  const io::MemoryTensorSource source_b("b", {{"equal", MakeWeight(DType::kF32, {3, 5}, 2)}, {"w", b}});
  std::string first;
  for (const bool bitwise : {false, true}) {
    for (const int jobs : {1, 2, 7}) {
      DiffOptions options;
      options.bitwise = bitwise;
      options.jobs = jobs;
      const absl::StatusOr<DiffReport> report = Diff(source_a, source_b, options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->num_equal, 1);
      ASSERT_EQ(report->different.size(), 1u);
      if (!bitwise) {
        EXPECT_EQ(report->different[0].different, (700 * 3001 - 5 + 976) / 977);
        EXPECT_EQ(report->different[0].first, 5);
      }
      if (jobs == 1) first = DiffToJson(*report);
      EXPECT_EQ(DiffToJson(*report), first) << jobs;
    }
  }
  EXPECT_LE(source_a.largest_read(), 256 << 10);
}

TEST(DiffTest, AnInterruptEndsIt) {
  const std::atomic<bool> cancelled{true};
  const io::MemoryTensorSource source("a", {{"w", Floats({1})}});
  DiffOptions options;
  options.cancelled = &cancelled;
  EXPECT_TRUE(absl::IsCancelled(Diff(source, source, options).status()));
}

template <class T>
std::vector<T> Values(io::FileDType dtype, const std::vector<uint8_t>& bytes, size_t n) {
  std::vector<T> values(n);
  ElementValues<T>(dtype, bytes, absl::MakeSpan(values));
  return values;
}

// From the definitions of the types.
TEST(ElementValuesTest, TypesWithoutAnArray) {
  using io::FileDType;
  EXPECT_THAT(Values<double>(FileDType::kF4, {0x10, 0x72, 0xf9}, 6), ElementsAre(0, 0.5, 1, 6, -0.5, -6));
  // Codes 1, 8, 31, 32 + 31, six bits each.
  EXPECT_THAT(Values<double>(FileDType::kF6E2M3, {0x01, 0xf2, 0xfd}, 4), ElementsAre(0.125, 1, 7.5, -7.5));
  EXPECT_THAT(Values<double>(FileDType::kF6E3M2, {0x01, 0xf2, 0xfd}, 4), ElementsAre(0.0625, 0.5, 28, -28));
  EXPECT_THAT(Values<double>(FileDType::kF8E8M0, {0, 127, 128}, 3), ElementsAre(std::ldexp(1, -127), 1, 2));
  EXPECT_TRUE(std::isnan(Values<double>(FileDType::kF8E8M0, {255}, 1)[0]));
  EXPECT_THAT(Values<double>(FileDType::kF8E4M3FNUZ, {0x01, 0x40, 0x7f, 0xc0}, 4),
              ElementsAre(std::ldexp(1, -10), 1, 240, -1));
  EXPECT_TRUE(std::isnan(Values<double>(FileDType::kF8E4M3FNUZ, {0x80}, 1)[0]));
  EXPECT_THAT(Values<double>(FileDType::kF8E5M2FNUZ, {0x40, 0x7f}, 2), ElementsAre(1, 57344));
  EXPECT_THAT(Values<double>(FileDType::kU16, {0xff, 0xff}, 1), ElementsAre(65535));
  EXPECT_THAT(Values<double>(FileDType::kC64, {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}, 2), ElementsAre(1, -2));
  EXPECT_EQ(Values<long double>(FileDType::kU64, std::vector<uint8_t>(8, 0xff), 1)[0], 18446744073709551615.0L);
}

class DiffFilesTest : public FolderTest {
 protected:
  DiffReport Compare(const std::string& a, const std::string& b) {
    const io::Checkpoint checkpoint_a = *io::Checkpoint::Open(fs_, At(a)),
                         checkpoint_b = *io::Checkpoint::Open(fs_, At(b));
    absl::StatusOr<DiffReport> report = Diff(checkpoint_a, checkpoint_b, {});
    EXPECT_TRUE(report.ok()) << report.status();
    const absl::Status status = DiffFiles(fs_, checkpoint_a, checkpoint_b, false, nullptr, *report);
    EXPECT_TRUE(status.ok()) << status;
    return *std::move(report);
  }
  const io::FileSystem& fs_ = io::LocalFileSystem();
};

TEST_F(DiffFilesTest, EqualFolders) {
  WriteSmallModel(At("a"), DType::kF32);
  WriteShardedModel(At("b"), DType::kF32);
  const DiffReport report = Compare("a", "b");
  EXPECT_TRUE(report.same());
  EXPECT_EQ(report.num_equal, 6);
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("the tensors are in 1 and in 2 files")));
}

TEST_F(DiffFilesTest, MissingAndExtraTensors) {
  NamedArrays tensors = SmallModel(DType::kF32);
  WriteTensors(At("a.safetensors"), tensors);
  tensors.pop_back();
  tensors.emplace_back("new", MakeWeight(DType::kBF16, {2, 3}, 1));
  WriteTensors(At("b.safetensors"), tensors);
  const DiffReport report = Compare("a.safetensors", "b.safetensors");
  ASSERT_EQ(report.only_a.size(), 1u);
  EXPECT_EQ(report.only_a[0].name, "lm_head.weight");
  ASSERT_EQ(report.only_b.size(), 1u);
  EXPECT_EQ(report.only_b[0].name, "new");
  EXPECT_THAT(report.different, IsEmpty());
  std::ostringstream text;
  PrintDiff(report, text);
  EXPECT_EQ(text.str(),
            "only in A: lm_head.weight F32[16,32]\nonly in B: new BF16[2,3]\n"
            "5 tensors equal, 0 differ, 1 only in A, 1 only in B\n");
}

TEST_F(DiffFilesTest, ConfigurationsByKey) {
  WriteSmallModel(At("a"), DType::kF32);
  WriteSmallModel(At("b"), DType::kF32);
  WriteText(At("a/config.json"), R"({"same": [1, 2], "x": 1, "text": {"size": 3, "gone": null}, "n": NaN})");
  WriteText(At("b/config.json"), R"({"n": NaN, "text": {"size": "3"}, "x": 1.0, "same": [1, 2], "new": true})");
  const DiffReport report = Compare("a", "b");
  std::vector<std::string> lines;
  for (const ConfigDiff& diff : report.config) lines.push_back(absl::StrCat(diff.key, ": ", diff.a, " ", diff.b));
  EXPECT_THAT(lines, ElementsAre("text.size: 3 \"3\"", "text.gone: null ", "new:  true"));
  EXPECT_FALSE(report.same());
}

TEST_F(DiffFilesTest, MetadataAndOtherFilesAreNotes) {
  WriteSmallModel(At("a"), DType::kF32);
  WriteSmallModel(At("b"), DType::kF32);
  WriteTensors(At("a/model.safetensors"), SmallModel(DType::kF32), {{"format", "pt"}, {"k", "1"}});
  WriteTensors(At("b/model.safetensors"), SmallModel(DType::kF32), {{"k", "2\x1b"}});
  WriteText(At("a/only"), "x");
  WriteText(At("b/tokenizer.json"), "{ }");
  const DiffReport report = Compare("a", "b");
  EXPECT_TRUE(report.same());
  EXPECT_THAT(report.notes,
              ElementsAre("metadata format: \"pt\" in A, absent in B", "metadata k: \"1\" in A, \"2\\x1b\" in B",
                          "only in A: only", "tokenizer.json differs"));
}

// The quantization_config of a file is in its metadata.
TEST_F(DiffFilesTest, TheQuantizationConfigOfFiles) {
  WriteTensors(At("a.safetensors"), SmallModel(DType::kF32), {{"quantization_config", R"({"bits": 4})"}});
  WriteTensors(At("b.safetensors"), SmallModel(DType::kF32), {{"quantization_config", R"({"bits": 8})"}});
  WriteTensors(At("c.safetensors"), SmallModel(DType::kF32));
  const DiffReport two = Compare("a.safetensors", "b.safetensors");
  ASSERT_EQ(two.config.size(), 1u);
  EXPECT_EQ(two.config[0].key, "quantization_config.bits");
  EXPECT_THAT(two.notes, IsEmpty());
  const DiffReport one = Compare("a.safetensors", "c.safetensors");
  ASSERT_EQ(one.config.size(), 1u);
  EXPECT_EQ(one.config[0].b, "");
}

}  // namespace
}  // namespace aqt::serving
