// OutputFolder: a folder that appears complete or not at all.

#include "aqt/io/file.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file_test_fixture.h"
#include "aqt/io/file_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST_F(FileTest, OutputFolderAppearsAtCommit) {
  const FileSystem& fs = LocalFileSystem();
  auto out = OutputFolder::Create(fs, Path("model/")).value();
  EXPECT_EQ(out->path(), Path("model"));
  ASSERT_TRUE(WriteFile(fs, JoinPath(out->temporary_path(), "a"), "x").ok());
  ASSERT_TRUE(fs.CreateFolder(JoinPath(out->temporary_path(), "sub")).ok());
  ASSERT_TRUE(WriteFile(fs, JoinPath(out->temporary_path(), "sub/b"), "y").ok());
  EXPECT_FALSE(Exists(fs, Path("model")).value());
  ASSERT_TRUE(out->Commit().ok());
  out.reset();
  EXPECT_THAT(Names(), ElementsAre("model"));
  EXPECT_EQ(Content("model/sub/b"), "y");
  EXPECT_EQ(OutputFolder::Create(fs, Path("model")).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(OutputFolder::Create(fs, Path("model/a")).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(OutputFolder::Create(fs, Path("none/model")).status().code(), Code::kNotFound);
  EXPECT_EQ(OutputFolder::Create(fs, ".").status().code(), Code::kInvalidArgument);
}

TEST_F(FileTest, OutputFolderLeavesNothingWithoutCommit) {
  ASSERT_TRUE(faulty_.CreateFolder(Path("empty")).ok());  // an existing empty folder is allowed, and stays
  for (const bool commit : {false, true}) {
    auto out = OutputFolder::Create(faulty_, Path("empty")).value();
    ASSERT_TRUE(faulty_.CreateFolder(JoinPath(out->temporary_path(), "sub")).ok());
    ASSERT_TRUE(WriteFile(faulty_, JoinPath(out->temporary_path(), "sub/b"), "y").ok());
    if (!commit) continue;
    faulty_.FailNth(FileCall::kRename, 1, EIO);
    EXPECT_FALSE(out->Commit().ok());
  }
  EXPECT_THAT(Names(), ElementsAre("empty"));
  EXPECT_THAT(faulty_.List(Path("empty")).value(), IsEmpty());
}

// Writes a file "a" with this content into the folder `path`.
void FillFolder(const FileSystem& fs, const std::string& path, absl::string_view content) {
  ASSERT_TRUE(WriteFile(fs, JoinPath(path, "a"), content, kOverwrite).ok());
}

class ReplaceTest : public FileTest {
 protected:
  // Creates an old folder that contains a folder, and a new one that will replace it.
  void SetUpOld() {
    const FileSystem& fs = LocalFileSystem();
    for (const std::string& name : Names()) ASSERT_TRUE(RemoveTree(fs, Path(name)).ok());
    ASSERT_TRUE(fs.CreateFolder(Path("model")).ok());
    ASSERT_TRUE(fs.CreateFolder(Path("model/sub")).ok());
    FillFolder(fs, Path("model/sub"), "old");
    FillFolder(fs, Path("model"), "old");
  }
  absl::Status Replace() {
    auto out = OutputFolder::Create(faulty_, Path("model"), kOverwrite).value();
    FillFolder(LocalFileSystem(), out->temporary_path(), "new");
    return out->Commit();
  }
  // The number of complete folders with this content, under any name.
  int Count(absl::string_view content) const {
    int count = 0;
    for (const std::string& name : Names()) {
      const absl::StatusOr<std::string> a = ReadFile(LocalFileSystem(), Path(name + "/a"), 10);
      const bool sub = Exists(LocalFileSystem(), Path(name + "/sub/a")).value();
      count += a.ok() && *a == content && sub == (content == "old");
    }
    return count;
  }
};

TEST_F(ReplaceTest, TheOldFolderIsExchangedOrMovedAside) {
  for (const int unsupported : {0, EINVAL, ENOSYS, EOPNOTSUPP}) {
    SetUpOld();
    if (unsupported != 0) faulty_.FailNth(FileCall::kExchange, 1, unsupported);
    const int64_t renames = faulty_.NumCalls(FileCall::kRename);
    ASSERT_TRUE(Replace().ok());
    EXPECT_EQ(faulty_.NumCalls(FileCall::kRename) - renames, unsupported == 0 ? 0 : 2);
    EXPECT_THAT(Names(), ElementsAre("model"));
    EXPECT_EQ(Count("new"), 1);
  }
}

TEST_F(ReplaceTest, AnErrorNeverLeavesNeither) {
  for (const bool exchange : {true, false}) {
    for (const FileCall call : {FileCall::kExchange, FileCall::kRename, FileCall::kSyncFolder, FileCall::kOpen,
                                FileCall::kStat, FileCall::kRemove, FileCall::kList, FileCall::kMountPoint}) {
      if (!exchange && call == FileCall::kExchange) continue;
      for (int n = 1;; ++n) {
        SetUpOld();
        faulty_.Clear();
        auto out = OutputFolder::Create(faulty_, Path("model"), kOverwrite).value();
        FillFolder(LocalFileSystem(), out->temporary_path(), "new");
        if (!exchange) faulty_.FailAll(FileCall::kExchange, EINVAL);
        const int64_t before = faulty_.NumCalls(call);
        faulty_.FailNth(call, n, EIO);
        const absl::Status status = out->Commit();
        out.reset();
        const std::string what = absl::StrCat(static_cast<int>(call), ", n = ", n, ": ", status.ToString());
        if (faulty_.NumCalls(call) - before < n) {
          EXPECT_TRUE(status.ok()) << what;
          const bool unused = exchange && (call == FileCall::kRename || call == FileCall::kStat);
          EXPECT_EQ(n == 1, unused) << what;
          break;
        }
        const std::string at = Content("model/a");
        if (call == FileCall::kRemove || call == FileCall::kList || call == FileCall::kMountPoint) {
          EXPECT_EQ(at, "new") << what;  // the new one is safe: the old one may be removed
        } else {
          EXPECT_EQ(Count("old"), 1) << what;
          EXPECT_EQ(Count("new"), at == "new" ? 1 : 0) << what;
        }
        if (at == "new" && !status.ok()) {
          std::string other = Names()[0] == "model" ? Names()[1] : Names()[0];
          EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("is complete"), HasSubstr(other))) << what;
        }
      }
    }
  }
}

