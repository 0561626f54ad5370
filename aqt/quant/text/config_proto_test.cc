#include "aqt/quant/text/config_proto.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/calibrations.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

struct NamedConfig {
  std::string name;
  DotGeneralConfig config;
};

DotGeneralConfig Fp8Hybrid() {
  DotGeneralConfig config = ConfigFwdFp8();
  SetBits(config, Bits::E4M3(), Bits::E4M3(), Bits::E5M2(), Bits::E4M3(), Bits::E5M2(), Bits::E4M3());
  return config;
}

DotGeneralConfig Fp8Delayed() {
  DotGeneralConfig config = Fp8Hybrid();
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    raw->lhs.quantizer.calibration = raw->rhs.quantizer.calibration = DelayedScaling{};
  }
  return config;
}

DotGeneralConfig Fp8Current() {
  DotGeneralConfig config = Fp8Hybrid();
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    raw->lhs.quantizer.calib_shared_axes.per_tensor = raw->rhs.quantizer.calib_shared_axes.per_tensor = true;
  }
  return config;
}

DotGeneralConfig Fp8Mx() {
  DotGeneralConfig config = ConfigFwdFp8();
  SetBits(config, Bits::E4M3(), Bits::E4M3(), Bits::E4M3(), Bits::E4M3(), Bits::E4M3(), Bits::E4M3());
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    raw->lhs.quantizer.calibration = raw->rhs.quantizer.calibration = AbsMax{.po2_scale = true};
  }
  config.dlhs.local_aqt = config.drhs.local_aqt =
      LocalAqt{.contraction_axis_shard_size = 32, .tile_largest_shape = true};
  config.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = -1, .tile_size = 32}}},
                            .rhs = {.contraction_axes = {{.axis = 0, .tile_size = 32}}}};
  return config;
}

DotGeneralConfig Int8Static() {
  DotGeneralConfig config = DotGeneralMake(8, 8, {.use_fwd_quant = false});
  config.fwd.lhs.quantizer.calibration = MeanOfAbsMax{};
  config.fwd.lhs.quantizer.calib_shared_axes.per_tensor = true;
  return config;
}

// Sorted by name, as DotGeneralPresetNames().
std::vector<NamedConfig> PresetsInCpp() {
  const DotGeneralMakeOptions fwd_only = {.use_fwd_quant = false};
  return {{"binary", DotGeneralMake(1, 1, fwd_only)},
          {"config_v3", ConfigV3()},
          {"config_v4", ConfigV4()},
          {"conv2d_int8", DotGeneralConfig{.fwd = ConvGeneralDilatedMake(2, 8, 8)}},
          {"default_unquantized", DefaultUnquantizedConfig()},
          {"fp8_current", Fp8Current()},
          {"fp8_delayed", Fp8Delayed()},
          {"fp8_hybrid", Fp8Hybrid()},
          {"fp8_mx", Fp8Mx()},
          {"fully_quantized_int8", FullyQuantized()},
          {"fwd_fp8", ConfigFwdFp8()},
          {"int4_weights", DotGeneralMake(std::nullopt, 4, fwd_only)},
          {"int8_fwd", DotGeneralMake(8, 8, fwd_only)},
          {"int8_static", Int8Static()},
          {"int8_weights", DotGeneralMake(std::nullopt, 8, fwd_only)},
          {"w4a8", DotGeneralMake(8, 4, fwd_only)}};
}

DotGeneralConfig OneTensor(Quantizer quantizer) {
  DotGeneralConfig config;
  config.fwd.lhs.quantizer = std::move(quantizer);
  return config;
}

Quantizer IntQuantizer(Calibration calibration) {
  return {.numerics = IntSymmetric(), .calibration = std::move(calibration)};
}

// Sets a field to a value other than its default.
void SetUnusual(double& field) { field = 4.0 / 3; }
void SetUnusual(bool& field) { field = !field; }
void SetUnusual(int& field) { field = 7; }
void SetUnusual(int64_t& field) { field = 7; }
void SetUnusual(std::vector<double>& field) { field = {0.1, 2}; }
void SetUnusual(ConstantValue& field) { field = 0.25; }
template <class T>
void SetUnusual(std::optional<T>& field) {
  SetUnusual(field.emplace());
}

