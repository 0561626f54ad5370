// fp8, AWQ, GPTQ, ModelOpt, gpt-oss and bitsandbytes, on small hand-made tensors. The files of the real tools are in
// tests/golden/foreign.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/io/tensors/memory_tensor_source.h"
#include "aqt/stored/stored_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::stored {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string DataLoss(const absl::Status& status) {
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  return std::string(status.message());
}

Array Floats8(const std::vector<float>& values, Shape shape) {
  std::vector<Float8E4M3FN> codes;
  for (const float value : values) codes.push_back(RoundTo<Float8E4M3FN>(value));
  return Array::FromSpan<Float8E4M3FN>(codes, std::move(shape));
}
Array Bytes(const std::vector<uint8_t>& values, Shape shape) {
  return Array::FromSpan<uint8_t>(values, std::move(shape));
}
Array Half(const std::vector<float>& values, Shape shape) {
  return Cast(Array::FromSpan<float>(values, std::move(shape)), DType::kF16);
}

// ---- fp8

constexpr char kFp8Blocks[] = R"({"quant_method": "fp8", "weight_block_size": [2, 2]})";

NamedArrays Fp8Blocks() {
  return {{"m.weight", Floats8({1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3})},
          {"m.weight_scale_inv", Array::Of<float>({1, 10, 100, 1000}, {2, 2})}};
}

TEST(Fp8, BlocksAreCutOffAtTheEdges) {
  const Opened opened(Fp8Blocks(), kFp8Blocks);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), ElementsAre("m.weight"));
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(1, 2, 30, 4, 5, 60, 700, 800, 9000));
}

TEST(Fp8, ExpertsHaveBlocksOfTheirOwn) {
  const NamedArrays tensors = {{"experts.up_proj", Floats8({1, 2, 3, 4, 5, 6}, {2, 3, 1})},
                               {"experts.up_proj_scale_inv", Array::Of<float>({1, 10, 100, 1000}, {2, 2, 1})}};
  const Opened opened(tensors, kFp8Blocks);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("experts.up_proj"), ElementsAre(1, 2, 30, 400, 500, 6000));
}

TEST(Fp8, OneScaleOrOnePerRow) {
  const NamedArrays tensors = {{"m.weight", Floats8({1, 2, 3, 4}, {2, 2})},
                               {"m.weight_scale", Array::Of<float>({3}, {})},
                               {"m.activation_scale", Array::Of<float>({3}, {})}};
  const Opened scalar(tensors, R"({"quant_method": "fp8", "weight_block_size": null})");
  ASSERT_TRUE(scalar.status().ok()) << scalar.status();
  EXPECT_THAT(scalar.Names(), ElementsAre("m.weight"));
  EXPECT_THAT(scalar.Values("m.weight"), ElementsAre(3, 6, 9, 12));
  const Opened rows(With(tensors, "m.weight_scale", Array::Of<float>({3, 5}, {2, 1})),
                    R"({"quant_method": "fbgemm_fp8"})");
  ASSERT_TRUE(rows.status().ok()) << rows.status();
  EXPECT_THAT(rows.Values("m.weight"), ElementsAre(3, 6, 15, 20));
}

TEST(Fp8, IncompleteSetsAreErrorsByName) {
  EXPECT_THAT(DataLoss(Opened(Without(Fp8Blocks(), "m.weight_scale_inv"), kFp8Blocks).status()),
              HasSubstr("the tensor m.weight_scale_inv is missing"));
  EXPECT_THAT(
      DataLoss(Opened(With(Fp8Blocks(), "n.weight_scale_inv", Array::Of<float>({1}, {1, 1})), kFp8Blocks).status()),
      HasSubstr("n.weight_scale_inv F32[1,1] is a part of a quantized weight"));
  EXPECT_THAT(
      DataLoss(Opened(With(Fp8Blocks(), "m.weight_scale_inv", Array::Of<float>({1, 2}, {1, 2})), kFp8Blocks).status()),
      AllOf(HasSubstr("m.weight_scale_inv F32[1,2]"), HasSubstr("the shape [2,2], for blocks of 2 x 2")));
  EXPECT_THAT(DataLoss(Opened(With(Fp8Blocks(), "m.weight_scale_inv", Array::Of<float>({1}, {})), kFp8Blocks).status()),
              AllOf(HasSubstr("m.weight_scale_inv F32[]"), HasSubstr("the shape [2,2], for blocks of 2 x 2")));
  EXPECT_THAT(DataLoss(Opened(With(Fp8Blocks(), "m.scale", Array::Of<float>({1}, {})), kFp8Blocks).status()),
              HasSubstr("one scale, but there is also m.weight_scale_inv"));
  EXPECT_THAT(DataLoss(Opened(Fp8Blocks(), R"({"quant_method": "fp8"})").status()), HasSubstr("weight_block_size"));
}

