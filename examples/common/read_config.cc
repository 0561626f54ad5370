#include "examples/common/read_config.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/transforms/inject_proto.h"
#include "examples/common/user_path.h"

namespace examples {

absl::StatusOr<aqt::InjectConfig> ReadConfig(const std::string& name, absl::string_view folder,
                                             absl::string_view shipped) {
  const bool is_shipped = !absl::StrContains(name, '/') && !absl::EndsWith(name, ".textproto");
  const std::string path = is_shipped ? absl::StrCat(folder, "/", name, ".textproto") : UserPath(name);
  const absl::StatusOr<std::string> text = aqt::io::ReadFile(aqt::io::LocalFileSystem(), path, /*max_bytes=*/1 << 20);
  if (text.ok()) return aqt::InjectConfigFromText(*text, path);
  return absl::InvalidArgumentError(absl::StrCat("--config ", name, ": ", text.status().message(), "; ", shipped,
                                                 " are shipped, or give the path of a textproto"));
}

}  // namespace examples