void AddNumerics(std::vector<NamedConfig>& configs) {
  Quantizer all = {.numerics = IntSymmetric{.bits = 3,
                                            .preserve_zero = false,
                                            .preserve_max_val = true,
                                            .clip = false,
                                            .clip_gradient = true,
                                            .round = false,
                                            .noise = Noise{NoiseKind::kRandomCenteredUniform, {0, -1}},
                                            .dtype = std::nullopt},
                   .calib_shared_axes = {.axes = {-1, 2}},
                   .scale_stop_grad = false,
                   .scale_dtype = DType::kBF16,
                   .calibration = AbsMax{.clipping_scale = 0.1, .po2_scale = true}};
  configs.push_back({"every int field", OneTensor(all)});
  std::get<IntSymmetric>(all.numerics).noise->kind = NoiseKind::kFast;
  configs.push_back({"fast noise", OneTensor(all)});
  all.numerics = IntSymmetric{.bits = 1, .preserve_zero = true, .dtype = DType::kS8};
  all.calib_shared_axes = {.per_tensor = true};
  configs.push_back({"per tensor, one bit with zero", OneTensor(all)});
  configs.push_back({"int4 in s8", OneTensor({.numerics = IntSymmetric{.bits = 4}, .calibration = AbsMax{}})});
  configs.push_back({"clipping scale 0 is not null", OneTensor(IntQuantizer(AbsMax{.clipping_scale = 0.0}))});
  configs.push_back({"calibration of nothing", OneTensor({.calibration = AbsMax{}})});
  configs.push_back(
      {"fp8 in bf16",
       OneTensor(
           {.numerics = Fp8{.dtype = DType::kBF16, .exponent_bits = 5, .mantissa_bits = 2, .stochastic_rounding = true},
            .calibration = AbsMax{}})});
  const FpFormat format = {.nexp = 3,
                           .minexp = -1,
                           .nmant = 0,
                           .has_subnormals = false,
                           .has_two_nan = true,
                           .has_naninf = true,
                           .radix = 4};
  configs.push_back(
      {"small float", OneTensor({.numerics = Fp{.format = format, .stochastic_rounding = true, .clip_gradient = true},
                                 .calibration = AbsMax{}})});
}

void AddCalibrations(std::vector<NamedConfig>& configs) {
  for (Calibration& calibration : testing::AllCalibrations()) {
    testing::VisitFields(calibration, [](absl::string_view, auto& field) { SetUnusual(field); });
    DotGeneralConfig config = OneTensor(IntQuantizer(calibration));
    config.fwd.lhs.dequant_mode = DequantMode::kThisInput;  // which a bias needs
    configs.push_back({absl::StrCat("every field of ", NameOf(calibration)), config});
  }
  configs.push_back(
      {"abs mean", OneTensor(IntQuantizer(AbsMean{.p = 1.0 / 3, .clipping_scale = 1e-310, .po2_scale = true}))});
  configs.push_back(
      {"snr", OneTensor(IntQuantizer(SnrSearch{.candidates = {0.1, std::nextafter(1.0, 2.0), 5e-324, 1e308, -0.0,
                                                              std::numeric_limits<double>::infinity()},
                                               .po2_scale = true}))});
  configs.push_back({"weighted stats", OneTensor(IntQuantizer(WeightedStats{.l1_dev_coeff = 0.1,
                                                                            .lp_dev_coeff = 0.2,
                                                                            .max_dev_coeff = 0.3,
                                                                            .const_bound_coeff = 0.4,
                                                                            .update_count_prior = 0,
                                                                            .max_dev_prior = 0.5,
                                                                            .mean_prior = -0.6,
                                                                            .l1_dev_prior = 0.7,
                                                                            .lp_dev_prior = 0.8,
                                                                            .lp_order = 30,
                                                                            .safe_divide = true,
                                                                            .filter_zeros = false,
                                                                            .ema_update_count = 1.5,
                                                                            .po2_scale = true}))});
  configs.push_back({"weighted stats by default", OneTensor(IntQuantizer(WeightedStats{.max_dev_coeff = 1}))});
  configs.push_back({"delayed scaling by default", OneTensor(IntQuantizer(DelayedScaling{}))});
}

