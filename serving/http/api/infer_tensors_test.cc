// Requests of `infer`: what is read, what is refused, and what comes back. Exact.

#include "serving/http/api/infer_tensors.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class T>
std::string Bytes(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}
std::string Input(const std::string& datatype, const std::string& shape, const std::string& rest) {
  return absl::StrCat(R"({"inputs": [{"name": "x", "datatype": ")", datatype, R"(", "shape": )", shape, ", ", rest,
                      "}]}");
}
absl::StatusOr<InferRequest> ParseData(const std::string& datatype, const std::string& shape, const std::string& data) {
  return ParseInfer(Input(datatype, shape, absl::StrCat("\"data\": ", data)), std::nullopt);
}
absl::StatusOr<InferRequest> ParseBinary(const std::string& datatype, const std::string& shape,
                                         const std::string& bytes, int64_t size) {
  const std::string json = Input(datatype, shape, absl::StrCat(R"("parameters": {"binary_data_size": )", size, "}"));
  return ParseInfer(json + bytes, static_cast<int64_t>(json.size()));
}
void ExpectRefused(const absl::StatusOr<InferRequest>& request, const std::string& message) {
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(request.status().message(), HasSubstr(message));
}

TEST(InferTensors, DatatypesInJsonAndInBinary) {
  const auto check = [&]<class T>(const std::string& datatype, const std::string& data,
                                  std::initializer_list<T> values) {
    SCOPED_TRACE(datatype);
    const Array expected = Array::Of<T>(values, {static_cast<int64_t>(values.size())});
    const std::string shape = absl::StrCat("[", values.size(), "]"), bytes = Bytes(values);
    if (!data.empty()) {
      const auto json = ParseData(datatype, shape, data);
      ASSERT_TRUE(json.ok()) << json.status();
      EXPECT_TRUE(BitEqual(json->inputs[0].array, expected));
    }
    const auto binary = ParseBinary(datatype, shape, bytes, static_cast<int64_t>(bytes.size()));
    ASSERT_TRUE(binary.ok()) << binary.status();
    EXPECT_TRUE(BitEqual(binary->inputs[0].array, expected));
    EXPECT_EQ(DatatypeOf(kDTypeOf<T>), datatype);
  };
  check.operator()<bool>("BOOL", "[true, false]", {true, false});
  check.operator()<int8_t>("INT8", "[-128, 127]", {-128, 127});
  check.operator()<uint8_t>("UINT8", "[0, 255]", {0, 255});
  check.operator()<int16_t>("INT16", "[-32768, 32767]", {-32768, 32767});
  check.operator()<int32_t>("INT32", "[-2147483648, 2147483647]", {INT32_MIN, INT32_MAX});
  check.operator()<uint32_t>("UINT32", "[0, 4294967295]", {0, UINT32_MAX});
  check.operator()<int64_t>("INT64", "[-9223372036854775808, 9223372036854775807]", {INT64_MIN, INT64_MAX});
  check.operator()<float>("FP32", "[1, -0.0, 1e-45, 3.4028234663852886e38]", {1, -0.0f, 1e-45f, 3.40282347e38f});
  check.operator()<double>("FP64", "[0.1, 1e308]", {0.1, 1e308});
  check.operator()<Float16>("FP16", "", {{0x3c00}, {0x7c00}});
  check.operator()<BFloat16>("BF16", "", {{0x3f80}, {0xffc0}});
}

TEST(InferTensors, ShapesOfData) {
  for (const char* data : {"[1, 2, 3, 4, 5, 6]", "[[1, 2, 3], [4, 5, 6]]"}) {
    const auto request = ParseData("FP32", "[2, 3]", data);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_TRUE(BitEqual(request->inputs[0].array, Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3})));
  }
  EXPECT_TRUE(ParseData("FP32", "[]", "[1]").ok());
  EXPECT_TRUE(ParseData("FP32", "[0]", "[]").ok());
  EXPECT_TRUE(ParseData("FP32", "[2, 0]", "[[], []]").ok());
  EXPECT_TRUE(ParseData("FP32", "[1, 1, 1, 1, 1, 1, 1, 1]", "[[[[[[[[1]]]]]]]]").ok());
  for (const char* data :
       {"[1, 2, 3, 4, 5]", "[1, 2, 3, 4, 5, 6, 7]", "[[1, 2], [3, 4], [5, 6]]", "[[1, 2, 3], [4, 5]]",
        "[[1, 2, 3], 4, 5, 6]", "[[[1, 2, 3]], [[4, 5, 6]]]", "[]", "1", "{}", "\"123456\""}) {
    EXPECT_FALSE(ParseData("FP32", "[2, 3]", data).ok()) << data;
  }
}

