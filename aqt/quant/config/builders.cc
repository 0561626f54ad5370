#include "aqt/quant/config/builders.h"

#include <array>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace aqt {
namespace {

std::array<TensorConfig*, 6> AllTensors(DotGeneralConfig& config) {
  return {&config.fwd.lhs, &config.fwd.rhs, &config.dlhs.lhs, &config.dlhs.rhs, &config.drhs.lhs, &config.drhs.rhs};
}

std::optional<DType> IntContainer(int bits) {
  if (bits == 4) return DType::kS4;
  if (bits >= 2 && bits <= 8) return DType::kS8;
  return std::nullopt;
}

std::optional<DType> ContainerOf(const Numerics& numerics) {
  const auto* integer = std::get_if<IntSymmetric>(&numerics);
  return integer == nullptr ? std::nullopt : integer->dtype;
}

bool IsS4OrS8(std::optional<DType> dtype) { return dtype == DType::kS4 || dtype == DType::kS8; }

bool IsInt2To8(Bits bits) { return bits.bits().has_value() && *bits.bits() >= 2 && *bits.bits() <= 8; }

void SetNoise(Numerics& numerics, bool on, NoiseKind kind, const Axes& sharing) {
  if (auto* fp8 = std::get_if<Fp8>(&numerics)) fp8->stochastic_rounding = on;
  if (auto* fp = std::get_if<Fp>(&numerics)) fp->stochastic_rounding = on;
  if (auto* integer = std::get_if<IntSymmetric>(&numerics)) {
    integer->noise = on ? std::make_optional(Noise{kind, sharing}) : std::nullopt;
  }
}

void SetTensorBits(TensorConfig& tensor, Bits bits) {
  tensor.quantizer.numerics = NumericsFromBits(bits);
  if (bits.quantized()) tensor.quantizer.calibration = AbsMax{};
}

}  // namespace

Numerics NumericsFromBits(Bits bits, bool preserve_max_val) {
  if (!bits.quantized()) return NoNumerics{};
  if (bits.fp8() == DType::kE4M3FN) return Fp8{};
  if (bits.fp8() == DType::kE5M2) return Fp8{.dtype = DType::kE5M2, .exponent_bits = 5, .mantissa_bits = 2};
  const int n = *bits.bits();
  return IntSymmetric{
      .bits = n, .preserve_zero = n != 1, .preserve_max_val = preserve_max_val, .dtype = IntContainer(n)};
}

Quantizer QuantizerMake(Bits bits, bool preserve_max_val, bool scale_stop_grad, std::optional<DType> scale_dtype) {
  Quantizer quantizer;
  quantizer.numerics = NumericsFromBits(bits, preserve_max_val);
  quantizer.scale_stop_grad = scale_stop_grad;
  quantizer.scale_dtype = scale_dtype;
  if (bits.quantized()) quantizer.calibration = AbsMax{};
  return quantizer;
}

DotGeneralRawConfig DotGeneralRawMake(Bits lhs_bits, Bits rhs_bits, std::optional<LocalAqt> local_aqt,
                                      bool allow_dummy_gradients) {
  DotGeneralRawConfig raw;
  raw.lhs.quantizer = QuantizerMake(lhs_bits);
  raw.rhs.quantizer = QuantizerMake(rhs_bits);
  if (IsInt2To8(lhs_bits) && IsInt2To8(rhs_bits)) raw.dg_accumulator_dtype = DType::kS32;
  if (lhs_bits.fp8().has_value() && rhs_bits.fp8().has_value()) raw.dg_accumulator_dtype = DType::kF32;
  raw.local_aqt = local_aqt;
  raw.allow_dummy_gradient_into_qtensor = allow_dummy_gradients;
  return raw;
}

DotGeneralRawConfig ConvGeneralDilatedMake(int spatial_dims, Bits lhs_bits, Bits rhs_bits) {
  DotGeneralRawConfig raw = DotGeneralRawMake(lhs_bits, rhs_bits);
  for (int64_t axis = 0; axis <= spatial_dims; ++axis) {
    raw.lhs.quantizer.calib_shared_axes.axes.push_back(axis + 1);
    raw.rhs.quantizer.calib_shared_axes.axes.push_back(axis);
  }
  return raw;
}

