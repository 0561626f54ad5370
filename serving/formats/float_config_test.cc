#include "serving/formats/float_config.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

std::string Cleaned(absl::string_view text, absl::string_view dtype = "float32") {
  const absl::StatusOr<std::string> cleaned = RemoveQuantizationConfig(text, dtype);
  return cleaned.ok() ? *cleaned : std::string(cleaned.status().message());
}

TEST(FloatConfig, RemovesTheConfigurationWhereverItStands) {
  EXPECT_EQ(Cleaned("{\n  \"a\": 1,\n  \"torch_dtype\": \"float16\",\n  \"quantization_config\": {\"b\": [2]}\n}\n"),
            "{\n  \"a\": 1,\n  \"torch_dtype\": \"float32\"\n}\n");
  EXPECT_EQ(Cleaned("{\n  \"quantization_config\": {},\n  \"a\": 1,\n  \"dtype\": \"float16\"\n}"),
            "{\n  \"a\": 1,\n  \"dtype\": \"float32\"\n}");
  EXPECT_EQ(Cleaned(R"({"a": 1, "compression_config": 1, "quantization_config": 2, "dtype": "x", "b": NaN})"),
            R"({"a": 1, "dtype": "float32", "b": NaN})");
  EXPECT_EQ(Cleaned(R"({"dtype": "x", "compression_config": 1, "quantization_config": 2})"), R"({"dtype": "float32"})");
  EXPECT_EQ(Cleaned(R"({"quantization_config": 2})", ""), "{}");
}

TEST(FloatConfig, AddsADtypeIfThereIsNone) {
  EXPECT_EQ(Cleaned("{\n    \"a\": 1,\n    \"quantization_config\": {}\n}\n", "bfloat16"),
            "{\n    \"a\": 1,\n    \"torch_dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(Cleaned(""), "{\n  \"torch_dtype\": \"float32\"\n}\n");
}

TEST(FloatConfig, PartsOfAModel) {
  EXPECT_EQ(
      Cleaned(R"({"text_config": {"dtype": "float16", "quantization_config": {"c": 1}},)"
              R"( "vision_config": {"dtype": "float16"}, "torch_dtype": "float16"})",
              "bfloat16"),
      R"({"text_config": {"dtype": "bfloat16"}, "vision_config": {"dtype": "float16"}, "torch_dtype": "bfloat16"})");
}

TEST(FloatConfig, OtherTextIsKept) {
  const std::string text = "{ \"a\":1e999 ,\t\"torch_dtype\": \"float16\"}  ";
  EXPECT_EQ(Cleaned(text, ""), text);
  EXPECT_TRUE(absl::IsDataLoss(RemoveQuantizationConfig("[1]", "").status()));
}

}  // namespace
}  // namespace aqt::serving
