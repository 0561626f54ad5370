#ifndef AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_TESTING_H_
#define AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_TESTING_H_

// Runs the command of golden_check.h.

#include "tests/golden_check/golden_check.h"

#include <sstream>
#include <string>
#include <vector>

#include "aqt/io/file.h"

namespace aqt::golden {

inline constexpr char kStock[] = "tests/golden/aqt", kIeee[] = "tests/golden/aqt/ieee";

struct MainResult {
  int code;
  std::string out, err;
};

inline MainResult Main(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int code = GoldenCheckMain(io::LocalFileSystem(), arguments, out, err);
  return {code, out.str(), err.str()};
}

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_GOLDEN_CHECK_TESTING_H_
