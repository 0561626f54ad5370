#include "tests/e2e/serving/process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

constexpr char kProgram[] = "serving/cli/aqt";

// 0 when the process is gone.
int64_t AnonymousMemory(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  int64_t kib = 0;
  for (std::string word; status >> word;) {
    int64_t value = 0;
    if ((word == "RssAnon:" || word == "RssShmem:") && status >> value) kib += value;
  }
  return kib * 1024;
}

}  // namespace

pid_t Start(std::vector<std::string> args, const std::function<void()>& in_child) {
  args.insert(args.begin(), kProgram);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (in_child) in_child();
    ::execv(kProgram, argv.data());
    ::_exit(127);
  }
  return pid;
}

Outcome Watch(pid_t pid) {
  Outcome outcome;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    outcome.peak = std::max(outcome.peak, AnonymousMemory(pid));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

Outcome RunAqt(std::vector<std::string> args, const std::function<void()>& in_child) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/stderr.", ::getpid());
  Outcome outcome = Watch(Start(std::move(args), [&] {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ::dup2(fd, STDERR_FILENO) < 0 || ::close(fd) != 0) ::_exit(126);
    if (in_child) in_child();
  }));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  outcome.err = text.str();
  ::unlink(path.c_str());
  return outcome;
}

}  // namespace aqt::serving