DotGeneralConfig DotGeneralMake(Bits lhs_bits, Bits rhs_bits, const DotGeneralMakeOptions& options) {
  DotGeneralConfig config;
  const bool dummy = options.allow_dummy_gradients;
  config.fwd = DotGeneralRawMake(lhs_bits, rhs_bits, std::nullopt, dummy);
  config.dlhs = DotGeneralRawMake(options.bwd_bits, options.bwd_bits, options.dlhs_local_aqt, dummy);
  config.drhs = DotGeneralRawMake(options.bwd_bits, options.bwd_bits, options.drhs_local_aqt, dummy);
  config.dlhs.rhs.use_fwd_quant = options.use_fwd_quant && rhs_bits.quantized();
  config.drhs.rhs.use_fwd_quant = options.use_fwd_quant && lhs_bits.quantized();
  return config;
}

DotGeneralConfig DefaultUnquantizedConfig() { return {}; }

absl::StatusOr<DotGeneralConfig> FullyQuantized(const FullyQuantizedOptions& options) {
  const std::optional<bool> lhs_flag = options.vjp_lhs_stochastic_rounding;
  const std::optional<bool> rhs_flag = options.vjp_rhs_stochastic_rounding;
  if (lhs_flag.has_value() != rhs_flag.has_value()) {
    return absl::InvalidArgumentError(
        "FullyQuantized: set both of vjp_lhs_stochastic_rounding and vjp_rhs_stochastic_rounding, or none");
  }
  if (lhs_flag.has_value() && options.use_stochastic_rounding.has_value()) {
    return absl::InvalidArgumentError(
        "FullyQuantized: use_stochastic_rounding must be null when the vjp_*_stochastic_rounding flags are set");
  }
  if (!lhs_flag.has_value() && !options.use_stochastic_rounding.has_value()) {
    return absl::InvalidArgumentError(
        "FullyQuantized: set use_stochastic_rounding, or both of vjp_lhs_stochastic_rounding and "
        "vjp_rhs_stochastic_rounding");
  }
  if (lhs_flag.value_or(false) && rhs_flag.value_or(false)) {
    return absl::InvalidArgumentError(
        "FullyQuantized: vjp_lhs_stochastic_rounding and vjp_rhs_stochastic_rounding must not both be true; "
        "use_stochastic_rounding puts noise on both sides");
  }
  DotGeneralConfig config = DotGeneralMake(options.fwd_bits, options.fwd_bits,
                                           {.bwd_bits = options.bwd_bits,
                                            .use_fwd_quant = options.use_fwd_quant,
                                            .dlhs_local_aqt = options.dlhs_local_aqt,
                                            .drhs_local_aqt = options.drhs_local_aqt});
  const bool both = options.use_stochastic_rounding.value_or(false);
  if (both || lhs_flag.has_value()) {
    SetStochasticRounding(config, both || lhs_flag.value_or(false), both || rhs_flag.value_or(false));
  }
  if (options.use_dummy_static_bound) SetConstantCalibration(config, 1.0);
  return config;
}

DotGeneralConfig FullyQuantized() { return *FullyQuantized(FullyQuantizedOptions()); }

DotGeneralConfig ConfigV3(const ConfigV3Options& options) {
  DotGeneralConfig config;
  config.fwd = DotGeneralRawMake(options.fwd_bits, options.fwd_bits);
  config.dlhs = DotGeneralRawMake(options.dlhs_bits, options.dlhs_bits, options.dlhs_local_aqt);
  config.drhs = DotGeneralRawMake(options.drhs_bits, options.drhs_bits, options.drhs_local_aqt);
  SetStochasticRounding(config, /*vjp_lhs=*/true, /*vjp_rhs=*/false, options.rng_type);
  if (options.use_dummy_static_bound) SetConstantCalibration(config, 1.0);
  SetAccumulatorDType(config, options.fwd_accumulator_dtype, options.dlhs_accumulator_dtype,
                      options.drhs_accumulator_dtype);
  return config;
}

DotGeneralConfig ConfigV4(const ConfigV4Options& options) {
  DotGeneralConfig config = DefaultUnquantizedConfig();
  SetBits(config, options.fwd_bits, options.fwd_bits, options.dlhs_bits, options.dlhs_bits, options.drhs_bits,
          options.drhs_bits);
  SetAccumulatorDType(config, options.fwd_accumulator_dtype, options.dlhs_accumulator_dtype,
                      options.drhs_accumulator_dtype);
  SetStochasticRounding(config, /*vjp_lhs=*/true, /*vjp_rhs=*/false, options.rng_type);
  if (options.use_dummy_static_bound) SetConstantCalibration(config, 1.0);
  SetLocalAqt(config, options.dlhs_local_aqt, options.drhs_local_aqt);
  config.dlhs.rhs.use_fwd_quant = options.dlhs_use_fwd_quant;
  config.drhs.rhs.use_fwd_quant = options.drhs_use_fwd_quant;
  config.fwd.lhs_mid_alpha = config.fwd.rhs_mid_alpha = options.fwd_mid_alpha_both;
  config.dlhs.lhs_mid_alpha = config.dlhs.rhs_mid_alpha = options.dlhs_mid_alpha_both;
  config.drhs.lhs_mid_alpha = config.drhs.rhs_mid_alpha = options.drhs_mid_alpha_both;
  return config;
}

