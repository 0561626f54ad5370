// Tests of the header's types and text; safetensors_test.cc tests files.

#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/io/tensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Code = absl::StatusCode;

std::vector<std::string> Describe(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> result;
  for (const TensorInfo& t : tensors) {
    result.push_back(absl::StrCat(t.name, " ", ToString(t.dtype), t.shape.ToString(), " ", t.begin, "-", t.end));
  }
  return result;
}

// ---- dtypes

TEST(FileDTypeTest, Table) {
  // In the order of the format's own list.
  constexpr absl::string_view kNames[] = {
      "BOOL", "F4",  "F6_E2M3", "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
      "I16",  "U16", "F16",     "BF16",    "I32", "U32", "F32",     "C64",     "F64",     "I64",         "U64"};
  constexpr int kBits[] = {8, 4, 6, 6, 8, 8, 8, 8, 8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64};
  static_assert(std::size(kNames) == kNumFileDTypes && std::size(kBits) == kNumFileDTypes);
  int mapped = 0;
  for (int i = 0; i < kNumFileDTypes; ++i) {
    const auto dtype = static_cast<FileDType>(i);
    EXPECT_EQ(ToString(dtype), kNames[i]);
    EXPECT_EQ(FileDTypeFromString(kNames[i]), dtype);
    EXPECT_EQ(BitWidth(dtype), kBits[i]);
    if (const std::optional<DType> memory = ToDType(dtype); memory.has_value()) {
      ++mapped;
      EXPECT_EQ(ToFileDType(*memory), dtype);
      EXPECT_EQ(SizeOf(*memory) * 8, BitWidth(dtype)) << kNames[i];
    }
  }
  EXPECT_EQ(mapped, 13);  // all of DType except s2 and s4
  EXPECT_EQ(ToFileDType(DType::kS2), std::nullopt);
  EXPECT_EQ(ToFileDType(DType::kS4), std::nullopt);
  EXPECT_EQ(ToDType(FileDType::kF8E4M3), DType::kE4M3FN);
  EXPECT_EQ(ToDType(FileDType::kF8E5M2), DType::kE5M2);
  EXPECT_EQ(ToDType(FileDType::kI8), DType::kS8);
  EXPECT_EQ(ToDType(FileDType::kU8), DType::kU8);
  for (const absl::string_view text : {"I4", "f32", "", "F32 "}) EXPECT_EQ(FileDTypeFromString(text), std::nullopt);
}

TEST(TensorBytesTest, CountsBits) {
  EXPECT_EQ(TensorBytes(FileDType::kF32, {}).value(), 4);
  EXPECT_EQ(TensorBytes(FileDType::kF32, {2, 3}).value(), 24);
  EXPECT_EQ(TensorBytes(FileDType::kF32, {0, 3}).value(), 0);
  EXPECT_EQ(TensorBytes(FileDType::kF4, {3, 4}).value(), 6);
  EXPECT_EQ(TensorBytes(FileDType::kF6E2M3, {4}).value(), 3);
  EXPECT_EQ(TensorBytes(FileDType::kF4, {0, 3}).value(), 0);
  EXPECT_EQ(TensorBytes(FileDType::kU8, {(int64_t{1} << 60) - 1}).value(), (int64_t{1} << 60) - 1);
  for (const auto& [dtype, shape] :
       std::vector<std::pair<FileDType, Shape>>{{FileDType::kF4, {3}},
                                                {FileDType::kF4, {}},
                                                {FileDType::kF6E3M2, {3}},
                                                {FileDType::kF6E3M2, {2}},
                                                {FileDType::kU8, {int64_t{1} << 60}},
                                                {FileDType::kF32, {int64_t{1} << 62, int64_t{1} << 62}},
                                                {FileDType::kF32, {0, int64_t{1} << 62, int64_t{1} << 62}},
                                                {FileDType::kF32, {-1}},
                                                {FileDType::kU8, Shape(std::vector<int64_t>(65, 1))}}) {
    EXPECT_EQ(TensorBytes(dtype, shape).status().code(), Code::kInvalidArgument) << dtype << shape;
  }
}

// ---- reading

constexpr char kA[] = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

