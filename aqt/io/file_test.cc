#include "aqt/io/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
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

absl::Span<const uint8_t> Bytes(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

TEST_F(FileTest, WritesInAnyOrderAndReadsBack) {
  const FileSystem& fs = LocalFileSystem();
  auto out = fs.CreateOutput(Path("a"), {}).value();
  EXPECT_EQ(out->path(), Path("a"));
  ASSERT_TRUE(out->Reserve(10).ok());
  ASSERT_TRUE(out->Write(6, Bytes("6789")).ok());
  ASSERT_TRUE(out->Write(0, Bytes("012345")).ok());
  ASSERT_TRUE(out->Write(4, Bytes("")).ok());
  EXPECT_EQ(fs.Stat(Path("a")).status().code(), Code::kNotFound) << "visible before Commit";
  ASSERT_TRUE(out->Commit().ok());
  EXPECT_THAT(Names(), ElementsAre("a"));
  EXPECT_EQ(Content("a"), "0123456789");
  EXPECT_EQ(out->Commit().code(), Code::kFailedPrecondition);

  const auto in = fs.OpenForReading(Path("a")).value();
  EXPECT_EQ(in->size(), 10);
  std::string middle(3, '\0');
  const auto span = absl::MakeSpan(reinterpret_cast<uint8_t*>(middle.data()), middle.size());
  ASSERT_TRUE(in->Read(7, span).ok());
  EXPECT_EQ(middle, "789");
  EXPECT_TRUE(in->Read(10, {}).ok());
  for (const int64_t offset : {int64_t{8}, int64_t{11}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(in->Read(offset, span).code(), Code::kOutOfRange) << offset;
  }
}

TEST_F(FileTest, NewFilesFollowTheUmask) {
  const mode_t old = ::umask(027);
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), "x").ok());
  ::umask(old);
  struct stat info;
  ASSERT_EQ(::stat(Path("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(FileTest, ACopyIsExecutableIfTheOriginalIs) {
  const FileSystem& fs = LocalFileSystem();
  ASSERT_TRUE(WriteFile(fs, Path("plain"), "x").ok());
  ASSERT_TRUE(WriteFile(fs, Path("script"), "x").ok());
  ASSERT_EQ(::chmod(Path("script").c_str(), 0700), 0);
  const mode_t old = ::umask(027);
  ASSERT_TRUE(CopyFile(fs, Path("plain"), Path("plain2")).ok());
  ASSERT_TRUE(CopyFile(fs, Path("script"), Path("script2")).ok());
  ::umask(old);
  struct stat info;
  ASSERT_EQ(::stat(Path("plain2").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
  ASSERT_EQ(::stat(Path("script2").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0750u);
}

TEST_F(FileTest, ABrokenLinkIsCalledOne) {
  ASSERT_EQ(::symlink("nothing", Path("link").c_str()), 0);
  const absl::Status status = LocalFileSystem().OpenForReading(Path("link")).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("it is a link to something that does not exist"));
}

TEST_F(FileTest, TooManyOpenFilesNamesTheLimit) {
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), "x").ok());
  faulty_.FailNth(FileCall::kOpen, 1, EMFILE);
  const absl::Status status = faulty_.OpenForReading(Path("a")).status();
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")));
}

TEST_F(FileTest, WithoutCommitNothingIsLeft) {
  {
    auto out = LocalFileSystem().CreateOutput(Path("a"), {}).value();
    EXPECT_TRUE(out->Write(0, Bytes("x")).ok());
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FileTest, ReplacesOnlyWhenAllowed) {
  const FileSystem& fs = LocalFileSystem();
  ASSERT_TRUE(WriteFile(fs, Path("a"), "old").ok());
  const absl::Status refused = WriteFile(fs, Path("a"), "new");
  EXPECT_EQ(refused.code(), Code::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(Path("a")), HasSubstr("overwrit")));
  EXPECT_EQ(Content("a"), "old");
  ASSERT_TRUE(WriteFile(fs, Path("a"), "new", kOverwrite).ok());
  EXPECT_EQ(Content("a"), "new");

  // A file that appears while the output is being written also stays.
  auto out = fs.CreateOutput(Path("b"), {}).value();
  ASSERT_TRUE(WriteFile(fs, Path("b"), "first").ok());
  EXPECT_EQ(out->Commit().code(), Code::kAlreadyExists);
  out.reset();
  EXPECT_EQ(Content("b"), "first");
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
}

TEST_F(FileTest, ReplacesTheFileBehindALink) {
  ASSERT_TRUE(LocalFileSystem().CreateFolder(Path("sub")).ok());
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("sub/a"), "old").ok());
  ASSERT_EQ(::symlink("sub/a", Path("link").c_str()), 0);
  ASSERT_EQ(::symlink("nothing", Path("broken").c_str()), 0);
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("link"), "new", kOverwrite).ok());
  EXPECT_EQ(Content("sub/a"), "new");
  EXPECT_EQ(::readlink(Path("link").c_str(), std::string(9, ' ').data(), 9), 5) << "the link is still one";
  EXPECT_EQ(WriteFile(LocalFileSystem(), Path("broken"), "x", kOverwrite).code(), Code::kAlreadyExists);
  EXPECT_THAT(Names(), ElementsAre("broken", "link", "sub"));
  EXPECT_THAT(LocalFileSystem().List(Path("sub")).value(), ElementsAre("a"));
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  const FileSystem& fs = LocalFileSystem();
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/full"), folder_, Path("pipe")}) {
    const absl::Status write = WriteFile(fs, path, "x", kOverwrite);
    EXPECT_EQ(write.code(), Code::kInvalidArgument) << path;
    EXPECT_THAT(std::string(write.message()), AllOf(HasSubstr(path), HasSubstr("not a regular file")));
    const absl::Status read = fs.OpenForReading(path).status();  // must not wait for the pipe's other end
    EXPECT_EQ(read.code(), Code::kInvalidArgument) << path;
    EXPECT_THAT(std::string(read.message()), AllOf(HasSubstr(path), HasSubstr("not a regular file")));
  }
  EXPECT_EQ(WriteFile(fs, "", "x").code(), Code::kInvalidArgument);
  EXPECT_EQ(WriteFile(fs, Path("new/"), "x").code(), Code::kInvalidArgument);
  EXPECT_EQ(WriteFile(fs, std::string("a\0b", 3), "x").code(), Code::kInvalidArgument);
}

