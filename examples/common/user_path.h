#ifndef EXAMPLES_COMMON_USER_PATH_H_
#define EXAMPLES_COMMON_USER_PATH_H_

#include <string>

namespace examples {

// `path`; a relative one is resolved in the user's folder if `bazel run` has changed the working directory.
std::string UserPath(const std::string& path);

}  // namespace examples

#endif  // EXAMPLES_COMMON_USER_PATH_H_
