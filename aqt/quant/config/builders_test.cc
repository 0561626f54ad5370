#include "aqt/quant/config/builders.h"

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/text/config_proto.h"

namespace aqt {
namespace {

IntSymmetric Int(int bits, std::optional<DType> dtype, std::optional<Noise> noise = std::nullopt) {
  return {.bits = bits, .preserve_zero = bits != 1, .noise = noise, .dtype = dtype};
}

TensorConfig Quantized(Numerics numerics, bool use_fwd_quant = false) {
  return {.quantizer = {.numerics = std::move(numerics), .calibration = AbsMax{}}, .use_fwd_quant = use_fwd_quant};
}

DotGeneralRawConfig Raw(TensorConfig lhs, TensorConfig rhs, std::optional<DType> accumulator) {
  return {.lhs = std::move(lhs), .rhs = std::move(rhs), .dg_accumulator_dtype = accumulator};
}

TEST(NumericsFromBits, Containers) {
  EXPECT_EQ(NumericsFromBits(std::nullopt), Numerics(NoNumerics{}));
  EXPECT_EQ(NumericsFromBits(1), Numerics(Int(1, std::nullopt)));
  for (const int bits : {2, 3, 5, 6, 7, 8}) EXPECT_EQ(NumericsFromBits(bits), Numerics(Int(bits, DType::kS8)));
  EXPECT_EQ(NumericsFromBits(4), Numerics(Int(4, DType::kS4)));
  EXPECT_EQ(NumericsFromBits(9), Numerics(Int(9, std::nullopt)));
  EXPECT_EQ(NumericsFromBits(Bits::E4M3()), Numerics(Fp8{}));
  EXPECT_EQ(NumericsFromBits(Bits::E5M2()),
            Numerics(Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2}));
}

TEST(QuantizerMake, Defaults) {
  EXPECT_EQ(QuantizerMake(8), (Quantizer{.numerics = Int(8, DType::kS8), .calibration = AbsMax{}}));
  EXPECT_EQ(QuantizerMake(std::nullopt), Quantizer{});
  EXPECT_TRUE(std::get<IntSymmetric>(QuantizerMake(4, /*preserve_max_val=*/true).numerics).preserve_max_val);
}

TEST(DotGeneralRawMake, Accumulator) {
  EXPECT_EQ(DotGeneralRawMake(8, 4).dg_accumulator_dtype, DType::kS32);
  EXPECT_EQ(DotGeneralRawMake(8, 1).dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(DotGeneralRawMake(8, 9).dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(DotGeneralRawMake(8, std::nullopt).dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(DotGeneralRawMake(Bits::E4M3(), Bits::E5M2()).dg_accumulator_dtype, DType::kF32);
  EXPECT_EQ(DotGeneralRawMake(Bits::E4M3(), 8).dg_accumulator_dtype, std::nullopt);  // only if both are 8-bit floats
}

TEST(FullyQuantized, Defaults) {
  const Noise noise{};
  const Numerics plain = Int(8, DType::kS8), noisy = Int(8, DType::kS8, noise);
  const DotGeneralRawConfig backward = Raw(Quantized(noisy), Quantized(noisy, true), DType::kS32);
  const DotGeneralConfig want{
      .fwd = Raw(Quantized(plain), Quantized(plain), DType::kS32), .dlhs = backward, .drhs = backward};
  EXPECT_EQ(FullyQuantized(), want);
}

TEST(FullyQuantized, Options) {
  const absl::StatusOr<DotGeneralConfig> gradient_only = FullyQuantized({.use_stochastic_rounding = std::nullopt,
                                                                         .vjp_lhs_stochastic_rounding = true,
                                                                         .vjp_rhs_stochastic_rounding = false});
  ASSERT_TRUE(gradient_only.ok());
  EXPECT_TRUE(std::get<IntSymmetric>(gradient_only->dlhs.lhs.quantizer.numerics).noise.has_value());
  EXPECT_FALSE(std::get<IntSymmetric>(gradient_only->dlhs.rhs.quantizer.numerics).noise.has_value());
  const absl::StatusOr<DotGeneralConfig> bound = FullyQuantized({.fwd_bits = 4, .use_dummy_static_bound = true});
  ASSERT_TRUE(bound.ok());
  EXPECT_EQ(*bound->drhs.rhs.quantizer.calibration, Calibration(Constant{.bound = 1.0}));
  EXPECT_EQ(std::get<IntSymmetric>(bound->fwd.rhs.quantizer.numerics).dtype, DType::kS4);
  EXPECT_EQ(std::get<IntSymmetric>(bound->drhs.rhs.quantizer.numerics).bits, 8);
}

TEST(FullyQuantized, ContradictingFlags) {
  struct Case {
    FullyQuantizedOptions options;
    std::string message;
  };
  const Case cases[] = {
      {{.vjp_lhs_stochastic_rounding = true},
       "FullyQuantized: set both of vjp_lhs_stochastic_rounding and vjp_rhs_stochastic_rounding, or none"},
      {{.vjp_lhs_stochastic_rounding = true, .vjp_rhs_stochastic_rounding = false},
       "FullyQuantized: use_stochastic_rounding must be null when the vjp_*_stochastic_rounding flags are set"},
      {{.use_stochastic_rounding = std::nullopt},
       "FullyQuantized: set use_stochastic_rounding, or both of vjp_lhs_stochastic_rounding and "
       "vjp_rhs_stochastic_rounding"},
      {{.use_stochastic_rounding = std::nullopt,
        .vjp_lhs_stochastic_rounding = true,
        .vjp_rhs_stochastic_rounding = true},
       "FullyQuantized: vjp_lhs_stochastic_rounding and vjp_rhs_stochastic_rounding must not both be true; "
       "use_stochastic_rounding puts noise on both sides"},
  };
  for (const Case& c : cases) {
    const absl::Status status = FullyQuantized(c.options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), c.message);
  }
}

TEST(ConfigV3, Defaults) {
  const Numerics plain = Int(8, DType::kS8);
  const DotGeneralConfig want{.fwd = Raw(Quantized(plain), Quantized(plain), DType::kS32),
                              .dlhs = Raw(Quantized(Int(8, DType::kS8, Noise{})), Quantized(plain), DType::kS32),
                              .drhs = {}};
  EXPECT_EQ(ConfigV3(), want);
  // Accumulators are as given, regardless of the bits.
  EXPECT_EQ(ConfigV3({.fwd_bits = 12}).fwd.dg_accumulator_dtype, DType::kS32);
  DotGeneralConfig bound = want;
  SetConstantCalibration(bound, 1.0);
  EXPECT_EQ(ConfigV3({.use_dummy_static_bound = true}), bound);
}

TEST(ConfigV4, Defaults) {
  const DotGeneralConfig config = ConfigV4();
  EXPECT_EQ(config.fwd, ConfigV3().fwd);
  EXPECT_EQ(config.dlhs, ConfigV3().dlhs);
  EXPECT_EQ(config.drhs, DotGeneralRawConfig{});
  EXPECT_EQ(ConfigV4({.fwd_bits = 12}).fwd.dg_accumulator_dtype, std::nullopt);
  const DotGeneralConfig chosen = ConfigV4({.drhs_bits = 8,
                                            .rng_type = NoiseKind::kRandomCenteredUniform,
                                            .fwd_accumulator_dtype = DType::kF32,
                                            .dlhs_accumulator_dtype = std::nullopt,
                                            .drhs_use_fwd_quant = true,
                                            .dlhs_mid_alpha_both = 0.5});
  EXPECT_EQ(chosen.fwd.dg_accumulator_dtype, DType::kF32);
  EXPECT_EQ(chosen.dlhs.dg_accumulator_dtype, std::nullopt);
  EXPECT_EQ(chosen.drhs.dg_accumulator_dtype, DType::kS32);
  EXPECT_EQ(chosen.dlhs.lhs_mid_alpha, 0.5);
  EXPECT_EQ(chosen.dlhs.rhs_mid_alpha, 0.5);
  EXPECT_EQ(chosen.fwd.lhs_mid_alpha, std::nullopt);
  DotGeneralConfig bound = ConfigV4();
  SetConstantCalibration(bound, 1.0);
  EXPECT_EQ(ConfigV4({.use_dummy_static_bound = true}), bound);
  EXPECT_EQ(std::get<IntSymmetric>(chosen.drhs.lhs.quantizer.numerics).noise->kind, NoiseKind::kRandomCenteredUniform);
  EXPECT_TRUE(chosen.drhs.rhs.use_fwd_quant);
  EXPECT_FALSE(chosen.dlhs.rhs.use_fwd_quant);
}

TEST(ConfigFwdFp8, Defaults) {
  const DotGeneralConfig config = ConfigFwdFp8();
  EXPECT_EQ(config.fwd, Raw(Quantized(Fp8{}), Quantized(Fp8{}), DType::kF32));
  EXPECT_EQ(config.dlhs, DotGeneralRawConfig{});
  EXPECT_EQ(config.drhs, DotGeneralRawConfig{});
  const Numerics e5m2 = NumericsFromBits(Bits::E5M2());
  EXPECT_EQ(ConfigFwdFp8(Bits::E5M2())->fwd, Raw(Quantized(e5m2), Quantized(e5m2), DType::kF32));
  for (const Bits bits : {Bits(8), Bits()}) {
    EXPECT_EQ(ConfigFwdFp8(bits).status(),
              absl::InvalidArgumentError("ConfigFwdFp8: fwd_bits must be Bits::E4M3() or Bits::E5M2()"));
  }
}

TEST(DotGeneralMake, FwdQuantWhereThereIsOne) {
  const DotGeneralConfig weight_only = DotGeneralMake(std::nullopt, 8);
  EXPECT_TRUE(weight_only.dlhs.rhs.use_fwd_quant);
  EXPECT_FALSE(weight_only.drhs.rhs.use_fwd_quant);
  EXPECT_FALSE(DotGeneralMake(8, 8, {.use_fwd_quant = false}).dlhs.rhs.use_fwd_quant);
  EXPECT_TRUE(DotGeneralRawMake(8, 8, std::nullopt, true).allow_dummy_gradient_into_qtensor);
  const DotGeneralConfig dummy = DotGeneralMake(8, 8, {.allow_dummy_gradients = true});
  for (const DotGeneralRawConfig* raw : {&dummy.fwd, &dummy.dlhs, &dummy.drhs}) {
    EXPECT_TRUE(raw->allow_dummy_gradient_into_qtensor);
  }
}

// ---- setters: they change exactly the fields that they name

// "fwd.lhs.quantizer.int_symmetric.bits: 8", ... for each field that the text of a configuration sets; abs_max and
// noise, which may be empty, count as fields themselves.
std::set<std::string> Fields(const DotGeneralConfig& config) {
  std::set<std::string> fields;
  std::vector<std::string> path;
  const std::string text = ToText(config);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const absl::string_view word = absl::StripAsciiWhitespace(line);
    if (word == "}") {
      path.pop_back();
    } else if (absl::EndsWith(word, " {")) {
      path.emplace_back(absl::StripSuffix(word, " {"));
      if (path.back() == "noise" || path.back() == "abs_max") {
        fields.insert(absl::StrJoin(path, ".") + " {}");
      }
    } else {
      fields.insert(absl::StrCat(absl::StrJoin(path, "."), path.empty() ? "" : ".", word));
    }
  }
  return fields;
}

// "-" and "+" lines, as in a textual diff.
std::vector<std::string> Difference(const DotGeneralConfig& before, const DotGeneralConfig& after) {
  const std::set<std::string> a = Fields(before), b = Fields(after);
  std::vector<std::string> lines;
  for (const std::string& field : a) {
    if (b.count(field) == 0) lines.push_back("-" + field);
  }
  for (const std::string& field : b) {
    if (a.count(field) == 0) lines.push_back("+" + field);
  }
  return lines;
}

// `line` with each of PASSES in place of "*", and both sides in place of "?".
std::vector<std::string> Each(const std::vector<std::string>& lines,
                              const std::vector<std::string>& passes = {"fwd", "dlhs", "drhs"}) {
  std::set<std::string> all;
  for (const std::string& line : lines) {
    for (const std::string& pass : passes) {
      for (const char* side : {"lhs", "rhs"}) all.insert(absl::StrReplaceAll(line, {{"*", pass}, {"?", side}}));
    }
  }
  return {all.begin(), all.end()};
}

struct SetterCase {
  std::string name;
  DotGeneralConfig config;
  std::function<absl::Status(DotGeneralConfig&)> set;
  std::vector<std::string> difference;
};

// Each changes the fields that it names and no others.
void ExpectDifferences(const std::vector<SetterCase>& cases) {
  for (const SetterCase& c : cases) {
    DotGeneralConfig config = c.config;
    const absl::Status status = c.set(config);
    EXPECT_TRUE(status.ok()) << c.name << status;
    EXPECT_THAT(Difference(c.config, config), ::testing::UnorderedElementsAreArray(c.difference)) << c.name;
  }
}

std::function<absl::Status(DotGeneralConfig&)> Always(void (*f)(DotGeneralConfig&)) {
  return [f](DotGeneralConfig& c) {
    f(c);
    return absl::OkStatus();
  };
}

// With a scale that is a power of two in one place.
DotGeneralConfig Po2() {
  DotGeneralConfig config = FullyQuantized();
  config.fwd.rhs.quantizer.calibration = AbsMax{.po2_scale = true};
  return config;
}

// clang-format off
TEST(Setters, OfModesChangeTheFieldsThatTheyNameAndNoOthers) {
  const DotGeneralConfig v4 = ConfigV4();
  DotGeneralConfig alphas = v4, local = v4;
  alphas.dlhs.lhs_mid_alpha = 0.25;
  local.dlhs.local_aqt = local.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2};
  ExpectDifferences({
      {"SetFwdDequantMode", FullyQuantized(),
       Always([](DotGeneralConfig& c) { SetFwdDequantMode(c, DequantMode::kThisInput, std::nullopt); }),
       {"+fwd.lhs.dequant_mode: DEQUANT_MODE_THIS_INPUT"}},
      {"SetFwdCalibrationMode", FullyQuantized(),
       Always([](DotGeneralConfig& c) { SetFwdCalibrationMode(c, std::nullopt, CalibrationMode::kRemainingAxis); }),
       {"+fwd.rhs.calibration_mode: CALIBRATION_MODE_REMAINING_AXIS"}},
      {"SetLocalAqt", local, Always([](DotGeneralConfig& c) { SetLocalAqt(c, kSkip, std::nullopt); }),
       {"-drhs.local_aqt.contraction_axis_shard_count: 2"}},
      {"SetUseFwdQuant", v4, [](DotGeneralConfig& c) { return SetUseFwdQuant(c, true, std::nullopt); },
       {"+dlhs.rhs.use_fwd_quant: true"}},
      {"SetUseMidQuant", alphas, [](DotGeneralConfig& c) { return SetUseMidQuant(c, 0.5, std::nullopt, 0.75); },
       {"+drhs.lhs_mid_alpha: 0.75", "+drhs.rhs_mid_alpha: 0.75", "+fwd.lhs_mid_alpha: 0.5",
        "+fwd.rhs_mid_alpha: 0.5"}},
  });
}

TEST(Setters, OfNumericsChangeTheFieldsThatTheyNameAndNoOthers) {
  const std::string noise = ".quantizer.int_symmetric.noise";
  ExpectDifferences({
      {"SetNumerics", FullyQuantized(), Always([](DotGeneralConfig& c) { SetNumerics(c.dlhs, Fp8{}, NoNumerics{}); }),
       {"-dlhs.dg_accumulator_dtype: \"s32\"", "-dlhs.lhs.quantizer.int_symmetric.bits: 8",
        "-dlhs.lhs.quantizer.int_symmetric.dtype: \"s8\"", "-dlhs.lhs" + noise + " {}",
        "-dlhs.lhs" + noise + ".kind: NOISE_KIND_JAX_UNIFORM", "-dlhs.rhs.quantizer.int_symmetric.bits: 8",
        "-dlhs.rhs.quantizer.int_symmetric.dtype: \"s8\"", "-dlhs.rhs" + noise + " {}",
        "-dlhs.rhs" + noise + ".kind: NOISE_KIND_JAX_UNIFORM", "+dlhs.dg_accumulator_dtype: \"f32\"",
        "+dlhs.lhs.quantizer.fp8.dtype: \"e4m3fn\"", "+dlhs.lhs.quantizer.fp8.exponent_bits: 4",
        "+dlhs.lhs.quantizer.fp8.mantissa_bits: 3"}},
      {"SetAccumulatorDType", FullyQuantized(),
       Always([](DotGeneralConfig& c) { SetAccumulatorDType(c, DType::kF32, kSkip, std::nullopt); }),
       {"-drhs.dg_accumulator_dtype: \"s32\"", "-fwd.dg_accumulator_dtype: \"s32\"",
        "+drhs.dg_accumulator_dtype: \"none\"", "+fwd.dg_accumulator_dtype: \"f32\""}},
      {"SetFwdRhsDTypeInt2", DotGeneralMake(8, 2), SetFwdRhsDTypeInt2,
       {"-fwd.rhs.quantizer.int_symmetric.dtype: \"s8\"", "+fwd.rhs.quantizer.int_symmetric.dtype: \"s2\""}},
      {"SetStochasticRounding on", DotGeneralMake(8, 8, {.bwd_bits = 8}),
       Always([](DotGeneralConfig& c) { SetStochasticRounding(c, true, false, NoiseKind::kRandomCenteredUniform, {0}); }),
       Each({"+*.lhs" + noise + " {}", "+*.lhs" + noise + ".kind: NOISE_KIND_RANDOM_CENTERED_UNIFORM",
             "+*.lhs" + noise + ".noise_sharing_axes: [0]"},
            {"dlhs", "drhs"})},
      {"SetStochasticRounding off", FullyQuantized(), Always([](DotGeneralConfig& c) { SetStochasticRounding(c, false, false); }),
       Each({"-*.?" + noise + " {}", "-*.?" + noise + ".kind: NOISE_KIND_JAX_UNIFORM"}, {"dlhs", "drhs"})},
      {"SetStochasticRounding of fp8", DotGeneralMake(8, 8, {.bwd_bits = Bits::E5M2()}),
       Always([](DotGeneralConfig& c) { SetStochasticRounding(c, false, true); }),
       Each({"+*.rhs.quantizer.fp8.stochastic_rounding: true"}, {"dlhs", "drhs"})},
      {"SetIntNumericsPreserveZero", ConfigV4({.fwd_bits = Bits::E4M3()}),
       Always([](DotGeneralConfig& c) { SetIntNumericsPreserveZero(c, false); }),
       Each({"-dlhs.?.quantizer.int_symmetric.dtype: \"s8\"", "+dlhs.?.quantizer.int_symmetric.dtype: \"none\"",
             "+dlhs.?.quantizer.int_symmetric.preserve_zero: false"})},
      {"SetBits", Po2(), Always([](DotGeneralConfig& c) { SetBits(c, std::nullopt, 4, 8, 8, 8, 8); }),
       {"-dlhs.lhs" + noise + " {}", "-dlhs.lhs" + noise + ".kind: NOISE_KIND_JAX_UNIFORM", "-dlhs.rhs" + noise + " {}",
        "-dlhs.rhs" + noise + ".kind: NOISE_KIND_JAX_UNIFORM", "-dlhs.rhs.use_fwd_quant: true",
        "-drhs.lhs" + noise + " {}", "-drhs.lhs" + noise + ".kind: NOISE_KIND_JAX_UNIFORM", "-drhs.rhs" + noise + " {}",
        "-drhs.rhs" + noise + ".kind: NOISE_KIND_JAX_UNIFORM", "-fwd.dg_accumulator_dtype: \"s32\"",
        "-fwd.lhs.quantizer.int_symmetric.bits: 8", "-fwd.lhs.quantizer.int_symmetric.dtype: \"s8\"",
        "-fwd.rhs.quantizer.abs_max.po2_scale: true", "-fwd.rhs.quantizer.int_symmetric.bits: 8",
        "-fwd.rhs.quantizer.int_symmetric.dtype: \"s8\"", "+fwd.dg_accumulator_dtype: \"none\"",
        "+fwd.rhs.quantizer.int_symmetric.bits: 4", "+fwd.rhs.quantizer.int_symmetric.dtype: \"s4\""}},
  });
}

TEST(Setters, OfCalibrationsChangeTheFieldsThatTheyNameAndNoOthers) {
  const DotGeneralConfig v4 = ConfigV4();
  ExpectDifferences({
      {"SetConstantCalibration", FullyQuantized(), Always([](DotGeneralConfig& c) { SetConstantCalibration(c, 3, 0.5); }),
       Each({"-*.?.quantizer.abs_max {}", "+*.?.quantizer.constant.bound.number: 3",
             "+*.?.quantizer.constant.bias.number: 0.5"})},
      {"SetAutoCalibScale", Po2(), Always([](DotGeneralConfig& c) { SetAutoCalibScale(c, {1, 0.5}); }),
       {"-dlhs.rhs.quantizer.abs_max {}", "-drhs.rhs.quantizer.abs_max {}", "-fwd.rhs.quantizer.abs_max {}",
        "-fwd.rhs.quantizer.abs_max.po2_scale: true", "+dlhs.rhs.quantizer.snr_search.candidates: [1, 0.5]",
        "+drhs.rhs.quantizer.snr_search.candidates: [1, 0.5]", "+fwd.rhs.quantizer.snr_search.candidates: [1, 0.5]",
        "+fwd.rhs.quantizer.snr_search.po2_scale: true"}},
      {"SetAbsmaxCalibScale at 1", v4, [](DotGeneralConfig& c) { return SetAbsmaxCalibScale(c, 1); },
       Each({"+*.?.quantizer.abs_max.clipping_scale: 1"}, {"fwd", "dlhs"})},
      {"SetAbsmaxCalibScale below 1", v4, [](DotGeneralConfig& c) { return SetAbsmaxCalibScale(c, 0.5); },
       Each({"+*.?.quantizer.abs_max.clipping_scale: 0.5", "+*.?.quantizer.int_symmetric.clip_gradient: true"},
            {"fwd", "dlhs"})},
      {"SetFwdCalibration", FullyQuantized(), Always([](DotGeneralConfig& c) { SetFwdCalibration(c, AbsMax{.po2_scale = true}); }),
       Each({"+fwd.?.quantizer.abs_max.po2_scale: true"})},
      {"SetScaleDType", FullyQuantized(), Always([](DotGeneralConfig& c) { SetScaleDType(c, DType::kBF16); }),
       Each({"+*.?.quantizer.scale_dtype: \"bf16\""})},
  });
}
// clang-format on

TEST(SetFwdRhsDTypeInt2, NeedsTwoBits) {
  for (const Bits bits : {Bits(4), Bits::E4M3(), Bits()}) {
    DotGeneralConfig config = DotGeneralMake(8, bits);
    const DotGeneralConfig before = config;
    const absl::Status status = SetFwdRhsDTypeInt2(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()),
              absl::StrCat("SetFwdRhsDTypeInt2: fwd.rhs is ", Describe(before.fwd.rhs.quantizer.numerics),
                           ", expected an IntSymmetric of 2 bits"));
    EXPECT_EQ(config, before);
  }
}

