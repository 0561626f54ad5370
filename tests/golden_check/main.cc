// golden_check --golden_dir=DIR: recomputes recorded cases; see golden_check --help.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "aqt/io/standard_streams.h"
#include "tests/golden_check/golden_check.h"

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 2;
  // `bazel run` changes the working folder; paths are relative to the user's folder.
  if (const char* folder = std::getenv("BUILD_WORKING_DIRECTORY"); folder != nullptr && chdir(folder) != 0) {
    std::perror(folder);
    return 2;
  }
  return aqt::golden::GoldenCheckMain(aqt::io::LocalFileSystem(), std::vector<std::string>(argv + 1, argv + argc),
                                      std::cout, std::cerr);
}
