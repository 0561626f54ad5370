#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/stored/stored_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::stored {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// A quantization_config with one group.
std::string Config(absl::string_view format, absl::string_view weights, absl::string_view targets = R"(["Linear"])",
                   absl::string_view rest = "") {
  return absl::StrCat(R"({"quant_method": "compressed-tensors", "format": ")", format,
                      R"(", "config_groups": {"group_0": {"targets": )", targets, R"(, "weights": {)", weights, "}}}",
                      rest, "}");
}

constexpr char kInt4Groups[] = R"("num_bits": 4, "type": "int", "strategy": "group", "group_size": 4)";
constexpr char kNvfp4[] = R"("num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16)";

// One row of 8 integers, -8 .. -1, in groups of 4, packed: the fields are 0 .. 7.
NamedArrays Packed() {
  return {{"m.weight_packed", Array::Of<int32_t>({0x76543210}, {1, 1})},
          {"m.weight_scale", Array::Of<float>({2, 0.5}, {1, 2})},
          {"m.weight_shape", Array::Of<int64_t>({1, 8}, {2})},
          {"m.input_scale", Array::Of<float>({1}, {1})},
          {"norm.weight", Array::Of<float>({7}, {1})}};
}

TEST(CompressedTensors, PackedIntegers) {
  const Opened opened(Packed(), Config("pack-quantized", kInt4Groups));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), UnorderedElementsAre("m.weight", "norm.weight"));
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(-16, -14, -12, -10, -2, -1.5, -1, -0.5));
  EXPECT_THAT(opened.Values("norm.weight"), ElementsAre(7));
  EXPECT_EQ(opened->num_dequantized(), 1);
}

TEST(CompressedTensors, PackedZeroPointsRunAlongTheRows) {
  NamedArrays tensors = With(Packed(), "m.weight_packed", Array::Of<int32_t>({0x76543210, 0x76543210}, {2, 1}));
  tensors = With(tensors, "m.weight_scale", Array::Of<float>({1, 1, 1, 1}, {2, 2}));
  tensors = With(tensors, "m.weight_shape", Array::Of<int64_t>({2, 8}, {2}));
  // The fields of the rows are 9 and 6 in the first group, 8 and 7 in the second: zero points 1, -2, 0 and -1.
  tensors = With(tensors, "m.weight_zero_point", Array::Of<int32_t>({0x69, 0x78}, {1, 2}));
  const Opened opened(tensors, Config("pack-quantized", absl::StrCat(kInt4Groups, R"(, "symmetric": false)")));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(-9, -8, -7, -6, -4, -3, -2, -1, -6, -5, -4, -3, -3, -2, -1, 0));
}

TEST(CompressedTensors, SymmetricWeightsMayHaveZeroPoints) {
  const NamedArrays tensors = With(Packed(), "m.weight_zero_point", Array::Of<int8_t>({0, 1}, {1, 2}));
  const Opened opened(tensors, Config("pack-quantized", kInt4Groups));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), UnorderedElementsAre("m.weight", "norm.weight"));
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(-16, -14, -12, -10, -2.5, -2, -1.5, -1));
}

TEST(CompressedTensors, ColumnsMayBeReordered) {
  const NamedArrays tensors = With(Packed(), "m.weight_g_idx", Array::Of<int32_t>({0, 1, 0, 1, 0, 1, 0, 1}, {8}));
  const Opened opened(tensors, Config("pack-quantized", kInt4Groups));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(-16, -3.5, -12, -2.5, -8, -1.5, -4, -0.5));
  const Opened bad(With(tensors, "m.weight_g_idx", Array::Of<int32_t>({0, 1, 0, 1, 2, 1, 0, 1}, {8})),
                   Config("pack-quantized", kInt4Groups));
  ASSERT_TRUE(bad.status().ok()) << bad.status();
  EXPECT_THAT(std::string(bad->ReadArray("m.weight").status().message()),
              AllOf(HasSubstr("m.weight_g_idx"), HasSubstr("element 4 is 2")));
}

