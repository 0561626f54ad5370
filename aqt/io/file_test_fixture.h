#ifndef AQT_IO_FILE_TEST_FIXTURE_H_
#define AQT_IO_FILE_TEST_FIXTURE_H_

// Shared by the tests of file.h.

#include "aqt/io/file.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file_testing.h"
#include "gtest/gtest.h"

namespace aqt::io {

inline constexpr OutputOptions kOverwrite{.overwrite = true};

// Each test has its own folder.
class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    folder_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat("file_test_", ::getpid(), "_", ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    EXPECT_TRUE(LocalFileSystem().CreateFolder(folder_).ok());
  }
  std::string Path(absl::string_view name) const { return JoinPath(folder_, name); }
  std::string Content(absl::string_view name) const { return ReadFile(LocalFileSystem(), Path(name), 1 << 24).value(); }
  std::vector<std::string> Names() const { return LocalFileSystem().List(folder_).value(); }

  std::string folder_;
  FaultInjectingFileSystem faulty_;
};

}  // namespace aqt::io

#endif  // AQT_IO_FILE_TEST_FIXTURE_H_
