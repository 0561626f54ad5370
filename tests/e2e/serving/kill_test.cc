// `aqt convert` killed, or failed by the system, at any point: the input is untouched, OUT is the old or the new one,
// complete, and the next run succeeds and names what the killed one left. The environment variable KILL_MOMENTS is the
// number of moments, spread over the duration of a conversion, at which the program is killed in each of the eight
// configurations.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/io/file.h"
#include "aqt/io/file_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/cli/command.h"
#include "serving/convert/output.h"
#include "serving/tools/test_util.h"
#include "tests/e2e/serving/process.h"

namespace aqt::serving {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr char kKnown[] = "in";  // the input, in a folder of its own
const io::FileSystem& Fs() { return io::LocalFileSystem(); }

// The contents of the files at a path, by their names below it; "" for a file. Empty if the path does not exist.
using Tree = std::map<std::string, std::string>;
Tree ReadTree(const std::string& path) {
  const auto info = Fs().Stat(path);
  if (!info.ok()) return {};
  if (info->kind == io::FileKind::kRegular) return {{"", ReadText(path)}};
  Tree tree;
  for (const std::string& name : ListTree(path)) {
    const std::string file = io::JoinPath(path, name);
    if (Fs().Stat(file)->kind == io::FileKind::kRegular) tree[name] = ReadText(file);
  }
  return tree;
}
void WriteTree(const std::string& path, const Tree& tree) {
  if (tree.contains("")) return WriteText(path, tree.at(""));
  for (const auto& [name, text] : tree) {
    const std::string file = io::JoinPath(path, name);
    std::filesystem::create_directories(std::string(io::FolderOf(file)));
    WriteText(file, text);
  }
}

// The number of the current call, shared by the test and the process that it forked.
struct Shared {
  int calls = 0;
  io::FileCall last = io::FileCall::kOpen;
};

class KillTest : public ::testing::TestWithParam<std::tuple<bool, bool, int>> {
 protected:
  bool folder() const { return std::get<0>(GetParam()); }
  bool force() const { return std::get<1>(GetParam()); }
  int jobs() const { return std::get<2>(GetParam()); }
  std::string In() const { return absl::StrCat(root_, "/in/", folder() ? "model" : "model.safetensors"); }
  std::string Out() const { return absl::StrCat(root_, folder() ? "/out" : "/out.safetensors"); }
  std::vector<std::string> Args(const std::string& preset = "w8a16") const {
    std::vector<std::string> args = {"convert",    In(),   Out(), "--preset", preset, "--jobs", absl::StrCat(jobs()),
                                     "--progress", "never"};
    if (force()) args.push_back("--force");
    return args;
  }

  // `columns` of two more weights of 1024 rows.
  void SetUpModel(int64_t columns) {
    root_ = MakeTestFolder();
    ASSERT_TRUE(Fs().CreateFolder(io::JoinPath(root_, kKnown)).ok());
    NamedArrays tensors = SmallModel(DType::kBF16);
    for (int i = 0; columns > 0 && i < 2; ++i) {
      tensors.emplace_back(absl::StrCat("model.layers.", i, ".fc.weight"),
                           MakeWeight(DType::kBF16, {1024, columns}, i));
    }
    if (folder()) {
      WriteShardedModel(In(), DType::kBF16);
      if (columns > 0) {
        WriteTensors(In() + "/model.safetensors", tensors);
        for (const char* name : {"/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors",
                                 "/model.safetensors.index.json"}) {
          ASSERT_TRUE(Fs().Remove(In() + name).ok());
        }
      }
    } else {
      WriteTensors(In(), tensors);
    }
    input_ = ReadTree(In());
    for (Tree* result : {&old_, &new_}) {
      ASSERT_EQ(RunHere(Args(result == &old_ ? "w8a8_dynamic" : "w8a16")), 0) << err_;
      *result = ReadTree(Out());
      ASSERT_TRUE(RemoveTree(Fs(), Out()).ok());
    }
    ASSERT_NE(old_, new_);
    if (!force()) old_.clear();
  }
  void TearDown() override { ASSERT_TRUE(RemoveTree(Fs(), root_).ok()); }

  int RunHere(const std::vector<std::string>& args) {
    std::ostringstream out, err;
    const int code = AqtMain(args, Fs(), {out, err});
    err_ = err.str();
    return code;
  }

