#ifndef AQT_TRANSFORMS_PRECISION_AMP_PROTO_H_
#define AQT_TRANSFORMS_PRECISION_AMP_PROTO_H_

// AmpOptions as text: configs/amp.proto.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/transforms/precision/amp.h"

namespace aqt {

// Reads a textproto of aqt.config.Amp. InvalidArgument "source:line:column: message" for errors of syntax and form: a
// rule without a key or a precision, a duplicate key, a key to remove that is not a default, and f64 as compute_dtype.
absl::StatusOr<AmpOptions> AmpOptionsFromText(absl::string_view textproto, absl::string_view source = "config");

// The textproto of the options: AmpOptionsFromText(ToText(o)) has the policy of o. InvalidArgument, naming the key, for
// a rule with a function.
absl::StatusOr<std::string> ToText(const AmpOptions& options);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_AMP_PROTO_H_
