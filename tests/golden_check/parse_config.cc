#include "tests/golden_check/parse_config.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "nlohmann/json.hpp"

namespace aqt::golden {
namespace {

// Missing fields and wrong types throw inside this file; ParseConfig turns that into a status.
using Json = nlohmann::ordered_json;

absl::Status NoApi(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("no public API for ", what));
}

// Every field must be one of those that are read here, so that nothing new is passed over in silence.
absl::Status CheckFields(const Json& object, absl::string_view what, std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return NoApi(absl::StrCat("the ", what, " field ", key));
  }
  return absl::OkStatus();
}

// T, or null.
template <class T>
std::optional<T> Optional(const Json& object, const char* key) {
  if (!object.contains(key) || object[key].is_null()) return std::nullopt;
  return object[key].get<T>();
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

// The dtype of `object[key]`; null if that is null.
absl::StatusOr<std::optional<DType>> OptionalDType(const Json& object, const char* key) {
  const std::optional<std::string> name = Optional<std::string>(object, key);
  if (!name.has_value()) return std::optional<DType>();
  AQT_ASSIGN_OR_RETURN(const DType dtype, ToDType(*name));
  return std::optional<DType>(dtype);
}

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

// The fields quant_bound and fwd_clip_bound follow from the others; they show in every scale and qvalue.
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

absl::StatusOr<RoundToFormatConfig> ToRoundToFormatConfig(const Json& json) {
  Json numerics = json;
  numerics.erase("container");
  AQT_ASSIGN_OR_RETURN(const Numerics parsed, ToNumerics(numerics));
  const Fp* fp = std::get_if<Fp>(&parsed);
  if (fp == nullptr) return NoApi(absl::StrCat("fp_round with the numerics ", json.at("type").get<std::string>()));
  if (fp->stochastic_rounding) return NoApi("fp_round with stochastic_rounding");
  AQT_ASSIGN_OR_RETURN(const DType container, ToDType(json.at("container")));
  return RoundToFormatConfig{fp->format, container};
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

// What all quantizers have. Axes in the JSON become calib_shared_axes.
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

absl::StatusOr<QuantizeConfig> ToQuantizeConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "quantizer",
                                  {"numerics", "calibration", "calibration_axes", "scale_stop_grad", "tile_axis",
                                   "tile_count", "tile_size", "tiled_shape"}));
  QuantizeConfig config;
  AQT_ASSIGN_OR_RETURN(config.quantizer, ToQuantizer(json, inputs));
  // Axes are those of the call here: they may be those of an untiled shape, and none at all means one scale per
  // element.
  config.calibration_axes = std::exchange(config.quantizer.calib_shared_axes.axes, {});
  if (json.contains("tile_axis")) {
    config.tilings.push_back({.axis = json["tile_axis"],
                              .tile_count = Optional<int64_t>(json, "tile_count"),
                              .tile_size = Optional<int64_t>(json, "tile_size")});
  }
  return config;
}

absl::StatusOr<QuantMode> ToQuantMode(const std::string& name) {
  static constexpr std::pair<absl::string_view, QuantMode> kNames[] = {{"train", QuantMode::kTrain},
                                                                       {"calibrate", QuantMode::kCalibrate},
                                                                       {"convert", QuantMode::kConvert},
                                                                       {"serve", QuantMode::kServe}};
  for (const auto& [text, mode] : kNames) {
    if (name == text) return mode;
  }
  return NoApi(absl::StrCat("the mode ", name));
}