TEST(SetNumerics, Accumulator) {
  DotGeneralRawConfig raw;
  SetNumerics(raw, Int(8, DType::kS8), Int(4, DType::kS4));
  EXPECT_EQ(raw.dg_accumulator_dtype, DType::kS32);
  SetNumerics(raw, Fp8{}, NoNumerics{});
  EXPECT_EQ(raw.dg_accumulator_dtype, DType::kF32);  // either side, unlike DotGeneralRawMake
  SetNumerics(raw, Int(8, DType::kS8), Int(2, DType::kS2));
  EXPECT_EQ(raw.dg_accumulator_dtype, std::nullopt);
}

TEST(SetUseFwdQuant, RefusesMidScales) {
  DotGeneralConfig config = ConfigV4();
  ASSERT_TRUE(SetUseFwdQuant(config, true, std::nullopt).ok());
  EXPECT_TRUE(config.dlhs.rhs.use_fwd_quant);
  EXPECT_FALSE(config.drhs.rhs.use_fwd_quant);
  config.fwd.lhs_mid_alpha = 0.5;
  EXPECT_EQ(SetUseFwdQuant(config, std::nullopt, true),
            absl::InvalidArgumentError(
                "SetUseFwdQuant: mid scales are configured; the forward quantization cannot be used again with them"));
  EXPECT_TRUE(SetUseFwdQuant(config, false, false).ok());
}

