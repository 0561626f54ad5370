#include "serving/gguf/gguf_job.h"

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/gguf/gguf_file.h"
#include "aqt/gguf/gguf_testing.h"
#include "aqt/gguf/tensor_values.h"
#include "aqt/io/file.h"
#include "aqt/io/file_testing.h"
#include "aqt/quant/weights/ggml_blocks.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using gguf::CountingTensor;
using gguf::MetadataItem;
using gguf::Raw;

class GgufJobTest : public gguf::GgufTest {
 protected:
  GgufJob Job(const std::string& preset = "gguf_q8_0") const {
    GgufJob job;
    job.input = Path("in.gguf");
    job.output = Path("out.gguf");
    job.recipe.preset = preset;
    return job;
  }
  static std::vector<float> Wave(int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * 0.7f) * 0.1f;
    return values;
  }
  std::string WriteInput() const {
    const std::vector<MetadataItem> metadata = {
        gguf::StringItem(gguf::kArchitectureKey, "llama"),
        {"tokens", gguf::ValueType::kArray, Raw(uint32_t{8}) + Raw(uint64_t{1}) + gguf::RawString("a")},
        gguf::U32Item(gguf::kFileTypeKey, 0),
        {"odd", gguf::ValueType::kBool, "\x01"}};
    return WriteModel("in.gguf", metadata,
                      {CountingTensor("token_embd.weight", {2, 64}),
                       gguf::F32Tensor("blk.0.ffn_up.weight", {600, 512}, Wave(600 * 512)),
                       CountingTensor("blk.0.ffn_norm.weight", {3})});
  }
  void ExpectError(const GgufJob& job, absl::StatusCode code, absl::string_view part) const {
    const absl::Status status = RunGgufJob(fs_, job).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  }
};

TEST_F(GgufJobTest, ChangedTensorsAreEncodedAndTheRestIsCopied) {
  WriteInput();
  const auto report = RunGgufJob(fs_, Job());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->num_changed, 1);
  EXPECT_EQ(report->num_tensors, 3);
  const auto in = gguf::GgufFile::Open(fs_, Path("in.gguf")).value(),
             out = gguf::GgufFile::Open(fs_, Path("out.gguf")).value();
  ASSERT_EQ(out.tensors().size(), 3u);
  const std::string in_bytes = Content("in.gguf"), out_bytes = Content("out.gguf");
  for (size_t i = 0; i < 3; ++i) {
    const gguf::GgufTensor &from = in.tensors()[i], &to = out.tensors()[i];
    EXPECT_EQ(to.name, from.name);
    EXPECT_EQ(to.shape, from.shape);
    const std::string bytes = out_bytes.substr(to.begin, to.num_bytes());
    if (i != 1) {
      EXPECT_EQ(to.type, from.type);
      EXPECT_EQ(bytes, in_bytes.substr(from.begin, from.num_bytes()));
      continue;
    }
    EXPECT_EQ(to.type, ggml::Type::kQ8_0);
    std::string expected(static_cast<size_t>(to.num_bytes()), '\0');
    const std::vector<float> values = Wave(600 * 512);
    EXPECT_EQ(ggml::EncodeBlocks(to.type, values.data(), 600 * 16, reinterpret_cast<uint8_t*>(expected.data())), -1);
    EXPECT_EQ(bytes, expected);
  }
  // The metadata keeps its order and bytes; file_type is that of Q8_0, and quantization_version is new.
  std::vector<std::string> keys;
  for (const gguf::MetadataEntry& entry : out.metadata()) keys.push_back(entry.key);
  EXPECT_EQ(keys, (std::vector<std::string>{gguf::kArchitectureKey, "tokens", gguf::kFileTypeKey, "odd",
                                            gguf::kQuantizationVersionKey}));
  EXPECT_EQ(out.Integer(gguf::kFileTypeKey).value(), 7);
  EXPECT_EQ(out.Integer(gguf::kQuantizationVersionKey).value(), 2);
  const gguf::MetadataEntry &a = *in.Find("tokens"), &b = *out.Find("tokens");
  EXPECT_EQ(out_bytes.substr(b.begin, b.end - b.begin), in_bytes.substr(a.begin, a.end - a.begin));
}

TEST_F(GgufJobTest, TheBytesDoNotDependOnTheThreads) {
  WriteInput();
  std::vector<std::string> contents;
  for (const int jobs : {1, 2, 7}) {
    GgufJob job = Job("gguf_q4_k");
    job.jobs = jobs;
    job.force = true;
    ASSERT_TRUE(RunGgufJob(fs_, job).ok());
    contents.push_back(Content("out.gguf"));
  }
  EXPECT_EQ(contents[0], contents[1]);
  EXPECT_EQ(contents[0], contents[2]);
}

