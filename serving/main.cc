// The `aqt` command.

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "serving/command.h"

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

void Interrupt(int) { interrupted.store(true, std::memory_order_relaxed); }

}  // namespace

int main(int argc, char** argv) {
  // Blocks of a megabyte and more go back to the system when they are freed. By default the allocator raises this limit
  // as it goes, and then every thread keeps the memory of the largest tensor it ever held: 0.7 GiB for tensors of 16
  // MiB.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);

  struct sigaction action {};
  action.sa_handler = Interrupt;
  action.sa_flags = SA_RESETHAND;  // the second one ends the process at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of writing

  // `bazel run` starts programs elsewhere; paths are relative to where the user stands.
  if (const char* folder = std::getenv("BUILD_WORKING_DIRECTORY"); folder != nullptr && chdir(folder) != 0) {
    std::perror(folder);
    return 4;
  }
  std::ios::sync_with_stdio(false);
  const aqt::serving::Console console{std::cout, std::cerr, isatty(STDERR_FILENO) == 1, &interrupted};
  return aqt::serving::AqtMain(std::vector<std::string>(argv + 1, argv + argc), aqt::io::LocalFileSystem(), console);
}
