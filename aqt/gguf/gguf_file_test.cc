#include "aqt/gguf/gguf_file.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/gguf/gguf_testing.h"
#include "gtest/gtest.h"

namespace aqt::gguf {
namespace {

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

class GgufFileTest : public ::testing::Test {
 protected:
  static absl::StatusOr<GgufFile> OpenBytes(const std::string& bytes) {
    return GgufFile::Open(std::make_unique<MemoryFile>(bytes));
  }
  void ExpectRefused(const std::string& bytes, absl::StatusCode code, absl::string_view part) const {
    const absl::StatusOr<GgufFile> file = OpenBytes(bytes);
    ASSERT_FALSE(file.ok()) << part;
    EXPECT_EQ(file.status().code(), code) << file.status();
    EXPECT_TRUE(absl::StrContains(file.status().message(), part)) << file.status();
    EXPECT_TRUE(absl::StrContains(file.status().message(), "memory.gguf")) << file.status();
  }
  void ExpectDamaged(const std::string& bytes, absl::string_view part) const {
    ExpectRefused(bytes, absl::StatusCode::kDataLoss, part);
  }
};

TEST_F(GgufFileTest, ValuesOfAllTypes) {
  const std::string strings = absl::StrCat(Raw(uint32_t{8}), Raw(uint64_t{2}), RawString("a"), RawString("bc"));
  const std::string nested = absl::StrCat(Raw(uint32_t{9}), Raw(uint64_t{1}), Raw(uint32_t{5}), Raw(uint64_t{2}),
                                          Raw(int32_t{1}), Raw(int32_t{2}));
  const std::string bytes = absl::StrCat(
      RawHeader(0, 14), RawValue("u8", ValueType::kU8, "\xff"), RawValue("i8", ValueType::kI8, "\xff"),
      RawValue("u16", ValueType::kU16, "\xff\xff"), RawValue("i16", ValueType::kI16, "\xff\xff"),
      RawValue("u32", ValueType::kU32, Raw(uint32_t{4000000000})), RawValue("i32", ValueType::kI32, Raw(int32_t{-5})),
      RawValue("f32", ValueType::kF32, Raw(0.5f)), RawValue("bool", ValueType::kBool, "\x01"),
      RawValue("string", ValueType::kString, RawString("text")),
      RawValue("numbers", ValueType::kArray,
               absl::StrCat(Raw(uint32_t{3}), Raw(uint64_t{2}), "\x01", absl::string_view("\0\xff\xff", 3))),
      RawValue("u64", ValueType::kU64, Raw(uint64_t{1} << 40)), RawValue("i64", ValueType::kI64, Raw(int64_t{-7})),
      RawValue("f64", ValueType::kF64, Raw(0.25)), RawValue("strings", ValueType::kArray, strings + ""));
  const auto file = OpenBytes(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->alignment(), 32);
  ASSERT_EQ(file->metadata().size(), 14u);
  const std::vector<std::pair<std::string, int64_t>> integers = {
      {"u8", 255},         {"i8", -1},  {"u16", 65535}, {"i16", -1},
      {"u32", 4000000000}, {"i32", -5}, {"bool", 1},    {"u64", int64_t{1} << 40},
      {"i64", -7}};
  for (const auto& [key, value] : integers) EXPECT_EQ(file->Integer(key).value(), value) << key;
  EXPECT_EQ(file->Number("f32").value(), 0.5);
  EXPECT_EQ(file->Number("f64").value(), 0.25);
  EXPECT_EQ(file->Number("i32").value(), -5);
  EXPECT_EQ(file->Bool("bool").value(), true);
  EXPECT_EQ(file->String("string").value(), "text");
  EXPECT_EQ(file->Integers("numbers", 2).value(), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(file->Integers("numbers", 1).value(), std::nullopt);
  EXPECT_EQ(file->Find("strings")->count, 2u);
  EXPECT_EQ(file->Find("strings")->element, ValueType::kString);
  EXPECT_EQ(file->String("u8").value(), std::nullopt);
  EXPECT_EQ(file->Integer("f32").value(), std::nullopt);
  EXPECT_EQ(file->Integer("missing").value(), std::nullopt);

  const auto deep = OpenBytes(RawHeader(0, 1) + RawValue("n", ValueType::kArray, nested));
  ASSERT_TRUE(deep.ok()) << deep.status();
  EXPECT_EQ(deep->Find("n")->element, ValueType::kArray);
}

TEST_F(GgufFileTest, TensorsWithTheOutermostExtentFirst) {
  const std::string header =
      absl::StrCat(RawHeader(3, 1, 2), RawValue(kAlignmentKey, ValueType::kU32, Raw(uint32_t{64})),
                   RawTensor("a", {64, 3}, 8, 0), RawTensor("b", {}, 0, 256), RawTensor("c", {0, 4}, 0, 320));
  const auto file = OpenBytes(WithData(header, 260, 64));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version(), 2u);
  EXPECT_EQ(file->alignment(), 64);
  ASSERT_EQ(file->tensors().size(), 3u);
  const GgufTensor& a = file->tensors()[0];
  EXPECT_EQ(a.shape, (Shape{3, 64}));
  EXPECT_EQ(a.type, ggml::Type::kQ8_0);
  EXPECT_EQ(a.num_bytes(), 3 * 2 * 34);
  EXPECT_EQ(a.begin % 64, 0);
  EXPECT_EQ(a.rows(), 3);
  EXPECT_EQ(file->tensors()[1].num_bytes(), 4);
  EXPECT_EQ(file->tensors()[2].num_bytes(), 0);
}

TEST_F(GgufFileTest, AFileCutAnywhereIsRefused) {
  const std::string header =
      absl::StrCat(RawHeader(2, 2), RawValue("k", ValueType::kString, RawString("value")),
                   RawValue("l", ValueType::kArray, absl::StrCat(Raw(uint32_t{4}), Raw(uint64_t{1}), Raw(uint32_t{7}))),
                   RawTensor("a", {32}, 2, 0), RawTensor("b", {2, 2}, 0, 32));
  const std::string whole = WithData(header, 32 + 16);
  EXPECT_TRUE(OpenBytes(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(OpenBytes(whole.substr(0, size)).ok()) << size;
  }
}

TEST_F(GgufFileTest, HostileLengths) {
  ExpectDamaged("", "does not begin with \"GGUF\"");
  ExpectDamaged("<html>", "web page");
  ExpectDamaged(RawHeader(kHuge, 0), "announces 18446744073709551615 tensors");
  ExpectDamaged(RawHeader(0, kHuge), "announces 18446744073709551615 values of metadata");
  ExpectDamaged(absl::StrCat(RawHeader(0, 1), Raw(kHuge), "keykeykey"), "the key of metadata 0, which needs 1844");
  ExpectDamaged(RawHeader(0, 1) + RawValue("k", ValueType::kString, Raw(kHuge)), "the value of 'k'");
  for (const uint32_t element : {0u, 12u, 8u, 9u}) {
    ExpectDamaged(RawHeader(0, 1) + RawValue("k", ValueType::kArray, Raw(element) + Raw(kHuge)), "the value of 'k'");
  }
  std::string deep;
  for (int i = 0; i < 10; ++i) deep += Raw(uint32_t{9}) + Raw(uint64_t{1});
  ExpectDamaged(RawHeader(0, 1) + RawValue("k", ValueType::kArray, deep), "nests arrays deeper than 4");
  ExpectDamaged(RawHeader(1, 0) + RawTensor("t", std::vector<uint64_t>(9, 1), 0, 0), "has the rank 9");
  ExpectDamaged(RawHeader(1, 0) + RawTensor("t", {kHuge}, 0, 0), "has the extent 18446744073709551615");
  ExpectDamaged(RawHeader(1, 0) + RawTensor("t", {uint64_t{1} << 62, 4}, 0, 0), "tensor 't'");
  ExpectDamaged(RawHeader(1, 0) + RawTensor("t", {uint64_t{1} << 40}, 0, 0), "it is truncated");
  ExpectDamaged(RawHeader(1, 0) + RawTensor("t", {4}, 0, kHuge - 31), "beyond the end");
  ExpectDamaged(WithData(RawHeader(1, 0) + RawTensor("t", {4}, 0, uint64_t{1} << 40), 64), "it is truncated");
  ExpectDamaged(RawHeader(1, 0) + RawTensor(std::string(1025, 'n'), {4}, 0, 0), "has 1025 bytes");
}

TEST_F(GgufFileTest, WhatIsRefused) {
  ExpectRefused(RawHeader(0, 0, 1), absl::StatusCode::kUnimplemented, "it has the version 1");
  ExpectRefused(RawHeader(0, 0, 4), absl::StatusCode::kUnimplemented, "it has the version 4");
  ExpectRefused(RawHeader(0, 0, 0x03000000), absl::StatusCode::kUnimplemented, "it is big-endian");
  ExpectRefused(RawHeader(1, 0) + RawTensor("t", {32}, 31, 0), absl::StatusCode::kUnimplemented,
                "has the type 31, which is not known: it has been removed");
  ExpectRefused(RawHeader(1, 0) + RawTensor("t", {32}, 99, 0), absl::StatusCode::kUnimplemented,
                "tensor 't' has the type 99");
  ExpectDamaged(RawHeader(0, 1) + RawValue("k", static_cast<ValueType>(13), "xxxxxxxx"),
                "type 13, which does not exist");
  ExpectDamaged(RawHeader(0, 2) + RawValue("k", ValueType::kU8, "a") + RawValue("k", ValueType::kU8, "b"),
                "has the key 'k' twice");
  ExpectDamaged(RawHeader(0, 1) + RawValue("\xff", ValueType::kU8, "a"), "is not UTF-8");
  for (const uint32_t alignment : {0u, 24u}) {
    ExpectDamaged(RawHeader(0, 1) + RawValue(kAlignmentKey, ValueType::kU32, Raw(alignment)), "not a power of two");
  }
  ExpectDamaged(RawHeader(0, 1) + RawValue(kAlignmentKey, ValueType::kU64, Raw(uint64_t{32})), "not a power of two");
  ExpectDamaged(WithData(RawHeader(1, 0) + RawTensor("t", {33}, 8, 0), 64), "rows of Q8_0 are multiples of 32 values");
  ExpectDamaged(WithData(RawHeader(1, 0) + RawTensor("t", {4}, 0, 8), 64), "not a multiple of the alignment 32");
  ExpectDamaged(WithData(RawHeader(2, 0) + RawTensor("t", {4}, 0, 0) + RawTensor("t", {4}, 0, 32), 64),
                "tensor 't' is in the file twice");
  ExpectDamaged(WithData(RawHeader(2, 0) + RawTensor("t", {16}, 0, 0) + RawTensor("u", {4}, 0, 32), 64),
                "'t' and 'u' share bytes");
}

// ---- sets

class GgufModelTest : public GgufTest {
 protected:
  void WritePart(absl::string_view name, uint16_t no, uint16_t count, int32_t tensors, absl::string_view tensor) const {
    WriteBytes(name, WithData(absl::StrCat(RawHeader(1, 3), RawValue(kSplitNoKey, ValueType::kU16, Raw(no)),
                                           RawValue(kSplitCountKey, ValueType::kU16, Raw(count)),
                                           RawValue(kSplitTensorsKey, ValueType::kI32, Raw(tensors)),
                                           RawTensor(tensor, {4}, 0, 0)),
                              32));
  }
  void ExpectError(absl::string_view name, absl::StatusCode code, absl::string_view part) const {
    const absl::StatusOr<GgufModel> model = GgufModel::Open(fs_, Path(name));
    EXPECT_EQ(model.status().code(), code) << model.status();
    EXPECT_TRUE(absl::StrContains(model.status().message(), part)) << model.status();
  }
};

TEST_F(GgufModelTest, AnyFileOfASetAndItsFolderOpenTheSet) {
  WritePart("m-00001-of-00002.gguf", 0, 2, 2, "a");
  WritePart("m-00002-of-00002.gguf", 1, 2, 2, "b");
  for (const char* name : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf", ""}) {
    const auto model = GgufModel::Open(fs_, Path(name));
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_EQ(model->files().size(), 2u);
    EXPECT_EQ(model->files()[1].tensors()[0].name, "b");
  }
  WriteBytes("other.gguf", RawHeader(0, 0));
  EXPECT_EQ(GgufModel::Open(fs_, Path("other.gguf"))->files().size(), 1u);
  ExpectError("", absl::StatusCode::kFailedPrecondition, "has several GGUF models");
}

TEST_F(GgufModelTest, SetsThatDoNotBelongTogether) {
  ExpectError("", absl::StatusCode::kFailedPrecondition, "has no GGUF model");
  WritePart("m-00001-of-00002.gguf", 0, 2, 2, "a");
  ExpectError("m-00001-of-00002.gguf", absl::StatusCode::kNotFound, "part 2 is missing");
  WritePart("m-00002-of-00002.gguf", 0, 2, 2, "b");
  ExpectError("m-00001-of-00002.gguf", absl::StatusCode::kDataLoss, "is part 2 of 2 by its name");
  WritePart("m-00002-of-00002.gguf", 1, 2, 2, "a");
  ExpectError("m-00001-of-00002.gguf", absl::StatusCode::kDataLoss, "has the tensor 'a' in two files");
  WritePart("m-00001-of-00002.gguf", 0, 2, 3, "b");
  ExpectError("m-00001-of-00002.gguf", absl::StatusCode::kDataLoss, "has 2 tensors, and its metadata says 3");
  WritePart("renamed.gguf", 0, 2, 2, "a");
  ExpectError("renamed.gguf", absl::StatusCode::kFailedPrecondition, "is part 1 of a set of 2");
  ExpectError("m-00001-of-99999.gguf", absl::StatusCode::kNotFound, "m-00001-of-99999.gguf");
}

}  // namespace
}  // namespace aqt::gguf
