// What can only be seen of the `aqt` program from outside: its memory, and what a signal does to it.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;

constexpr char kProgram[] = "serving/aqt";
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kTensorBytes = 16 * kMiB;

pid_t Start(std::vector<std::string> args) {
  args.insert(args.begin(), kProgram);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::execv(kProgram, argv.data());
    ::_exit(127);
  }
  return pid;
}

// RssAnon + RssShmem of a process, in bytes; 0 when it is gone.
int64_t AnonymousMemory(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  int64_t kib = 0;
  for (std::string word; status >> word;) {
    int64_t value = 0;
    if ((word == "RssAnon:" || word == "RssShmem:") && status >> value) kib += value;
  }
  return kib * 1024;
}

struct Outcome {
  int code = -1;
  int64_t peak = 0;  // of AnonymousMemory, sampled every millisecond
};
Outcome Watch(pid_t pid) {
  Outcome outcome;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    outcome.peak = std::max(outcome.peak, AnonymousMemory(pid));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = MakeTestFolder();
    NamedArrays tensors;
    const Array weight = Array::Zeros(DType::kBF16, {2048, 4096});
    ASSERT_EQ(weight.num_bytes(), kTensorBytes);
    for (int i = 0; i < 6; ++i) tensors.emplace_back(absl::StrCat("layers.", i, ".fc.weight"), weight);
    WriteTensors(At("in.safetensors"), tensors);
  }
  void TearDown() override { ASSERT_TRUE(io::LocalFileSystem().Remove(At("in.safetensors")).ok()); }
  std::string At(const std::string& name) const { return io::JoinPath(root_, name); }
  std::string root_;
};

TEST_F(ProcessTest, MemoryIsAtMostThreeTensorsAnd32MiB) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  WriteText(At("tensor.textproto"),
            "schema: 1 rule { match: '.*' quantize { weights { num_bits: 4 symmetric: true per_tensor {} } } }");
  for (const std::string recipe : {"w8a8_dynamic", "w4a16_g32", ""}) {
    for (const char* jobs : {"1", "64"}) {
      std::vector<std::string> args = {
          "convert", At("in.safetensors"), At("out.safetensors"), "--force", "--progress", "never", "--jobs", jobs};
      args.push_back(recipe.empty() ? "--config" : "--preset");
      args.push_back(recipe.empty() ? At("tensor.textproto") : recipe);
      const Outcome outcome = Watch(Start(args));
      EXPECT_EQ(outcome.code, 0);
      EXPECT_GT(outcome.peak, 0) << "the process was not seen";
      EXPECT_LE(outcome.peak, 3 * kTensorBytes + 32 * kMiB)
          << recipe << ", " << jobs << " jobs: " << outcome.peak / kMiB << " MiB";
    }
  }
  ASSERT_TRUE(io::LocalFileSystem().Remove(At("out.safetensors")).ok());
}

TEST_F(ProcessTest, ASignalLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const char* output : {"out", "out.safetensors"}) {
      const pid_t pid = Start(
          {"convert", At("in.safetensors"), At(output), "--preset", "w8a16", "--jobs", "1", "--progress", "never"});
      // Once it has begun to write; it then has 96 MiB to go.
      while (ListTree(root_).size() < 2 && ::waitpid(pid, nullptr, WNOHANG) == 0) std::this_thread::yield();
      ASSERT_EQ(::kill(pid, signal), 0);
      EXPECT_EQ(Watch(pid).code, 130);
      EXPECT_THAT(ListTree(root_), ElementsAre("in.safetensors"));
    }
  }
}

}  // namespace
}  // namespace aqt::serving
