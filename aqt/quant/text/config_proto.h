#ifndef AQT_QUANT_TEXT_CONFIG_PROTO_H_
#define AQT_QUANT_TEXT_CONFIG_PROTO_H_

// Configurations as text: configs/quant.proto to the structs of config.h and back.
//
//   absl::StatusOr<DotGeneral> config = DotGeneralFromText(R"(
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

// Reads a textproto of aqt.config.DotGeneral. InvalidArgument "source:line:column: message" for errors of syntax, of
// form, and of meaning that can be found without shapes (validate.h). An error of meaning has the position of the
// field, or of the innermost message around it when the field is left out or comes from the base, and then the field's
// path ("fwd.lhs.quantizer: ..."). For a name from an older version of AQT the message says what to write now.
absl::StatusOr<DotGeneral> DotGeneralFromText(absl::string_view textproto, absl::string_view source = "config");

// The presets of configs/presets/quant. InvalidArgument, listing the names, for an unknown one.
absl::StatusOr<DotGeneral> DotGeneralFromPreset(absl::string_view name);
std::vector<std::string> DotGeneralPresetNames();

// For error messages of protos around a DotGeneral: names from other versions, and what to write instead.
absl::Span<const config::Rename> DotGeneralRenames();

// The whole configuration, without a base. Fields that have their fixed default are left out.
std::string ToText(const DotGeneral& config);

// A base is resolved; `schema` may be left out. Errors as above, without a position if no place is given.
absl::StatusOr<DotGeneral> FromProto(const config::DotGeneral& message);
absl::StatusOr<DotGeneral> FromProto(const config::DotGeneral& message, const config::Place& place);
config::DotGeneral ToProto(const DotGeneral& config);
// One that a plan was or will be made for. Whether the accumulator fits is left to the plan: a convolution may ignore
// it (Compat).
absl::StatusOr<DotGeneral> PlannedFromProto(const config::DotGeneral& message);
absl::StatusOr<Quantizer> FromProto(const config::Quantizer& message);
config::Quantizer ToProto(const Quantizer& quantizer);

}  // namespace aqt

#endif  // AQT_QUANT_TEXT_CONFIG_PROTO_H_