absl::StatusOr<DotGeneralConfig> ConfigFwdFp8(Bits fwd_bits) {
  if (!fwd_bits.fp8().has_value()) {
    return absl::InvalidArgumentError("ConfigFwdFp8: fwd_bits must be Bits::E4M3() or Bits::E5M2()");
  }
  DotGeneralConfig config = DefaultUnquantizedConfig();
  SetBits(config, fwd_bits, fwd_bits, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  return config;
}

DotGeneralConfig ConfigFwdFp8() { return *ConfigFwdFp8(Bits::E4M3()); }

void SetFwdDequantMode(DotGeneralConfig& config, std::optional<DequantMode> lhs, std::optional<DequantMode> rhs) {
  if (lhs.has_value()) config.fwd.lhs.dequant_mode = *lhs;
  if (rhs.has_value()) config.fwd.rhs.dequant_mode = *rhs;
}

void SetFwdCalibrationMode(DotGeneralConfig& config, std::optional<CalibrationMode> lhs,
                           std::optional<CalibrationMode> rhs) {
  if (lhs.has_value()) config.fwd.lhs.calibration_mode = *lhs;
  if (rhs.has_value()) config.fwd.rhs.calibration_mode = *rhs;
}

void SetNumerics(DotGeneralRawConfig& raw, Numerics lhs, Numerics rhs) {
  raw.dg_accumulator_dtype = std::nullopt;
  if (IsS4OrS8(ContainerOf(lhs)) && IsS4OrS8(ContainerOf(rhs))) {
    raw.dg_accumulator_dtype = DType::kS32;
  } else if (std::holds_alternative<Fp8>(lhs) || std::holds_alternative<Fp8>(rhs)) {
    raw.dg_accumulator_dtype = DType::kF32;
  }
  raw.lhs.quantizer.numerics = std::move(lhs);
  raw.rhs.quantizer.numerics = std::move(rhs);
}

void SetAccumulatorDType(DotGeneralConfig& config, OrSkip<DType> fwd, OrSkip<DType> dlhs, OrSkip<DType> drhs) {
  fwd.ApplyTo(config.fwd.dg_accumulator_dtype);
  dlhs.ApplyTo(config.dlhs.dg_accumulator_dtype);
  drhs.ApplyTo(config.drhs.dg_accumulator_dtype);
}

absl::Status SetFwdRhsDTypeInt2(DotGeneralConfig& config) {
  auto* integer = std::get_if<IntSymmetric>(&config.fwd.rhs.quantizer.numerics);
  if (integer == nullptr || integer->bits != 2) {
    return absl::InvalidArgumentError(absl::StrCat("SetFwdRhsDTypeInt2: fwd.rhs is ",
                                                   Describe(config.fwd.rhs.quantizer.numerics),
                                                   ", expected an IntSymmetric of 2 bits"));
  }
  integer->dtype = DType::kS2;
  return absl::OkStatus();
}

void SetStochasticRounding(DotGeneralConfig& config, bool vjp_lhs, bool vjp_rhs, NoiseKind kind,
                           const Axes& noise_sharing_axes) {
  for (DotGeneralRawConfig* raw : {&config.dlhs, &config.drhs}) {
    SetNoise(raw->lhs.quantizer.numerics, vjp_lhs, kind, noise_sharing_axes);
    SetNoise(raw->rhs.quantizer.numerics, vjp_rhs, kind, noise_sharing_axes);
  }
}

void SetConstantCalibration(DotGeneralConfig& config, double bound, std::optional<double> bias) {
  Constant constant{.bound = bound};
  if (bias.has_value()) constant.bias = *bias;
  for (TensorConfig* tensor : AllTensors(config)) tensor->quantizer.calibration = constant;
}

void SetLocalAqt(DotGeneralConfig& config, OrSkip<LocalAqt> dlhs, OrSkip<LocalAqt> drhs) {
  dlhs.ApplyTo(config.dlhs.local_aqt);
  drhs.ApplyTo(config.drhs.local_aqt);
}

absl::Status SetUseFwdQuant(DotGeneralConfig& config, std::optional<bool> dlhs, std::optional<bool> drhs) {
  const bool on = dlhs.value_or(false) || drhs.value_or(false);
  for (const DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    if (on && (raw->lhs_mid_alpha.has_value() || raw->rhs_mid_alpha.has_value())) {
      return absl::InvalidArgumentError(
          "SetUseFwdQuant: mid scales are configured; the forward quantization cannot be used again with them");
    }
  }
  if (dlhs.has_value()) config.dlhs.rhs.use_fwd_quant = *dlhs;
  if (drhs.has_value()) config.drhs.rhs.use_fwd_quant = *drhs;
  return absl::OkStatus();
}

absl::Status SetUseMidQuant(DotGeneralConfig& config, std::optional<double> fwd_alpha, std::optional<double> dlhs_alpha,
                            std::optional<double> drhs_alpha) {
  const bool on = fwd_alpha.has_value() || dlhs_alpha.has_value() || drhs_alpha.has_value();
  if (on && (config.dlhs.rhs.use_fwd_quant || config.drhs.rhs.use_fwd_quant)) {
    return absl::InvalidArgumentError(
        "SetUseMidQuant: use_fwd_quant is configured; with mid scales the forward quantization cannot be used again");
  }
  const auto set = [](DotGeneralRawConfig& raw, std::optional<double> alpha) {
    if (alpha.has_value()) raw.lhs_mid_alpha = raw.rhs_mid_alpha = alpha;
  };
  set(config.fwd, fwd_alpha);
  set(config.dlhs, dlhs_alpha);
  set(config.drhs, drhs_alpha);
  return absl::OkStatus();
}

void SetAutoCalibScale(DotGeneralConfig& config, const std::vector<double>& candidates) {
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    std::optional<Calibration>& calibration = raw->rhs.quantizer.calibration;
    SnrSearch search{.candidates = candidates};
    if (calibration.has_value()) search.po2_scale = std::visit([](const auto& c) { return c.po2_scale; }, *calibration);
    calibration = search;
  }
}

