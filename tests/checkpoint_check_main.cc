// checkpoint_check --golden_dir=DIR: converts the reference checkpoints in DIR and compares (checkpoint_check.h).

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
#include "tests/checkpoint_check.h"

ABSL_FLAG(std::string, golden_dir, "", "the folder with the reference checkpoints");

int main(int argc, char** argv) {
  if (!aqt::io::OpenStandardStreams()) return 2;
  absl::SetProgramUsageMessage("checkpoint_check --golden_dir=DIR");
  const auto rest = absl::ParseCommandLine(argc, argv);
  const std::string golden_dir = absl::GetFlag(FLAGS_golden_dir);
  if (rest.size() > 1 || golden_dir.empty()) {
    std::cerr << "usage: checkpoint_check --golden_dir=DIR\n";
    return 2;
  }
  // `bazel run` changes the working folder; paths are relative to the user's folder.
  if (const char* folder = std::getenv("BUILD_WORKING_DIRECTORY"); folder != nullptr && chdir(folder) != 0) {
    std::perror(folder);
    return 2;
  }
  const char* tmp = std::getenv("TEST_TMPDIR") != nullptr ? std::getenv("TEST_TMPDIR") : std::getenv("TMPDIR");
  std::string temporary = std::string(tmp != nullptr ? tmp : "/tmp") + "/checkpoint_check.XXXXXX";
  if (mkdtemp(temporary.data()) == nullptr) {
    std::perror(temporary.c_str());
    return 2;
  }
  const int code = aqt::CheckpointCheck(aqt::io::LocalFileSystem(), golden_dir, temporary, std::cout);
  rmdir(temporary.c_str());
  return code;
}