// state0, where it is given, is what the calibration starts from.
absl::StatusOr<StatefulConfig> ToStatefulConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(
      CheckFields(json, "stateful calibration", {"numerics", "calibration", "calibration_axes", "steps", "state0"}));
  StatefulConfig config;
  AQT_ASSIGN_OR_RETURN(config.quantizer.numerics, ToNumerics(json.at("numerics")));
  AQT_ASSIGN_OR_RETURN(config.quantizer.calibration, ToCalibration(json.at("calibration"), inputs));
  AQT_ASSIGN_OR_RETURN(config.quantizer.scale_dtype, OptionalDType(json.at("calibration"), "scale_dtype"));
  const Json& axes = json.at("calibration_axes");
  if (axes.is_string()) {
    if (axes != "per_tensor") return NoApi(absl::StrCat("calibration axes ", axes.get<std::string>()));
    config.quantizer.calib_shared_axes.per_tensor = true;
  } else {
    config.calibration_axes = ToAxes(axes);
  }
  for (const Json& step : json.at("steps")) {
    AQT_ASSIGN_OR_RETURN(const QuantMode mode, ToQuantMode(step));
    config.steps.push_back(mode);
  }
  if (json.contains("state0")) {
    for (const auto& [name, value] : json["state0"].items()) {
      if (value != 0) return NoApi(absl::StrCat("an initial ", name, " other than 0"));
    }
  }
  return config;
}

absl::StatusOr<Tensor> ToTensor(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "operand",
                                  {"numerics", "calibration", "calibration_axes", "scale_stop_grad", "use_fwd_quant",
                                   "dequant_mode", "calibration_mode", "use_fake_quant"}));
  Tensor tensor{.use_fwd_quant = json.at("use_fwd_quant")};
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

absl::StatusOr<DotGeneralRaw> ToDotGeneralRaw(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "contraction", {"lhs", "rhs", "dg_accumulator_dtype", "lhs_mid_alpha", "rhs_mid_alpha", "local_aqt"}));
  DotGeneralRaw raw;
  AQT_ASSIGN_OR_RETURN(raw.lhs, ToTensor(json.at("lhs"), inputs));
  AQT_ASSIGN_OR_RETURN(raw.rhs, ToTensor(json.at("rhs"), inputs));
  AQT_ASSIGN_OR_RETURN(raw.dg_accumulator_dtype, OptionalDType(json, "dg_accumulator_dtype"));
  raw.lhs_mid_alpha = Optional<double>(json, "lhs_mid_alpha");
  raw.rhs_mid_alpha = Optional<double>(json, "rhs_mid_alpha");
  const Json& local = json.at("local_aqt");
  if (!local.is_null()) {
    AQT_RETURN_IF_ERROR(CheckFields(
        local, "local_aqt", {"contraction_axis_shard_count", "contraction_axis_shard_size", "tile_largest_shape"}));
    raw.local_aqt = LocalAqt{.contraction_axis_shard_count = Optional<int64_t>(local, "contraction_axis_shard_count"),
                             .contraction_axis_shard_size = Optional<int64_t>(local, "contraction_axis_shard_size"),
                             .tile_largest_shape = local.at("tile_largest_shape")};
  }
  return raw;
}

// AQT reads use_fwd_quant of dlhs.rhs and drhs.rhs only. The library refuses it elsewhere.
void DropUnreadFwdQuant(DotGeneral& config) {
  for (Tensor* tensor : {&config.fwd.lhs, &config.fwd.rhs, &config.dlhs.lhs, &config.drhs.lhs}) {
    tensor->use_fwd_quant = false;
  }
}

// AQT's convolution reads the quantizers only. The library refuses most other modes.
void DropUnreadModes(DotGeneralRaw& config) {
  for (Tensor* tensor : {&config.lhs, &config.rhs}) *tensor = Tensor{.quantizer = std::move(tensor->quantizer)};
}

// `json` may have other fields, too.
absl::StatusOr<DotGeneral> ToDotGeneral(const Json& json, const Tensors& inputs) {
  DotGeneral config;
  AQT_ASSIGN_OR_RETURN(config.fwd, ToDotGeneralRaw(json.at("fwd"), inputs));
  AQT_ASSIGN_OR_RETURN(config.dlhs, ToDotGeneralRaw(json.at("dlhs"), inputs));
  AQT_ASSIGN_OR_RETURN(config.drhs, ToDotGeneralRaw(json.at("drhs"), inputs));
  DropUnreadFwdQuant(config);
  return config;
}

