#include "aqt/io/tensors/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "aqt/io/file_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

constexpr char kTestData[] = "aqt/io/tensors/testdata";
constexpr OutputOptions kOverwrite{.overwrite = true};

absl::Span<const uint8_t> Bytes(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

std::string ReadAll(const std::string& path) { return ReadFile(LocalFileSystem(), path, 1 << 24).value(); }

// The bytes of a file: the header's length, the header, `data_bytes` zeros.
std::string FileOf(absl::string_view header, int64_t data_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> 8 * i);
  return absl::StrCat(file, header, std::string(data_bytes, '\0'));
}

std::vector<std::string> Describe(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> result;
  for (const TensorInfo& t : tensors) {
    result.push_back(absl::StrCat(t.name, " ", ToString(t.dtype), t.shape.ToString(), " ", t.begin, "-", t.end));
  }
  return result;
}

std::vector<uint8_t> ReadTensor(const SafetensorsReader& reader, const TensorInfo& tensor) {
  std::vector<uint8_t> bytes(tensor.num_bytes());
  EXPECT_TRUE(reader.Read(tensor, 0, absl::MakeSpan(bytes)).ok());
  return bytes;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    folder_ =
        JoinPath(::testing::TempDir(), absl::StrCat("safetensors_test_", ::getpid(), "_",
                                                    ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    EXPECT_TRUE(LocalFileSystem().CreateFolder(folder_).ok());
  }
  std::string Path(absl::string_view name) const { return JoinPath(folder_, name); }
  std::vector<std::string> Names() const { return LocalFileSystem().List(folder_).value(); }
  absl::StatusOr<SafetensorsReader> OpenText(absl::string_view content) {
    EXPECT_TRUE(WriteFile(LocalFileSystem(), Path("in"), content, kOverwrite).ok());
    return SafetensorsReader::Open(LocalFileSystem(), Path("in"));
  }

  std::string folder_;
};

// ---- reading

TEST_F(SafetensorsTest, RecordedCases) {
  struct Case {
    absl::string_view name;
    bool taken_by_original;
    std::vector<std::string> tensors;  // if accepted
    absl::string_view cause;           // if refused: part of our message
  };
  const std::vector<std::string> a = {"a F32[2] 0-8"};
  const std::vector<Case> cases = {
      {"ok", true, a, ""},
      {"ok_pad_spaces", true, a, ""},
      {"ok_pad_newline_tab", true, a, ""},
      {"pad_nul", false, {}, "invalid JSON at byte 55: a NUL byte"},
      {"leading_space", true, a, ""},
      {"dup_same", true, {}, "tensor 'a': the header has it twice"},  // ours is stricter
      {"dup_diff", false, {}, "tensor 'a': the header has it twice"},
      {"hole", false, {}, "tensor 'b': data begins at 16, and bytes 8 to 16 belong to no tensor"},
      {"trailing_data", false, {}, "4 bytes after the last tensor belong to no tensor"},
      {"missing_data",
       false,
       {},
       "tensor 'a': data ends at 8, but the file holds only 4 bytes of data; it is truncated"},
      {"size_mismatch", false, {}, "tensor 'a': F32[3] takes 12 bytes, but data_offsets [0,8] span 8"},
      {"unknown_dtype", false, {}, "tensor 'a': unknown dtype 'I4'"},
      {"extra_field", true, a, ""},
      {"meta_empty", true, a, ""},
      {"scalar", true, {"a F32[] 0-4"}, ""},
      {"zero_dim", true, {"a F32[0,3] 0-0"}, ""},
      {"empty", true, {}, ""},
      {"header_len_beyond", false, {}, "the header length 1000000 exceeds the file, which has 70 bytes"},
      {"header_len_huge", false, {}, "the header length 18446744073709551615 exceeds the limit of 100000000"},
      {"too_short", false, {}, "the file has 3 bytes, fewer than the 8 of the header length"},
      {"empty_file", false, {}, "the file has 0 bytes, fewer than the 8 of the header length"},
      {"begin_after_end", false, {}, "tensor 'a': data begins at 8, after its end at 0"},
      {"missing_shape", false, {}, "tensor 'a': shape is missing"},
      {"array_root", false, {}, "the header is not a JSON object"},
      {"f4_odd", false, {}, "tensor 'a': F4[3] takes 12 bits, which is not a whole number of bytes"},
      {"f4_even", true, {"a F4[4] 0-2"}, ""},
      {"empty_name", true, {" F32[2] 0-8"}, ""},
  };
  std::vector<std::string> names;
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.name));
    names.push_back(absl::StrCat(c.name, ".safetensors"));
    const std::string path = absl::StrCat(kTestData, "/cases/", names.back());
    const absl::StatusOr<SafetensorsReader> reader = SafetensorsReader::Open(LocalFileSystem(), path);
    ASSERT_EQ(reader.ok(), c.cause.empty()) << reader.status();
    if (reader.ok()) {
      EXPECT_TRUE(c.taken_by_original) << "ours must not take more";
      EXPECT_EQ(Describe(reader->tensors()), c.tensors);
    } else {
      EXPECT_EQ(reader.status().code(), Code::kDataLoss);
      EXPECT_THAT(std::string(reader.status().message()), AllOf(HasSubstr(path), HasSubstr(std::string(c.cause)),
                                                                HasSubstr("; copy or download the file again")));
    }
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(LocalFileSystem().List(absl::StrCat(kTestData, "/cases")).value(), names) << "a file has no row";
}