TEST(Fp8, ValuesThatAreNotFiniteAreErrorsByPosition) {
  NamedArrays tensors = With(Fp8Blocks(), "m.weight_scale_inv", Array::Of<float>({1, 1, 1, INFINITY}, {2, 2}));
  const Opened opened(tensors, kFp8Blocks);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(DataLoss(opened->ReadArray("m.weight").status()),
              AllOf(HasSubstr("m.weight"), HasSubstr("element [2,2]")));
  tensors = With(Fp8Blocks(), "m.weight_scale_inv", Array::Of<float>({1, 1, 1, 1e6}, {2, 2}));
  EXPECT_TRUE(Opened(tensors, kFp8Blocks)->ReadArray("m.weight").ok());
  EXPECT_THAT(DataLoss(Opened(tensors, kFp8Blocks, DType::kF16)->ReadArray("m.weight").status()),
              HasSubstr("overflows f16; use bf16 or f32"));
}

// ---- AWQ

constexpr char kAwq[] = R"({"quant_method": "awq", "bits": 4, "group_size": 2, "version": "gemm"})";

// Four inputs and eight outputs: input k has the nibbles of `words[k]`.
NamedArrays AwqTensors() {
  return {{"m.qweight", Array::Of<int32_t>({0x76543210, 0x11111111, 0, 0x22222222}, {4, 1})},
          {"m.qzeros", Array::Of<int32_t>({0x11111111, 0}, {2, 1})},
          {"m.scales", Half({1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3}, {2, 8})},
          {"m.bias", Half({0, 0, 0, 0, 0, 0, 0, 0}, {8})}};
}

TEST(AwqFormat, NibblesAreInterleaved) {
  const Opened opened(AwqTensors(), kAwq);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), UnorderedElementsAre("m.weight", "m.bias"));
  // Output i of input 0 is in nibble 0, 4, 1, 5, 2, 6, 3, 7.
  std::vector<float> expected;
  const float first[] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int n = 0; n < 8; ++n) {
    const float row[] = {first[n] - 1, 0, 0, n == 7 ? 6.0f : 4.0f};
    expected.insert(expected.end(), row, row + 4);
  }
  EXPECT_THAT(opened.Values("m.weight"), ElementsAreArray(expected));
  EXPECT_THAT(Opened(AwqTensors(), "").Values("m.weight"), ElementsAreArray(expected));  // by names and shapes
}

TEST(AwqFormat, OtherLayoutsAndIncompleteSetsAreRefused) {
  EXPECT_TRUE(absl::IsUnimplemented(Opened(AwqTensors(), R"({"quant_method": "awq", "version": "gemv"})").status()));
  EXPECT_TRUE(absl::IsUnimplemented(Opened(AwqTensors(), R"({"quant_method": "awq", "bits": 3})").status()));
  EXPECT_THAT(DataLoss(Opened(Without(AwqTensors(), "m.qzeros"), kAwq).status()), HasSubstr("m.qzeros is missing"));
  EXPECT_THAT(DataLoss(Opened(Without(AwqTensors(), "m.qweight"), kAwq).status()),
              HasSubstr("m.qzeros I32[2,1] is a part of a quantized weight"));
  EXPECT_THAT(DataLoss(Opened(AwqTensors(), R"({"quant_method": "awq", "group_size": 4})").status()),
              AllOf(HasSubstr("m.scales F16[2,8]"), HasSubstr("group of 4 of the 4 inputs")));
  // Cut by one input.
  EXPECT_THAT(DataLoss(Opened(With(AwqTensors(), "m.qweight", Array::Of<int32_t>({1, 2, 3}, {3, 1})), kAwq).status()),
              AllOf(HasSubstr("m.scales F16[2,8]"), HasSubstr("group of 2 of the 3 inputs")));
}

