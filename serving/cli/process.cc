#include "serving/cli/process.h"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "aqt/io/file.h"
#include "aqt/io/standard_streams.h"
#include "serving/tools/exit_code.h"

namespace aqt::serving {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};

void Interrupt(int) {
  interrupted.store(true, std::memory_order_relaxed);
  // A second signal ends the process at once, whichever of them it is.
  for (const int number : kSignals) {
    struct sigaction current {};
    if (sigaction(number, nullptr, &current) == 0 && current.sa_handler == Interrupt) signal(number, SIG_DFL);
  }
}

// Weights in a mapped file are gone when the file is cut off. Any other cause of SIGBUS ends the process as usual.
void EndWithoutFile(int, siginfo_t* info, void*) {
  if (info->si_code == BUS_ADRERR) {
    constexpr char kText[] =
        "error: a file became shorter while it was used; run the command again when nothing is writing the model\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
    _exit(static_cast<int>(ExitCode::kMalformedInput));
  }
  signal(SIGBUS, SIG_DFL);
}

void SetSignals() {
  struct sigaction action {};
  action.sa_handler = Interrupt;
  for (const int signal : kSignals) {
    struct sigaction inherited {};
    sigaction(signal, nullptr, &inherited);
    // Ignored signals stay ignored, as with nohup and a script's background jobs.
    if (inherited.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
  struct sigaction bus {};
  bus.sa_sigaction = EndWithoutFile;
  bus.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &bus, nullptr);
  // When ignored, both become write errors: a pipe without a reader, and a file above the limit of `ulimit -f`.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

// True when standard output is a pipe or a socket whose other end is closed.
bool ReaderIsGone() {
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

int RunProcess(int argc, char** argv, CommandMain command) {
  if (!io::OpenStandardStreams()) {
    std::perror("error: cannot open /dev/null");
    return 4;
  }
  SetSignals();

  // Blocks of a megabyte and more are returned to the system when they are freed. By default the allocator raises this
  // limit over time, and then every thread keeps the memory of its largest tensor so far: 0.7 GiB for tensors of 16
  // MiB.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);

  // `bazel run` starts programs in another folder; paths are relative to the user's folder.
  if (const char* folder = std::getenv("BUILD_WORKING_DIRECTORY"); folder != nullptr && chdir(folder) != 0) {
    std::perror(folder);
    return 4;
  }
  std::ios::sync_with_stdio(false);
  const Console console{std::cout, std::cerr, isatty(STDERR_FILENO) == 1, &interrupted, &ReaderIsGone, &std::cin};
  return command(std::vector<std::string>(argv + 1, argv + argc), io::LocalFileSystem(), console);
}

}  // namespace aqt::serving