TEST_F(SafetensorsTest, GuessesOtherFormats) {
  for (const auto& [content, guess] : std::vector<std::pair<std::string, std::string>>{
           {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"},
           {std::string("PK\x03\x04\x14\0\0\0\0\0", 10),
            "zip archive, such as a PyTorch .bin or NumPy .npz: convert it"},
           {std::string("GGUF\x03\0\0\0\x12\0\0\0", 12), "GGUF file: convert the model that it was made from"},
           {"<!DOCTYPE html><html>", "web page, not the intended file: download it again"},
           {"{\n  \"metadata\": {}", "it looks like JSON: for an index or a config.json, give its folder"}}) {
    const absl::Status status = OpenText(content).status();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(guess));
  }
}

TEST_F(SafetensorsTest, AFileOfAnotherFormatByItsName) {
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("model.onnx"), "\x08\x07").ok());
  const absl::Status status = SafetensorsReader::Open(LocalFileSystem(), Path("model.onnx")).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("judging by its name, it is ONNX: load the model and save it"));
}

TEST_F(SafetensorsTest, OpenPassesOnFileErrors) {
  EXPECT_EQ(SafetensorsReader::Open(LocalFileSystem(), Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(SafetensorsReader::Open(LocalFileSystem(), folder_).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), FileOf("{}", 0)).ok());
  for (const int read : {1, 2}) {  // of the length, then of the header
    FaultInjectingFileSystem faulty;
    faulty.FailNth(FileCall::kRead, read, EACCES);
    EXPECT_EQ(SafetensorsReader::Open(faulty, Path("a")).status().code(), Code::kPermissionDenied);
  }
}

TEST_F(SafetensorsTest, AHeaderAtTheLimitIsNotTooLong) {
  // 100,000,001: refused for its length before anything else.
  EXPECT_THAT(std::string(OpenText(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)).status().message()),
              HasSubstr("limit"));
  EXPECT_THAT(std::string(OpenText(std::string("\x00\xe1\xf5\x05\0\0\0\0{}", 10)).status().message()),
              HasSubstr("truncated"));
}