// ---- GPTQ

std::string GptqConfig(absl::string_view rest) {
  return absl::StrCat(R"({"quant_method": "gptq", "bits": 4, "group_size": 4)", rest, "}");
}

// Eight inputs, two outputs, two groups; the fields of the outputs are 0 .. 7 and 8 .. 15.
NamedArrays GptqTensors(int32_t zeros0, int32_t zeros1) {
  return {{"m.qweight", Array::Of<int32_t>({0x76543210, static_cast<int32_t>(0xfedcba98)}, {1, 2})},
          {"m.qzeros", Array::Of<int32_t>({zeros0, zeros1}, {2, 1})},
          {"m.scales", Half({1, 2, 4, 8}, {2, 2})}};
}

TEST(GptqFormat, ZeroPointsOfBothVersions) {
  const std::vector<float> expected = {-3, -2, -1, 0, 0, 4, 8, 12, 8, 10, 12, 14, 56, 64, 72, 80};
  const Opened v2(GptqTensors(0x43, 0x54), GptqConfig(R"(, "checkpoint_format": "gptq_v2", "sym": false)"));
  ASSERT_TRUE(v2.status().ok()) << v2.status();
  EXPECT_THAT(v2.Values("m.weight"), ElementsAreArray(expected));
  const Opened v1(GptqTensors(0x32, 0x43), GptqConfig(R"(, "checkpoint_format": "gptq", "sym": false)"));
  ASSERT_TRUE(v1.status().ok()) << v1.status();
  EXPECT_THAT(v1.Values("m.weight"), ElementsAreArray(expected));
  EXPECT_THAT(Opened(GptqTensors(0x32, 0x43), GptqConfig(R"(, "sym": false)")).Values("m.weight"),
              ElementsAreArray(expected));
}

TEST(GptqFormat, SymmetricZeroPointsShowTheVersion) {
  const std::vector<float> expected = {-8, -7, -6, -5, -16, -12, -8, -4, 0, 2, 4, 6, 32, 40, 48, 56};
  for (const char* format : {"", R"(, "checkpoint_format": "gptq")", R"(, "checkpoint_format": "gptq_v2")"}) {
    const std::string config = GptqConfig(absl::StrCat(format, R"(, "sym": true)"));
    const Opened v1(GptqTensors(0x77, 0x77), config), v2(GptqTensors(0x88, 0x88), config);
    ASSERT_TRUE(v1.status().ok() && v2.status().ok()) << v1.status() << v2.status();
    EXPECT_THAT(v1.Values("m.weight"), ElementsAreArray(expected)) << format;
    EXPECT_THAT(v2.Values("m.weight"), ElementsAreArray(expected)) << format;
    // It is said where the configuration says otherwise.
    const bool is_v2 = absl::string_view(format).find("_v2") != absl::string_view::npos;
    EXPECT_EQ(v1->notes().size(), is_v2 ? 1u : 0u) << format;
    EXPECT_EQ(v2->notes().size(), is_v2 ? 0u : 1u) << format;
  }
}

TEST(GptqFormat, AZeroPointOfZeroInV1IsReadOrRefused) {
  // The true zero points 0 and 1 of the outputs: 0x10 - 0x11 in each word.
  const NamedArrays tensors = GptqTensors(-1, -1);
  const std::string config = R"(, "checkpoint_format": "gptq", "sym": false)";
  const Opened opened(tensors, GptqConfig(config + R"(, "meta": {"quantizer": ["gptqmodel:7.7.0"]})"));
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  // 0xffffffff + 0x11111111 = 0x11111110.
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(0, 1, 2, 3, 16, 20, 24, 28, 14, 16, 18, 20, 88, 96, 104, 112));
  const Opened unknown(tensors, GptqConfig(config));
  ASSERT_TRUE(unknown.status().ok()) << unknown.status();
  const absl::Status status = unknown->ReadArray("m.weight").status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("m.qzeros"), HasSubstr("zero point of output 0 in group 0"), HasSubstr("gptq_v2")));
}

