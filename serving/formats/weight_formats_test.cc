#include "serving/formats/weight_formats.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/tensors/tensor_spec.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "aqt/quant/weights/microscaled.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kRows = 70, kColumns = 96;

WeightScheme Microscaled(int bits, ScaleType scale_type) {
  WeightScheme scheme;
  scheme.type = ValueType::kFloat;
  scheme.num_bits = bits;
  scheme.strategy = WeightStrategy::kGroup;
  scheme.group_size = compressed_tensors::GroupSizeOf(scale_type);
  scheme.scale_type = scale_type;
  return scheme;
}

// The options of an NVFP4 weight.
compressed_tensors::Options WithGlobalScale() {
  compressed_tensors::Options options;
  options.global_scale = 24.75f;
  return options;
}

std::vector<WeightScheme> Schemes() {
  std::vector<WeightScheme> schemes;
  for (const int bits : {3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const WeightStrategy strategy :
           {WeightStrategy::kTensor, WeightStrategy::kChannel, WeightStrategy::kGroup, WeightStrategy::kBlock}) {
        WeightScheme scheme;
        if (strategy == WeightStrategy::kBlock) scheme.block = {32, 10};
        scheme.num_bits = bits;
        scheme.symmetric = symmetric;
        scheme.strategy = strategy;
        scheme.group_size = strategy == WeightStrategy::kGroup ? 8 : 0;
        schemes.push_back(scheme);
      }
    }
  }
  for (const WeightStrategy strategy : {WeightStrategy::kTensor, WeightStrategy::kChannel, WeightStrategy::kBlock}) {
    WeightScheme scheme;
    scheme.type = ValueType::kFloat;
    scheme.strategy = strategy;
    if (strategy == WeightStrategy::kBlock) scheme.block = {16, 10};  // cut off at both edges
    schemes.push_back(scheme);
  }
  for (const int bits : {4, 6, 8}) schemes.push_back(Microscaled(bits, ScaleType::kE8M0));
  schemes.push_back(Microscaled(4, ScaleType::kE4M3));
  return schemes;
}

Array Weight() {
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i * 7919 % 201) - 90);
  return Array::FromSpan<float>(values, {kRows, kColumns});
}

Array Rows(const Array& a, int64_t first, int64_t n) {
  const int64_t bytes = a.num_bytes() / a.shape()[0];
  return Array::CopyOf(ArrayRef(a.dtype(), {n, a.shape()[1]}, static_cast<const char*>(a.data()) + first * bytes));
}

// The stored tensors, assembled from blocks of `step` rows (0: the weight as a whole).
StoredTensors Stored(const WeightFormat& format, const WeightScheme& scheme, const Array& w, int64_t step) {
  std::map<std::string, std::vector<char>> bytes;
  const std::vector<io::TensorSpec> outputs = format.Outputs(scheme, w.shape(), io::FileDType::kF32);
  for (const io::TensorSpec& spec : outputs) bytes[spec.name].resize(*io::TensorBytes(spec.dtype, spec.shape));
  for (int64_t first = 0; first < kRows; first += step) {
    const Array rows = step == 0 ? w : Rows(w, first, std::min(step, kRows - first));
    const auto parts =
        format.Encode(*compressed_tensors::QuantizeWeight(rows, scheme, WithGlobalScale()), first, scheme, w.shape());
    EXPECT_TRUE(parts.ok()) << parts.status();
    for (const StoredRows& part : *parts) {
      std::vector<char>& out = bytes.at(std::string(part.suffix));
      const int64_t at = part.first_row * (part.rows.num_bytes() / part.rows.shape()[0]);
      EXPECT_LE(at + part.rows.num_bytes(), static_cast<int64_t>(out.size())) << part.suffix;
      std::memcpy(out.data() + at, part.rows.data(), part.rows.num_bytes());
    }
    if (step == 0) break;
  }
  StoredTensors stored;
  for (const io::TensorSpec& spec : outputs) {
    stored[spec.name] = Array::CopyOf(ArrayRef(*io::ToDType(spec.dtype), spec.shape, bytes[spec.name].data()));
  }
  return stored;
}

// For every row of the table: names are unique and can be looked up, and each accepted scheme decodes to the encoded
// values, whole or in blocks.
TEST(WeightFormats, BlocksAndBack) {
  const Array w = Weight();
  std::set<absl::string_view> names;
  for (const WeightFormat* format : WeightFormats()) {
    EXPECT_TRUE(names.insert(format->name()).second);
    EXPECT_EQ(FindWeightFormat(format->name()), format);
    EXPECT_THAT(WeightFormatNames(), HasSubstr(absl::StrCat("\"", format->name(), "\"")));
    int accepted = 0;
    for (const WeightScheme& scheme : Schemes()) {
      if (!format->Validate(scheme).ok()) continue;
      ++accepted;
      SCOPED_TRACE(absl::StrCat(format->name(), " ", scheme.num_bits, " bits ", ToString(scheme.type), " ",
                                ToString(scheme.strategy), scheme.symmetric ? "" : " asymmetric"));
      const StoredTensors whole = Stored(*format, scheme, w, 0);
      const QuantizedWeight want = *compressed_tensors::QuantizeWeight(w, scheme, WithGlobalScale());
      const absl::StatusOr<QuantizedWeight> got = format->Decode(whole, scheme, w.shape());
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_TRUE(BitEqual(got->q, want.q));
      EXPECT_TRUE(BitEqual(got->scale, want.scale));
      EXPECT_EQ(got->global_scale, want.global_scale);
      ASSERT_EQ(got->zero_point.has_value(), want.zero_point.has_value());
      if (want.zero_point.has_value()) {
        EXPECT_TRUE(BitEqual(*got->zero_point, *want.zero_point));
      }
      const int64_t unit = format->RowUnit(scheme);
      EXPECT_EQ(unit == 0, scheme.strategy == WeightStrategy::kTensor);
      if (unit == 0) continue;
      for (const auto& [suffix, array] : Stored(*format, scheme, w, unit)) {
        EXPECT_TRUE(BitEqual(array, whole.at(suffix))) << suffix << " in blocks of " << unit << " rows";
      }
    }
    EXPECT_GT(accepted, 0) << format->name();
  }
  EXPECT_EQ(FindWeightFormat("dense"), nullptr);
}