TEST_F(GgufJobTest, ASetBecomesOneFile) {
  const auto part = [](uint16_t no, std::vector<MetadataItem> more) {
    more.push_back({gguf::kSplitNoKey, gguf::ValueType::kU16, Raw(no)});
    more.push_back({gguf::kSplitCountKey, gguf::ValueType::kU16, Raw(uint16_t{2})});
    return more;
  };
  WriteModel("in-00001-of-00002.gguf", part(0, {gguf::StringItem("general.name", "n")}),
             {CountingTensor("blk.0.a.weight", {1, 32})});
  WriteModel("in-00002-of-00002.gguf", part(1, {}), {CountingTensor("blk.1.a.weight", {1, 32})});
  GgufJob job = Job("gguf_q4_0");
  job.input = Path("in-00001-of-00002.gguf");
  ASSERT_TRUE(RunGgufJob(fs_, job).ok());
  const auto out = gguf::GgufFile::Open(fs_, Path("out.gguf")).value();
  EXPECT_EQ(out.tensors().size(), 2u);
  EXPECT_EQ(out.Find(gguf::kSplitNoKey), nullptr);
  EXPECT_EQ(out.Find(gguf::kSplitCountKey), nullptr);
  EXPECT_EQ(out.String("general.name").value(), "n");
  EXPECT_EQ(out.Integer(gguf::kFileTypeKey).value(), 2);
}

TEST_F(GgufJobTest, BlocksAreDecodedToFloats) {
  WriteInput();
  ASSERT_TRUE(RunGgufJob(fs_, Job("gguf_q6_k")).ok());
  WriteBytes("f16.textproto", "schema: 1 rule { match: '.*' gguf { type: 'F16' } }");
  GgufJob back;
  back.input = Path("out.gguf");
  back.output = Path("back.gguf");
  back.recipe.config_file = Path("f16.textproto");
  ASSERT_TRUE(RunGgufJob(fs_, back).ok());
  const auto in = gguf::GgufFile::Open(fs_, Path("out.gguf")).value(),
             out = gguf::GgufFile::Open(fs_, Path("back.gguf")).value();
  std::vector<float> expected(600 * 512), values(600 * 512);
  ASSERT_TRUE(gguf::ReadFloats(in, in.tensors()[1], 0, absl::MakeSpan(expected)).ok());
  ASSERT_TRUE(gguf::ReadFloats(out, out.tensors()[1], 0, absl::MakeSpan(values)).ok());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], ToFloat(RoundToFloat16(expected[i]))) << i;
  EXPECT_EQ(out.Integer(gguf::kFileTypeKey).value(), 1);
}

TEST_F(GgufJobTest, ValuesThatCannotBeEncodedAreNamed) {
  std::vector<float> values(64, 1);
  values[40] = std::numeric_limits<float>::quiet_NaN();
  WriteModel("in.gguf", {}, {gguf::F32Tensor("blk.0.a.weight", {2, 32}, values)});
  ExpectError(Job(), absl::StatusCode::kDataLoss, "tensor 'blk.0.a.weight': element 40 is a NaN or an infinity");
  values[40] = 1e30f;
  WriteModel("in.gguf", {}, {gguf::F32Tensor("blk.0.a.weight", {2, 32}, values)});
  ExpectError(Job(), absl::StatusCode::kDataLoss, "element 40 is 1e+30, too large for Q8_0");
  EXPECT_EQ(fs_.List(folder_).value(), std::vector<std::string>{"in.gguf"});
}

TEST_F(GgufJobTest, PlacesThatAreRefused) {
  WriteInput();
  GgufJob job = Job();
  job.output = job.input;
  job.force = true;
  ExpectError(job, absl::StatusCode::kInvalidArgument, "is a file that is read");
  job.output = Path("no/out.gguf");
  ExpectError(job, absl::StatusCode::kNotFound, "does not exist");
  job.output = Path("folder.gguf");
  ASSERT_TRUE(fs_.CreateFolder(job.output).ok());
  ExpectError(job, absl::StatusCode::kFailedPrecondition, "is not a file");
  WriteBytes("out.gguf", "old");
  ExpectError(Job(), absl::StatusCode::kAlreadyExists, "exists; --force replaces it");
  job = Job();
  job.recipe.preset.clear();
  job.recipe.scheme_from = Path("c.json");
  WriteBytes("c.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  ExpectError(job, absl::StatusCode::kInvalidArgument, "--scheme-from is not possible for a GGUF file");
  job = Job();
  job.recipe.keep_non_finite = true;
  ExpectError(job, absl::StatusCode::kInvalidArgument, "keeping weights that are not finite is not possible");
  EXPECT_EQ(Content("out.gguf"), "old");
}

TEST_F(GgufJobTest, AFailureLeavesTheOldFile) {
  WriteInput();
  WriteBytes("out.gguf", "old");
  GgufJob job = Job();
  job.force = true;
  io::FaultInjectingFileSystem faulty;
  faulty.LimitDisk(100'000);
  EXPECT_EQ(RunGgufJob(faulty, job).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Content("out.gguf"), "old");
  const std::atomic<bool> cancelled = true;
  job.cancelled = &cancelled;
  EXPECT_EQ(RunGgufJob(fs_, job).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Content("out.gguf"), "old");
  EXPECT_EQ(fs_.List(folder_)->size(), 2u);
}

TEST_F(GgufJobTest, AnotherQuantizationVersionIsRefused) {
  WriteModel("in.gguf", {gguf::U32Item(gguf::kQuantizationVersionKey, 1)}, {CountingTensor("blk.0.a.weight", {1, 32})});
  ExpectError(Job(), absl::StatusCode::kUnimplemented, "general.quantization_version is 1; only 2 is known");
}

}  // namespace
}  // namespace aqt::serving