TEST_F(FileTest, NamesOperationPathAndCause) {
  const FileSystem& fs = LocalFileSystem();
  const absl::Status open = fs.OpenForReading(Path("none")).status();
  EXPECT_EQ(open.code(), Code::kNotFound);
  EXPECT_THAT(std::string(open.message()),
              AllOf(HasSubstr("open"), HasSubstr(Path("none")), HasSubstr("No such file")));
  const absl::Status create = WriteFile(fs, Path("none/a"), "x");
  EXPECT_EQ(create.code(), Code::kNotFound);
  EXPECT_THAT(std::string(create.message()),
              AllOf(HasSubstr("create"), HasSubstr(Path("none/a")), HasSubstr("No such file")));
  EXPECT_EQ(fs.List(Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(fs.Remove(Path("none")).code(), Code::kNotFound);
  EXPECT_EQ(fs.CreateFolder(folder_).code(), Code::kAlreadyExists);
  EXPECT_EQ(fs.Rename(Path("none"), Path("b")).code(), Code::kNotFound);
}

TEST_F(FileTest, EveryFaultIsReportedAndLeavesTheOldFile) {
  struct Case {
    FileCall call;
    int error;
    Code code;
  };
  for (const Case& c : std::vector<Case>{{FileCall::kOpen, EACCES, Code::kPermissionDenied},
                                         {FileCall::kStat, EACCES, Code::kPermissionDenied},
                                         {FileCall::kWrite, EIO, absl::ErrnoToStatusCode(EIO)},
                                         {FileCall::kWrite, ENOSPC, Code::kResourceExhausted},
                                         {FileCall::kSync, ENOSPC, Code::kResourceExhausted},
                                         {FileCall::kClose, EDQUOT, Code::kResourceExhausted},
                                         {FileCall::kRename, EACCES, Code::kPermissionDenied}}) {
    SCOPED_TRACE(absl::StrCat("call ", static_cast<int>(c.call), ", errno ", c.error));
    ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), "old", kOverwrite).ok());
    faulty_.FailNth(c.call, 1, c.error);
    const absl::Status status = WriteFile(faulty_, Path("a"), "new", kOverwrite);
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(Path("a")));
    EXPECT_THAT(Names(), ElementsAre("a"));
    EXPECT_EQ(Content("a"), "old");
    faulty_.Clear();
    ASSERT_TRUE(WriteFile(faulty_, Path("a"), "new", kOverwrite).ok());
    EXPECT_EQ(Content("a"), "new");
  }
}

