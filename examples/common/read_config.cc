#include "examples/common/read_config.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/transforms/precision/amp_proto.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "examples/common/user_path.h"

namespace examples {

namespace {

struct NamedText {
  std::string path, text;
};
absl::StatusOr<NamedText> ReadText(absl::string_view flag, const std::string& name, absl::string_view folder,
                                   absl::string_view shipped) {
  const bool is_shipped = !absl::StrContains(name, '/') && !absl::EndsWith(name, ".textproto");
  const std::string path = is_shipped ? absl::StrCat(folder, "/", name, ".textproto") : UserPath(name);
  absl::StatusOr<std::string> text = aqt::io::ReadFile(aqt::io::LocalFileSystem(), path, /*max_bytes=*/1 << 20);
  if (text.ok()) return NamedText{path, *std::move(text)};
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", name, ": ", text.status().message(), "; shipped: ", shipped,
                                                 "; or give the path of a textproto"));
}

}  // namespace

absl::StatusOr<aqt::InjectConfig> ReadConfig(const std::string& name, absl::string_view folder,
                                             absl::string_view shipped) {
  AQT_ASSIGN_OR_RETURN(const NamedText file, ReadText("--config", name, folder, shipped));
  return aqt::InjectConfigFromText(file.text, file.path);
}

absl::StatusOr<aqt::AmpOptions> ReadAmp(const std::string& name, absl::string_view folder, absl::string_view shipped) {
  AQT_ASSIGN_OR_RETURN(const NamedText file, ReadText("--amp", name, folder, shipped));
  return aqt::AmpOptionsFromText(file.text, file.path);
}

}  // namespace examples