// `json` is a configuration and nothing else; null is the float product.
absl::StatusOr<std::optional<DotGeneral>> ToOptionalDotGeneral(const Json& json, const Tensors& inputs) {
  if (json.is_null()) return std::optional<DotGeneral>();
  AQT_RETURN_IF_ERROR(CheckFields(json, "dot_general", {"fwd", "dlhs", "drhs"}));
  AQT_ASSIGN_OR_RETURN(DotGeneral config, ToDotGeneral(json, inputs));
  return std::optional<DotGeneral>(std::move(config));
}

DotDims ToDotDims(const Json& dims) {
  return {.lhs_contracting = ToAxes(dims.at("lhs_contracting")),
          .rhs_contracting = ToAxes(dims.at("rhs_contracting")),
          .lhs_batch = ToAxes(dims.at("lhs_batch")),
          .rhs_batch = ToAxes(dims.at("rhs_batch"))};
}

absl::StatusOr<DotGeneralConfig> ToDotGeneralConfig(const Json& json, const Tensors& inputs) {
  // The last three describe what the original did.
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "dot_general",
      {"fwd", "dlhs", "drhs", "dimension_numbers", "observed", "jit_forward_differs_in", "jit_forward_fails_with"}));
  DotGeneralConfig config;
  AQT_ASSIGN_OR_RETURN(config.config, ToDotGeneral(json, inputs));
  config.dims = ToDotDims(json.at("dimension_numbers"));
  return config;
}

// [axis, number of tiles] pairs.
std::vector<AxisTiling> ToAxisTilings(const Json& list) {
  std::vector<AxisTiling> tilings;
  for (const Json& pair : list) {
    tilings.push_back({.axis = pair.at(0).get<int64_t>(), .tile_count = pair.at(1).get<int64_t>()});
  }
  return tilings;
}

absl::StatusOr<TensorTiling> ToTensorTiling(const Json& json) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "tensor tiling", {"contraction_axes", "remaining_axes"}));
  return TensorTiling{.contraction_axes = ToAxisTilings(json.at("contraction_axes")),
                      .remaining_axes = ToAxisTilings(json.at("remaining_axes"))};
}

// Like a contraction, except for the tiling and for where the configuration is; null is the float product.
absl::StatusOr<DotGeneralConfig> ToTiledDotGeneralConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "tiled_dot_general", {"dot_general", "tiling", "dimension_numbers"}));
  DotGeneralConfig config;
  AQT_ASSIGN_OR_RETURN(std::optional<DotGeneral> dot_general, ToOptionalDotGeneral(json.at("dot_general"), inputs));
  config.config = std::move(dot_general).value_or(DotGeneral{});
  config.dims = ToDotDims(json.at("dimension_numbers"));
  const Json& tiling = json.at("tiling");
  AQT_RETURN_IF_ERROR(CheckFields(tiling, "tiling", {"lhs", "rhs"}));
  config.config.tiling.emplace();
  AQT_ASSIGN_OR_RETURN(config.config.tiling->lhs, ToTensorTiling(tiling.at("lhs")));
  AQT_ASSIGN_OR_RETURN(config.config.tiling->rhs, ToTensorTiling(tiling.at("rhs")));
  return config;
}

absl::StatusOr<EinsumConfig> ToEinsumConfig(const Json& json, const Tensors& inputs, bool of_product) {
  // The last one describes what the original called.
  AQT_RETURN_IF_ERROR(CheckFields(json, "einsum", {"fwd", "dlhs", "drhs", "equation", "dot_general_call"}));
  EinsumConfig config{.equation = json.at("equation"), .config = {}, .of_product = of_product};
  AQT_ASSIGN_OR_RETURN(config.config, ToDotGeneral(json, inputs));
  return config;
}