TEST(InferTensors, ValuesThatADatatypeDoesNotHave) {
  const char* wrong[][2] = {{"BOOL", "1"},
                            {"INT8", "128"},
                            {"INT8", "-129"},
                            {"UINT8", "256"},
                            {"UINT8", "-1"},
                            {"INT16", "1.0"},
                            {"INT32", "1e3"},
                            {"UINT32", "-1"},
                            {"UINT32", "4294967296"},
                            {"INT64", "9223372036854775808"},
                            {"INT64", "1e18"},
                            {"FP32", "3.5e38"},
                            {"FP32", "\"1\""},
                            {"FP32", "true"},
                            {"FP32", "null"},
                            {"FP64", "[]"},
                            {"BYTES", "1"},
                            {"BOOL", "\"true\""}};
  for (const auto& [datatype, value] : wrong) {
    EXPECT_FALSE(ParseData(datatype, "[1]", absl::StrCat("[", value, "]")).ok()) << datatype << " " << value;
  }
  ExpectRefused(ParseData("INT8", "[2]", "[1, 300]"), "the input 'x': value 1 of \"data\" is 300, expected INT8");
  ExpectRefused(ParseData("FP16", "[1]", "[1]"), "send it as binary data");
  for (const char* datatype : {"UINT64", "UINT16", "FP8", "", "fp32"}) {
    EXPECT_FALSE(ParseData(datatype, "[1]", "[1]").ok()) << datatype;
  }
}

TEST(InferTensors, ShapesThatAreRefused) {
  for (const char* shape :
       {"[-1]", "[1.5]", "[\"1\"]", "1", "null", "[4294967296]", "[65536, 65536]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]",
        "[2147483648]", "[2147483647, 2147483647, 2147483647, 2147483647]", "[[1]]"}) {
    EXPECT_FALSE(ParseData("FP32", shape, "[1]").ok()) << shape;
    EXPECT_FALSE(ParseBinary("FP32", shape, "1234", 4).ok()) << shape;
  }
  ExpectRefused(ParseBinary("FP32", "[1000000000]", "1234", 4),
                "has 4 bytes, and FP32 of shape [1000000000] has 4000000000");
}

TEST(InferTensors, Strings) {
  const std::string bytes = absl::StrCat(Bytes<uint32_t>({2}), "ab", Bytes<uint32_t>({0}), Bytes<uint32_t>({1}), "c");
  const auto binary = ParseBinary("BYTES", "[3]", bytes, static_cast<int64_t>(bytes.size()));
  ASSERT_TRUE(binary.ok()) << binary.status();
  EXPECT_THAT(binary->inputs[0].strings, ElementsAre("ab", "", "c"));
  const auto json = ParseData("BYTES", "[1, 2]", R"([["\u00e9", "b"]])");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(json->inputs[0].strings, ElementsAre("\xc3\xa9", "b"));
  EXPECT_THAT(json->inputs[0].shape, ElementsAre(1, 2));
  const int64_t size = static_cast<int64_t>(bytes.size());
  ExpectRefused(ParseBinary("BYTES", "[2]", bytes, size), "more than the 2 strings");
  ExpectRefused(ParseBinary("BYTES", "[4]", bytes, size), "has 3 strings, and its shape has 4");
  ExpectRefused(ParseBinary("BYTES", "[3]", bytes.substr(0, bytes.size() - 1), size - 1), "string 2 is not complete");
  ExpectRefused(ParseBinary("BYTES", "[1]",
                            "\xff\xff\xff\xff"
                            "abc",
                            7),
                "string 0 is not complete");
  ExpectRefused(ParseBinary("BYTES", "[1]", "abc", 3), "not complete");
  ExpectRefused(
      ParseInfer(absl::StrCat(Input("BYTES", "[3]", R"("parameters": {"binary_data_size": 3})"), "abc"),
                 static_cast<int64_t>(Input("BYTES", "[3]", R"("parameters": {"binary_data_size": 3})").size()),
                 {.strings = 2}),
      "more than 2 strings");
  const std::string many = Input("BYTES", "[3]", R"("data": ["a", "b", "c"])");
  ExpectRefused(ParseInfer(many, std::nullopt, {.strings = 2}), "more than 2 strings");
  ExpectRefused(ParseInfer(Input("BYTES", "[1]", R"("data": ["abc"])"), std::nullopt, {.string_bytes = 2}), "3 bytes");
}