TEST(WeightFormats, Defaults) {
  EXPECT_EQ(DefaultFormat({}, true)->name(), "int-quantized");
  EXPECT_EQ(DefaultFormat({}, false)->name(), "pack-quantized");
  WeightScheme floats;
  floats.type = ValueType::kFloat;
  EXPECT_EQ(DefaultFormat(floats, true)->name(), "float-quantized");
  EXPECT_EQ(DefaultFormat(floats, false)->name(), "naive-quantized");
  for (const bool activations : {false, true}) {
    EXPECT_EQ(DefaultFormat(Microscaled(4, ScaleType::kE8M0), activations)->name(), "mxfp4-pack-quantized");
    EXPECT_EQ(DefaultFormat(Microscaled(6, ScaleType::kE8M0), activations)->name(), "mxfp6-pack-quantized");
    EXPECT_EQ(DefaultFormat(Microscaled(8, ScaleType::kE8M0), activations)->name(), "mxfp8-quantized");
    EXPECT_EQ(DefaultFormat(Microscaled(4, ScaleType::kE4M3), activations)->name(), "nvfp4-pack-quantized");
  }
}

TEST(WeightFormats, ValuesTheyCannotHold) {
  WeightScheme floats;
  floats.type = ValueType::kFloat;
  const auto refused = [](const char* name, const WeightScheme& weights) {
    const absl::Status status = FindWeightFormat(name)->Validate(weights);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refused("int-quantized", floats),
            "int-quantized with weights of type float is not supported; it holds type int");
  EXPECT_EQ(refused("float-quantized", {}),
            "float-quantized with weights of type int is not supported; it holds type float");
  EXPECT_THAT(refused("pack-quantized", floats), HasSubstr("it holds type int"));
  EXPECT_THAT(refused("float-quantized", Microscaled(8, ScaleType::kE8M0)), HasSubstr("scales of 8 bits"));
  EXPECT_THAT(refused("mxfp8-quantized", Microscaled(4, ScaleType::kE8M0)), HasSubstr("floats of 8 bits in groups"));
  EXPECT_THAT(refused("mxfp4-pack-quantized", Microscaled(4, ScaleType::kE4M3)), HasSubstr("powers of two"));
  EXPECT_THAT(refused("nvfp4-pack-quantized", Microscaled(4, ScaleType::kE8M0)), HasSubstr("groups of 16"));
}

TEST(WeightFormats, DamageIsNamed) {
  const Array w = Weight();
  WeightScheme four;
  four.num_bits = 4;
  WeightScheme floats;
  floats.type = ValueType::kFloat;
  const auto message = [&](const char* name, const WeightScheme& scheme, const char* suffix, Array damaged) {
    const WeightFormat& format = *FindWeightFormat(name);
    StoredTensors stored = Stored(format, scheme, w, 0);
    stored.at(suffix) = std::move(damaged);
    const absl::Status status = format.Decode(stored, scheme, w.shape()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  EXPECT_EQ(message("int-quantized", four, kWeight,
                    Array::FromSpan<int8_t>(std::vector<int8_t>(kRows * kColumns, 8), w.shape())),
            ".weight holds 8, which does not fit in 4 bits");
  EXPECT_THAT(message("pack-quantized", four, ".weight_shape", Array::Of<int64_t>({70, 95}, {2})),
              StartsWith(".weight_shape is [70,95]; the weight is [70,96]"));
  for (const uint8_t nan : {0x7f, 0xff}) {
    std::vector<Float8E4M3FN> values(kRows * kColumns);
    values.back().bits = nan;
    EXPECT_EQ(message("float-quantized", floats, kWeight, Array::FromSpan<Float8E4M3FN>(values, w.shape())),
              ".weight holds a NaN");
    EXPECT_EQ(message("mxfp8-quantized", Microscaled(8, ScaleType::kE8M0), kWeight,
                      Array::FromSpan<Float8E4M3FN>(values, w.shape())),
              ".weight holds a NaN");
  }
  std::vector<uint8_t> exponents(kRows * kColumns / 32);
  exponents[7] = 255;
  EXPECT_EQ(message("mxfp4-pack-quantized", Microscaled(4, ScaleType::kE8M0), kWeightScale,
                    Array::FromSpan<uint8_t>(exponents, {kRows, kColumns / 32})),
            ".weight_scale holds 255, which is not a number; 0 to 254 are expected");
  const WeightScheme nvfp4 = Microscaled(4, ScaleType::kE4M3);
  for (const uint8_t code : {0x7f, 0xb8}) {  // NaN, -1
    std::vector<Float8E4M3FN> scales(kRows * kColumns / 16);
    scales[5].bits = code;
    EXPECT_THAT(message("nvfp4-pack-quantized", nvfp4, kWeightScale,
                        Array::FromSpan<Float8E4M3FN>(scales, {kRows, kColumns / 16})),
                StartsWith(".weight_scale holds "));
  }
  for (const float global : {0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    EXPECT_THAT(message("nvfp4-pack-quantized", nvfp4, kWeightGlobalScale, Array::Of<float>({global}, {1})),
                StartsWith(".weight_global_scale is "));
  }
}

}  // namespace
}  // namespace aqt::serving
