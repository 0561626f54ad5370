// The weights of the reference checkpoints, computed from `dense` and `dense_bf16`: every byte must be the recorded
// one.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/io/file.h"
#include "aqt/io/tensors/safetensors.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "aqt/quant/weights/microscaled.h"
#include "gtest/gtest.h"

namespace aqt::compressed_tensors {
namespace {

constexpr char kFolder[] = "tests/golden/checkpoints/";

struct Case {
  const char* folder;
  const char* input;
  WeightScheme scheme;
  int modules;  // with quantized weights
  bool packed;
};

WeightScheme Scheme(int num_bits, Strategy strategy, bool symmetric = true) {
  WeightScheme scheme;
  scheme.num_bits = num_bits;
  scheme.strategy = strategy;
  scheme.group_size = strategy == Strategy::kGroup ? 32 : 0;
  scheme.symmetric = symmetric;
  return scheme;
}

WeightScheme Floats(Strategy strategy, std::array<int64_t, 2> block = {0, 0}) {
  WeightScheme scheme = Scheme(8, strategy);
  scheme.type = ValueType::kFloat;
  scheme.block = block;
  return scheme;
}

WeightScheme Microscaled(int num_bits, ScaleType scale_type) {
  WeightScheme scheme = Scheme(num_bits, Strategy::kGroup);
  scheme.type = ValueType::kFloat;
  scheme.scale_type = scale_type;
  scheme.group_size = GroupSizeOf(scale_type);
  return scheme;
}

std::vector<Case> Cases() {
  return {
      {"int_w8a8_dynamic", "dense", Scheme(8, Strategy::kChannel), 3, false},
      {"int_w8a8_dynamic_bf16", "dense_bf16", Scheme(8, Strategy::kChannel), 3, false},
      {"int_w8a8_static", "dense", Scheme(8, Strategy::kTensor), 3, false},
      {"int_w4a8_g32", "dense", Scheme(4, Strategy::kGroup), 2, false},
      {"pack_w8a16_channel", "dense", Scheme(8, Strategy::kChannel), 3, true},
      {"pack_w4a16_channel", "dense", Scheme(4, Strategy::kChannel), 3, true},
      {"pack_w4a16_channel_asym", "dense", Scheme(4, Strategy::kChannel, false), 3, true},
      {"pack_w4a16_g32", "dense", Scheme(4, Strategy::kGroup), 2, true},
      {"pack_w4a16_g32_asym", "dense", Scheme(4, Strategy::kGroup, false), 2, true},
      {"pack_w4a8_g32", "dense", Scheme(4, Strategy::kGroup), 2, true},
      {"pack_w3a16_channel", "dense", Scheme(3, Strategy::kChannel), 3, true},
      {"pack_w2a16_g32", "dense", Scheme(2, Strategy::kGroup), 2, true},
      {"float_fp8_dynamic", "dense", Floats(Strategy::kChannel), 3, false},
      {"float_fp8_static", "dense", Floats(Strategy::kTensor), 3, false},
      {"float_fp8_block8x16", "dense", Floats(Strategy::kBlock, {8, 16}), 3, false},
      {"naive_fp8_weight_only", "dense", Floats(Strategy::kChannel), 3, false},
  };
}

io::SafetensorsReader Open(absl::string_view path) {
  absl::StatusOr<io::SafetensorsReader> reader =
      io::SafetensorsReader::Open(io::LocalFileSystem(), absl::StrCat(kFolder, path));
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

Array Read(const io::SafetensorsReader& reader, absl::string_view name) {
  absl::StatusOr<Array> array = reader.ReadArray(name);
  EXPECT_TRUE(array.ok()) << array.status();
  return *array;
}

#define EXPECT_BIT_EQUAL(got, want) \
  EXPECT_TRUE(BitEqual(got, want)) << #got " is " << (got).aval() << ", recorded " << (want).aval()

class GoldenTest : public testing::TestWithParam<Case> {};

TEST_P(GoldenTest, EveryByte) {
  const Case& c = GetParam();
  const io::SafetensorsReader in = Open(absl::StrCat(c.input, "/model.safetensors"));
  const io::SafetensorsReader recorded = Open(absl::StrCat(c.folder, "/model.safetensors"));
  std::vector<Options> all_options(1);
  all_options[0].reference = true;
  for (kernels::Target target : kernels::SupportedTargets()) all_options.push_back({target});

  constexpr absl::string_view kSuffix = ".weight_scale";
  int modules = 0;
  for (const io::TensorInfo& tensor : recorded.tensors()) {
    if (!absl::EndsWith(tensor.name, kSuffix)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kSuffix.size());
    ++modules;
    const Array w = Read(in, absl::StrCat(module, ".weight"));
    const Array scale = Read(recorded, tensor.name);
    for (const Options& options : all_options) {
      SCOPED_TRACE(absl::StrCat(module, options.reference ? " reference " : " ", ToString(options.target)));
      const absl::StatusOr<QuantizedWeight> got = QuantizeWeight(w, c.scheme, options);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_BIT_EQUAL(got->scale, scale);
      EXPECT_EQ(got->zero_point.has_value(), !c.scheme.symmetric);
      if (!c.packed) {
        EXPECT_BIT_EQUAL(got->q, Read(recorded, absl::StrCat(module, ".weight")));
        continue;
      }
      const Array words = Read(recorded, absl::StrCat(module, ".weight_packed"));
      EXPECT_BIT_EQUAL(*PackInts(got->q, c.scheme.num_bits), words);
      EXPECT_BIT_EQUAL(*UnpackInts(words, c.scheme.num_bits, w.shape()[1]), got->q);
      if (!got->zero_point.has_value()) continue;
      const Array zero_words = Read(recorded, absl::StrCat(module, ".weight_zero_point"));
      EXPECT_BIT_EQUAL(*PackZeroPoints(*got->zero_point, c.scheme.num_bits), zero_words);
      EXPECT_BIT_EQUAL(*UnpackZeroPoints(zero_words, c.scheme.num_bits, w.shape()[0]), *got->zero_point);
    }
  }
  EXPECT_EQ(modules, c.modules);
}

// The MX formats and NVFP4, whose stored parts are others.
std::vector<Case> MicroscaledCases() {
  return {{"mxfp4", "dense", Microscaled(4, ScaleType::kE8M0), 2, true},
          {"mxfp8", "dense", Microscaled(8, ScaleType::kE8M0), 2, false},
          {"nvfp4a16", "dense", Microscaled(4, ScaleType::kE4M3), 2, true}};
}

TEST(MicroscaledGolden, EveryByteAndBack) {
  for (const Case& c : MicroscaledCases()) {
    const io::SafetensorsReader in = Open(absl::StrCat(c.input, "/model.safetensors"));
    const io::SafetensorsReader recorded = Open(absl::StrCat(c.folder, "/model.safetensors"));
    const io::SafetensorsReader dequantized = Open(absl::StrCat("dequantized/", c.folder, ".safetensors"));
    int modules = 0;
    for (const io::TensorInfo& tensor : dequantized.tensors()) {
      SCOPED_TRACE(absl::StrCat(c.folder, " ", tensor.name));
      ++modules;
      const Array w = Read(in, absl::StrCat(tensor.name, ".weight"));
      const Array values = Read(recorded, absl::StrCat(tensor.name, c.packed ? ".weight_packed" : ".weight"));
      const Array scale = Read(recorded, absl::StrCat(tensor.name, ".weight_scale"));
      Options options;
      if (c.scheme.scale_type == ScaleType::kE4M3) {
        const float absmax = kernels::AbsMaxAll({w.data(), w.dtype(), w.shape()[0], w.shape()[1], w.shape()[1], 1});
        options.global_scale = GlobalScaleOf(absmax, w.dtype());
        EXPECT_EQ(options.global_scale,
                  Read(recorded, absl::StrCat(tensor.name, ".weight_global_scale")).View<float>()[0]);
      }
      options.packed = c.packed;
      for (const bool reference : {false, true}) {
        options.reference = reference;
        const absl::StatusOr<QuantizedWeight> got = QuantizeWeight(w, c.scheme, options);
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_BIT_EQUAL(got->q, values);
        EXPECT_BIT_EQUAL(got->scale, scale);
      }
      QuantizedWeight weight;
      weight.q = c.packed ? *UnpackSmallFloats(values, c.scheme.num_bits) : values;
      weight.scale = scale;
      weight.global_scale = options.global_scale;
      const Array want = Read(dequantized, tensor.name);
      // The package rounds to bf16, once.
      EXPECT_BIT_EQUAL(Cast(*DequantizeWeight(weight, c.scheme), want.dtype()), want);
    }
    EXPECT_EQ(modules, c.modules);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.folder); });

// The recorded weights, dequantized like the original package.
TEST(Golden, Dequantized) {
  int modules = 0;
  for (const Case& c : Cases()) {
    const std::string name = c.folder;
    if (name != "int_w8a8_static" && name != "int_w8a8_dynamic_bf16" && name != "pack_w4a16_channel_asym" &&
        name != "pack_w4a16_g32_asym" && name != "float_fp8_static" && name != "float_fp8_block8x16")
      continue;
    const io::SafetensorsReader recorded = Open(absl::StrCat(name, "/model.safetensors"));
    const io::SafetensorsReader dequantized = Open(absl::StrCat("dequantized/", name, ".safetensors"));
    for (const io::TensorInfo& tensor : dequantized.tensors()) {
      SCOPED_TRACE(absl::StrCat(name, " ", tensor.name));
      const Array want = Read(dequantized, tensor.name);
      QuantizedWeight weight;
      weight.scale = Read(recorded, absl::StrCat(tensor.name, ".weight_scale"));
      if (c.packed) {
        weight.q = *UnpackInts(Read(recorded, absl::StrCat(tensor.name, ".weight_packed")), c.scheme.num_bits,
                               want.shape()[1]);
      } else {
        weight.q = Read(recorded, absl::StrCat(tensor.name, ".weight"));
      }
      if (!c.scheme.symmetric) {
        weight.zero_point = *UnpackZeroPoints(Read(recorded, absl::StrCat(tensor.name, ".weight_zero_point")),
                                              c.scheme.num_bits, want.shape()[0]);
      }
      for (kernels::Target target : kernels::SupportedTargets()) {
        const absl::StatusOr<Array> got = DequantizeWeight(weight, c.scheme, {target});
        ASSERT_TRUE(got.ok()) << got.status();
        EXPECT_BIT_EQUAL(*got, want);
      }
      ++modules;
    }
  }
  EXPECT_EQ(modules, 3 + 3 + 3 + 2 + 3 + 3);
}

}  // namespace
}  // namespace aqt::compressed_tensors
