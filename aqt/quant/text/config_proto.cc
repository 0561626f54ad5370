#include "aqt/quant/text/config_proto.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/text/read_config.h"
#include "aqt/quant/text/write_config.h"
#include "configs/config_text.h"
#include "configs/quant.pb.h"
#include "configs/quant_presets.h"
#include "google/protobuf/text_format.h"

namespace aqt {
namespace {

using config::Place;

// Names of AQT's Python classes and enum values, and of fields in its public README and older versions.
constexpr config::Rename kRenames[] = {
    {"DotGeneralRaw", "dg_in_dtype", "the container into the numerics instead: int_symmetric { dtype: \"s8\" }"},
    {"Tensor", "numerics",
     "quantizer { int_symmetric { ... } }; numerics, calibration, calib_shared_axes and "
     "scale_stop_grad are in quantizer"},
    {"Tensor", "int_symmetric", "quantizer { int_symmetric { ... } }"},
    {"Tensor", "calibration", "quantizer { abs_max { ... } }"},
    {"Tensor", "calib_shared_axes", "quantizer { calib_shared_axes { ... } }"},
    {"Tensor", "scale_stop_grad", "quantizer { scale_stop_grad: ... }"},
    {"", "use_fake_quant", "dequant_mode: DEQUANT_MODE_THIS_INPUT, in lhs or rhs"},
    {"", "po2_scale", "quantizer { abs_max { po2_scale: true } }; po2_scale belongs to the calibration"},
    {"Quantizer", "numerics", "the kind itself: int_symmetric { ... }, fp8 { ... }, fp { ... } or no_numerics {}"},
    {"Quantizer", "calibration",
     "the kind itself, such as abs_max {}, abs_mean {} or constant { ... }; message Quantizer in configs/quant.proto "
     "lists them"},
    {"Quantizer", "bits", "int_symmetric { bits: ... }"},
    {"Tensor", "bits", "quantizer { int_symmetric { bits: ... } }"},
    {"", "context", "nothing: key, step and mode belong to each call"},
    {"DotGeneralRaw", "dg_quantizer", "lhs { quantizer { ... } } and rhs { quantizer { ... } }"},
    {"DotGeneralRaw", "lhs_mid", "lhs_mid_alpha: ..."},
    {"DotGeneralRaw", "rhs_mid", "rhs_mid_alpha: ..."},
    {"DotGeneral", "hadamard", "fwd { hadamard { block: ... } }, or in dlhs or drhs"},
    {"", "hadamard_block", "hadamard { block: ... }, in fwd, dlhs or drhs"},
    {"DotGeneralRaw", "jax_scope_name", "nothing: scopes are those of the program"},
    {"", "int_numerics", "int_symmetric"},
    {"", "IntNumerics", "int_symmetric"},
    {"", "IntSymmetric", "int_symmetric"},
    {"", "NoNumerics", "no_numerics"},
    {"", "Fp8Numerics", "fp8"},
    {"", "FpNumerics", "fp"},
    {"", "AbsMaxCalibration", "abs_max"},
    {"", "AbsMeanCalibration", "abs_mean"},
    {"", "ConstantCalibration", "constant"},
    {"", "SnrBasedAutoCalibration", "snr_search"},
    {"", "auto_clip_search_config", "candidates: [...], in snr_search"},
    {"", "MeanOfAbsMaxCalibration", "mean_of_abs_max"},
    {"", "WeightedStatsCalibration", "weighted_stats"},
    {"", "DelayedScalingCalibration", "delayed_scaling"},
    {"", "quant_collection", "nothing: statistics are in slots of kind stat"},
    {"", "noise_fn", "noise { kind: ... }"},
    {"IntSymmetric", "stochastic_rounding", "noise { kind: ... }"},
    {"AbsMax", "scale", "clipping_scale"},
    {"", "OUTPUT", "DEQUANT_MODE_OUTPUT"},
    {"", "THIS_INPUT", "DEQUANT_MODE_THIS_INPUT"},
    {"", "OTHER_INPUT", "DEQUANT_MODE_OTHER_INPUT"},
    {"", "CONTRACTING_AXIS", "CALIBRATION_MODE_CONTRACTING_AXIS"},
    {"", "REMAINING_AXIS", "CALIBRATION_MODE_REMAINING_AXIS"},
    {"", "jax.uniform", "NOISE_KIND_JAX_UNIFORM"},
    {"", "jax", "NOISE_KIND_JAX_UNIFORM"},  // the parser's reading of an unquoted jax.uniform
    {"", "custom-1", "NOISE_KIND_RANDOM_CENTERED_UNIFORM"},
    {"", "custom", "NOISE_KIND_RANDOM_CENTERED_UNIFORM"},
};

absl::StatusOr<config::DotGeneral> WithBase(const config::DotGeneral& message, const Place& place) {
  if (message.has_schema()) AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  config::DotGeneral m = message;
  AQT_RETURN_IF_ERROR(config::ResolveBase(config::QuantPresets(), place, &m));
  return m;
}

}  // namespace

absl::StatusOr<DotGeneralConfig> FromProto(const config::DotGeneral& message, const Place& place) {
  AQT_ASSIGN_OR_RETURN(const config::DotGeneral m, WithBase(message, place));
  return internal::Read(m, {place, ""});
}

absl::StatusOr<DotGeneralConfig> FromProto(const config::DotGeneral& message) { return FromProto(message, Place()); }

absl::StatusOr<DotGeneralConfig> PlannedFromProto(const config::DotGeneral& message) {
  AQT_ASSIGN_OR_RETURN(const config::DotGeneral m, WithBase(message, Place()));
  return internal::Read(m, internal::ConfigPath(), internal::AccumulatorCheck::kByPlan);
}

absl::StatusOr<DotGeneralConfig> DotGeneralFromText(absl::string_view textproto, absl::string_view source) {
  config::DotGeneral message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(textproto, source, kRenames, &message, &tree));
  const Place place(source, &tree);
  AQT_RETURN_IF_ERROR(config::CheckSchema(message, place));
  return FromProto(message, place);
}

absl::StatusOr<Quantizer> QuantizerFromText(absl::string_view textproto, absl::string_view source) {
  config::Quantizer message;
  google::protobuf::TextFormat::ParseInfoTree tree;
  AQT_RETURN_IF_ERROR(config::ParseText(textproto, source, kRenames, &message, &tree));
  return internal::Read(message, {Place(source, &tree), ""});
}

absl::StatusOr<DotGeneralConfig> DotGeneralFromPreset(absl::string_view name) {
  const std::vector<config::EmbeddedText> presets = config::QuantPresets();
  for (const config::EmbeddedText& preset : presets) {
    if (preset.name == name) return DotGeneralFromText(preset.text, absl::StrCat("preset ", name));
  }
  return absl::InvalidArgumentError(config::NoSuchPreset(name, presets));
}

absl::Span<const config::Rename> DotGeneralRenames() { return kRenames; }

std::vector<std::string> DotGeneralPresetNames() { return config::PresetNames(config::QuantPresets()); }

config::DotGeneral ToProto(const DotGeneralConfig& dg) {
  config::DotGeneral message;
  message.set_schema(1);
  internal::Write(dg, &message);
  return message;
}

absl::StatusOr<Quantizer> FromProto(const config::Quantizer& message) {
  return internal::Read(message, internal::ConfigPath());
}

config::Quantizer ToProto(const Quantizer& quantizer) {
  config::Quantizer message;
  internal::Write(quantizer, &message);
  return message;
}

std::string ToText(const DotGeneralConfig& config) { return config::PrintText(ToProto(config)); }

}  // namespace aqt