TEST_F(SafetensorsTest, ReadsArraysAndRanges) {
  // U8[3], then F32[2] misaligned, BOOL[2], F4[4], a scalar.
  std::string file = FileOf(R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
      "f":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},"b":{"dtype":"BOOL","shape":[1,2],"data_offsets":[11,13]},
      "q":{"dtype":"F4","shape":[4],"data_offsets":[13,15]},"s":{"dtype":"I64","shape":[],"data_offsets":[15,23]},
      "z":{"dtype":"BF16","shape":[2,0],"data_offsets":[23,23]}})",
                            0);
  file += std::string("\x01\x02\xff\0\0\x80\x3f\0\0\0\xc0\x01\0\x12\x34\xfe\xff\xff\xff\xff\xff\xff\xff", 23);
  auto reader = OpenText(file).value();
  EXPECT_TRUE(BitEqual(reader.ReadArray("u").value(), Array::Of<uint8_t>({1, 2, 255}, {3})));
  EXPECT_TRUE(BitEqual(reader.ReadArray("f").value(), Array::Of<float>({1, -2}, {2})));
  EXPECT_TRUE(BitEqual(reader.ReadArray("b").value(), Array::Of<bool>({true, false}, {1, 2})));
  EXPECT_TRUE(BitEqual(reader.ReadArray("s").value(), Array::Scalar<int64_t>(-2)));
  EXPECT_EQ(reader.ReadArray("z")->aval(), (Aval{DType::kBF16, {2, 0}}));
  EXPECT_EQ(reader.ReadArray("q").status().code(), Code::kUnimplemented);
  EXPECT_EQ(reader.ReadArray("none").status().code(), Code::kNotFound);
  EXPECT_THAT(ReadTensor(reader, *reader.Find("q")), ElementsAre(0x12, 0x34));
  EXPECT_EQ(reader.Find("none"), nullptr);

  const TensorInfo& u = *reader.Find("u");
  uint8_t two[2];
  ASSERT_TRUE(reader.Read(u, 1, absl::MakeSpan(two)).ok());
  EXPECT_THAT(two, ElementsAre(2, 255));
  EXPECT_TRUE(reader.Read(u, 3, {}).ok());
  for (const int64_t offset : {int64_t{2}, int64_t{-1}, int64_t{4}, INT64_MAX}) {
    EXPECT_EQ(reader.Read(u, offset, absl::MakeSpan(two)).code(), Code::kOutOfRange) << offset;
  }

  file[file.size() - 23 + 12] = 2;
  const absl::Status status = OpenText(file)->ReadArray("b").status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'b'"), HasSubstr("element 1 of a BOOL is 2")));
}

// ---- writing

// Writes the tensors of `reader` in another order and in pieces.
absl::Status Rewrite(const SafetensorsReader& reader, const FileSystem& fs, const std::string& path,
                     SafetensorsWriterOptions options) {
  std::vector<TensorSpec> specs(reader.tensors().begin(), reader.tensors().end());
  std::reverse(specs.begin(), specs.end());
  options.metadata = reader.metadata();
  auto writer = SafetensorsWriter::Create(fs, path, specs, options);
  if (!writer.ok()) return writer.status();
  for (const TensorSpec& spec : specs) {
    const std::vector<uint8_t> bytes = ReadTensor(reader, *reader.Find(spec.name));
    const size_t half = bytes.size() / 2;
    for (const auto& [begin, end] : {std::pair(half, bytes.size()), std::pair(size_t{0}, half)}) {
      const absl::Status status =
          (*writer)->Write(spec.name, begin, absl::MakeConstSpan(bytes).subspan(begin, end - begin));
      if (!status.ok()) return status;
    }
  }
  return (*writer)->Finish();
}

TEST_F(SafetensorsTest, RewritesTheOriginalPackagesFilesByteForByte) {
  for (const char* name : {"checkpoint/model-00001-of-00002.safetensors", "checkpoint/model-00002-of-00002.safetensors",
                           "calibration.safetensors"}) {
    const std::string path = absl::StrCat(kTestData, "/", name);
    const auto reader = SafetensorsReader::Open(LocalFileSystem(), path).value();
    ASSERT_TRUE(Rewrite(reader, LocalFileSystem(), Path("out"), {.alignment = 8, .output = kOverwrite}).ok());
    EXPECT_EQ(ReadAll(Path("out")), ReadAll(path)) << name;
  }
}

