#include "aqt/core/name_key.h"

#include "aqt/core/rng.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

// The published test vectors of FNV-1a.
TEST(HashOfName, IsFnv1a) {
  EXPECT_EQ(HashOfName(""), 0x811c9dc5u);
  EXPECT_EQ(HashOfName("a"), 0xe40c292cu);
  EXPECT_EQ(HashOfName("foobar"), 0xbf9cf968u);
  EXPECT_EQ(HashOfName("\xff"), (0x811c9dc5u ^ 0xffu) * 0x01000193u);  // an unsigned byte, even if char is signed
}

TEST(FoldInName, FoldsTheHashIn) { EXPECT_EQ(FoldInName({1, 2}, "a"), FoldIn({1, 2}, 0xe40c292cu)); }

}  // namespace
}  // namespace aqt
