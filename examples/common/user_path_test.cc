#include "examples/common/user_path.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace examples {
namespace {

TEST(UserPathTest, PathsAreRelativeToTheUser) {
  ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", "/home/me", 1), 0);
  EXPECT_EQ(UserPath("a/b"), "/home/me/a/b");
  EXPECT_EQ(UserPath("/a"), "/a");
  ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
  EXPECT_EQ(UserPath("a/b"), "a/b");
}

}  // namespace
}  // namespace examples