// With one group their order does not matter, so that files may leave it out.
TEST(GptqFormat, OneGroupNeedsNoOrder) {
  const NamedArrays tensors = {
      {"m.qweight", Array::Of<int32_t>({0x76543210, static_cast<int32_t>(0xfedcba98)}, {1, 2})},
      {"m.qzeros", Array::Of<int32_t>({0x43}, {1, 1})},
      {"m.scales", Half({1, 2}, {1, 2})}};
  const Opened opened(tensors, R"({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true,
                                  "checkpoint_format": "gptq_v2"})");
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(-3, -2, -1, 0, 1, 2, 3, 4, 8, 10, 12, 14, 16, 18, 20, 22));
}

TEST(GptqFormat, InputsMayBeReordered) {
  const std::string config = GptqConfig(R"(, "checkpoint_format": "gptq_v2", "desc_act": true, "sym": false)");
  const NamedArrays tensors =
      With(GptqTensors(0x43, 0x54), "m.g_idx", Array::Of<int32_t>({1, 0, 1, 0, 1, 0, 1, 0}, {8}));
  const Opened opened(tensors, config);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(-16, -2, -8, 0, 0, 2, 8, 4, 24, 10, 40, 14, 56, 18, 72, 22));
  EXPECT_THAT(DataLoss(Opened(GptqTensors(0x43, 0x54), config).status()), HasSubstr("m.g_idx is missing"));
  const Opened bad(With(tensors, "m.g_idx", Array::Of<int32_t>({1, 0, 1, 0, 1, 0, 1, -1}, {8})), config);
  EXPECT_THAT(DataLoss(bad->ReadArray("m.weight").status()), HasSubstr("element 7 is -1"));
}

TEST(GptqFormat, IncompleteSetsAndOtherLayoutsAreRefused) {
  const std::string config = GptqConfig(R"(, "checkpoint_format": "gptq_v2", "sym": false)");
  const NamedArrays tensors = GptqTensors(0x43, 0x54);
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "m.scales"), config).status()), HasSubstr("m.scales is missing"));
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "m.qzeros"), config).status()), HasSubstr("m.qzeros is missing"));
  EXPECT_THAT(DataLoss(Opened(With(tensors, "m.qzeros", Array::Of<int32_t>({1, 2, 3, 4}, {2, 2})), config).status()),
              HasSubstr("m.qzeros I32[2,2]"));
  EXPECT_THAT(DataLoss(Opened(With(tensors, "n.g_idx", Array::Of<int32_t>({0}, {1})), config).status()),
              HasSubstr("n.g_idx I32[1] is a part of a quantized weight"));
  EXPECT_TRUE(absl::IsUnimplemented(Opened(tensors, GptqConfig(R"(, "checkpoint_format": "marlin")")).status()));
}

// ---- ModelOpt

TEST(ModelOptFormat, Fp8AndNvfp4) {
  std::vector<uint8_t> codes(8);
  codes[0] = 0x72;
  const NamedArrays tensors = {{"a.weight", Floats8({1, 2}, {1, 2})},
                               {"a.weight_scale", Array::Of<float>({3}, {})},
                               {"a.input_scale", Array::Of<float>({3}, {})},
                               {"a.k_scale", Array::Of<float>({3}, {})},
                               {"b.weight", Bytes(codes, {1, 8})},
                               {"b.weight_scale", Floats8({3}, {1, 1})},
                               {"b.weight_scale_2", Array::Of<float>({0.1f}, {})}};
  const std::string config = R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})";
  const Opened opened(tensors, config);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), UnorderedElementsAre("a.weight", "b.weight"));
  EXPECT_THAT(opened.Values("a.weight"), ElementsAre(3, 6));
  EXPECT_THAT(DataLoss(Opened(With(tensors, "b.weight", Bytes({1, 2, 3, 4, 5, 6, 7}, {1, 7})), config).status()),
              AllOf(HasSubstr("b.weight U8[1,7]"), HasSubstr("whole groups of 16 values")));
  EXPECT_EQ(opened.Values("b.weight")[1], 6 * (3 * 0.1f));  // the scales first
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "b.weight_scale_2"), config).status()),
              HasSubstr("b.weight_scale_2 is missing"));
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "a.weight"), config).status()),
              HasSubstr("is a part of a quantized weight"));
  const Opened smoothed(With(tensors, "a.pre_quant_scale", Array::Of<float>({1, 1}, {2})), config);
  EXPECT_TRUE(absl::IsUnimplemented(smoothed.status())) << smoothed.status();
}

