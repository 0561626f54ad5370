#ifndef EXAMPLES_COMMON_USER_PATH_H_
#define EXAMPLES_COMMON_USER_PATH_H_

#include <string>

namespace examples {

// `path`; if it is relative and `bazel run` has moved the program, below the user's folder.
std::string UserPath(const std::string& path);

}  // namespace examples

#endif  // EXAMPLES_COMMON_USER_PATH_H_
