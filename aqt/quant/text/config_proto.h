#ifndef AQT_QUANT_TEXT_CONFIG_PROTO_H_
#define AQT_QUANT_TEXT_CONFIG_PROTO_H_

// Configurations as text: configs/quant.proto to the structs of config.h and back.
//
//   absl::StatusOr<DotGeneralConfig> config = DotGeneralFromText(R"(
//       schema: 1
//       base: "config_v4"
//       fwd { rhs { quantizer { int_symmetric { bits: 4 } } } })");
//
// FromText(ToText(c)) == c for every legal c, doubles and arrays bit for bit, except NaN payloads.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/quant/config/config.h"

namespace aqt {
namespace config {
class DotGeneral;  // configs/quant.pb.h
class Quantizer;
class Place;  // configs/config_text.h
struct Rename;
}  // namespace config

// Reads a textproto of aqt.config.DotGeneral. InvalidArgument "source:line:column: message" for syntax errors,
// malformed fields, and semantic errors that can be found without shapes (validate.h). A semantic error has the
// position of the field, or of the innermost enclosing message when the field is left out or comes from the base,
// followed by the field's path ("fwd.lhs.quantizer: ..."). For a name from an older version of AQT the message gives
// the replacement.
absl::StatusOr<DotGeneralConfig> DotGeneralFromText(absl::string_view textproto, absl::string_view source = "config");

// Reads a textproto of aqt.config.Quantizer, which has no schema and no base. Errors as above.
absl::StatusOr<Quantizer> QuantizerFromText(absl::string_view textproto, absl::string_view source = "config");

// A preset of configs/presets/quant. InvalidArgument, listing the names, for an unknown one.
absl::StatusOr<DotGeneralConfig> DotGeneralFromPreset(absl::string_view name);
// The names of the presets of configs/presets/quant.
std::vector<std::string> DotGeneralPresetNames();

// Names from other versions with their replacements, for error messages of protos that contain a DotGeneral.
absl::Span<const config::Rename> DotGeneralRenames();

// The full configuration as text, without a base. Fields with their fixed default are left out.
std::string ToText(const DotGeneralConfig& config);

// The configuration in a message. A base is resolved; `schema` may be left out. Errors as above, without a position if
// no place is given.
absl::StatusOr<DotGeneralConfig> FromProto(const config::DotGeneral& message);
absl::StatusOr<DotGeneralConfig> FromProto(const config::DotGeneral& message, const config::Place& place);
// The message of a configuration, without a base.
config::DotGeneral ToProto(const DotGeneralConfig& config);
// Reads the configuration of a plan. Checking the accumulator is left to the plan, since a convolution may ignore it
// (Compat).
absl::StatusOr<DotGeneralConfig> PlannedFromProto(const config::DotGeneral& message);
absl::StatusOr<Quantizer> FromProto(const config::Quantizer& message);
config::Quantizer ToProto(const Quantizer& quantizer);

}  // namespace aqt

#endif  // AQT_QUANT_TEXT_CONFIG_PROTO_H_