TEST_F(FileTest, ReportsThatTheFolderWasNotFlushed) {
  faulty_.FailNth(FileCall::kSyncFolder, 1, EIO);
  EXPECT_FALSE(WriteFile(faulty_, Path("a"), "new").ok());
  EXPECT_EQ(Content("a"), "new") << "renamed, and complete";
  faulty_.FailNth(FileCall::kSyncFolder, 1, EINVAL);  // a file system that cannot flush folders
  EXPECT_TRUE(WriteFile(faulty_, Path("b"), "new").ok());
  faulty_.FailNth(FileCall::kOpen, 2, EACCES);  // a folder that cannot be read
  EXPECT_TRUE(WriteFile(faulty_, Path("c"), "new").ok());
  faulty_.FailNth(FileCall::kOpen, 2, EMFILE);
  EXPECT_EQ(WriteFile(faulty_, Path("d"), "new").code(), Code::kResourceExhausted);
  EXPECT_THAT(Names(), ElementsAre("a", "b", "c", "d"));
}

TEST_F(FileTest, SurvivesShortTransfersAndSignals) {
  std::string text;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, i, ",");
  faulty_.LimitTransfer(7);
  faulty_.Interrupt();
  ASSERT_TRUE(WriteFile(faulty_, Path("a"), text).ok());
  EXPECT_GT(faulty_.NumCalls(FileCall::kWrite), static_cast<int64_t>(text.size() / 7));
  EXPECT_EQ(ReadFile(faulty_, Path("a"), 1 << 20).value(), text);
  ASSERT_TRUE(CopyFile(faulty_, Path("a"), Path("b")).ok());
  faulty_.Clear();
  EXPECT_EQ(Content("b"), text);
}

TEST_F(FileTest, FullDisk) {
  for (const int64_t room : {0, 1, 99}) {
    faulty_.LimitDisk(room);
    const absl::Status status = WriteFile(faulty_, Path("a"), std::string(100, 'x'));
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << room;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(Path("a")), HasSubstr("No space left")));
    EXPECT_THAT(Names(), IsEmpty());
  }
  faulty_.LimitDisk(100);
  EXPECT_TRUE(WriteFile(faulty_, Path("a"), std::string(100, 'x')).ok());
}

TEST_F(FileTest, ReserveFailsOnAFullDiskAndPassesWhereItCannot) {
  auto out = faulty_.CreateOutput(Path("a"), {}).value();
  faulty_.FailNth(FileCall::kReserve, 1, ENOSPC);
  EXPECT_EQ(out->Reserve(100).code(), Code::kResourceExhausted);
  faulty_.FailNth(FileCall::kReserve, 1, EOPNOTSUPP);
  EXPECT_TRUE(out->Reserve(100).ok());
  EXPECT_TRUE(out->Reserve(0).ok());
}

TEST_F(FileTest, ReadFaults) {
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), "0123").ok());
  faulty_.FailNth(FileCall::kStat, 1, EIO);
  EXPECT_FALSE(faulty_.OpenForReading(Path("a")).ok());
  const auto in = faulty_.OpenForReading(Path("a")).value();
  std::vector<uint8_t> buffer(4);
  faulty_.FailNth(FileCall::kRead, 1, EIO);
  const absl::Status failed = in->Read(0, absl::MakeSpan(buffer));
  EXPECT_THAT(std::string(failed.message()), AllOf(HasSubstr("read"), HasSubstr(Path("a"))));
  ASSERT_EQ(::truncate(Path("a").c_str(), 2), 0);
  const absl::Status shorter = in->Read(0, absl::MakeSpan(buffer));
  EXPECT_EQ(shorter.code(), Code::kDataLoss);
  EXPECT_THAT(std::string(shorter.message()), HasSubstr("ends at byte 2"));
}

TEST_F(FileTest, ReadFileHasALimit) {
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), "0123").ok());
  EXPECT_EQ(ReadFile(LocalFileSystem(), Path("a"), 4).value(), "0123");
  EXPECT_EQ(ReadFile(LocalFileSystem(), Path("a"), 3).status().code(), Code::kResourceExhausted);
}