void SetIntNumericsPreserveZero(DotGeneralConfig& config, bool preserve_zero) {
  for (TensorConfig* tensor : AllTensors(config)) {
    auto* integer = std::get_if<IntSymmetric>(&tensor->quantizer.numerics);
    if (integer == nullptr) continue;
    integer->preserve_zero = preserve_zero;
    integer->dtype = preserve_zero ? IntContainer(integer->bits) : std::nullopt;
  }
}

absl::Status SetAbsmaxCalibScale(DotGeneralConfig& config, double scale) {
  for (const TensorConfig* tensor : AllTensors(config)) {
    const std::optional<Calibration>& calibration = tensor->quantizer.calibration;
    if (!calibration.has_value() || std::holds_alternative<AbsMax>(*calibration)) continue;
    return absl::InvalidArgumentError(
        "SetAbsmaxCalibScale: a calibration other than AbsMax is configured; set its own bound instead");
  }
  for (TensorConfig* tensor : AllTensors(config)) {
    if (!tensor->quantizer.calibration.has_value()) continue;
    std::get<AbsMax>(*tensor->quantizer.calibration).clipping_scale = scale;
    auto* integer = std::get_if<IntSymmetric>(&tensor->quantizer.numerics);
    if (integer != nullptr && scale < 1) integer->clip_gradient = true;
  }
  return absl::OkStatus();
}

void SetBits(DotGeneralConfig& config, Bits fwd_lhs, Bits fwd_rhs, Bits dlhs_lhs, Bits dlhs_rhs, Bits drhs_lhs,
             Bits drhs_rhs) {
  const auto set = [](DotGeneralRawConfig& raw, Bits lhs, Bits rhs) {
    SetTensorBits(raw.lhs, lhs);
    SetTensorBits(raw.rhs, rhs);
    SetNumerics(raw, raw.lhs.quantizer.numerics, raw.rhs.quantizer.numerics);
  };
  set(config.fwd, fwd_lhs, fwd_rhs);
  set(config.dlhs, dlhs_lhs, dlhs_rhs);
  set(config.drhs, drhs_lhs, drhs_rhs);
  if (fwd_rhs.quantized()) config.dlhs.rhs.use_fwd_quant = false;
  if (fwd_lhs.quantized()) config.drhs.rhs.use_fwd_quant = false;
}

void SetFwdCalibration(DotGeneralConfig& config, const Calibration& calibration) {
  config.fwd.lhs.quantizer.calibration = calibration;
  config.fwd.rhs.quantizer.calibration = calibration;
}

void SetScaleDType(DotGeneralConfig& config, std::optional<DType> scale_dtype) {
  for (TensorConfig* tensor : AllTensors(config)) tensor->quantizer.scale_dtype = scale_dtype;
}

}  // namespace aqt
