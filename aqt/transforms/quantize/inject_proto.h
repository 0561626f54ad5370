#ifndef AQT_TRANSFORMS_QUANTIZE_INJECT_PROTO_H_
#define AQT_TRANSFORMS_QUANTIZE_INJECT_PROTO_H_

// InjectConfig as text: configs/inject.proto.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt {

// Reads a textproto of aqt.config.Inject. InvalidArgument "source:line:column: message" for errors of syntax and form,
// for a scope that is not a valid regular expression, and for a configuration that no contraction allows. Inject
// reports what is illegal for the contraction that a rule matches.
absl::StatusOr<InjectConfig> InjectConfigFromText(absl::string_view textproto, absl::string_view source = "config");

// The preset `name` of configs/presets/inject. InvalidArgument, listing the names, if it does not exist.
absl::StatusOr<InjectConfig> InjectConfigFromPreset(absl::string_view name);
// The names of the presets in configs/presets/inject.
std::vector<std::string> InjectPresetNames();

// The textproto of a configuration: InjectConfigFromText(ToText(c)) == c for any legal c.
std::string ToText(const InjectConfig& config);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_INJECT_PROTO_H_