void AddConstants(std::vector<NamedConfig>& configs) {
  const float inf = std::numeric_limits<float>::infinity();
  Constant constant = {
      .bound = ConstantArray{Array::Of<float>({0.1f, -0.0f, 1e-45f, inf, std::nextafter(1.0f, 2.0f), 3e38f}, {2, 3})},
      .bias = ConstantArray{Array::Of<BFloat16>({{0x3f81}, {0xff80}, {0x0001}}, {1, 3, 1})},
      .po2_scale = true};
  DotGeneralConfig arrays = OneTensor(IntQuantizer(constant));
  arrays.fwd.lhs.dequant_mode = DequantMode::kThisInput;
  configs.push_back({"arrays", arrays});
  constant = {.bound = 0.1, .bias = ConstantArray{Array::Of<Float16>({{0x7bff}}, {})}};
  arrays.fwd.lhs.quantizer.calibration = constant;
  arrays.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  configs.push_back({"scalar array", arrays});
  constant = {.bound = ConstantArray{Array::Zeros(DType::kF32, {0, 2})}, .bias = -0.0};
  arrays.fwd.lhs.quantizer.calibration = constant;
  configs.push_back({"empty array", arrays});
}

void AddContractions(std::vector<NamedConfig>& configs) {
  DotGeneralConfig modes = FullyQuantized();
  modes.fwd.lhs.dequant_mode = DequantMode::kOtherInput;
  modes.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  modes.dlhs.rhs.use_fwd_quant = modes.drhs.rhs.use_fwd_quant = false;
  modes.fwd.dg_accumulator_dtype = DType::kBF16;
  modes.dlhs.dg_accumulator_dtype = std::nullopt;
  modes.fwd.allow_dummy_gradient_into_qtensor = true;
  modes.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_size = 1000000007, .tile_largest_shape = true};
  modes.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2};
  modes.tiling = DotTiling{
      .lhs = {.contraction_axes = {{.axis = -1, .tile_count = 2}, {.axis = 1, .tile_count = 3, .tile_size = 4}}},
      .rhs = {.contraction_axes = {{.axis = 0, .tile_count = 2}, {.axis = 2, .tile_size = 1}},
              .remaining_axes = {{.axis = 3, .tile_size = 5}}}};
  configs.push_back({"modes", modes});

  DotGeneralConfig mid = FullyQuantized();
  mid.fwd.lhs_mid_alpha = 0.5;
  mid.fwd.rhs_mid_alpha = 0.0;
  configs.push_back({"mid alphas", mid});

  DotGeneralConfig rotated = FullyQuantized();
  rotated.fwd.hadamard = Hadamard{.block = 4096};
  rotated.dlhs.hadamard = Hadamard{};
  configs.push_back({"hadamard", rotated});
}

// Every field of every message is written by at least one of these.
std::vector<NamedConfig> Unusual() {
  std::vector<NamedConfig> configs;
  AddNumerics(configs);
  AddCalibrations(configs);
  AddConstants(configs);
  AddContractions(configs);
  return configs;
}

TEST(ConfigProtoTest, PresetsAreWhatCppBuilds) {
  std::vector<std::string> names;
  for (const auto& [name, config] : PresetsInCpp()) {
    names.push_back(name);
    const absl::StatusOr<DotGeneralConfig> preset = DotGeneralFromPreset(name);
    ASSERT_TRUE(preset.ok()) << preset.status();
    EXPECT_EQ(ToText(*preset), ToText(config)) << name;
    EXPECT_TRUE(*preset == config) << name;
  }
  EXPECT_THAT(DotGeneralPresetNames(), ElementsAreArray(names));
  const absl::Status unknown = DotGeneralFromPreset("int3").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no preset \"int3\"; presets are binary, config_v3"));
}

