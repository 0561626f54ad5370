#include "examples/common/user_path.h"

#include <cstdlib>

#include "aqt/io/file.h"

namespace examples {

std::string UserPath(const std::string& path) {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  return folder == nullptr ? path : aqt::io::JoinPath(folder, path);
}

}  // namespace examples