TEST_F(FileTest, StatAndSameFile) {
  const FileSystem& fs = LocalFileSystem();
  ASSERT_TRUE(WriteFile(fs, Path("a"), "0123").ok());
  ASSERT_TRUE(WriteFile(fs, Path("b"), "0123").ok());
  ASSERT_EQ(::symlink("a", Path("soft").c_str()), 0);
  ASSERT_EQ(::link(Path("a").c_str(), Path("hard").c_str()), 0);
  EXPECT_EQ(fs.Stat(Path("soft"))->kind, FileKind::kRegular);
  EXPECT_EQ(fs.Stat(Path("a"))->size, 4);
  EXPECT_EQ(fs.Stat(folder_)->kind, FileKind::kFolder);
  EXPECT_EQ(fs.Stat("/dev/full")->kind, FileKind::kOther);
  EXPECT_TRUE(SameFile(fs, Path("a"), Path("soft")).value());
  EXPECT_TRUE(SameFile(fs, Path("hard"), Path("soft")).value());
  EXPECT_TRUE(SameFile(fs, folder_, Path(".")).value());
  EXPECT_FALSE(SameFile(fs, Path("a"), Path("b")).value());
  EXPECT_FALSE(SameFile(fs, Path("a"), Path("none")).value());
  EXPECT_TRUE(Exists(fs, Path("a")).value());
  EXPECT_FALSE(Exists(fs, Path("none")).value());
  faulty_.FailAll(FileCall::kStat, EACCES);
  EXPECT_EQ(Exists(faulty_, Path("a")).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(SameFile(faulty_, Path("a"), Path("b")).status().code(), Code::kPermissionDenied);
}

TEST_F(FileTest, CopiesBytes) {
  std::string big(3 * (1 << 20) + 17, 'x');
  for (size_t i = 0; i < big.size(); i += 1000) big[i] = static_cast<char>(i / 1000);
  for (const std::string& content : {std::string(), std::string("abc"), big}) {
    ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), content, kOverwrite).ok());
    ASSERT_TRUE(CopyFile(LocalFileSystem(), Path("a"), Path("b"), kOverwrite).ok());
    EXPECT_EQ(Content("b"), content);
  }
  EXPECT_EQ(CopyFile(LocalFileSystem(), Path("a"), Path("b")).code(), Code::kAlreadyExists);
  EXPECT_EQ(CopyFile(LocalFileSystem(), Path("none"), Path("c")).code(), Code::kNotFound);
}

TEST_F(FileTest, ThreadsWriteOneFile) {
  auto out = LocalFileSystem().CreateOutput(Path("a"), {}).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t; i < 400; i += 4) {
        EXPECT_TRUE(out->Write(i * 10, Bytes(std::string(10, static_cast<char>('a' + i % 26)))).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(out->Commit().ok());
  const std::string content = Content("a");
  ASSERT_EQ(content.size(), 4000u);
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(content[i], 'a' + i / 10 % 26) << i;
}

TEST_F(FileTest, LinksLoopsAndMountPoints) {
  const FileSystem& fs = LocalFileSystem();
  ASSERT_TRUE(WriteFile(fs, Path("a"), "0123").ok());
  ASSERT_EQ(::symlink("a", Path("link").c_str()), 0);
  ASSERT_EQ(::symlink("loop", Path("loop").c_str()), 0);
  EXPECT_EQ(fs.LStat(Path("link"))->kind, FileKind::kLink);
  EXPECT_EQ(fs.LStat(Path("a"))->size, 4);
  EXPECT_EQ(fs.LStat(Path("loop"))->kind, FileKind::kLink);
  EXPECT_EQ(fs.Stat(Path("loop")).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(fs.LStat(Path("none")).status().code(), Code::kNotFound);
  EXPECT_EQ(fs.RealPath(Path("link")).value(), fs.RealPath(Path("./a")).value());
  EXPECT_EQ(fs.RealPath(Path("none")).status().code(), Code::kNotFound);
  EXPECT_TRUE(fs.IsMountPoint("/proc").value());
  EXPECT_FALSE(fs.IsMountPoint(folder_).value());
  EXPECT_FALSE(fs.IsMountPoint(Path("a")).value());
}

TEST_F(FileTest, FreeBytes) {
  EXPECT_GT(LocalFileSystem().FreeBytes(folder_).value().value(), 0);
  EXPECT_EQ(LocalFileSystem().FreeBytes(Path("none")).status().code(), Code::kNotFound);
  faulty_.SetFreeBytes(12345);
  EXPECT_EQ(faulty_.FreeBytes(folder_).value(), 12345);
  faulty_.SetFreeBytes(0);
  EXPECT_EQ(faulty_.FreeBytes(folder_).value(), 0);
  faulty_.SetFreeBytes(std::nullopt);  // not reported
  EXPECT_EQ(faulty_.FreeBytes(folder_).value(), std::nullopt);
  faulty_.FailNth(FileCall::kFreeBytes, 1, ENOSYS);
  EXPECT_EQ(faulty_.FreeBytes(folder_).value(), std::nullopt);
}

TEST(PathTest, Text) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
  EXPECT_EQ(BaseName("a/b"), "b");
  EXPECT_EQ(BaseName("b"), "b");
  EXPECT_EQ(BaseName("a/b//"), "b");
  EXPECT_EQ(BaseName("/"), "");
  EXPECT_EQ(BaseName(""), "");
  EXPECT_EQ(FolderOf("a/b"), "a");
  EXPECT_EQ(FolderOf("a//b/"), "a");
  EXPECT_EQ(FolderOf("a"), ".");
  EXPECT_EQ(FolderOf("/a"), "/");
  EXPECT_EQ(FolderOf("/"), "/");
}

}  // namespace
}  // namespace aqt::io