TEST(ConfigProtoTest, TextReadsBackTheSame) {
  std::vector<NamedConfig> configs = Unusual();
  for (NamedConfig& preset : PresetsInCpp()) configs.push_back(std::move(preset));
  for (const Bits lhs : {Bits(), Bits(1), Bits(2), Bits(4), Bits(8), Bits(9), Bits(22), Bits::E4M3(), Bits::E5M2()}) {
    for (const Bits rhs : {Bits(), Bits(3), Bits(4), Bits(12), Bits::E4M3()}) {
      configs.push_back({"bits", DotGeneralMake(lhs, rhs, {.bwd_bits = 6})});
      DotGeneralConfig v4 =
          ConfigV4({.fwd_bits = lhs, .dlhs_bits = rhs, .drhs_bits = 8, .rng_type = NoiseKind::kRandomCenteredUniform});
      SetScaleDType(v4, DType::kF32);
      configs.push_back({"v4", v4});
      SetIntNumericsPreserveZero(v4, false);
      v4.fwd.dg_accumulator_dtype = v4.dlhs.dg_accumulator_dtype = v4.drhs.dg_accumulator_dtype = std::nullopt;
      configs.push_back({"v4 without zero", v4});
    }
  }
  for (const auto& [name, config] : configs) {
    const std::string text = ToText(config);
    const absl::StatusOr<DotGeneralConfig> again = DotGeneralFromText(text);
    ASSERT_TRUE(again.ok()) << name << ": " << again.status() << "\n" << text;
    EXPECT_TRUE(*again == config) << name << ":\n" << text << "\nbecame\n" << ToText(*again);
  }
}

// The names in the .proto file: finds a field that was added there but not to the converters and to Unusual().
TEST(ConfigProtoTest, EveryFieldAndEnumValueIsWritten) {
  std::ifstream file("configs/quant.proto");
  ASSERT_TRUE(file.good());
  std::set<std::string> missing;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line.substr(0, line.find("//")), ' ', absl::SkipEmpty());
    for (size_t i = 1; i + 1 < words.size(); ++i) {
      if (words[i] == "=" && words[0] != "syntax") missing.insert(words[i - 1]);
    }
  }
  EXPECT_GT(missing.size(), 60u);
  const auto erase_words_of = [&](const std::string& text) {
    for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n:{}"))) missing.erase(std::string(word));
  };
  for (const NamedConfig& c : Unusual()) erase_words_of(ToText(c.config));
  for (const auto mode : {DequantMode::kOutput, DequantMode::kThisInput, DequantMode::kOtherInput}) {
    EXPECT_EQ(missing.count(std::string(ToString(mode))), mode == DequantMode::kOutput);  // defaults are not written
    missing.erase(std::string(ToString(mode)));
  }
  EXPECT_EQ(missing.erase(std::string(ToString(CalibrationMode::kContractingAxis))), 1u);
  erase_words_of(ToText(FullyQuantized()));
  EXPECT_THAT(missing, ::testing::ElementsAre("CALIBRATION_MODE_UNSPECIFIED", "DEQUANT_MODE_UNSPECIFIED",
                                              "NOISE_KIND_UNSPECIFIED", "base", "clear"));
  EXPECT_THAT(ToText(FullyQuantized()), HasSubstr(std::string(ToString(NoiseKind::kJaxUniform))));
}

TEST(ConfigProtoTest, EnumsHaveTheirTextFormAndDefaults) {
  const std::string head = "schema: 1 base: 'int8_fwd' ";
  for (const auto mode : {DequantMode::kOutput, DequantMode::kThisInput}) {
    const auto config = DotGeneralFromText(absl::StrCat(head, "fwd { lhs { dequant_mode: ", ToString(mode), " } }"));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->fwd.lhs.dequant_mode, mode);
  }
  for (const auto kind : {NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform, NoiseKind::kFast}) {
    const auto config = DotGeneralFromText(
        absl::StrCat(head, "fwd { lhs { quantizer { int_symmetric { noise { kind: ", ToString(kind), " } } } } }"));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(std::get<IntSymmetric>(config->fwd.lhs.quantizer.numerics).noise->kind, kind);
  }
  const auto remaining =
      DotGeneralFromText(absl::StrCat(head, "fwd { lhs { dequant_mode: DEQUANT_MODE_THIS_INPUT calibration_mode: ",
                                      ToString(CalibrationMode::kRemainingAxis), " } }"));
  ASSERT_TRUE(remaining.ok()) << remaining.status();
  EXPECT_EQ(remaining->fwd.lhs.calibration_mode, CalibrationMode::kRemainingAxis);
  // An operand that enters the product as a float rules out s32.
  EXPECT_EQ(remaining->fwd.dg_accumulator_dtype, std::nullopt);
}