TEST_F(SafetensorsTest, AllFileDTypesPassByteForByte) {
  std::mt19937 random(1);
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kNumFileDTypes; ++i) {
    const auto dtype = static_cast<FileDType>(i);
    // 256 elements of one byte: every code. The odd sizes misalign the data that follows.
    specs.push_back({absl::StrCat("all.", ToString(dtype)), dtype, {4, 64}});
    specs.push_back({absl::StrCat("odd.", ToString(dtype)), dtype, {1, 3, 4}});
    specs.push_back({absl::StrCat("none.", ToString(dtype)), dtype, {3, 0}});
    if (BitWidth(dtype) >= 8) specs.push_back({absl::StrCat("scalar.", ToString(dtype)), dtype, {}});
  }
  for (const int64_t alignment : {8, 64, 4096}) {
    auto writer = SafetensorsWriter::Create(
                      LocalFileSystem(), Path("a"), specs,
                      {.metadata = {{"z", ""}, {"a", "\"\n"}}, .alignment = alignment, .output = kOverwrite})
                      .value();
    std::map<std::string, std::vector<uint8_t>> data;
    for (const TensorInfo& t : writer->tensors()) {
      std::vector<uint8_t>& bytes = data[t.name];
      bytes.resize(t.num_bytes());
      for (uint8_t& byte : bytes) byte = random();
      if (bytes.size() == 256) std::iota(bytes.begin(), bytes.end(), 0);
      ASSERT_TRUE(writer->Write(t.name, 0, bytes).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());

    const auto reader = SafetensorsReader::Open(LocalFileSystem(), Path("a")).value();
    EXPECT_EQ(reader.tensors(), writer->tensors());
    EXPECT_EQ(reader.tensors().size(), specs.size());
    EXPECT_THAT(reader.metadata(), ElementsAre(Pair("z", ""), Pair("a", "\"\n")));
    for (const TensorInfo& t : reader.tensors()) EXPECT_EQ(ReadTensor(reader, t), data[t.name]) << t.name;
    const std::string file = ReadAll(Path("a"));
    EXPECT_EQ((file.size() - reader.tensors().back().end) % alignment, 0u);
    EXPECT_EQ(file[8], '{');
    ASSERT_TRUE(Rewrite(reader, LocalFileSystem(), Path("b"), {.alignment = alignment, .output = kOverwrite}).ok());
    EXPECT_EQ(ReadAll(Path("b")), file);
  }
}

TEST_F(SafetensorsTest, WritesEachByteOnce) {
  const std::string data = "0123456789";
  const auto create = [&] {
    return SafetensorsWriter::Create(
               LocalFileSystem(), Path("a"),
               {{"x", FileDType::kU8, {10}}, {"y", FileDType::kU8, {10}}, {"z", FileDType::kI8, {0}}},
               {.output = kOverwrite})
        .value();
  };
  const auto range = [&](size_t begin, size_t end) { return Bytes(data).subspan(begin, end - begin); };
  {
    auto writer = create();
    EXPECT_EQ(writer->Write("none", 0, {}).code(), Code::kNotFound);
    EXPECT_EQ(writer->Write("x", 1, range(0, 10)).code(), Code::kOutOfRange);
    EXPECT_EQ(writer->Write("x", -1, range(0, 1)).code(), Code::kOutOfRange);
    EXPECT_EQ(writer->Write("x", INT64_MAX, range(0, 1)).code(), Code::kOutOfRange);
    ASSERT_TRUE(writer->Write("x", 3, range(3, 6)).ok());
    for (const auto& [begin, end] :
         std::vector<std::pair<int, int>>{{3, 6}, {2, 4}, {5, 7}, {4, 5}, {0, 10}, {3, 4}, {5, 6}}) {
      EXPECT_EQ(writer->Write("x", begin, range(begin, end)).code(), Code::kFailedPrecondition) << begin;
    }
    ASSERT_TRUE(writer->Write("x", 4, {}).ok());
    ASSERT_TRUE(writer->Write("x", 6, range(6, 10)).ok());
    ASSERT_TRUE(writer->Write("y", 0, range(0, 10)).ok());
    const absl::Status early = writer->Finish();
    EXPECT_EQ(early.code(), Code::kFailedPrecondition);
    EXPECT_THAT(std::string(early.message()), HasSubstr("tensor 'x' lacks its data from byte 0 on"));
    EXPECT_THAT(std::string(early.message()), HasSubstr(Path("a")));
    ASSERT_TRUE(writer->Write("x", 0, range(0, 3)).ok());
    ASSERT_TRUE(writer->Finish().ok());
    const auto reader = SafetensorsReader::Open(LocalFileSystem(), Path("a")).value();
    for (const char* name : {"x", "y"}) {
      const std::vector<uint8_t> bytes = ReadTensor(reader, *reader.Find(name));
      EXPECT_EQ(std::string(bytes.begin(), bytes.end()), data);
    }
  }
  auto writer = create();
  ASSERT_TRUE(writer->Write("x", 0, range(0, 10)).ok());
  ASSERT_TRUE(writer->Write("y", 0, range(0, 4)).ok());
  EXPECT_THAT(std::string(writer->Finish().message()), HasSubstr("tensor 'y' lacks its data from byte 4 on"));
}

