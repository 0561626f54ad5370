#ifndef AQT_SERVING_FORMATS_QUANTIZATION_CONFIG_H_
#define AQT_SERVING_FORMATS_QUANTIZATION_CONFIG_H_

// The `quantization_config` of a Hugging Face config.json as the compressed-tensors package writes it: reading one
// ("quantize like that model") and writing one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/formats/model_config.h"
#include "serving/formats/scheme.h"

namespace aqt::serving {

// One of `config_groups`. A target is a module's name, "re:" and a regular expression that matches from the start of a
// module's name (Python's re.match), or the class name "Linear".
struct ConfigGroup {
  std::string name;  // "group_0"
  std::vector<std::string> targets;
  Scheme scheme;
  bool operator==(const ConfigGroup&) const = default;
};

struct QuantizationConfig {
  std::vector<ConfigGroup> groups;  // sorted by name
  std::vector<std::string> ignore;  // module names or "re:..."
  std::vector<std::string> notes;   // accepted fields without effect here, for the user; not compared or written
  bool operator==(const QuantizationConfig& other) const { return groups == other.groups && ignore == other.ignore; }
};

// Reads the JSON text of a quantization_config of the methods "compressed-tensors" and "fp8". A group of the former may
// be a list of targets under the name of a preset (named_schemes.h). InvalidArgument: not JSON, a missing or unknown
// field of a group, a value out of range. Unimplemented, naming the field, its value and the alternatives: layouts that
// are not in weight_formats.h, floats of other than 4, 6 or 8 bits, other quantization methods, sparsity, transforms,
// quantized outputs or KV cache. Unknown fields beside `config_groups` are ignored.
absl::StatusOr<QuantizationConfig> ParseQuantizationConfig(absl::string_view json);

// The JSON text in ASCII, with every field that the package writes.
std::string QuantizationConfigToJson(const QuantizationConfig& config);

// `config_json` (a config.json; empty if there is none) with its quantization_config replaced, or added as the last
// key. All other text is kept byte for byte. DataLoss as in ParseModelConfig.
absl::StatusOr<std::string> SetQuantizationConfig(absl::string_view config_json, const QuantizationConfig& config);

}  // namespace aqt::serving

#endif  // AQT_SERVING_FORMATS_QUANTIZATION_CONFIG_H_
