#include "tests/golden_check/parse_quantizer.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "nlohmann/json.hpp"

namespace aqt::golden {
namespace {

absl::StatusOr<std::optional<Noise>> ToNoise(const Json& json) {
  if (json.is_null()) return std::optional<Noise>();
  AQT_RETURN_IF_ERROR(CheckFields(json, "noise", {"kind", "noise_sharing_axes"}));
  Noise noise;
  const std::string kind = json.at("kind");
  if (kind == "jax.uniform") {
    noise.kind = NoiseKind::kJaxUniform;
  } else if (kind == "custom-1") {
    noise.kind = NoiseKind::kRandomCenteredUniform;
  } else {
    return NoApi(absl::StrCat("the noise ", kind));
  }
  if (json.contains("noise_sharing_axes")) noise.noise_sharing_axes = ToAxes(json["noise_sharing_axes"]);
  return std::optional<Noise>(noise);
}

// A number, or "input NAME" for a tensor of the case.
absl::StatusOr<ConstantValue> ToConstantValue(const Json& json, const Tensors& inputs) {
  if (json.is_number()) return json.get<double>();
  const std::string text = json;
  if (absl::StartsWith(text, "input ")) {
    const auto input = inputs.find(text.substr(6));
    if (input != inputs.end()) return ConstantArray{input->second};
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is neither a number nor an input of the case"));
}

}  // namespace

absl::Status NoApi(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("no public API for ", what));
}

absl::Status CheckFields(const Json& object, absl::string_view what, std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return NoApi(absl::StrCat("the ", what, " field ", key));
  }
  return absl::OkStatus();
}

Axes ToAxes(const Json& list) {
  Axes axes;
  for (const Json& axis : list) axes.push_back(axis.get<int64_t>());
  return axes;
}

absl::StatusOr<DType> ToDType(const std::string& name) {
  static constexpr std::pair<absl::string_view, DType> kNames[] = {
      {"float32", DType::kF32},     {"bfloat16", DType::kBF16},
      {"float16", DType::kF16},     {"int32", DType::kS32},
      {"int8", DType::kS8},         {"int4", DType::kS4},
      {"int2", DType::kS2},         {"float8_e4m3fn", DType::kE4M3FN},
      {"float8_e5m2", DType::kE5M2}};
  for (const auto& [text, dtype] : kNames) {
    if (name == text) return dtype;
  }
  return NoApi(absl::StrCat("the dtype ", name));
}

absl::StatusOr<std::optional<DType>> OptionalDType(const Json& object, const char* key) {
  const std::optional<std::string> name = Optional<std::string>(object, key);
  if (!name.has_value()) return std::optional<DType>();
  AQT_ASSIGN_OR_RETURN(const DType dtype, ToDType(*name));
  return std::optional<DType>(dtype);
}

absl::StatusOr<Numerics> ToNumerics(const Json& json) {
  const std::string type = json.at("type");
  if (type == "none") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "numerics", {"type"}));
    return NoNumerics{};
  }
  if (type == "int") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "int numerics",
                                    {"type", "bits", "preserve_zero", "preserve_max_val", "clip", "clip_gradient",
                                     "round", "noise", "container_dtype", "quant_bound", "fwd_clip_bound"}));
    IntSymmetric numerics{.bits = json.at("bits"),
                          .preserve_zero = json.at("preserve_zero"),
                          .preserve_max_val = json.at("preserve_max_val"),
                          .clip = json.at("clip"),
                          .clip_gradient = json.at("clip_gradient"),
                          .round = json.at("round")};
    AQT_ASSIGN_OR_RETURN(numerics.noise, ToNoise(json.at("noise")));
    AQT_ASSIGN_OR_RETURN(numerics.dtype, OptionalDType(json, "container_dtype"));
    return numerics;
  }
  if (type == "fp8") {
    AQT_RETURN_IF_ERROR(
        CheckFields(json, "fp8 numerics",
                    {"type", "dtype", "exponent_bits", "mantissa_bits", "stochastic_rounding", "quant_bound"}));
    AQT_ASSIGN_OR_RETURN(const DType dtype, ToDType(json.at("dtype")));
    return Fp8{.dtype = dtype,
               .exponent_bits = json.at("exponent_bits"),
               .mantissa_bits = json.at("mantissa_bits"),
               .stochastic_rounding = json.at("stochastic_rounding")};
  }
  if (type == "fp") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "fp numerics",
                                    {"type", "cfg", "stochastic_rounding", "clip_gradient", "quant_bound", "format"}));
    const Json& format = json.at("cfg");
    AQT_RETURN_IF_ERROR(CheckFields(
        format, "fp format", {"nexp", "minexp", "nmant", "has_subnormals", "has_two_nan", "has_naninf", "radix"}));
    return Fp{.format = {.nexp = format.at("nexp"),
                         .minexp = format.at("minexp"),
                         .nmant = format.at("nmant"),
                         .has_subnormals = format.at("has_subnormals"),
                         .has_two_nan = format.at("has_two_nan"),
                         .has_naninf = format.at("has_naninf"),
                         .radix = format.at("radix")},
              .stochastic_rounding = json.at("stochastic_rounding"),
              .clip_gradient = json.at("clip_gradient")};
  }
  return NoApi(absl::StrCat("the numerics ", type));
}

