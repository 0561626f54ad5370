#include "aqt/io/file_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/io/file.h"
#include "aqt/io/file_test_fixture.h"
#include "aqt/io/file_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::HasSubstr;
using Files = std::vector<std::unique_ptr<RandomAccessFile>>;

class FileCacheTest : public FileTest {
 protected:
  // Files whose contents are their own names.
  Files OpenAll(FileCache& cache, int count) {
    Files files;
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(WriteFile(LocalFileSystem(), Path(absl::StrCat(i)), absl::StrCat(i), kOverwrite).ok());
      files.push_back(cache.Open(faulty_, Path(absl::StrCat(i))).value());
    }
    return files;
  }
};

std::string ContentOf(const RandomAccessFile& file) {
  std::string content(file.size(), '\0');
  const absl::Status status = file.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(content.data()), content.size()));
  return status.ok() ? content : std::string(status.message());
}

int NumOpenFiles() {
  int count = 0;
  DIR* const dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

TEST_F(FileCacheTest, KeepsOnlyAFewOpen) {
  const int before = NumOpenFiles();
  FileCache cache(3);
  Files files = OpenAll(cache, 20);
  EXPECT_EQ(NumOpenFiles(), before + 3);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ContentOf(*files[i]), absl::StrCat(i));
  EXPECT_EQ(NumOpenFiles(), before + 3);
  files.resize(18);  // the two used last
  EXPECT_EQ(NumOpenFiles(), before + 1);
}

TEST_F(FileCacheTest, WhatIsReadAgainAndAgainStaysOpen) {
  FileCache cache(3);
  const Files files = OpenAll(cache, 3);
  const int64_t opened = faulty_.NumCalls(FileCall::kOpen);
  for (int round = 0; round < 5; ++round) {
    for (const auto& file : files) ContentOf(*file);
  }
  EXPECT_EQ(faulty_.NumCalls(FileCall::kOpen), opened);
}

TEST_F(FileCacheTest, FilesOutliveTheCache) {
  Files files;
  {
    FileCache cache(1);
    files = OpenAll(cache, 2);
  }
  EXPECT_EQ(ContentOf(*files[0]), "0");
}

TEST_F(FileCacheTest, NoticesAnotherFile) {
  FileCache cache(1);
  const Files files = OpenAll(cache, 2);
  uint8_t byte;
  const auto expect_noticed = [&] {
    const absl::Status status = files[0]->Read(0, absl::MakeSpan(&byte, 1));
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("changed while it was being read"));
  };
  const auto set_time = [&](int64_t ns) {
    const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    const timespec times[] = {time, time};
    ASSERT_EQ(::utimensat(AT_FDCWD, Path("0").c_str(), times, 0), 0);
  };
  const int64_t modified = files[0]->info().modified_ns;
  set_time(modified + 1);
  expect_noticed();
  set_time(modified);
  EXPECT_EQ(ContentOf(*files[0]), "0");
  EXPECT_EQ(ContentOf(*files[1]), "1");
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("0"), "longer", kOverwrite).ok());
  set_time(modified);
  expect_noticed();
  ASSERT_TRUE(LocalFileSystem().Remove(Path("0")).ok());
  EXPECT_EQ(files[0]->Read(0, absl::MakeSpan(&byte, 1)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ContentOf(*files[1]), "1");
}

TEST_F(FileCacheTest, ThreadsReadAtOnce) {
  FileCache cache(2);
  const Files files = OpenAll(cache, 10);
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const int which = (i * (t + 1)) % 10;
        wrong[t] += ContentOf(*files[which]) != absl::StrCat(which);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

}  // namespace
}  // namespace aqt::io
