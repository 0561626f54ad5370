#include "aqt/quant/text/config_proto.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
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
using ::testing::StartsWith;

struct NamedConfig {
  std::string name;
  DotGeneral config;
};

DotGeneral Fp8Hybrid() {
  DotGeneral config = ConfigFwdFp8();
  SetBits(config, Bits::E4M3(), Bits::E4M3(), Bits::E5M2(), Bits::E4M3(), Bits::E5M2(), Bits::E4M3());
  return config;
}

DotGeneral Fp8Delayed() {
  DotGeneral config = Fp8Hybrid();
  for (DotGeneralRaw* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    raw->lhs.quantizer.calibration = raw->rhs.quantizer.calibration = DelayedScaling{};
  }
  return config;
}

DotGeneral Int8Static() {
  DotGeneral config = DotGeneralMake(8, 8, {.use_fwd_quant = false});
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
          {"conv2d_int8", DotGeneral{.fwd = ConvGeneralDilatedMake(2, 8, 8)}},
          {"default_unquantized", DefaultUnquantizedConfig()},
          {"fp8_delayed", Fp8Delayed()},
          {"fp8_hybrid", Fp8Hybrid()},
          {"fully_quantized_int8", FullyQuantized()},
          {"fwd_fp8", ConfigFwdFp8()},
          {"int4_weights", DotGeneralMake(std::nullopt, 4, fwd_only)},
          {"int8_fwd", DotGeneralMake(8, 8, fwd_only)},
          {"int8_static", Int8Static()},
          {"int8_weights", DotGeneralMake(std::nullopt, 8, fwd_only)},
          {"w4a8", DotGeneralMake(8, 4, fwd_only)}};
}

DotGeneral OneTensor(Quantizer quantizer) {
  DotGeneral config;
  config.fwd.lhs.quantizer = std::move(quantizer);
  return config;
}

Quantizer IntQuantizer(Calibration calibration) {
  return {.numerics = IntSymmetric(), .calibration = std::move(calibration)};
}

// Gives a field another value than its default.
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

// Every field of every message is written by at least one of these.
std::vector<NamedConfig> Unusual() {
  std::vector<NamedConfig> configs;
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
  for (Calibration& calibration : testing::AllCalibrations()) {
    testing::VisitFields(calibration, [](absl::string_view, auto& field) { SetUnusual(field); });
    DotGeneral config = OneTensor(IntQuantizer(calibration));
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
  const float inf = std::numeric_limits<float>::infinity();
  Constant constant = {
      .bound = ConstantArray{Array::Of<float>({0.1f, -0.0f, 1e-45f, inf, std::nextafter(1.0f, 2.0f), 3e38f}, {2, 3})},
      .bias = ConstantArray{Array::Of<BFloat16>({{0x3f81}, {0xff80}, {0x0001}}, {1, 3, 1})},
      .po2_scale = true};
  DotGeneral arrays = OneTensor(IntQuantizer(constant));
  arrays.fwd.lhs.dequant_mode = DequantMode::kThisInput;
  configs.push_back({"arrays", arrays});
  constant = {.bound = 0.1, .bias = ConstantArray{Array::Of<Float16>({{0x7bff}}, {})}};
  arrays.fwd.lhs.quantizer.calibration = constant;
  arrays.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  configs.push_back({"scalar array", arrays});
  constant = {.bound = ConstantArray{Array::Zeros(DType::kF32, {0, 2})}, .bias = -0.0};
  arrays.fwd.lhs.quantizer.calibration = constant;
  configs.push_back({"empty array", arrays});

  DotGeneral modes = FullyQuantized();
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

  DotGeneral mid = FullyQuantized();
  mid.fwd.lhs_mid_alpha = 0.5;
  mid.fwd.rhs_mid_alpha = 0.0;
  configs.push_back({"mid alphas", mid});
  return configs;
}

TEST(ConfigProtoTest, PresetsAreWhatCppBuilds) {
  std::vector<std::string> names;
  for (const auto& [name, config] : PresetsInCpp()) {
    names.push_back(name);
    const absl::StatusOr<DotGeneral> preset = DotGeneralFromPreset(name);
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
      DotGeneral v4 =
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
    const absl::StatusOr<DotGeneral> again = DotGeneralFromText(text);
    ASSERT_TRUE(again.ok()) << name << ": " << again.status() << "\n" << text;
    EXPECT_TRUE(*again == config) << name << ":\n" << text << "\nbecame\n" << ToText(*again);
  }
}

// The words of the .proto file: a field that is added there, and not to the converters and to Unusual(), is found here.
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
    EXPECT_EQ(missing.count(std::string(ToString(mode))), mode == DequantMode::kOutput);  // the default is not written
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
  for (const auto kind : {NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform}) {
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
  DotGeneral want;
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
    const absl::StatusOr<DotGeneral> config = DotGeneralFromText(text);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.value_or(DotGeneral());
  };
  EXPECT_TRUE(read("schema: 1 base: 'config_v4'") == ConfigV4());
  // The container and the accumulator follow the bits.
  EXPECT_TRUE(read(R"(schema: 1 base: "config_v4" fwd {
      lhs { quantizer { int_symmetric { bits: 4 } } } rhs { quantizer { int_symmetric { bits: 4 } } } })") ==
              ConfigV4({.fwd_bits = 4}));
  DotGeneral want = ConfigV4({.fwd_bits = 12});
  want.fwd.rhs = ConfigV4().fwd.rhs;
  EXPECT_TRUE(read(R"(schema: 1 base: "config_v4" fwd { lhs { quantizer { int_symmetric { bits: 12 } } } })") == want);
  // Another kind replaces the whole field; null can be written; clear omits a field.
  want = FullyQuantized();
  want.fwd.lhs.quantizer.numerics = Fp8();
  want.fwd.dg_accumulator_dtype = std::nullopt;
  std::get<IntSymmetric>(want.dlhs.rhs.quantizer.numerics).noise = std::nullopt;
  want.drhs = DotGeneralRaw();
  EXPECT_TRUE(read(R"(schema: 1 base: "fully_quantized_int8"
      clear: "dlhs.rhs.quantizer.int_symmetric.noise" clear: "drhs"
      fwd { lhs { quantizer { fp8 {} } } dg_accumulator_dtype: "none" })") == want);
}