TEST(InferTensors, BinaryDataThatDoNotFit) {
  ExpectRefused(ParseBinary("FP32", "[1]", "1234", 5), "and 4 bytes are left");
  ExpectRefused(ParseBinary("FP32", "[1]", "12345678", 4), "4 bytes at the end of the body belong to no input");
  ExpectRefused(ParseBinary("FP32", "[2]", "1234", 4), "has 4 bytes, and FP32 of shape [2] has 8");
  ExpectRefused(ParseBinary("BOOL", "[1]", "\x02", 1), "other bytes than 0 and 1");
  ExpectRefused(ParseBinary("FP32", "[1]", "1234", -4), "binary_data_size");
  ExpectRefused(ParseInfer(Input("FP32", "[1]", R"("data": [1], "parameters": {"binary_data_size": 0})"), std::nullopt),
                "has both");
  ExpectRefused(ParseInfer(Input("FP32", "[1]", R"("parameters": {})"), std::nullopt), "has neither");
}

TEST(InferTensors, FieldsThatAreRefused) {
  const auto refused = [](const std::string& json, const std::string& message) {
    ExpectRefused(ParseInfer(json, std::nullopt), message);
  };
  refused("{}", "\"inputs\" is missing");
  refused(R"({"inputs": {}})", "\"inputs\" is an object");
  refused(R"({"inputs": [1]})", "\"inputs[0]\" is a number");
  refused(R"({"inputs": [], "more": 1})", "\"more\"");
  refused(R"({"inputs": [], "id": 1})", "\"id\" is a number");
  refused(R"({"inputs": [], "parameters": {"sequence_id": 1}})", "\"parameters.sequence_id\"");
  refused(R"({"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]})", "'y' is asked for twice");
  refused(R"({"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 3}}]})", "classification");
  refused(Input("FP32", "[1]", R"("data": [1], "parameters": {"shared_memory_region": "r"})"),
          "\"inputs[0].parameters.shared_memory_region\"");
  refused(Input("FP32", "[1]", R"("data": [1], "parameters": 7)"), "\"inputs[0].parameters\" is a number");
  refused(Input("FP32", "[1]", R"("data": [1], "extra": 1)"), "\"inputs[0].extra\"");
  refused(R"({"inputs": [{"datatype": "FP32", "shape": [1], "data": [1]}]})", "\"inputs[0].name\" is missing");
}

TEST(InferTensors, Answers) {
  InferTensor numbers{.name = "y", .array = Array::Of<float>({1, 0.1f}, {1, 2}), .strings = {}, .shape = {1, 2}};
  InferTensor words{.name = "w", .array = {}, .strings = {"a\"", ""}, .is_bytes = true, .shape = {2}};
  InferRequest request;
  const auto json = InferAnswerOf("m", request, {numbers, words});
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->body, R"({"model_name":"m","model_version":"1","outputs":[)"
                        R"({"name":"y","datatype":"FP32","shape":[1,2],"data":[1,0.1]},)"
                        R"({"name":"w","datatype":"BYTES","shape":[2],"data":["a\"",""]}]})");
  EXPECT_FALSE(json->json_bytes.has_value());
  request.outputs = {{"y", true}};
  request.binary_outputs = true;
  const auto binary = InferAnswerOf("m", request, {numbers, words});
  ASSERT_TRUE(binary.ok());
  EXPECT_EQ(binary->body.substr(static_cast<size_t>(*binary->json_bytes)),
            absl::StrCat(Bytes<float>({1, 0.1f}), Bytes<uint32_t>({2}), "a\"", Bytes<uint32_t>({0})));
  numbers.array = Array::Of<float>({1, std::numeric_limits<float>::infinity()}, {1, 2});
  EXPECT_EQ(InferAnswerOf("m", {}, {numbers}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(InferAnswerOf("m", request, {numbers}).ok()) << "binary data can tell it";
}

}  // namespace
}  // namespace aqt::serving