TEST(ParseSafetensorsHeaderTest, Refuses) {
  struct Case {
    std::string json;
    int64_t data_bytes;
    absl::string_view cause;
  };
  const auto entry = [](absl::string_view fields) { return absl::StrCat("{\"a\":{", fields, "}}"); };
  const std::string b4 = R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})";
  const std::vector<Case> cases = {
      {absl::StrCat("{\"a\":", kA, ",\"b\":", b4, "}"), 12,
       "tensor 'b': data begins at 4 and overlaps the data of tensor 'a'"},
      {absl::StrCat("{\"b\":", b4, "}"), 12, "tensor 'b': data begins at 4, and bytes 0 to 4 belong to no tensor"},
      {entry(R"("dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0])"), 0,
       "2^63-1 bits"},
      {entry(R"("dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0])"), 0, "2^63-1 bits"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 0, "tensor 'a': data_offsets is not a list of two"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), 8,
       "tensor 'a': data_offsets is not a list of two"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8, "tensor 'a': data_offsets is not a list of two"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775808])"), 8, "data_offsets is not"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,[8]])"), 8, "tensor 'a': data_offsets is not"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":{"0":8})"), 8, "tensor 'a': data_offsets is not"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":null)"), 8, "tensor 'a': data_offsets is not"},
      {entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8, "tensor 'a': shape is not a list of integers"},
      {entry(R"("dtype":"F32","shape":[-0],"data_offsets":[0,0])"), 0, "tensor 'a': shape is not a list of integers"},
      {entry(R"("dtype":"F32","shape":[{}],"data_offsets":[0,0])"), 0, "tensor 'a': shape is not a list of integers"},
      {entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8, "tensor 'a': shape is not a list of integers"},
      {entry(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': dtype is not a string"},
      {entry(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': dtype is not a string"},
      {entry(R"("dtype":{},"shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': dtype is not a string"},
      {entry(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': unknown dtype 'f32'"},
      {entry(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': dtype is given twice"},
      {entry(R"("shape":[2],"data_offsets":[0,8])"), 8, "tensor 'a': dtype is missing"},
      {entry(R"("dtype":"F32","shape":[2])"), 8, "tensor 'a': data_offsets is missing"},
      {R"({"a":5})", 0, "tensor 'a': its entry is not an object"},
      {R"({"a":[]})", 0, "tensor 'a': its entry is not an object"},
      {"5", 0, "the header is not a JSON object"},
      {"null", 0, "the header is not a JSON object"},
      {"", 0, "invalid JSON"},
      {"{}{}", 0, "invalid JSON"},
      {"{} x", 0, "invalid JSON"},
      {R"({"__metadata__":{"x":1}})", 0, "__metadata__ 'x': the value is not a string"},
      {R"({"__metadata__":{"x":{}}})", 0, "__metadata__ 'x': the value is not a string"},
      {R"({"__metadata__":{"x":["y"]}})", 0, "__metadata__ 'x': the value is not a string"},
      {R"({"__metadata__":0})", 0, "__metadata__ is not an object of strings"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not an object of strings"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ twice"},
      {R"({"__metadata__":null,"__metadata__":null})", 0, "__metadata__ twice"},
      {R"({"a":null})", 0, "'a': its entry is not an object"},
      {R"({"__metadata__":{"x":"1","y":"","x":"1"}})", 0, "__metadata__ has 'x' twice"},
      {absl::StrCat("{\"\xff\":", kA, "}"), 8, "UTF-8"},
      {absl::StrCat("\xef\xbb\xbf{\"a\":", kA, "}"), 8, "byte order mark"},
      {absl::StrCat("{\"a\\u0041\":", kA, ",\"aA\":", kA, "}"), 8, "tensor 'aA': the header has it twice"},
      {absl::StrCat("{\"a\":", std::string(2000, '['), std::string(2000, ']'), "}"), 0, "its entry is not an object"},
      {entry(absl::StrCat("\"x\":", std::string(100, '['), std::string(100, ']'))), 0, "deeper than 64"},
      {entry(absl::StrCat(R"("dtype":"U8","data_offsets":[0,1],"shape":[1)",
                          [] {
                            std::string ones;
                            for (int i = 0; i < 64; ++i) ones += ",1";
                            return ones;
                          }(),
                          "]")),
       1, "tensor 'a': the rank exceeds 64"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ParseSafetensorsHeader(c.json, c.data_bytes).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << c.json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(c.cause))) << c.json;
    EXPECT_LT(status.message().size(), 400u);
  }
}

TEST(ParseSafetensorsHeaderTest, Accepts) {
  EXPECT_THAT(ParseSafetensorsHeader("\t\n {} ", 0)->tensors, IsEmpty());
  EXPECT_THAT(ParseSafetensorsHeader(R"({"__metadata__":null})", 0)->metadata, IsEmpty());
  // Any order of entries and fields; misaligned data; unknown fields of any form; an escaped name.
  const auto header = ParseSafetensorsHeader(
      R"({"b":{"x":[{"y":{}},[1]],"data_offsets":[3,11],"z":{"dtype":5},"shape":[2],"dtype":"F32","w":null},
          "__metadata__":{"z":"1","a":"\u00e9"},
          "a\"\u0041\n":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
      11);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(Describe(header->tensors), ElementsAre("a\"A\n U8[3] 0-3", "b F32[2] 3-11"));
  EXPECT_THAT(header->metadata, ElementsAre(Pair("z", "1"), Pair("a", "\xc3\xa9")));
  // Empty tensors between others stay in header order.
  const auto empty = [](int at) {
    return absl::StrCat(R"({"dtype":"F64","shape":[0],"data_offsets":[)", at, ",", at, "]}");
  };
  const auto zeros = ParseSafetensorsHeader(
      absl::StrCat("{\"d\":", empty(8), ",\"c\":", empty(8), ",\"a\":", kA, ",\"b\":", empty(0), "}"), 8);
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_THAT(Describe(zeros->tensors), ElementsAre("b F64[0] 0-0", "a F32[2] 0-8", "d F64[0] 8-8", "c F64[0] 8-8"));
  EXPECT_EQ(ParseSafetensorsHeader(absl::StrCat("{\"b\":", empty(4), ",\"a\":", kA, "}"), 8).status().code(),
            Code::kDataLoss)
      << "inside another tensor";
}

// ---- writing

TEST(LayOutSafetensorsTest, SortsByDTypeThenNameAndPads) {
  const auto layout = LayOutSafetensors({{"b", FileDType::kF32, {2}},
                                         {"\xc3\xa9\"\x01", FileDType::kI8, {3}},
                                         {"Z", FileDType::kF32, {}},
                                         {"n", FileDType::kI64, {0, 1}}},
                                        {.metadata = {{"format", "pt"}}, .alignment = 8});
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::string expected =
      R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[0,1],"data_offsets":[0,0]},)"
      R"("Z":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],)"
      "\"data_offsets\":[4,12]},\"\xc3\xa9\\\"\\u0001\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[12,15]}}";
  while (expected.size() % 8 != 0) expected += ' ';
  EXPECT_EQ(layout->json, expected);
  EXPECT_EQ(layout->data_bytes, 15);

  EXPECT_EQ(LayOutSafetensors({}, {})->json, absl::StrCat("{}", std::string(54, ' ')));
  EXPECT_EQ(LayOutSafetensors({}, {.alignment = 8})->json, "{}      ");
}

TEST(LayOutSafetensorsTest, Refuses) {
  const TensorSpec a{"a", FileDType::kF32, {2}};
  const auto code = [](std::vector<TensorSpec> specs, const SafetensorsWriterOptions& options) {
    return LayOutSafetensors(std::move(specs), options).status().code();
  };
  EXPECT_EQ(code({a}, {}), Code::kOk);
  EXPECT_EQ(code({a, {"a", FileDType::kI8, {1}}}, {}), Code::kInvalidArgument);
  EXPECT_EQ(code({{"__metadata__", FileDType::kF32, {2}}}, {}), Code::kInvalidArgument);
  EXPECT_EQ(code({{"\xff", FileDType::kF32, {2}}}, {}), Code::kInvalidArgument);
  EXPECT_EQ(code({{"a", FileDType::kF4, {3}}}, {}), Code::kInvalidArgument);
  EXPECT_EQ(code({{"a", FileDType::kU8, {int64_t{1} << 59}}, {"b", FileDType::kU8, {int64_t{1} << 59}}}, {}),
            Code::kOk);
  std::vector<TensorSpec> huge;
  for (int i = 0; i < 7; ++i) huge.push_back({absl::StrCat(i), FileDType::kU8, {(int64_t{1} << 60) - 1}});
  huge.push_back({"7", FileDType::kU8, {(int64_t{1} << 60) - 2001}});
  EXPECT_EQ(code(huge, {}), Code::kOk);
  huge.push_back({"8", FileDType::kU8, {1900}});  // about 100 bytes are left for the header
  EXPECT_EQ(code(huge, {}), Code::kInvalidArgument);
  huge.push_back({"9", FileDType::kU8, {3000}});  // the sum of the sizes overflows
  EXPECT_EQ(code(huge, {}), Code::kInvalidArgument);
  for (const int64_t alignment : {0, 1, 4, 12, 8192, -8}) {
    EXPECT_EQ(code({a}, {.alignment = alignment}), Code::kInvalidArgument) << alignment;
  }
  EXPECT_EQ(code({a}, {.metadata = {{"k", "1"}, {"k", "2"}}}), Code::kInvalidArgument);
  EXPECT_EQ(code({a}, {.metadata = {{"k", "\xff"}}}), Code::kInvalidArgument);
  EXPECT_EQ(code({a}, {.metadata = {{"k", std::string(100'000'000, 'x')}}}), Code::kInvalidArgument);
}

TEST(LayOutSafetensorsTest, ManyTensors) {
  // Also shows that neither header nor list is quadratic: with 10^5 tensors each half takes well under a second.
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 100000; ++i)
    specs.push_back({absl::StrCat("model.layers.", i, ".weight"), FileDType::kU8, {i % 3}});
  const auto layout = LayOutSafetensors(specs, {}).value();
  const auto header = ParseSafetensorsHeader(layout.json, layout.data_bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors, layout.tensors);
}

}  // namespace
}  // namespace aqt::io
