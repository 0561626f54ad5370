#ifndef EXAMPLES_COMMON_READ_CONFIG_H_
#define EXAMPLES_COMMON_READ_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/quantize/inject.h"

namespace examples {

// The configuration that the flag --config names: a shipped one, FOLDER/NAME.textproto, or the path of the user's
// textproto. InvalidArgument, naming the flag, if it cannot be read; the message lists the shipped ones, which
// `shipped` gives.
absl::StatusOr<aqt::InjectConfig> ReadConfig(const std::string& name, absl::string_view folder,
                                             absl::string_view shipped);

// The same for the flag --amp and a precision.
absl::StatusOr<aqt::AmpOptions> ReadAmp(const std::string& name, absl::string_view folder, absl::string_view shipped);

}  // namespace examples

#endif  // EXAMPLES_COMMON_READ_CONFIG_H_
