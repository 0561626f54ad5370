// Behaviour of the `aqt` program that is visible only from outside: its memory, and the effect of signals, limits and
// closed descriptors.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/tools/test_util.h"
#include "tests/e2e/serving/process.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kTensorBytes = 16 * kMiB;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // sanitizers keep freed memory, and reserve the address space
#else
constexpr bool kSanitized = false;
#endif

void Limit(__rlimit_resource resource, int64_t value) {
  const rlimit limit = {.rlim_cur = static_cast<rlim_t>(value), .rlim_max = static_cast<rlim_t>(value)};
  if (::setrlimit(resource, &limit) != 0) ::_exit(125);
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
  std::string Content(const std::string& name) const {
    return io::ReadFile(io::LocalFileSystem(), At(name), 1 << 30).value();
  }
  std::vector<std::string> Convert(const std::string& output, const std::string& jobs = "1") const {
    return {"convert", At("in.safetensors"), At(output), "--preset", "w8a16", "--jobs", jobs, "--progress", "never"};
  }
  std::string root_;
};

TEST_F(ProcessTest, MemoryIsAtMostThreeTensorsAnd32MiB) {
  if (kSanitized) GTEST_SKIP();
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

// On Linux, ru_maxrss starts with the memory of the parent process.
TEST_F(ProcessTest, ThePeakThatIsPrintedIsItsOwn) {
  if (kSanitized) GTEST_SKIP();
  const std::string large(1 << 30, 'x'), summary = At("summary");
  const Outcome outcome = RunAqt(Convert("out.safetensors"), [&] {
    if (::dup2(::open(summary.c_str(), O_CREAT | O_WRONLY, 0600), STDOUT_FILENO) < 0) ::_exit(125);
  });
  ASSERT_EQ(outcome.code, 0) << outcome.err << large.back();
  EXPECT_THAT(Content("summary"), ContainsRegex("peak memory [0-9.]+ MiB"));
  for (const char* name : {"summary", "out.safetensors"}) {
    ASSERT_TRUE(io::LocalFileSystem().Remove(At(name)).ok());
  }
}

TEST_F(ProcessTest, ASignalLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGXCPU}) {
    for (const char* output : {"out", "out.safetensors"}) {
      const pid_t pid = Start(Convert(output), [&] { ::signal(signal, SIG_DFL); });
      // Once it has begun to write: the input, the lock and a temporary. It then has 96 MiB to go.
      while (ListTree(root_).size() < 3 && ::waitpid(pid, nullptr, WNOHANG) == 0) std::this_thread::yield();
      ASSERT_EQ(::kill(pid, signal), 0);
      EXPECT_EQ(Watch(pid).code, 130) << "signal " << signal;
      EXPECT_THAT(ListTree(root_), ElementsAre("in.safetensors"));
    }
  }
}

TEST_F(ProcessTest, ASignalThatWasIgnoredStaysSo) {
  for (const int signal : {SIGINT, SIGHUP}) {  // as under nohup, and for a script's jobs in the background
    const pid_t pid = Start(Convert("out.safetensors"), [&] { ::signal(signal, SIG_IGN); });
    while (ListTree(root_).size() < 3 && ::waitpid(pid, nullptr, WNOHANG) == 0) std::this_thread::yield();
    ASSERT_EQ(::kill(pid, signal), 0);
    EXPECT_EQ(Watch(pid).code, 0);
    EXPECT_THAT(ListTree(root_), ElementsAre("in.safetensors", "out.safetensors"));
    ASSERT_TRUE(io::LocalFileSystem().Remove(At("out.safetensors")).ok());
  }
}

TEST_F(ProcessTest, AFileAboveTheLimitIsAnError) {
  for (const char* output : {"out", "out.safetensors"}) {
    const Outcome outcome = RunAqt(Convert(output), [] { Limit(RLIMIT_FSIZE, 20 * kMiB); });
    EXPECT_EQ(outcome.code, 4) << "signal " << outcome.signal;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("error: "), HasSubstr("File too large")));
    EXPECT_THAT(ListTree(root_), ElementsAre("in.safetensors"));
  }
}

TEST_F(ProcessTest, ClosedStandardStreamsGetNothingIntoTheFiles) {
  ASSERT_EQ(Watch(Start(Convert("expected.safetensors"))).code, 0);
  const std::string expected = Content("expected.safetensors");
  for (int closed = 1; closed < 8; ++closed) {
    std::vector<std::string> args = Convert("out.safetensors");
    args.back() = "always";  // a bar on standard error
    const Outcome outcome = Watch(Start(args, [&] {
      for (const int fd : {0, 1, 2}) {
        if ((closed >> fd & 1) != 0) ::close(fd);
      }
    }));
    EXPECT_EQ(outcome.code, 0) << "closed: " << closed;
    EXPECT_TRUE(Content("out.safetensors") == expected) << "closed: " << closed;
    ASSERT_TRUE(io::LocalFileSystem().Remove(At("out.safetensors")).ok());
  }
  ASSERT_TRUE(io::LocalFileSystem().Remove(At("expected.safetensors")).ok());
}

TEST_F(ProcessTest, AReaderThatLeavesIsNoError) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ::close(pipe[0]);
  const Outcome outcome = RunAqt({"inspect", At("in.safetensors")}, [&] { ::dup2(pipe[1], STDOUT_FILENO); });
  ::close(pipe[1]);
  EXPECT_EQ(outcome.code, 0) << "signal " << outcome.signal;
  EXPECT_EQ(outcome.err, "");
}

TEST_F(ProcessTest, AThreadThatCannotBeStartedIsAnError) {
  if (kSanitized) GTEST_SKIP();
  for (const char* output : {"out", "out.safetensors"}) {
    const Outcome outcome = RunAqt(Convert(output, "64"), [] {
      Limit(RLIMIT_STACK, 256 * kMiB);  // of each thread
      Limit(RLIMIT_AS, 2048 * kMiB);
    });
    EXPECT_EQ(outcome.code, 4) << "signal " << outcome.signal;
    EXPECT_THAT(outcome.err,
                AllOf(StartsWith("error: cannot start thread "), HasSubstr(" of 64"), HasSubstr("--jobs")));
    EXPECT_THAT(ListTree(root_), ElementsAre("in.safetensors"));
  }
}

// The program itself fits, the stacks of its threads do not.
TEST_F(ProcessTest, TooLittleMemoryIsAnError) {
  if (kSanitized) GTEST_SKIP();
  const Outcome outcome = RunAqt(Convert("out.safetensors", "8"), [] { Limit(RLIMIT_AS, 20 * kMiB); });
  EXPECT_EQ(outcome.code, 4) << "signal " << outcome.signal;
  EXPECT_THAT(outcome.err, StartsWith("error: "));
  EXPECT_THAT(ListTree(root_), ElementsAre("in.safetensors"));
}

}  // namespace
}  // namespace aqt::serving
