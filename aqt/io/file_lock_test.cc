#include "aqt/io/file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
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

TEST_F(FileTest, ALockKeepsOthersOut) {
  const FileSystem& fs = LocalFileSystem();
  auto lock = fs.Lock(Path("lock")).value();
  for (int i = 0; i < 2; ++i) {
    const absl::Status second = fs.Lock(Path("lock")).status();
    EXPECT_EQ(second.code(), Code::kUnavailable);
    EXPECT_THAT(std::string(second.message()),
                AllOf(HasSubstr(Path("lock")), HasSubstr(absl::StrCat("process ", ::getpid()))));
  }
  EXPECT_TRUE(fs.Lock(Path("other")).ok());
  lock.reset();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_TRUE(fs.Lock(Path("lock")).ok());
  // A file left by a killed process is not a lock, whatever it contains.
  ASSERT_TRUE(WriteFile(fs, Path("lock"), absl::StrCat(::getppid(), "\n")).ok());
  lock = fs.Lock(Path("lock")).value();
  EXPECT_EQ(Content("lock"), absl::StrCat(::getpid(), "\n"));
  lock.reset();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FileTest, ALockEndsWithItsProcess) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = LocalFileSystem().Lock(Path("lock"));
    const char ok = lock.ok() ? 1 : 0;
    if (::write(ready[1], &ok, 1) == 1) ::pause();
    ::_exit(1);
  }
  char ok = 0;
  ASSERT_EQ(::read(ready[0], &ok, 1), 1);
  ASSERT_EQ(ok, 1);
  EXPECT_THAT(std::string(LocalFileSystem().Lock(Path("lock")).status().message()),
              HasSubstr(absl::StrCat("process ", child)));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_THAT(Names(), ElementsAre("lock"));
  EXPECT_TRUE(LocalFileSystem().Lock(Path("lock")).ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FileTest, LocksAndFaults) {
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP}) {  // a file system without locks
    faulty_.FailNth(FileCall::kLock, 1, error);
    EXPECT_TRUE(faulty_.Lock(Path("lock")).ok());
  }
  for (const FileCall call : {FileCall::kOpen, FileCall::kLock, FileCall::kStat}) {
    for (const int n : {1, 2}) {
      faulty_.Clear();
      faulty_.FailNth(call, n, EIO);
      EXPECT_EQ(faulty_.Lock(Path("lock")).ok(), n == 2 && call != FileCall::kStat);
      EXPECT_THAT(Names(), IsEmpty());
    }
  }
  faulty_.Clear();
  faulty_.FailNth(FileCall::kOpen, 1, EROFS);
  const absl::Status status = faulty_.Lock(Path("lock")).status();
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Read-only file system"));
}

}  // namespace
}  // namespace aqt::io
