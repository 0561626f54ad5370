// foreign_check --golden_dir=DIR [--checkpoints_dir=DIR]: dequantizes the checkpoints of other tools in DIR and
// compares (foreign_check.h).

#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "aqt/io/file.h"
#include "aqt/io/standard_streams.h"
#include "tests/foreign_check.h"

ABSL_FLAG(std::string, golden_dir, "", "the folder with the cases");
ABSL_FLAG(std::string, checkpoints_dir, "", "the reference checkpoints that ct/index.json names");

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 2;
  absl::SetProgramUsageMessage("foreign_check --golden_dir=DIR [--checkpoints_dir=DIR]");
  const auto rest = absl::ParseCommandLine(argc, argv);
  const std::string golden_dir = absl::GetFlag(FLAGS_golden_dir);
  if (rest.size() > 1 || golden_dir.empty()) {
    std::cerr << "usage: foreign_check --golden_dir=DIR [--checkpoints_dir=DIR]\n";
    return 2;
  }
  // `bazel run` starts programs elsewhere; paths are relative to the user's folder.
  if (const char* folder = std::getenv("BUILD_WORKING_DIRECTORY"); folder != nullptr && chdir(folder) != 0) {
    std::perror(folder);
    return 2;
  }
  const char* tmp = std::getenv("TEST_TMPDIR") != nullptr ? std::getenv("TEST_TMPDIR") : std::getenv("TMPDIR");
  std::string temporary = std::string(tmp != nullptr ? tmp : "/tmp") + "/foreign_check.XXXXXX";
  if (mkdtemp(temporary.data()) == nullptr) {
    std::perror(temporary.c_str());
    return 2;
  }
  std::string checkpoints = absl::GetFlag(FLAGS_checkpoints_dir);
  if (checkpoints.empty()) checkpoints = golden_dir + "/../checkpoints";
  const int code =
      aqt::ForeignCheck(aqt::io::LocalFileSystem(), golden_dir,
                        {{"checkpoints", checkpoints}, {"write", golden_dir + "/write"}}, temporary, std::cout);
  rmdir(temporary.c_str());
  return code;
}
