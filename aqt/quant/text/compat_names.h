#ifndef AQT_QUANT_TEXT_COMPAT_NAMES_H_
#define AQT_QUANT_TEXT_COMPAT_NAMES_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/quant/config/semantics.h"

namespace aqt {

// Compat in words: "original", "qwix", or names of fields with `separator` between them. An empty text sets none.
// InvalidArgument, beginning with `what` and listing the names, for another word.
absl::StatusOr<Compat> CompatFromNames(absl::string_view text, char separator, absl::string_view what);

}  // namespace aqt

#endif  // AQT_QUANT_TEXT_COMPAT_NAMES_H_
