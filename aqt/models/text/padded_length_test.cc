#include "aqt/models/text/padded_length.h"

#include <cstdint>
#include <set>

#include "gtest/gtest.h"

namespace aqt::models {
namespace {

TEST(PaddedLengthTest, StepsGrowWithTheLength) {
  EXPECT_EQ(PaddedLength(1, 512), 16);
  EXPECT_EQ(PaddedLength(16, 512), 16);
  EXPECT_EQ(PaddedLength(17, 512), 32);
  EXPECT_EQ(PaddedLength(128, 512), 128);
  EXPECT_EQ(PaddedLength(129, 512), 160);
  EXPECT_EQ(PaddedLength(257, 512), 320);
  EXPECT_EQ(PaddedLength(3, 12), 12);
  EXPECT_EQ(PaddedLength(500, 510), 510);
}

TEST(PaddedLengthTest, FewProgramsWithLittlePadding) {
  std::set<int64_t> lengths;
  for (int64_t length = 1; length <= 8192; ++length) {
    const int64_t padded = PaddedLength(length, 8192);
    EXPECT_GE(padded, length);
    EXPECT_LT(padded - length, 16 + length / 4);
    EXPECT_EQ(PaddedLength(padded, 8192), padded);
    lengths.insert(padded);
  }
  EXPECT_EQ(lengths.size(), 8 + 4 * 6);
}

}  // namespace
}  // namespace aqt::models
