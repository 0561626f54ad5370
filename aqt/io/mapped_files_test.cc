#include "aqt/io/mapped_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aqt/io/file_test_fixture.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

class MappedFilesTest : public FileTest {};

TEST_F(MappedFilesTest, HasTheBytesAsLongAsTheyAreHeld) {
  std::string content(3 * 65536 + 5, '\0');
  for (size_t i = 0; i < content.size(); ++i)
    content[i] = static_cast<char>(static_cast<uint32_t>(i) * 2654435761u >> 24);
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), content).ok());
  std::vector<std::pair<int64_t, std::shared_ptr<const void>>> mapped;
  {
    const MappedFiles fs(LocalFileSystem());
    EXPECT_EQ(MappedFiles::Of(fs), &fs);
    for (const int64_t offset : {0, 1, 8, 4095, 4096, 65536, 3 * 65536}) {
      mapped.emplace_back(offset, fs.Map(Path("a"), offset, 5));
    }
    mapped.emplace_back(0, fs.Map(Path("a"), 0, static_cast<int64_t>(content.size())));
  }
  // Another file takes its place.
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), "another", kOverwrite).ok());
  ASSERT_TRUE(LocalFileSystem().Remove(Path("a")).ok());
  for (const auto& [offset, memory] : mapped) {
    ASSERT_NE(memory, nullptr) << offset;
    EXPECT_EQ(std::memcmp(memory.get(), content.data() + offset, 5), 0) << offset;
  }
  EXPECT_EQ(std::memcmp(mapped.back().second.get(), content.data(), content.size()), 0);
}

TEST_F(MappedFilesTest, NothingWhereItCannot) {
  EXPECT_EQ(MappedFiles::Of(LocalFileSystem()), nullptr);
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("a"), std::string(100, 'x')).ok());
  ASSERT_TRUE(WriteFile(LocalFileSystem(), Path("empty"), "").ok());
  const MappedFiles fs(faulty_);
  EXPECT_NE(fs.Map(Path("a"), 0, 100), nullptr);
  for (const auto& [offset, bytes] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 101}, {-1, 2}, {101, 1}, {5, 0}, {1, INT64_MAX}}) {
    EXPECT_EQ(fs.Map(Path("a"), offset, bytes), nullptr) << offset << ", " << bytes;
  }
  EXPECT_EQ(fs.Map(Path("empty"), 0, 1), nullptr);
  EXPECT_EQ(fs.Map(Path("none"), 0, 1), nullptr);
  EXPECT_EQ(fs.Map(folder_, 0, 1), nullptr);
  faulty_.FailNth(FileCall::kStat, 1, EIO);
  EXPECT_EQ(fs.Map(Path("a"), 0, 100), nullptr);
}

// The rest is the file system below.
TEST_F(MappedFilesTest, PassesEverythingOn) {
  const MappedFiles fs(LocalFileSystem());
  ASSERT_TRUE(WriteFile(fs, Path("a"), "text").ok());
  EXPECT_EQ(ReadFile(fs, Path("a"), 10).value(), "text");
  EXPECT_EQ(fs.Stat(Path("a"))->size, 4);
  ASSERT_TRUE(fs.CreateFolder(Path("b")).ok());
  ASSERT_TRUE(fs.Rename(Path("a"), Path("b/c")).ok());
  EXPECT_EQ(fs.List(Path("b")).value(), std::vector<std::string>{"c"});
  ASSERT_TRUE(RemoveTree(fs, Path("b")).ok());
  EXPECT_EQ(fs.List(folder_)->size(), 0u);
}

}  // namespace
}  // namespace aqt::io
