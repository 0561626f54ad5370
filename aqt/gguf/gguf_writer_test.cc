#include "aqt/gguf/gguf_writer.h"

#include <cerrno>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/gguf/gguf_testing.h"
#include "aqt/io/file_testing.h"
#include "gtest/gtest.h"

namespace aqt::gguf {
namespace {

class GgufWriterTest : public GgufTest {
 protected:
  static absl::Span<const uint8_t> Span(const std::string& bytes) {
    return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  void ExpectError(const std::vector<MetadataItem>& metadata, const std::vector<GgufTensorSpec>& tensors,
                   absl::string_view part, const GgufWriterOptions& options = {}) const {
    const absl::Status status = GgufWriter::Create(fs_, Path("no.gguf"), metadata, tensors, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  }
};

TEST_F(GgufWriterTest, TheBytesOfAFile) {
  WriteModel("a.gguf", {StringItem("general.name", "ref"), U32Item("n", 3)},
             {CountingTensor("t", {1, 2}, 1), CountingTensor("u", {1}, 9)});
  const std::string header = absl::StrCat(
      RawHeader(2, 2), RawValue("general.name", ValueType::kString, RawString("ref")),
      RawValue("n", ValueType::kU32, Raw(uint32_t{3})), RawTensor("t", {2, 1}, 0, 0), RawTensor("u", {1}, 0, 32));
  std::string expected = WithData(header, 0);
  expected += Raw(1.0f) + Raw(2.0f) + std::string(24, '\0') + Raw(9.0f) + std::string(28, '\0');
  EXPECT_EQ(Content("a.gguf"), expected);
}

TEST_F(GgufWriterTest, CopiedMetadataKeepsItsBytes) {
  std::string strings = Raw(uint32_t{8}) + Raw(uint64_t{20000});
  for (int i = 0; i < 20000; ++i) strings += RawString(absl::StrCat("token", i));
  const std::string header = RawHeader(0, 2) + RawValue("tokens", ValueType::kArray, strings) +
                             RawValue(kAlignmentKey, ValueType::kU32, Raw(uint32_t{64}));
  const auto from = GgufFile::Open(fs_, WriteBytes("a.gguf", header));
  ASSERT_TRUE(from.ok()) << from.status();
  std::vector<MetadataItem> metadata;
  for (const MetadataEntry& entry : from->metadata()) metadata.push_back(CopiedItem(*from, entry));
  auto writer = GgufWriter::Create(fs_, Path("b.gguf"), metadata, {}, {.alignment = 64});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(Content("b.gguf").substr(0, header.size()), header);
}

TEST_F(GgufWriterTest, WhatIsRefused) {
  ExpectError({U32Item("k", 1), U32Item("k", 2)}, {}, "the key 'k' is used twice");
  ExpectError({}, {{"t", ggml::Type::kF32, {1}}, {"t", ggml::Type::kF32, {2}}}, "the tensor name 't' is used twice");
  ExpectError({}, {{"t", ggml::Type::kQ4K, {2, 128}}}, "rows of Q4_K are multiples of 256 values");
  ExpectError({}, {{"t", ggml::Type::kF32, {int64_t{1} << 60, 1 << 10}}}, "tensor 't'");
  ExpectError({}, {{"t", ggml::Type::kF32, Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}}}, "the rank exceeds 8");
  ExpectError({}, {{std::string(2000, 'n'), ggml::Type::kF32, {1}}}, "has more than 1024 bytes");
  ExpectError({U32Item(kAlignmentKey, 64)}, {}, "the alignment is 32, and the metadata says 64");
  ExpectError({}, {}, "version 4 is not written", {.version = 4});
  EXPECT_FALSE(io::Exists(fs_, Path("no.gguf")).value());
}

TEST_F(GgufWriterTest, TheFileAppearsCompleteOrNotAtAll) {
  const std::vector<GgufTensorSpec> tensors = {{"t", ggml::Type::kF32, {2}}};
  {
    auto writer = GgufWriter::Create(fs_, Path("a.gguf"), {}, tensors).value();
    EXPECT_EQ(writer->Write(0, 4, Span("12345678")).code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(writer->Write(0, -1, Span("1")).code(), absl::StatusCode::kOutOfRange);
    ASSERT_TRUE(writer->Write(0, 4, Span("1234")).ok());
    EXPECT_TRUE(absl::StrContains(writer->Finish().message(), "of tensor 't' 4 bytes were written; expected 8"));
  }
  EXPECT_FALSE(io::Exists(fs_, Path("a.gguf")).value());
  io::FaultInjectingFileSystem faulty;
  auto writer = GgufWriter::Create(faulty, Path("a.gguf"), {}, tensors).value();
  faulty.FailNth(io::FileCall::kWrite, 1, EIO);
  EXPECT_FALSE(writer->Write(0, 0, Span("12345678")).ok());
  EXPECT_FALSE(writer->Finish().ok());
  writer.reset();
  EXPECT_TRUE(io::LocalFileSystem().List(folder_)->empty());
}

}  // namespace
}  // namespace aqt::gguf