struct ErrorCase {
  std::string text, where, message;
};

TEST(ConfigProtoTest, ErrorsHaveLineAndColumn) {
  const std::string v4 = "schema: 1 base: 'config_v4'\n";
  const std::string lhs = "schema: 1\nfwd { lhs { quantizer {\n";
  for (const ErrorCase& c : std::vector<ErrorCase>{
           {"", "1:1: ", "schema: 1"},
           {"\n schema: 2", "2:2: ", "schema 2 is not known"},
           {"schema: 1\n fwd { } dlhs { lhs: 3", "2:22: ", "Expected"},
           {"schema: 1\nbase: 'config_v5'", "2:1: ", "no preset \"config_v5\"; presets are binary"},
           {"schema: 1\n  clear: 'fwd'", "2:3: ", "there is no base"},
           {v4 + "clear: 'dlhs' clear: 'fwd.lhs.use_fwd_quant'",
            "2:15: ", "\"fwd.lhs.use_fwd_quant\" is not set by the base"},
           {v4 + "clear: 'fwd.left'", "2:1: ", "\"fwd.left\" is not set"},
           {v4 + "clear: 'base.fwd'", "2:1: ", "is not set"},
           {lhs + "  int_symmetric { bits: 23 } abs_max {} } } }",
            "2:13: ", "fwd.lhs.quantizer: IntSymmetric: bits = 23"},
           {lhs + "  int_symmetric {} } } }", "2:13: ", "needs a calibration"},
           {lhs + "  int_symmetric {\n dtype: 's3' } abs_max {} } } }",
            "4:2: ", "\"s3\" is not a data type; expected s2"},
           {lhs + "  int_symmetric {\n dtype: 'int8' } abs_max {} } } }", "4:2: ", "is not a data type; write \"s8\""},
           {lhs + "  int_symmetric { dtype: 'e5m2' } abs_max {} } } }", "2:13: ", "container e5m2"},
           {lhs + "  int_symmetric { bits: 0 } abs_max {} } } }", "2:13: ", "bits = 0, but 1 to 22"},
           {lhs + "  fp { format { radix: 3 } } abs_max {} } } }", "2:13: ", "radix 3, expected 2 or 4"},
           {lhs + "  fp { format { nexp: 8 } } abs_max {} } } }", "2:13: ", "nexp = 8, nmant = 1; expected 0 to 7"},
           {lhs + "  fp { format { nexp: 0 nmant: 0 } } abs_max {} } } }", "2:13: ", "has no values"},
           {lhs + "  int_symmetric {} abs_mean { p: 0 } } } }", "2:13: ", "AbsMean: p = 0"},
           {lhs + "  int_symmetric {} abs_mean { clipping_scale: nan } } } }", "2:13: ", "clipping_scale = nan"},
           {lhs + "  int_symmetric {} snr_search { candidates: [1, nan] } } } }", "2:13: ", "candidate nan"},
           {lhs + "  int_symmetric {} constant { bound { number: nan } } } } }", "2:13: ", "bound = nan"},
           {lhs + "  fp8 { dtype: 'none' } abs_max {} } } }", "3:9: ", "needs a dtype"},
           {lhs + "  fp8 { mantissa_bits: 2 } abs_max {} } } }", "2:13: ", "exponent_bits = 4, mantissa_bits = 2"},
           {lhs + "  scale_dtype: 's8' } } }", "2:13: ", "scale_dtype s8"},
           {lhs + "  calib_shared_axes { per_tensor: true axes: 1 } } } }", "3:3: ", "exclude each other"},
           {lhs + "  int_symmetric {} abs_max { clipping_scale: nan } } } }", "2:13: ", "clipping_scale = nan"},
           {lhs + "  int_symmetric {} weighted_stats { lp_order: 31 max_dev_coeff: 1 } } } }",
            "2:13: ", "lp_order = 31"},
           {lhs + "  int_symmetric {} weighted_stats {} } } }", "2:13: ", "all four coefficients are 0"},
           {lhs + "  int_symmetric {} delayed_scaling { amax_history_length: 0 } } } }",
            "2:13: ", "amax_history_length = 0, expected 1 to 1048576"},
           {lhs + "  int_symmetric {} constant { bound { } } } } }", "3:31: ", "needs number or array"},
           {lhs + "  int_symmetric {} constant { bound { number: 0 } } } } }", "2:13: ", "bound = 0"},
           {lhs + "  constant { bound { array { dtype: 's8' } } } } } }", "3:30: ", "f32, bf16 or f16"},
           {lhs + "  constant { bound { array { values: 1 } } } } } }", "3:22: ", "needs a dtype"},
           {lhs + "  constant { bias { array { dtype: 'f32' shape: -2 } } } } } }", "3:42: ", "-2"},
           {lhs + "  constant { bias { array { dtype: 'f32' shape: [2, 2]\nvalues: [1, 2, 3] } } } } } }",
            "4:1: ", "[2,2] has 4 elements, but there are 3"},
           {v4 + "fwd {\n lhs { calibration_mode: CALIBRATION_MODE_REMAINING_AXIS } }",
            "3:8: ", "fwd.lhs.calibration_mode: DEQUANT_MODE_OUTPUT with"},
           {v4 + "fwd {\n rhs { dequant_mode: DEQUANT_MODE_OTHER_INPUT } }",
            "3:8: ", "OTHER_INPUT with CALIBRATION_MODE_CONTRACTING"},
           {v4 + "fwd {\n rhs { quantizer { constant { bias { number: 1 } } } } }",
            "3:2: ", "a bias needs DEQUANT_MODE_THIS_INPUT"},
           {v4 + "fwd {\n lhs { dequant_mode: 7 } }", "3:8: ", "7 is not a value of the enum DequantMode"},
           {v4 + "drhs {\n dg_accumulator_dtype: 's32' }", "3:2: ", "lhs enters the product as a float"},
           {v4 + "fwd {\n dg_accumulator_dtype: 's8' }", "3:2: ", "accumulator dtype s8, expected s32"},
           {v4 + "fwd { rhs { dequant_mode: DEQUANT_MODE_THIS_INPUT }\n dg_accumulator_dtype: 's32' }",
            "3:2: ", "rhs enters the product as a float"},
           {v4 + "fwd {\n local_aqt {} }", "3:2: ", "only supported in dlhs and drhs"},
           {v4 + "dlhs {\n local_aqt {} }", "3:2: ", "dlhs.local_aqt: local_aqt: needs a contraction_axis_shard_count"},
           {v4 + "drhs {\n local_aqt { contraction_axis_shard_size: 2 } }", "3:2: ", "belongs to tile_largest_shape"},
           {v4 + "drhs {\n local_aqt { tile_largest_shape: true } }", "3:2: ", "needs a contraction_axis_shard_size"},
           {v4 + "drhs {\n local_aqt { contraction_axis_shard_count: 0 } }", "3:2: ", "= 0, expected at least 1"},
           {v4 + "drhs {\n local_aqt { contraction_axis_shard_size: 2 contraction_axis_shard_count: 2 "
                 "tile_largest_shape: true } }",
            "3:2: ", "leave contraction_axis_shard_count out"},
           {v4 + "drhs { local_aqt { contraction_axis_shard_count: 2 }\n rhs {\n"
                 "   quantizer { calib_shared_axes { axes: 0 } } } }",
            "4:4: ", "drhs.rhs.quantizer: calib_shared_axes cannot be set with local_aqt"},
           {v4 + "drhs { lhs { dequant_mode: DEQUANT_MODE_THIS_INPUT\n"
                 "  calibration_mode: CALIBRATION_MODE_REMAINING_AXIS }\n lhs_mid_alpha: 0.5 }",
            "4:2: ", "but lhs has CALIBRATION_MODE_REMAINING_AXIS"},
           {v4 + "fwd {\n rhs_mid_alpha: inf }", "3:2: ", "rhs_mid_alpha = inf, expected a finite number"},
           {v4 + "tiling { lhs {\n contraction_axes { tile_size: 2 } } }", "",
            "an axis to tile needs a number: axis: -1"},
           {v4 + "tiling { lhs {\n contraction_axes { axis: 1 } } }", "", "axis 1 needs a tile_count or a tile_size"},
           {v4 + "dlhs { lhs {\n  use_fwd_quant: true } }", "3:3: ", "only the rhs of dlhs and of drhs"},
           {v4 + "fwd { rhs {\n  use_fwd_quant: true } }", "3:3: ", "only the rhs of dlhs and of drhs"},
           {"schema: 1\ndlhs { rhs { use_fwd_quant: true } }", "2:14: ",
            "dlhs.rhs.use_fwd_quant: use_fwd_quant takes the quantization of the operand in fwd, but that is not "
            "quantized"},
           // A field that the text leaves out has the position of the message around it.
           {"schema: 1 base: 'fully_quantized_int8'\nfwd {\n rhs { quantizer { no_numerics {} } } }",
            "1:1: ", "dlhs.rhs.use_fwd_quant"},
           {"schema: 1 base: 'fully_quantized_int8'\nfwd {}\ndlhs {}\nclear: 'fwd.lhs'",
            "1:1: ", "drhs.rhs.use_fwd_quant"},
       }) {
    const absl::Status status = DotGeneralFromText(c.text, "my.textproto").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), StartsWith("my.textproto:" + c.where)) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.text;
  }
}