// If flushing the folder fails after the exchange, the old copy is kept, and the error gives its name.
TEST_F(ReplaceTest, AFlushThatFailsKeepsTheOldCopy) {
  for (const bool exchange : {true, false}) {
    SetUpOld();
    ASSERT_TRUE(LocalFileSystem().CreateFolder(Path("model.aqt-old")).ok());  // from an earlier run
    faulty_.Clear();
    if (!exchange) faulty_.FailAll(FileCall::kExchange, EINVAL);
    faulty_.FailNth(FileCall::kSyncFolder, exchange ? 1 : 2, EIO);
    const absl::Status status = Replace();
    EXPECT_THAT(std::string(status.message()), HasSubstr("kept as '" + Path("model.aqt-old-2") + "'"));
    EXPECT_THAT(Names(), ElementsAre("model", "model.aqt-old", "model.aqt-old-2"));
    EXPECT_EQ(Content("model/a"), "new");
    EXPECT_EQ(Content("model.aqt-old-2/sub/a"), "old");
  }
}

TEST_F(ReplaceTest, AnOldFolderThatHasGoneIsNoError) {
  SetUpOld();
  auto out = OutputFolder::Create(faulty_, Path("model"), kOverwrite).value();
  FillFolder(faulty_, out->temporary_path(), "new");
  ASSERT_TRUE(RemoveTree(faulty_, Path("model")).ok());
  ASSERT_TRUE(out->Commit().ok());
  EXPECT_THAT(Names(), ElementsAre("model"));
}

TEST_F(ReplaceTest, RemovingDoesNotLeaveTheTree) {
  SetUpOld();
  ASSERT_TRUE(LocalFileSystem().CreateFolder(Path("mine")).ok());
  FillFolder(LocalFileSystem(), Path("mine"), "mine");
  ASSERT_EQ(::symlink(Path("mine").c_str(), Path("model/link").c_str()), 0);
  faulty_.SetMountPoint(Path("model/sub"));
  EXPECT_FALSE(RemoveTree(faulty_, Path("model")).ok());
  EXPECT_THAT(LocalFileSystem().List(Path("model")).value(), ElementsAre("sub"));
  EXPECT_EQ(Content("model/sub/a"), "old") << "something mounted, which is not ours";
  faulty_.Clear();
  ASSERT_TRUE(RemoveTree(faulty_, Path("model")).ok());
  EXPECT_EQ(Content("mine/a"), "mine");
}

}  // namespace
}  // namespace aqt::io