TEST(CompressedTensors, OldVersionsPadWordsOfOddBits) {
  NamedArrays tensors = With(Packed(), "m.weight_scale", Array::Of<float>({1}, {1, 1}));
  // Five bits, six fields per word: 16 + 1 .. 16 + 6, then 16 + 7 and 16 + 8 in the next word.
  int32_t first = 0, second = 23 | 24 << 5;
  for (int k = 0; k < 6; ++k) first |= (17 + k) << 5 * k;
  tensors = With(tensors, "m.weight_packed", Array::Of<int32_t>({first, second}, {1, 2}));
  const std::string weights = R"("num_bits": 5, "type": "int", "strategy": "channel")";
  const Opened opened(tensors, Config("pack-quantized", weights, R"(["Linear"])", R"(, "version": "0.16.0")"));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(CompressedTensors, PlainIntegersAndBlocksOfFloats) {
  const NamedArrays ints = {{"m.weight", Array::Of<int8_t>({1, -2, 3, -4, 5, -6}, {3, 2})},
                            {"m.weight_scale", Array::Of<float>({2, 3, 4}, {3, 1})}};
  const Opened channel(ints, Config("int-quantized", R"("num_bits": 8, "type": "int", "strategy": "channel")"));
  ASSERT_TRUE(channel.status().ok()) << channel.status();
  EXPECT_THAT(channel.Values("m.weight"), ElementsAre(2, -4, 9, -12, 20, -24));
  const Opened block(
      With(ints, "m.weight_scale", Array::Of<float>({2, 3}, {2, 1})),
      Config("int-quantized", R"("num_bits": 8, "type": "int", "strategy": "block", "block_structure": [2, 2])"));
  ASSERT_TRUE(block.status().ok()) << block.status();
  EXPECT_THAT(block.Values("m.weight"), ElementsAre(2, -4, 6, -8, 15, -18));
  const Opened narrow(ints, Config("int-quantized", R"("num_bits": 3, "type": "int", "strategy": "channel")"));
  ASSERT_TRUE(narrow.status().ok()) << narrow.status();
  EXPECT_THAT(std::string(narrow->ReadArray("m.weight").status().message()),
              AllOf(HasSubstr("m.weight I8[3,2]"), HasSubstr("the value 5 at [2,0] is outside [-4,3]")));
}

NamedArrays Nvfp4() {
  const Array packed = Array::FromSpan<uint8_t>(std::vector<uint8_t>{0x72, 0, 0, 0, 0, 0, 0, 0}, {1, 8});
  return {{"m.weight_packed", packed},
          {"m.weight_scale", Array::Of<Float8E4M3FN>({RoundTo<Float8E4M3FN>(3)}, {1, 1})},
          {"m.weight_global_scale", Array::Of<float>({7}, {1})}};
}

TEST(CompressedTensors, Nvfp4DividesTheScalesFirst) {
  const Opened opened(Nvfp4(), Config("nvfp4-pack-quantized", kNvfp4));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  const std::vector<float> w = opened.Values("m.weight");
  ASSERT_EQ(w.size(), 16u);
  const float scale = 3.0f / 7.0f;
  EXPECT_EQ(w[0], 1.0f * scale);
  EXPECT_EQ(w[1], 6.0f * scale);
}

TEST(CompressedTensors, IncompleteSetsAreErrorsByName) {
  const std::string packed = Config("pack-quantized", kInt4Groups), nvfp4 = Config("nvfp4-pack-quantized", kNvfp4);
  const auto message = [](const Opened& opened) {
    EXPECT_TRUE(absl::IsDataLoss(opened.status())) << opened.status();
    return std::string(opened.status().message());
  };
  EXPECT_THAT(message(Opened(Without(Packed(), "m.weight_scale"), packed)),
              HasSubstr("m.weight is incomplete: the tensor m.weight_scale is missing"));
  EXPECT_THAT(message(Opened(Without(Packed(), "m.weight_shape"), packed)), HasSubstr("m.weight_shape is missing"));
  EXPECT_THAT(message(Opened(Without(Packed(), "m.weight_packed"), packed)),
              HasSubstr("m.weight_scale F32[1,2] is a part of a quantized weight"));
  EXPECT_THAT(message(Opened(Without(Nvfp4(), "m.weight_global_scale"), nvfp4)),
              HasSubstr("the tensor m.weight_global_scale is missing"));
  const Array cut = Array::FromSpan<uint8_t>(std::vector<uint8_t>(7), {1, 7});
  EXPECT_THAT(message(Opened(With(Nvfp4(), "m.weight_packed", cut), nvfp4)),
              AllOf(HasSubstr("m.weight_packed U8[1,7]"), HasSubstr("whole groups of 16 values, but they have 14")));
  EXPECT_THAT(message(Opened(With(Packed(), "m.weight_shape", Array::Of<int64_t>({1, 7}, {2})), packed)),
              AllOf(HasSubstr("m.weight_packed I32[1,1]"), HasSubstr("whole groups of 4 values, but they have 7")));
  EXPECT_THAT(message(Opened(With(Packed(), "m.weight_scale", Array::Of<float>({1}, {1, 1})), packed)),
              AllOf(HasSubstr("m.weight_scale F32[1,1]"), HasSubstr("expected the shape [1,2]")));
  EXPECT_THAT(message(Opened(With(Packed(), "m.weight_shape", Array::Of<int64_t>({1, 9}, {2})), packed)),
              HasSubstr("m.weight_packed I32[1,1]"));
  EXPECT_THAT(
      message(Opened(With(Packed(), "n.weight_scale", Array::Of<float>({1}, {1, 1})), packed)),
      AllOf(HasSubstr("n.weight_scale F32[1,1] is a part of a quantized weight"), HasSubstr("values are missing")));
  EXPECT_THAT(message(Opened(With(Packed(), "n.weight", Array::Of<int8_t>({1}, {1, 1})), packed)),
              HasSubstr("n.weight I8[1,1] has the type of a quantized weight"));
  EXPECT_THAT(message(Opened(With(Packed(), "m.weight", Array::Of<float>({1}, {1, 1})), packed)),
              HasSubstr("the weight m.weight twice"));
}

TEST(CompressedTensors, TargetsChooseTheGroup) {
  const std::string config = R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
      "a": {"targets": ["re:.*embed_tokens$"], "format": "int-quantized",
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
      "b": {"targets": ["Linear"], "format": "int-quantized",
            "weights": {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 2}}}})";
  const Opened opened({{"model.embed_tokens.weight", Array::Of<int8_t>({1, 2, 3, 4}, {1, 4})},
                       {"model.embed_tokens.weight_scale", Array::Of<float>({2}, {1, 1})},
                       {"model.q.weight", Array::Of<int8_t>({1, 2, 3, 4}, {1, 4})},
                       {"model.q.weight_scale", Array::Of<float>({2, 3}, {1, 2})}},
                      config);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("model.embed_tokens.weight"), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(opened.Values("model.q.weight"), ElementsAre(2, 4, 9, 12));
}

TEST(CompressedTensors, WhatCannotBeReadIsRefusedByField) {
  const auto status = [](absl::string_view format, absl::string_view rest) {
    return Opened(Packed(), Config(format, kInt4Groups, R"(["Linear"])", rest)).status();
  };
  EXPECT_TRUE(absl::IsUnimplemented(status("marlin-24", "")));
  EXPECT_THAT(std::string(status("marlin-24", "").message()), HasSubstr("format is marlin-24"));
  EXPECT_THAT(
      std::string(status("pack-quantized", R"(, "sparsity_config": {"format": "sparse-24-bitmask"})").message()),
      HasSubstr("sparsity_config"));
  EXPECT_THAT(std::string(Opened(Packed(), "").status().message()), HasSubstr("no config.json"));
}

}  // namespace
}  // namespace aqt::stored
