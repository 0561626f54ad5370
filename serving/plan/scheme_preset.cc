#include "serving/plan/scheme_preset.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "serving/formats/named_schemes.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {
namespace {

std::string TypeText(ValueType type, int num_bits, bool symmetric) {
  return absl::StrCat("num_bits: ", num_bits, type == ValueType::kFloat ? " type: NUMBER_TYPE_FLOAT" : "",
                      symmetric ? "" : " symmetric: false", " ");
}

std::string GranularityText(const WeightScheme& weights) {
  if (weights.scale_type == ScaleType::kE8M0) return "per_mx_group {}";
  if (weights.scale_type == ScaleType::kE4M3) return "per_nvfp4_group {}";
  switch (weights.strategy) {
    case WeightStrategy::kTensor: return "per_tensor {}";
    case WeightStrategy::kChannel: return "per_channel {}";
    case WeightStrategy::kGroup: return absl::StrCat("per_group { size: ", weights.group_size, " }");
    case WeightStrategy::kBlock:
      return absl::StrCat("per_block { rows: ", weights.block[0], " columns: ", weights.block[1], " }");
  }
  return "";
}

std::string RangeText(const InputScheme& input) {
  if (input.scale_type == ScaleType::kE8M0) return "dynamic_per_mx_group {}";
  if (input.scale_type == ScaleType::kE4M3) return "local_per_nvfp4_group {}";
  if (!input.dynamic) return "static_per_tensor {}";
  switch (input.strategy) {
    case InputStrategy::kToken: return "dynamic_per_token {}";
    case InputStrategy::kTensor: return "dynamic_per_tensor {}";
    case InputStrategy::kGroup: return absl::StrCat("dynamic_per_group { size: ", input.group_size, " }");
  }
  return "";
}

}  // namespace

std::string SchemePresetText(absl::string_view name) {
  const std::optional<Scheme> scheme = SchemeNamed(name);
  if (!scheme.has_value()) return "";
  const WeightScheme& weights = scheme->weights;
  std::string text =
      absl::StrCat("schema: 1 rule { name: \"linear weights\" match: \".*\" quantize { weights { ",
                   TypeText(weights.type, weights.num_bits, weights.symmetric), GranularityText(weights), " }");
  if (const std::optional<InputScheme>& input = scheme->input; input.has_value()) {
    absl::StrAppend(&text, " input_activations { ", TypeText(input->type, input->num_bits, input->symmetric),
                    RangeText(*input), " }");
  }
  return absl::StrCat(text, " } on_unsuitable: ON_UNSUITABLE_KEEP_FLOAT } ",
                      "weight_rules: WEIGHT_RULES_COMPRESSED_TENSORS");
}

}  // namespace aqt::serving