// ---- gpt-oss

TEST(GptOssFormat, ExpertsAreTransposed) {
  std::vector<uint8_t> blocks(2 * 16);
  blocks[0] = 0x21;   // output 0: inputs 0 and 1
  blocks[16] = 0x43;  // output 1
  const NamedArrays tensors = {{"experts.up_blocks", Bytes(blocks, {1, 2, 1, 16})},
                               {"experts.up_scales", Bytes({128, 126}, {1, 2, 1})},
                               {"experts.up_bias", Array::Of<float>({1, 2}, {1, 2})}};
  const std::string config = R"({"quant_method": "mxfp4"})";
  const Opened opened(tensors, config);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), UnorderedElementsAre("experts.up", "experts.up_bias"));
  const std::vector<float> w = opened.Values("experts.up");
  ASSERT_EQ(opened->Find("experts.up")->shape, Shape({1, 32, 2}));
  EXPECT_THAT(std::vector<float>(w.begin(), w.begin() + 6), ElementsAre(1, 0.75, 2, 1, 0, 0));
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "experts.up_scales"), config).status()),
              HasSubstr("experts.up_scales is missing"));
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "experts.up_blocks"), config).status()),
              HasSubstr("experts.up_scales U8[1,2,1] is a part of a quantized weight"));
}

// ---- bitsandbytes

TEST(GptOssFormat, OrInTheOrderInWhichTheyAreStored) {
  std::mt19937 rng(5);
  constexpr int64_t kExperts = 3, kOut = 5, kIn = 64;
  const auto bytes = [&](const Shape& shape, int least, int most) {
    ArrayBuilder builder = ArrayBuilder::ForOverwrite({DType::kU8, shape});
    auto* const data = static_cast<uint8_t*>(builder.data());
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      data[i] = static_cast<uint8_t>(least + static_cast<int>(rng() % (most - least + 1)));
    }
    return std::move(builder).Build();
  };
  const io::MemoryTensorSource base("memory", {{"w_blocks", bytes({kExperts, kOut, kIn / 32, 16}, 0, 255)},
                                               {"w_scales", bytes({kExperts, kOut, kIn / 32}, 120, 130)}});
  StoredConfig config;
  config.method = "mxfp4";
  const Array in_out = *(*DequantizedSource::Open(base, config))->ReadArray("w");
  config.experts_out_in = true;
  const Array out_in = *(*DequantizedSource::Open(base, config))->ReadArray("w");
  ASSERT_EQ(in_out.shape(), Shape({kExperts, kIn, kOut}));
  ASSERT_EQ(out_in.shape(), Shape({kExperts, kOut, kIn}));
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t n = 0; n < kOut; ++n) {
      for (int64_t k = 0; k < kIn; ++k) {
        EXPECT_EQ(out_in.View<float>()[(e * kOut + n) * kIn + k], in_out.View<float>()[(e * kIn + k) * kOut + n]);
      }
    }
  }
}

TEST(BitsAndBytesFormat, Int8) {
  const NamedArrays tensors = {{"m.weight", Array::Of<int8_t>({127, -1, 3, 5}, {2, 2})},
                               {"m.SCB", Array::Of<float>({2, 0.3f}, {2})},
                               {"m.weight_format", Bytes({0}, {})}};
  const std::string config = R"({"quant_method": "bitsandbytes"})";
  const Opened opened(tensors, config);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), ElementsAre("m.weight"));
  const float step = 1.0f / 127;
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(254 * step, -2 * step, 3 * 0.3f * step, 5 * 0.3f * step));
  EXPECT_THAT(
      DataLoss(Opened(Without(tensors, "m.SCB"), config).status()),
      HasSubstr("m.weight I8[2,2] has the type of a quantized weight, but not the scales of the format bitsandbytes"));
  EXPECT_TRUE(absl::IsUnimplemented(Opened(With(tensors, "m.weight_format", Bytes({1}, {})), config).status()));
}