TEST(ConfigProtoTest, OldNamesLeadToTheNewOnes) {
  const std::string tensor = "schema: 1 fwd { lhs { ";
  const std::string quantizer = tensor + "quantizer { ";
  for (const ErrorCase& c : std::vector<ErrorCase>{
           {"schema: 1 fwd { dg_in_dtype: 's8' }", "", "int_symmetric { dtype: \"s8\" }"},
           {"schema: 1 fwd { use_fake_quant: true }", "", "dequant_mode: DEQUANT_MODE_THIS_INPUT"},
           {"schema: 1 fwd { dg_quantizer { } }", "", "Write lhs { quantizer { ... } } and rhs"},
           {"schema: 1 fwd { lhs_mid { } }", "", "Write lhs_mid_alpha"},
           {"schema: 1 fwd { rhs_mid { } }", "", "Write rhs_mid_alpha"},
           {"schema: 1 fwd { jax_scope_name: 'aqt' }", "", "scopes are those of the program"},
           {tensor + "use_fake_quant: true", "", "dequant_mode: DEQUANT_MODE_THIS_INPUT"},
           {tensor + "numerics { }", "", "are in quantizer"},
           {tensor + "int_symmetric { }", "", "Write quantizer { int_symmetric"},
           {tensor + "calibration { }", "", "Write quantizer { abs_max"},
           {tensor + "calib_shared_axes { }", "", "quantizer { calib_shared_axes"},
           {tensor + "scale_stop_grad: true", "", "quantizer { scale_stop_grad"},
           {tensor + "bits: 8", "", "quantizer { int_symmetric { bits"},
           {tensor + "po2_scale: true", "", "abs_max { po2_scale: true }"},
           {quantizer + "po2_scale: true", "", "abs_max { po2_scale: true }"},
           {quantizer + "numerics { }", "", "int_symmetric { ... }, fp8 { ... }"},
           {quantizer + "calibration { }", "", "abs_max {}, abs_mean {}"},
           {quantizer + "bits: 8", "", "Write int_symmetric { bits"},
           {quantizer + "context { }", "", "key, step and mode belong to each call"},
           {quantizer + "IntNumerics { bits: 8 }", "", "Write int_symmetric."},
           {quantizer + "int_numerics { bits: 8 }", "", "Write int_symmetric."},
           {quantizer + "IntSymmetric { bits: 8 }", "", "Write int_symmetric."},
           {quantizer + "NoNumerics { }", "", "Write no_numerics."},
           {quantizer + "Fp8Numerics { }", "", "Write fp8."},
           {quantizer + "FpNumerics { }", "", "Write fp."},
           {quantizer + "int_symmetric { noise_fn: 1 }", "", "noise { kind"},
           {quantizer + "int_symmetric { stochastic_rounding: true }", "", "noise { kind"},
           {quantizer + "AbsMaxCalibration { }", "", "Write abs_max."},
           {quantizer + "AbsMeanCalibration { }", "", "Write abs_mean."},
           {quantizer + "ConstantCalibration { }", "", "Write constant."},
           {quantizer + "SnrBasedAutoCalibration { }", "", "Write snr_search."},
           {quantizer + "MeanOfAbsMaxCalibration { }", "", "Write mean_of_abs_max."},
           {quantizer + "WeightedStatsCalibration { }", "", "Write weighted_stats."},
           {quantizer + "DelayedScalingCalibration { }", "", "Write delayed_scaling."},
           {quantizer + "delayed_scaling { quant_collection: 'aqt' }", "", "statistics are in slots of kind stat"},
           {quantizer + "int_symmetric { noise { kind: jax.uniform } }", "", "Write NOISE_KIND_JAX_UNIFORM."},
           {quantizer + "int_symmetric { noise { kind: \"jax.uniform\" } }", "", "Write NOISE_KIND_JAX_UNIFORM."},
           {quantizer + "int_symmetric { noise { kind: \"custom-1\" } }", "",
            "Write NOISE_KIND_RANDOM_CENTERED_UNIFORM."},
           {quantizer + "int_symmetric { noise { kind: custom-1 } }", "", "Write NOISE_KIND_RANDOM_CENTERED_UNIFORM."},
           {quantizer + "snr_search { auto_clip_search_config: 1 }", "", "Write candidates: [...]"},
           {quantizer + "abs_max { scale: 2 }", "", "Write clipping_scale."},
           {tensor + "dequant_mode: OUTPUT", "", "Write DEQUANT_MODE_OUTPUT."},
           {tensor + "dequant_mode: THIS_INPUT", "", "Write DEQUANT_MODE_THIS_INPUT."},
           {tensor + "dequant_mode: OTHER_INPUT", "", "Write DEQUANT_MODE_OTHER_INPUT."},
           {tensor + "calibration_mode: CONTRACTING_AXIS", "", "Write CALIBRATION_MODE_CONTRACTING_AXIS."},
           {tensor + "calibration_mode: REMAINING_AXIS", "", "Write CALIBRATION_MODE_REMAINING_AXIS."},
       }) {
    const absl::Status status = DotGeneralFromText(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_THAT(std::string(status.message()), StartsWith("config:1:")) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.text;
  }
}

// A convolution is one contraction: the fwd of a configuration.
TEST(ConfigProto, ConvolutionIsFwd) {
  const absl::StatusOr<DotGeneral> config = DotGeneralFromText(R"(
      schema: 1
      fwd {
        lhs { quantizer { int_symmetric { bits: 8 } calib_shared_axes { axes: [1, 2, 3] } abs_max {} } }
        rhs { quantizer { int_symmetric { bits: 4 } calib_shared_axes { axes: [0, 1, 2] } abs_max {} } }
      })");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->fwd, ConvGeneralDilatedMake(2, 8, 4));
  EXPECT_EQ(DotGeneralFromText(ToText(DotGeneral{.fwd = ConvGeneralDilatedMake(3, 8, 8)}))->fwd,
            ConvGeneralDilatedMake(3, 8, 8));
}

}  // namespace
}  // namespace aqt