absl::StatusOr<ConvGeneralConfig> ToConvGeneralConfig(const Json& json, const Tensors& inputs) {
  Json raw = json;
  for (const char* field : {"spatial_dimensions", "window_strides", "padding", "lhs_dilation", "rhs_dilation",
                            "feature_group_count", "layout"}) {
    raw.erase(field);
  }
  ConvGeneralConfig config;
  AQT_ASSIGN_OR_RETURN(config.config, ToDotGeneralRaw(raw, inputs));
  DropUnreadModes(config.config);
  const std::vector<std::string> layout = json.at("layout");
  if (layout.size() != 3 || layout[0] != layout[2] || !absl::StartsWith(layout[0], "N") ||
      !absl::EndsWith(layout[0], "C") || !absl::EndsWith(layout[1], "IO")) {
    return NoApi(absl::StrCat("the layout ", json["layout"].dump()));
  }
  const auto axes = [&](const char* field) { return json.at(field).is_null() ? Axes() : ToAxes(json[field]); };
  config.dims.window_strides = axes("window_strides");
  config.dims.lhs_dilation = axes("lhs_dilation");
  config.dims.rhs_dilation = axes("rhs_dilation");
  config.dims.feature_group_count = json.at("feature_group_count");
  const Json& padding = json.at("padding");
  if (padding.is_array()) {
    config.dims.padding = ConvPadding::kExplicit;
    for (const Json& pair : padding) config.dims.explicit_padding.emplace_back(pair.at(0), pair.at(1));
  } else if (padding == "SAME") {
    config.dims.padding = ConvPadding::kSame;
  } else if (padding != "VALID") {
    return NoApi(absl::StrCat("padding ", padding.dump()));
  }
  return config;
}

absl::StatusOr<RandomConfig> ToRandomConfig(const Json& json) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "random", {"prng", "jax_threefry_partitionable", "seed"}));
  if (json.at("prng") != "threefry2x32") return NoApi(absl::StrCat("the generator ", json["prng"].get<std::string>()));
  return RandomConfig{
      .seed = json.at("seed"),
      .layout = json.at("jax_threefry_partitionable").get<bool>() ? PrngLayout::kPartitionable : PrngLayout::kOriginal};
}

absl::StatusOr<MlpConfig> ToMlpConfig(const Json& json, const Tensors& inputs) {
  // The first one describes how the initial weights, which are recorded, were drawn.
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "layers", {"init_with_jax_threefry_partitionable", "dot_general", "layers", "max_abs_diff_to_printed"}));
  MlpConfig config;
  AQT_ASSIGN_OR_RETURN(config.dot_general, ToOptionalDotGeneral(json.at("dot_general"), inputs));
  for (const absl::string_view word : absl::StrSplit(json.at("layers").get<std::string>(), ' ')) {
    absl::string_view features = word;
    int64_t count;
    if (word == "relu" && !config.layers.empty() && !config.layers.back().relu) {
      config.layers.back().relu = true;
    } else if (absl::ConsumePrefix(&features, "Dense(") && absl::ConsumeSuffix(&features, ")") &&
               absl::SimpleAtoi(features, &count)) {
      config.layers.push_back({.features = count});
    } else {
      return NoApi(absl::StrCat("the layer ", word));
    }
  }
  return config;
}

// One layer for each number; relu between them.
absl::StatusOr<std::vector<Layer>> ToLayers(const Json& features, const std::string& activation) {
  if (activation != "relu" && activation != "relu between layers") {
    return NoApi(absl::StrCat("the activation ", activation));
  }
  std::vector<Layer> layers;
  for (const Json& count : features) layers.push_back({.features = count.get<int64_t>(), .relu = true});
  if (layers.empty()) return absl::InvalidArgumentError("there are no layers");
  layers.back().relu = false;
  return layers;
}

