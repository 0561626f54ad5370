#include "aqt/io/leftovers.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(LeftoversTest, AreTheTemporaryNamesOfThatPathOnly) {
  const FileSystem& fs = LocalFileSystem();
  const std::string folder = JoinPath(::testing::TempDir(), "leftovers");
  ASSERT_TRUE(fs.CreateFolder(folder).ok());
  const std::string path = JoinPath(folder, "out");
  EXPECT_THAT(FindLeftovers(fs, path).value(), IsEmpty());
  {
    const auto file = fs.CreateOutput(path, {}).value();
    const auto output_folder = OutputFolder::Create(fs, path + "/").value();
    for (const char* name : {".out.tmp-12", ".out.tmp-12-", ".out.tmp-1-2x", ".other.tmp-1-2", "out.tmp-1-2", ".out",
                             "out.aqt-old-x", "out.aqt-older", "other.aqt-old"}) {
      ASSERT_TRUE(WriteFile(fs, JoinPath(folder, name), "").ok());
    }
    EXPECT_EQ(FindLeftovers(fs, path + "/").value().size(), 2u);
    for (const char* name : {".out.tmp-1-2", "out.aqt-old", "out.aqt-old-2"}) {
      ASSERT_TRUE(WriteFile(fs, JoinPath(folder, name), "").ok());
    }
  }
  EXPECT_THAT(FindLeftovers(fs, path).value(),
              UnorderedElementsAre(JoinPath(folder, ".out.tmp-1-2"), JoinPath(folder, "out.aqt-old"),
                                   JoinPath(folder, "out.aqt-old-2")));
  EXPECT_FALSE(FindLeftovers(fs, "none/out").ok());
}

}  // namespace
}  // namespace aqt::io