NamedArrays FourBits(absl::string_view state) {
  std::vector<float> map(16), nested(256);
  for (int i = 0; i < 16; ++i) map[i] = static_cast<float>(i);
  nested[200] = 2;
  nested[7] = 3;
  return {{"m.weight", Bytes({0x12, 0x34, 0x50}, {3, 1})},
          {"m.weight.quant_map", Array::FromSpan<float>(map, {16})},
          {"m.weight.absmax", Bytes({200, 7}, {2})},
          {"m.weight.nested_absmax", Array::Of<float>({10}, {1})},
          {"m.weight.nested_quant_map", Array::FromSpan<float>(nested, {256})},
          {"m.weight.quant_state.bitsandbytes__nf4",
           Bytes({state.begin(), state.end()}, {static_cast<int64_t>(state.size())})}};
}

TEST(BitsAndBytesFormat, FourBitsRunAcrossRows) {
  const std::string config = R"({"quant_method": "bitsandbytes"})";
  const NamedArrays tensors =
      FourBits(R"({"shape": [5, 1], "blocksize": 4, "nested_blocksize": 256, "nested_offset": 0.5})");
  const Opened opened(tensors, config);
  ASSERT_TRUE(opened.status().ok()) << opened.status();
  EXPECT_THAT(opened.Names(), ElementsAre("m.weight"));
  EXPECT_THAT(opened.Values("m.weight"), ElementsAre(20.5, 41, 61.5, 82, 152.5));  // absmax 20.5, then 30.5
  // Any part of it.
  std::vector<uint8_t> bytes(8);
  ASSERT_TRUE(opened->Read(*opened->Find("m.weight"), 10, absl::MakeSpan(bytes)).ok());
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "m.weight.nested_absmax"), config).status()),
              HasSubstr("m.weight.nested_absmax is missing"));
  EXPECT_THAT(DataLoss(Opened(Without(tensors, "m.weight.quant_map"), config).status()),
              HasSubstr("m.weight.quant_map is missing"));
  EXPECT_THAT(DataLoss(Opened(FourBits(R"({"shape": [7, 1], "blocksize": 4})"), config).status()),
              HasSubstr("m.weight U8[3,1]"));
  EXPECT_THAT(DataLoss(Opened(FourBits(R"({"shape": [5, 1]})"), config).status()), HasSubstr("blocksize"));
  EXPECT_THAT(DataLoss(Opened(FourBits("nonsense"), config).status()), HasSubstr("JSON"));
}

// ---- all

TEST(StoredFormats, UnknownMethodsAndFloatModelsAreRefused) {
  const NamedArrays tensors = {{"m.weight", Array::Of<float>({1}, {1, 1})}};
  const absl::Status hqq = Opened(tensors, R"({"quant_method": "hqq"})").status();
  EXPECT_TRUE(absl::IsUnimplemented(hqq)) << hqq;
  EXPECT_THAT(std::string(hqq.message()), AllOf(HasSubstr("quant_method hqq"), HasSubstr("gptq, awq")));
  EXPECT_TRUE(absl::IsFailedPrecondition(Opened(tensors, "").status()));
  EXPECT_THAT(DataLoss(Opened(tensors, R"({"quant_method": "awq"})").status()), HasSubstr("no quantized weight"));
}

TEST(StoredFormats, PartsOfAWeightAreTheSameInAnyOrder) {
  std::vector<float> values(40 * 48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 31) - 15;
  std::vector<float> scales(20 * 24);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f * static_cast<float>(1 + i % 7);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Opened opened(
        {{"m.weight", Floats8(values, {40, 48})}, {"m.weight_scale_inv", Array::FromSpan<float>(scales, {20, 24})}},
        kFp8Blocks, dtype);
    ASSERT_TRUE(opened.status().ok()) << opened.status();
    const io::TensorInfo& info = *opened->Find("m.weight");
    const Array whole = *opened->ReadArray(info);
    const absl::string_view all(static_cast<const char*>(whole.data()), whole.num_bytes());
    for (int64_t at = 0, n = 1; at < info.num_bytes(); at += n, n = n * 7 % 391 + 1) {
      std::vector<uint8_t> part(std::min<int64_t>(n, info.num_bytes() - at));
      ASSERT_TRUE(opened->Read(info, at, absl::MakeSpan(part)).ok());
      EXPECT_EQ(absl::string_view(reinterpret_cast<const char*>(part.data()), part.size()),
                all.substr(at, part.size()));
    }
  }
}

}  // namespace
}  // namespace aqt::stored
