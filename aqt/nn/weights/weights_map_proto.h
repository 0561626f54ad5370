#ifndef AQT_NN_WEIGHTS_WEIGHTS_MAP_PROTO_H_
#define AQT_NN_WEIGHTS_WEIGHTS_MAP_PROTO_H_

// A WeightsMap as text: configs/weights_map.proto.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/nn/weights/weights_map.h"

namespace aqt::nn {

// Reads a textproto of aqt.config.WeightsMap. InvalidArgument "source:line:column: message" for errors of syntax and
// form: a rule without a tensor, without or with more than one of param, stat and ignore, fields that `ignore` would
// leave unused, a slice without axis, begin or end.
absl::StatusOr<WeightsMap> WeightsMapFromText(absl::string_view textproto, absl::string_view source = "weights map");

// The textproto of a map: WeightsMapFromText(ToText(map)) is the map. Precondition: slots are of kind param or stat.
std::string ToText(const WeightsMap& map);

}  // namespace aqt::nn

#endif  // AQT_NN_WEIGHTS_WEIGHTS_MAP_PROTO_H_