TEST_F(SafetensorsTest, ManyPiecesInRandomOrderFromThreads) {
  constexpr int kBytes = 3000;
  std::vector<int> order(kBytes);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  auto writer = SafetensorsWriter::Create(LocalFileSystem(), Path("a"), {{"x", FileDType::kU8, {kBytes}}}).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < kBytes; i += 3) {
        const uint8_t byte = static_cast<uint8_t>(order[i] * 7);
        EXPECT_TRUE(writer->Write("x", order[i], absl::MakeConstSpan(&byte, 1)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(writer->Finish().ok());
  const Array x = SafetensorsReader::Open(LocalFileSystem(), Path("a"))->ReadArray("x").value();
  for (int i = 0; i < kBytes; ++i) ASSERT_EQ(x.View<uint8_t>()[i], static_cast<uint8_t>(i * 7));
}

TEST_F(SafetensorsTest, WritesArrays) {
  const Array f = Array::Of<float>({1, -0.0f, 3}, {1, 3});
  auto writer = SafetensorsWriter::Create(LocalFileSystem(), Path("a"), {{"f", FileDType::kF32, {1, 3}}}).value();
  EXPECT_EQ(writer->WriteArray("none", f).code(), Code::kNotFound);
  const absl::Status shape = writer->WriteArray("f", Array::Of<float>({1, 2, 3}, {3}));
  EXPECT_EQ(shape.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(shape.message()), AllOf(HasSubstr("F32[1,3]"), HasSubstr("f32[3]")));
  EXPECT_EQ(writer->WriteArray("f", Array::Of<int32_t>({1, 2, 3}, {1, 3})).code(), Code::kInvalidArgument);
  ASSERT_TRUE(writer->WriteArray("f", f).ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(BitEqual(SafetensorsReader::Open(LocalFileSystem(), Path("a"))->ReadArray("f").value(), f));
}

TEST_F(SafetensorsTest, FaultsWhileWritingLeaveNothing) {
  const auto reader = SafetensorsReader::Open(LocalFileSystem(),
                                              absl::StrCat(kTestData, "/checkpoint/model-00001-of-00002.safetensors"))
                          .value();
  FaultInjectingFileSystem faulty;
  for (const int64_t room : {0, 7, 100, 600, 5000, 5319}) {
    faulty.LimitDisk(room);
    EXPECT_EQ(Rewrite(reader, faulty, Path("a"), {.alignment = 8}).code(), Code::kResourceExhausted) << room;
    EXPECT_THAT(Names(), IsEmpty());
  }
  faulty.LimitDisk(5320);
  EXPECT_TRUE(Rewrite(reader, faulty, Path("a"), {.alignment = 8}).ok());
  faulty.Clear();
  ASSERT_TRUE(faulty.Remove(Path("a")).ok());
  for (const FileCall call :
       {FileCall::kOpen, FileCall::kReserve, FileCall::kWrite, FileCall::kSync, FileCall::kClose, FileCall::kRename}) {
    faulty.FailNth(call, 1, ENOSPC);
    const absl::Status status = Rewrite(reader, faulty, Path("a"), {});
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << static_cast<int>(call);
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("a")));
    EXPECT_THAT(Names(), IsEmpty());
  }
}

TEST_F(SafetensorsTest, AFailedWriteIsNotForgotten) {
  FaultInjectingFileSystem faulty;
  auto writer = SafetensorsWriter::Create(faulty, Path("a"), {{"x", FileDType::kU8, {1}}}).value();
  faulty.FailNth(FileCall::kWrite, 1, ENOSPC);
  const uint8_t byte = 1;
  EXPECT_EQ(writer->Write("x", 0, absl::MakeConstSpan(&byte, 1)).code(), Code::kResourceExhausted);
  EXPECT_EQ(writer->Finish().code(), Code::kResourceExhausted);
  writer.reset();
  EXPECT_THAT(Names(), IsEmpty());
}

}  // namespace
}  // namespace aqt::io
