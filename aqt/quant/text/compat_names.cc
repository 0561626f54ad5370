#include "aqt/quant/text/compat_names.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"

namespace aqt {

absl::StatusOr<Compat> CompatFromNames(absl::string_view text, char separator, absl::string_view what) {
  if (text == "original") return Compat::Original();
  if (text == "qwix") return Compat::Qwix();
  Compat compat;
  const absl::Span<const CompatField> fields = CompatFields();
  for (const absl::string_view name : absl::StrSplit(text, separator, absl::SkipWhitespace())) {
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const CompatField& f) { return f.name == name; });
    if (field == fields.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, " has no field \"", name, "\"; expected \"original\", \"qwix\", or some of ",
          absl::StrJoin(fields, ", ", [](std::string* out, const CompatField& f) { absl::StrAppend(out, f.name); })));
    }
    compat.*field->member = true;
  }
  return compat;
}

}  // namespace aqt
