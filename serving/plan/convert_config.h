#ifndef AQT_SERVING_PLAN_CONVERT_CONFIG_H_
#define AQT_SERVING_PLAN_CONVERT_CONFIG_H_

// Reads a converter configuration (configs/convert.proto), merges it with its base and checks it. No other part of the
// converter depends on protobuf.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/quant/weights/ggml_types.h"
#include "serving/families/model_family.h"
#include "serving/formats/scheme.h"
#include "serving/formats/weight_rules.h"

namespace aqt::serving {

// How to treat a fused group if a rule's scheme would apply to only a part of it.
enum class OnSplitGroup : uint8_t { kWarn, kKeepFloat, kQuantize };

// How to write tensors that hold all experts of a layer (aqt.config.Experts).
enum class Experts : uint8_t { kAuto, kSplit, kKeep };

struct ConfigRule {
  std::string name;
  std::string match;               // RE2
  std::optional<Scheme> scheme;    // null: keep the weight in floating point, or write it as `gguf`
  std::optional<ggml::Type> gguf;  // of a GGUF file
  bool override_ignore = false;
  bool quantize_tied = false;    // also input and output embeddings that are one tensor
  bool keep_unsuitable = false;  // else a weight that does not suit the scheme is an error
  OnSplitGroup on_split_group = OnSplitGroup::kWarn;
  bool operator==(const ConfigRule&) const = default;
};

struct ConvertConfig {
  std::vector<ConfigRule> rules;
  std::vector<std::string> ignore;  // RE2
  bool default_ignore = true;
  WeightRules weight_rules = WeightRules::kCompressedTensors;
  bool keep_non_finite = false;
  Experts experts = Experts::kAuto;
  std::vector<ModelFamily> families;  // the user's, before the built-in table
  std::string text;                   // the merged configuration as a textproto
};

// Reads a textproto. InvalidArgument with `source:line:column: ` before the message, also for semantic errors: an
// invalid regular expression, a missing or contradictory field, an unknown base. Unimplemented, with the same prefix,
// for a scheme that cannot be written.
absl::StatusOr<ConvertConfig> ParseConvertConfig(absl::string_view text, absl::string_view source);

// The text of `config` with these fields replaced.
std::string TextWith(const ConvertConfig& config, WeightRules weight_rules, bool keep_non_finite, Experts experts);

// InvalidArgument, listing the names, if there is no preset of that name. Names in capitals are those of the
// compressed-tensors package (named_schemes.h), applied to every linear weight.
absl::StatusOr<ConvertConfig> ConvertPreset(absl::string_view name);
std::vector<std::string> ConvertPresetNames();

}  // namespace aqt::serving

#endif  // AQT_SERVING_PLAN_CONVERT_CONFIG_H_