  // Converts in a separate process, whose file system calls `hook` before every call. Returns waitpid's status.
  int RunForked(const std::function<int(io::FileCall)>& hook) const {
    const pid_t pid = ::fork();
    if (pid == 0) {
      io::FaultInjectingFileSystem fs;
      fs.LimitTransfer(1000);  // writes in pieces, so that it can also be killed between them
      fs.SetHook(hook);
      std::ostringstream out, err;
      ::_exit(AqtMain(Args(), fs, {out, err}));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }

  void PutOld() const {
    if (force()) WriteTree(Out(), old_);
  }
  // The other files beside the input and OUT.
  std::vector<std::string> Leftovers() const {
    std::vector<std::string> names = *Fs().List(root_);
    std::erase_if(names, [&](const std::string& name) { return name == kKnown || name == io::BaseName(Out()); });
    return names;
  }
  // Checks the invariants that hold at any time. True if OUT is the new one.
  bool CheckAllThere() const {
    EXPECT_TRUE(ReadTree(In()) == input_) << "the input has changed";
    const Tree out = ReadTree(Out());
    EXPECT_TRUE(out == old_ || out == new_) << "what is at OUT is neither the old nor the new";
    return out == new_;
  }
  // The next run succeeds, and leaves nothing else.
  void CheckNextRun(bool is_new) {
    const std::vector<std::string> leftovers = Leftovers();
    const int code = RunHere(Args());
    EXPECT_EQ(code, is_new && !force() ? 4 : 0) << err_;
    EXPECT_TRUE(ReadTree(Out()) == new_);
    EXPECT_TRUE(ReadTree(In()) == input_);
    for (const std::string& name : Leftovers()) {
      // A run that is refused before it takes the lock keeps the lock file of a dead run.
      if (code == 0 || name != absl::StrCat(".", io::BaseName(Out()), ".aqt-lock")) {
        EXPECT_THAT(err_, HasSubstr(name)) << "left behind, and not named";
      }
      EXPECT_THAT(leftovers, ::testing::Contains(name)) << "left by a run that was not killed";
      EXPECT_TRUE(RemoveTree(Fs(), io::JoinPath(root_, name)).ok());
    }
    EXPECT_TRUE(RemoveTree(Fs(), Out()).ok());
  }

  std::string root_, err_;
  Tree input_, old_, new_;
};

INSTANTIATE_TEST_SUITE_P(All, KillTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(), ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param) ? "Folder" : "File",
                                               std::get<1>(info.param) ? "Force" : "", std::get<2>(info.param));
                         });

TEST_P(KillTest, AtEveryFileSystemCall) {
  SetUpModel(0);
  auto* const shared =
      static_cast<Shared*>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(shared, MAP_FAILED);
  PutOld();
  *shared = {};
  RunForked([&](io::FileCall) {
    ++shared->calls;
    return 0;
  });
  ASSERT_TRUE(CheckAllThere());
  CheckNextRun(true);
  const int total = shared->calls;
  EXPECT_GT(total, 20);
  for (int at = 1; at <= total; ++at) {
    for (const int error : {0, EIO}) {  // 0: killed
      PutOld();
      *shared = {};
      const int status = RunForked([&](io::FileCall call) {
        if (++shared->calls != at) return 0;
        shared->last = call;
        if (error == 0) ::kill(::getpid(), SIGKILL);
        return error;
      });
      SCOPED_TRACE(absl::StrCat("call ", at, " of ", total, ", of kind ", static_cast<int>(shared->last), ", ",
                                error == 0 ? "killed" : "failed", ", status ", status));
      const bool is_new = CheckAllThere();
      if (error != 0) {
        ASSERT_TRUE(WIFEXITED(status));
        const int code = WEXITSTATUS(status);
        EXPECT_TRUE(code == 0 || code == 3 || code == 4) << code;
        EXPECT_TRUE(code != 0 || is_new);
        // After the new output is in place, an error before the old one is removed keeps the old one under another
        // name.
        const bool keeps_old = folder() && force() && is_new && code == 4;
        EXPECT_TRUE(shared->last == io::FileCall::kRemove || keeps_old || Leftovers().empty()) << Leftovers().front();
      }
      CheckNextRun(is_new);
      if (HasFailure()) return;  // further failures would only repeat this
    }
  }
  ::munmap(shared, sizeof(Shared));
}

TEST_P(KillTest, AtMomentsSpreadOverTheRun) {
  const char* const variable = std::getenv("KILL_MOMENTS");
  const int moments = variable == nullptr ? 4 : std::atoi(variable);
  SetUpModel(2048);
  Clock::duration takes{};
  for (int i = 0; i < 3; ++i) {
    PutOld();
    const Clock::time_point start = Clock::now();
    ASSERT_EQ(RunAqt(Args()).code, 0);
    takes = std::max(takes, Clock::now() - start);
    ASSERT_TRUE(RemoveTree(Fs(), Out()).ok());
  }
  int killed = 0, num_new = 0, left = 0;
  for (int i = 0; i < moments && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("moment ", i, " of ", moments));
    PutOld();
    const pid_t pid = Start(Args());
    std::this_thread::sleep_for(takes * (2 * i + 1) / (2 * moments));
    ::kill(pid, SIGKILL);
    killed += Watch(pid).signal == SIGKILL;
    left += !Leftovers().empty();
    const bool is_new = CheckAllThere();
    num_new += is_new;
    CheckNextRun(is_new);
  }
  std::cout << moments << " moments over " << std::chrono::duration<double, std::milli>(takes).count()
            << " ms: " << killed << " killed, " << left << " with something left behind, " << num_new
            << " with the new at OUT\n";
}

}  // namespace
}  // namespace aqt::serving