// Cases that calibrate before they serve have another set of fields.
absl::StatusOr<ServingConfig> ToCalibratedServingConfig(const Json& json, const Tensors& inputs) {
  // The last one says how far the original's result is from the float one.
  AQT_RETURN_IF_ERROR(CheckFields(json, "serving",
                                  {"fwd", "dlhs", "drhs", "features", "calibration_batches",
                                   "bitwise_train_equals_serve", "max_abs_diff_to_float"}));
  ServingConfig config{.calibration_batches = json.at("calibration_batches").get<int64_t>(),
                       .train_equals_serve = json.at("bitwise_train_equals_serve")};
  AQT_ASSIGN_OR_RETURN(config.dot_general, ToDotGeneral(json, inputs));
  for (const Tensor* tensor : {&config.dot_general.fwd.lhs, &config.dot_general.fwd.rhs}) {
    const std::optional<Calibration>& calibration = tensor->quantizer.calibration;
    if (!calibration.has_value()) continue;
    // The names of the recorded statistics are those of the mean of maxima.
    if (std::holds_alternative<WeightedStats>(*calibration) || std::holds_alternative<DelayedScaling>(*calibration)) {
      return NoApi("serving after another calibration with state than mean_of_absmax");
    }
  }
  AQT_ASSIGN_OR_RETURN(config.layers, ToLayers(json.at("features"), "relu between layers"));
  return config;
}

absl::StatusOr<ServingConfig> ToServingConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "serving",
                                  {"fwd", "dlhs", "drhs", "features", "activation", "frozen", "train_steps",
                                   "bitwise_train_equals_serve", "serve_ignores_float_kernel"}));
  if (const std::string frozen = json.at("frozen"); frozen != "rhs value and scale") {
    return NoApi(absl::StrCat("serving with frozen ", frozen));
  }
  ServingConfig config{.train_equals_serve = json.at("bitwise_train_equals_serve"),
                       .serve_ignores_kernels = json.at("serve_ignores_float_kernel")};
  AQT_ASSIGN_OR_RETURN(config.dot_general, ToDotGeneral(json, inputs));
  AQT_ASSIGN_OR_RETURN(config.layers, ToLayers(json.at("features"), json.at("activation")));
  return config;
}

absl::StatusOr<ServedDotConfig> ToServedDotConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "dot_general_serve",
      {"fwd", "dlhs", "drhs", "dimension_numbers", "params", "calibration_batches", "bitwise_train_equals_serve"}));
  ServedDotConfig config{.dims = ToDotDims(json.at("dimension_numbers")),
                         .calibration_batches = json.at("calibration_batches"),
                         .train_equals_serve = json.at("bitwise_train_equals_serve")};
  for (const Json& side : json.at("params")) (side == "lhs" ? config.lhs_is_param : config.rhs_is_param) = true;
  AQT_ASSIGN_OR_RETURN(config.config, ToDotGeneral(json, inputs));
  return config;
}

// "sgd lr=0.05"
absl::Status ParseOptimizer(const std::string& text, TrainingConfig& config) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words[0] != "sgd") return NoApi(absl::StrCat("the optimizer ", text));
  for (size_t i = 1; i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    double* field = parts[0] == "lr" ? &config.learning_rate : parts[0] == "momentum" ? &config.momentum : nullptr;
    if (field == nullptr) return NoApi(absl::StrCat("the optimizer's ", parts[0]));
    if (!absl::SimpleAtod(parts.back(), field)) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer: ", words[i], " has no number"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingConfig> ToTrainingConfig(const Json& json, const Tensors& inputs) {
  // The last three describe how the original's curve went.
  AQT_RETURN_IF_ERROR(CheckFields(json, "training",
                                  {"dot_general", "dims", "steps", "batch_size", "optimizer", "loss", "activation",
                                   "final_loss", "mean_last10", "max_deviation_under_small_perturbation"}));
  if (const std::string loss = json.at("loss"); loss != "mean softmax cross entropy") {
    return NoApi(absl::StrCat("the loss ", loss));
  }
  TrainingConfig config{.steps = json.at("steps"), .batch_size = json.at("batch_size")};
  AQT_RETURN_IF_ERROR(ParseOptimizer(json.at("optimizer"), config));
  AQT_ASSIGN_OR_RETURN(config.dot_general, ToOptionalDotGeneral(json.at("dot_general"), inputs));
  // The first one is the width of the examples.
  Json features = json.at("dims");
  if (!features.is_array() || features.empty()) return absl::InvalidArgumentError("dims is not a list of extents");
  features.erase(features.begin());
  AQT_ASSIGN_OR_RETURN(config.layers, ToLayers(features, json.at("activation")));
  return config;
}

