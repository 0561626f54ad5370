#include "aqt/transforms/precision/amp_proto.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/transforms/precision/amp.h"

namespace aqt {
namespace {

using ::testing::HasSubstr;

TEST(AmpProto, Reads) {
  const absl::StatusOr<AmpOptions> options = AmpOptionsFromText(R"(
      schema: 1
      compute_dtype: AMP_DTYPE_BF16
      rules { key: "mlp/logits"  precision: AMP_PRECISION_ORIGINAL }
      rules { key: "mul"  dtype: AMP_DTYPE_F16 }
      remove: "exp")");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->compute_dtype, DType::kBF16);
  EXPECT_EQ(options->policy.at("mlp/logits").kind, AmpRule::Kind::kOriginal);
  EXPECT_EQ(options->policy.at("mul").ToString(), "f16");
  EXPECT_EQ(options->policy.at("div").ToString(), "f32");
  EXPECT_FALSE(options->policy.contains("exp"));
  EXPECT_TRUE(AmpOptionsFromText("schema: 1  no_defaults: true")->policy.empty());
}

TEST(AmpProto, RoundTrip) {
  AmpOptions options{.compute_dtype = DType::kF32};
  options.policy.erase("amp_stop");
  options.policy["add"] = UseWidestPrecision();
  options.policy["attention"] = UsePrecision(DType::kF64);
  options.policy["tanh"] = UseComputePrecision();
  const std::string text = *ToText(options);
  const absl::StatusOr<AmpOptions> read = AmpOptionsFromText(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->compute_dtype, options.compute_dtype);
  ASSERT_EQ(read->policy.size(), options.policy.size());
  for (const auto& [key, rule] : options.policy) EXPECT_EQ(read->policy.at(key).ToString(), rule.ToString()) << key;
  EXPECT_EQ(*ToText(*read), text);
  EXPECT_EQ(*ToText(AmpOptions{}), "schema: 1\ncompute_dtype: AMP_DTYPE_F16\n");

  options.policy["add"] = {.kind = AmpRule::Kind::kFunction};
  EXPECT_THAT(ToText(options).status().message(), HasSubstr("the rule of \"add\" is a function"));
}

TEST(AmpProto, ErrorsSayWhere) {
  const auto message = [](const char* text) { return std::string(AmpOptionsFromText(text).status().message()); };
  EXPECT_THAT(message("compute_dtype: AMP_DTYPE_F16"), HasSubstr("schema"));
  EXPECT_THAT(message("schema: 1\nrules { precision: AMP_PRECISION_COMPUTE }"),
              HasSubstr("config:2:1: a rule needs a key"));
  EXPECT_THAT(message("schema: 1\nrules { key: \"add\" }"), HasSubstr("a rule needs a precision or a dtype"));
  EXPECT_THAT(message("schema: 1\nrules { key: \"a\" dtype: AMP_DTYPE_F32 precision: AMP_PRECISION_WIDEST }"),
              HasSubstr("and not both"));
  EXPECT_THAT(
      message("schema: 1\nrules { key: \"a\" dtype: AMP_DTYPE_F32 }\nrules { key: \"a\" dtype: AMP_DTYPE_F16 }"),
      HasSubstr("config:3:1: there are two rules with the key \"a\""));
  EXPECT_THAT(message("schema: 1\nremove: \"tanh\""), HasSubstr("config:2:1: \"tanh\" is no default rule"));
  EXPECT_THAT(message("schema: 1\ncompute_dtype: AMP_DTYPE_F64"),
              HasSubstr("config:2:1: compute_dtype is f16, bf16 or f32"));
  EXPECT_THAT(message("schema: 1\ncompute_dtype: bf16"), HasSubstr("AMP_DTYPE_BF16"));
}

}  // namespace
}  // namespace aqt