TEST(ConfigProtoTest, DefaultsAreThoseOfTheStructs) {
  const auto config = DotGeneralFromText(R"(schema: 1
fwd { lhs { quantizer { int_symmetric {} abs_max {} } } rhs { quantizer { fp8 {} constant {} } } }
dlhs {
  lhs { quantizer { fp {} abs_mean {} } }
  rhs { quantizer { fp8 { dtype: "e5m2" } snr_search {} } }
  local_aqt { contraction_axis_shard_count: 3 }
})");
  ASSERT_TRUE(config.ok()) << config.status();
  DotGeneralConfig want;
  want.fwd.lhs.quantizer = IntQuantizer(AbsMax());
  want.fwd.rhs.quantizer = {.numerics = Fp8(), .calibration = Constant()};
  want.fwd.dg_accumulator_dtype = DType::kF32;
  want.dlhs.lhs.quantizer = {.numerics = Fp(), .calibration = AbsMean()};
  want.dlhs.rhs.quantizer = {.numerics = NumericsFromBits(Bits::E5M2()), .calibration = SnrSearch()};
  want.dlhs.dg_accumulator_dtype = DType::kF32;
  want.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 3};
  EXPECT_EQ(ToText(*config), ToText(want));
  EXPECT_TRUE(*config == want);
}

TEST(ConfigProtoTest, BaseIsOverriddenFieldByField) {
  const auto read = [](const std::string& text) {
    const absl::StatusOr<DotGeneralConfig> config = DotGeneralFromText(text);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.value_or(DotGeneralConfig());
  };
  EXPECT_TRUE(read("schema: 1 base: 'config_v4'") == ConfigV4());
  // The container and the accumulator follow the bits.
  EXPECT_TRUE(read(R"(schema: 1 base: "config_v4" fwd {
      lhs { quantizer { int_symmetric { bits: 4 } } } rhs { quantizer { int_symmetric { bits: 4 } } } })") ==
              ConfigV4({.fwd_bits = 4}));
  DotGeneralConfig want = ConfigV4({.fwd_bits = 12});
  want.fwd.rhs = ConfigV4().fwd.rhs;
  EXPECT_TRUE(read(R"(schema: 1 base: "config_v4" fwd { lhs { quantizer { int_symmetric { bits: 12 } } } })") == want);
  // Another kind replaces the entire field; null can be written; clear omits a field.
  want = FullyQuantized();
  want.fwd.lhs.quantizer.numerics = Fp8();
  want.fwd.dg_accumulator_dtype = std::nullopt;
  std::get<IntSymmetric>(want.dlhs.rhs.quantizer.numerics).noise = std::nullopt;
  want.drhs = DotGeneralRawConfig();
  EXPECT_TRUE(read(R"(schema: 1 base: "fully_quantized_int8"
      clear: "dlhs.rhs.quantizer.int_symmetric.noise" clear: "drhs"
      fwd { lhs { quantizer { fp8 {} } } dg_accumulator_dtype: "none" })") == want);
}

// A convolution is one contraction: the fwd of a configuration.
TEST(ConfigProto, ConvolutionIsFwd) {
  const absl::StatusOr<DotGeneralConfig> config = DotGeneralFromText(R"(
      schema: 1
      fwd {
        lhs { quantizer { int_symmetric { bits: 8 } calib_shared_axes { axes: [1, 2, 3] } abs_max {} } }
        rhs { quantizer { int_symmetric { bits: 4 } calib_shared_axes { axes: [0, 1, 2] } abs_max {} } }
      })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->fwd, ConvGeneralDilatedMake(2, 8, 4));
  EXPECT_EQ(DotGeneralFromText(ToText(DotGeneralConfig{.fwd = ConvGeneralDilatedMake(3, 8, 8)}))->fwd,
            ConvGeneralDilatedMake(3, 8, 8));
}

}  // namespace
}  // namespace aqt
