#include "tests/golden_check/parse_config.h"

#include <cstdint>
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
#include "tests/golden_check/parse_quantizer.h"

namespace aqt::golden {
namespace {

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

absl::StatusOr<QuantizeConfig> ToQuantizeConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "quantizer",
                                  {"numerics", "calibration", "calibration_axes", "scale_stop_grad", "tile_axis",
                                   "tile_count", "tile_size", "tiled_shape"}));
  QuantizeConfig config;
  AQT_ASSIGN_OR_RETURN(config.quantizer, ToQuantizer(json, inputs));
  // Axes are those of the call: they may belong to an untiled shape, and no axes means one scale per element.
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

// state0, if given, is the initial state of the calibration.
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

absl::StatusOr<DotGeneralRawConfig> ToDotGeneralRaw(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "contraction", {"lhs", "rhs", "dg_accumulator_dtype", "lhs_mid_alpha", "rhs_mid_alpha", "local_aqt"}));
  DotGeneralRawConfig raw;
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

// AQT reads use_fwd_quant only in dlhs.rhs and drhs.rhs. The library refuses it elsewhere.
void DropUnreadFwdQuant(DotGeneralConfig& config) {
  for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs, &config.dlhs.lhs, &config.drhs.lhs}) {
    tensor->use_fwd_quant = false;
  }
}

// AQT's convolution reads only the quantizers. The library refuses most other modes.
void DropUnreadModes(DotGeneralRawConfig& config) {
  for (TensorConfig* tensor : {&config.lhs, &config.rhs})
    *tensor = TensorConfig{.quantizer = std::move(tensor->quantizer)};
}

// `json` may have other fields, too.
absl::StatusOr<DotGeneralConfig> ToDotGeneral(const Json& json, const Tensors& inputs) {
  DotGeneralConfig config;
  AQT_ASSIGN_OR_RETURN(config.fwd, ToDotGeneralRaw(json.at("fwd"), inputs));
  AQT_ASSIGN_OR_RETURN(config.dlhs, ToDotGeneralRaw(json.at("dlhs"), inputs));
  AQT_ASSIGN_OR_RETURN(config.drhs, ToDotGeneralRaw(json.at("drhs"), inputs));
  DropUnreadFwdQuant(config);
  return config;
}

// `json` is only a configuration; null is the float product.
absl::StatusOr<std::optional<DotGeneralConfig>> ToOptionalDotGeneral(const Json& json, const Tensors& inputs) {
  if (json.is_null()) return std::optional<DotGeneralConfig>();
  AQT_RETURN_IF_ERROR(CheckFields(json, "dot_general", {"fwd", "dlhs", "drhs"}));
  AQT_ASSIGN_OR_RETURN(DotGeneralConfig config, ToDotGeneral(json, inputs));
  return std::optional<DotGeneralConfig>(std::move(config));
}

DotDims ToDotDims(const Json& dims) {
  return {.lhs_contracting = ToAxes(dims.at("lhs_contracting")),
          .rhs_contracting = ToAxes(dims.at("rhs_contracting")),
          .lhs_batch = ToAxes(dims.at("lhs_batch")),
          .rhs_batch = ToAxes(dims.at("rhs_batch"))};
}

absl::StatusOr<DotConfig> ToDotConfig(const Json& json, const Tensors& inputs) {
  // The last three describe the original's run.
  AQT_RETURN_IF_ERROR(CheckFields(
      json, "dot_general",
      {"fwd", "dlhs", "drhs", "dimension_numbers", "observed", "jit_forward_differs_in", "jit_forward_fails_with"}));
  DotConfig config;
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

// Like a contraction, except for the tiling and the place of the configuration; null is the float product.
absl::StatusOr<DotConfig> ToTiledDotConfig(const Json& json, const Tensors& inputs) {
  AQT_RETURN_IF_ERROR(CheckFields(json, "tiled_dot_general", {"dot_general", "tiling", "dimension_numbers"}));
  DotConfig config;
  AQT_ASSIGN_OR_RETURN(std::optional<DotGeneralConfig> dot_general,
                       ToOptionalDotGeneral(json.at("dot_general"), inputs));
  config.config = std::move(dot_general).value_or(DotGeneralConfig{});
  config.dims = ToDotDims(json.at("dimension_numbers"));
  const Json& tiling = json.at("tiling");
  AQT_RETURN_IF_ERROR(CheckFields(tiling, "tiling", {"lhs", "rhs"}));
  config.config.tiling.emplace();
  AQT_ASSIGN_OR_RETURN(config.config.tiling->lhs, ToTensorTiling(tiling.at("lhs")));
  AQT_ASSIGN_OR_RETURN(config.config.tiling->rhs, ToTensorTiling(tiling.at("rhs")));
  return config;
}

absl::StatusOr<EinsumConfig> ToEinsumConfig(const Json& json, const Tensors& inputs, bool of_product) {
  // The last one describes the original's call.
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
  // The first one describes the distribution of the recorded initial weights.
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
  // The last one is the distance of the original's result from the float one.
  AQT_RETURN_IF_ERROR(CheckFields(json, "serving",
                                  {"fwd", "dlhs", "drhs", "features", "calibration_batches",
                                   "bitwise_train_equals_serve", "max_abs_diff_to_float"}));
  ServingConfig config{.calibration_batches = json.at("calibration_batches").get<int64_t>(),
                       .train_equals_serve = json.at("bitwise_train_equals_serve")};
  AQT_ASSIGN_OR_RETURN(config.dot_general, ToDotGeneral(json, inputs));
  for (const TensorConfig* tensor : {&config.dot_general.fwd.lhs, &config.dot_general.fwd.rhs}) {
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
  // The last three describe the original's loss curve.
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
    return ToDotConfig(json, inputs);
  }
  if (feature == "einsum" || feature == "aqt_einsum") return ToEinsumConfig(json, inputs, feature == "einsum");
  if (feature == "tiled_dot_general") return ToTiledDotConfig(json, inputs);
  if (feature == "conv_general") return ToConvGeneralConfig(json, inputs);
  if (feature == "ragged_dot") {
    DotGeneralConfig config;
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