TEST(SetUseMidQuant, RefusesFwdQuant) {
  DotGeneralConfig reuse = FullyQuantized();
  EXPECT_EQ(SetUseMidQuant(reuse, 0.5, std::nullopt, std::nullopt),
            absl::InvalidArgumentError("SetUseMidQuant: use_fwd_quant is configured; with mid scales the forward "
                                       "quantization cannot be used again"));
  EXPECT_EQ(reuse, FullyQuantized());
}

TEST(SetIntNumericsPreserveZero, ResetsTheContainer) {
  DotGeneralConfig config = ConfigV4({.fwd_bits = 4});
  SetIntNumericsPreserveZero(config, false);
  EXPECT_EQ(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).dtype, std::nullopt);
  EXPECT_FALSE(std::get<IntSymmetric>(config.dlhs.rhs.quantizer.numerics).preserve_zero);
  SetIntNumericsPreserveZero(config, true);
  EXPECT_EQ(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).dtype, DType::kS4);
  EXPECT_EQ(std::get<IntSymmetric>(config.dlhs.lhs.quantizer.numerics).dtype, DType::kS8);
}

TEST(SetAbsmaxCalibScale, ClipsGradientsBelowOne) {
  DotGeneralConfig config = ConfigV4();
  ASSERT_TRUE(SetAbsmaxCalibScale(config, 1.5).ok());
  EXPECT_FALSE(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient);
  ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.5).ok());
  EXPECT_TRUE(std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient);
  EXPECT_EQ(std::get<AbsMax>(*config.dlhs.rhs.quantizer.calibration).clipping_scale, 0.5);
  SetConstantCalibration(config);
  const DotGeneralConfig before = config;
  EXPECT_EQ(SetAbsmaxCalibScale(config, 0.5),
            absl::InvalidArgumentError(
                "SetAbsmaxCalibScale: a calibration other than AbsMax is configured; set its own bound instead"));
  EXPECT_EQ(config, before);
}

TEST(Builders, ConvGeneralDilatedMake) {
  const DotGeneralRawConfig raw = ConvGeneralDilatedMake(2, 8, 4);
  DotGeneralRawConfig want = DotGeneralRawMake(8, 4);
  want.lhs.quantizer.calib_shared_axes.axes = {1, 2, 3};  // one scale per example
  want.rhs.quantizer.calib_shared_axes.axes = {0, 1, 2};  // one per output channel
  EXPECT_EQ(raw, want);
  EXPECT_EQ(raw.dg_accumulator_dtype, DType::kS32);
  const DotGeneralRawConfig weight_only = ConvGeneralDilatedMake(1, std::nullopt, 8);
  EXPECT_EQ(weight_only.lhs.quantizer.numerics, Numerics(NoNumerics{}));
  EXPECT_EQ(weight_only.dg_accumulator_dtype, std::nullopt);
}

}  // namespace
}  // namespace aqt