absl::StatusOr<std::optional<Calibration>> ToCalibration(const Json& json, const Tensors& inputs) {
  if (json.is_null()) return std::optional<Calibration>();
  const std::string kind = json.at("kind");
  const bool po2_scale = json.at("po2_scale");
  if (kind == "absmax") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "absmax", {"kind", "po2_scale", "scale_dtype", "clipping_scale"}));
    return AbsMax{.clipping_scale = Optional<double>(json, "clipping_scale"), .po2_scale = po2_scale};
  }
  if (kind == "absmean") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "absmean", {"kind", "po2_scale", "scale_dtype", "clipping_scale", "p"}));
    return AbsMean{.p = json.at("p"), .clipping_scale = json.at("clipping_scale"), .po2_scale = po2_scale};
  }
  if (kind == "constant") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "constant", {"kind", "po2_scale", "scale_dtype", "bound", "bias"}));
    Constant constant{.po2_scale = po2_scale};
    AQT_ASSIGN_OR_RETURN(constant.bound, ToConstantValue(json.at("bound"), inputs));
    if (json.contains("bias") && !json["bias"].is_null()) {
      AQT_ASSIGN_OR_RETURN(constant.bias, ToConstantValue(json["bias"], inputs));
    }
    return constant;
  }
  if (kind == "mean_of_absmax") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "mean_of_absmax", {"kind", "po2_scale", "scale_dtype"}));
    return MeanOfAbsMax{.po2_scale = po2_scale};
  }
  if (kind == "weighted_stats") {
    AQT_RETURN_IF_ERROR(
        CheckFields(json, "weighted_stats",
                    {"kind", "po2_scale", "scale_dtype", "l1_dev_coeff", "lp_dev_coeff", "max_dev_coeff",
                     "const_bound_coeff", "update_count_prior", "max_dev_prior", "mean_prior", "l1_dev_prior",
                     "lp_dev_prior", "lp_order", "safe_divide", "filter_zeros", "ema_update_count"}));
    return WeightedStats{.l1_dev_coeff = json.at("l1_dev_coeff"),
                         .lp_dev_coeff = json.at("lp_dev_coeff"),
                         .max_dev_coeff = json.at("max_dev_coeff"),
                         .const_bound_coeff = json.at("const_bound_coeff"),
                         .update_count_prior = json.at("update_count_prior"),
                         .max_dev_prior = json.at("max_dev_prior"),
                         .mean_prior = json.at("mean_prior"),
                         .l1_dev_prior = json.at("l1_dev_prior"),
                         .lp_dev_prior = json.at("lp_dev_prior"),
                         .lp_order = json.at("lp_order"),
                         .safe_divide = json.at("safe_divide"),
                         .filter_zeros = json.at("filter_zeros"),
                         .ema_update_count = json.at("ema_update_count"),
                         .po2_scale = po2_scale};
  }
  if (kind == "delayed_scaling") {
    AQT_RETURN_IF_ERROR(
        CheckFields(json, "delayed_scaling", {"kind", "po2_scale", "scale_dtype", "amax_history_length"}));
    return DelayedScaling{.amax_history_length = json.at("amax_history_length"), .po2_scale = po2_scale};
  }
  if (kind == "snr") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "snr", {"kind", "po2_scale", "scale_dtype", "auto_clip_search_config"}));
    return SnrSearch{.candidates = json.at("auto_clip_search_config"), .po2_scale = po2_scale};
  }
  return NoApi(absl::StrCat("the calibration ", kind));
}

absl::StatusOr<Quantizer> ToQuantizer(const Json& json, const Tensors& inputs) {
  Quantizer quantizer{.scale_stop_grad = json.at("scale_stop_grad")};
  AQT_ASSIGN_OR_RETURN(quantizer.numerics, ToNumerics(json.at("numerics")));
  const Json& calibration = json.at("calibration");
  AQT_ASSIGN_OR_RETURN(quantizer.calibration, ToCalibration(calibration, inputs));
  if (!calibration.is_null()) {
    AQT_ASSIGN_OR_RETURN(quantizer.scale_dtype, OptionalDType(calibration, "scale_dtype"));
  }
  const Json& axes = json.at("calibration_axes");
  if (axes.is_string() && axes == "per_tensor") {
    quantizer.calib_shared_axes.per_tensor = true;
  } else if (!axes.is_null()) {
    quantizer.calib_shared_axes.axes = ToAxes(axes);
  }
  return quantizer;
}

absl::StatusOr<TensorConfig> ToTensor(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "operand",
                                  {"numerics", "calibration", "calibration_axes", "scale_stop_grad", "use_fwd_quant",
                                   "dequant_mode", "calibration_mode", "use_fake_quant"}));
  TensorConfig tensor{.use_fwd_quant = json.at("use_fwd_quant")};
  AQT_ASSIGN_OR_RETURN(tensor.quantizer, ToQuantizer(json, inputs));
  const std::string dequant = json.at("dequant_mode"), calibration = json.at("calibration_mode");
  if (dequant == "output") {
    tensor.dequant_mode = DequantMode::kOutput;
  } else if (dequant == "this_input") {
    tensor.dequant_mode = DequantMode::kThisInput;
  } else if (dequant == "other_input") {
    tensor.dequant_mode = DequantMode::kOtherInput;
  } else {
    return NoApi(absl::StrCat("dequant_mode ", dequant));
  }
  if (calibration == "contracting_axis") {
    tensor.calibration_mode = CalibrationMode::kContractingAxis;
  } else if (calibration == "remaining_axis") {
    tensor.calibration_mode = CalibrationMode::kRemainingAxis;
  } else {
    return NoApi(absl::StrCat("calibration_mode ", calibration));
  }
  return tensor;
}

}  // namespace aqt::golden