absl::StatusOr<HandWrittenMatMulConfig> ToMatMulConfig(const Json& json) {
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "readme_matmul",
      {"bits", "preserve_zero", "quant_bound", "formula", "max_abs_diff_to_printed", "float_max_abs_diff_to_printed"}));
  const std::string formula = json.at("formula");
  const std::string known =
      absl::StrCat("scale = ", json.at("quant_bound").get<double>(), "/absmax, divide by product of scales");
  if (formula != known) return NoApi(absl::StrCat("the formula ", formula));
  return HandWrittenMatMulConfig{
      .numerics = {.bits = json.at("bits"), .preserve_zero = json.at("preserve_zero"), .dtype = DType::kS8},
      .bound = json.at("quant_bound")};
}

absl::StatusOr<CaseConfig> Parse(absl::string_view feature, const Json& json, const Tensors& inputs) {
  if (feature == "quantize" || feature == "quantize_tiled" || feature == "quantize_sr" || feature == "calibrate") {
    return ToQuantizeConfig(json, inputs);
  }
  if (feature == "calibrate_stateful") return ToStatefulConfig(json, inputs);
  if (feature == "numerics_direct") {
    AQT_ASSIGN_OR_RETURN(Numerics numerics, ToNumerics(json));
    return NumericsConfig{std::move(numerics)};
  }
  if (feature == "dot_general" || feature == "dot_general_sr" || feature == "local_aqt") {
    return ToDotGeneralConfig(json, inputs);
  }
  if (feature == "einsum" || feature == "aqt_einsum") return ToEinsumConfig(json, inputs, feature == "einsum");
  if (feature == "tiled_dot_general") return ToTiledDotGeneralConfig(json, inputs);
  if (feature == "conv_general") return ToConvGeneralConfig(json, inputs);
  if (feature == "ragged_dot") {
    DotGeneral config;
    AQT_ASSIGN_OR_RETURN(config.fwd, ToDotGeneralRaw(json, inputs));
    DropUnreadFwdQuant(config);
    return RaggedDotConfig{std::move(config.fwd)};
  }
  if (feature == "ceil_to_po2") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "ceil_to_po2", {}));
    return CeilToPo2Config{};
  }
  if (feature == "fp_round") return ToRoundToFormatConfig(json);
  if (feature == "decode_table") {
    AQT_RETURN_IF_ERROR(
        CheckFields(json, "decode_table",
                    {"type", "dtype", "exponent_bits", "mantissa_bits", "stochastic_rounding", "quant_bound"}));
    AQT_ASSIGN_OR_RETURN(const DType dtype, ToDType(json.at("dtype")));
    return DecodeConfig{dtype};
  }
  if (feature == "cast") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "cast", {"from", "to"}));
    AQT_ASSIGN_OR_RETURN(const DType to, ToDType(json.at("to")));
    return CastConfig{to};
  }
  if (feature == "random") return ToRandomConfig(json);
  if (feature == "set_context") {
    AQT_RETURN_IF_ERROR(CheckFields(json, "set_context", {"rule"}));
    if (const std::string rule = json.at("rule"); rule != "split 3 then split 2")
      return NoApi(absl::StrCat("the rule ", rule));
    return OperandKeysConfig{};
  }
  if (feature == "readme_mlp") return ToMlpConfig(json, inputs);
  if (feature == "qat_convert_serve") return ToServingConfig(json, inputs);
  if (feature == "ptq_calibrate_convert_serve") return ToCalibratedServingConfig(json, inputs);
  if (feature == "dot_general_serve") return ToServedDotConfig(json, inputs);
  if (feature == "training") return ToTrainingConfig(json, inputs);
  if (feature == "readme_matmul") return ToMatMulConfig(json);
  return NoApi(absl::StrCat("the feature ", feature));
}

}  // namespace

absl::StatusOr<CaseConfig> ParseConfig(absl::string_view feature, const nlohmann::ordered_json& config,
                                       const Tensors& inputs) {
  try {
    return Parse(feature, config, inputs);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("config: ", error.what()));
  }
}

}  // namespace aqt::golden
