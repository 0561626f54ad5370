#include "aqt/runtime/memory/arena_layout.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "aqt/testing/random.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

TEST(ArenaLayoutTest, RoundsToLinesAndReusesTheBestFit) {
  ArenaLayout layout;
  const int64_t a = layout.Take(100), b = layout.Take(64), c = layout.Take(1), d = layout.Take(64);
  EXPECT_EQ((std::vector<int64_t>{a, b, c, d}), (std::vector<int64_t>{0, 128, 192, 256}));
  EXPECT_EQ(layout.Take(0), 0);
  layout.Give(a, 100);
  layout.Give(c, 1);
  EXPECT_EQ(layout.Take(30), c);  // not a part of the larger range
  EXPECT_EQ(layout.Take(128), a);
  EXPECT_EQ(layout.num_bytes(), 320);
}

TEST(ArenaLayoutTest, JoinsNeighboursAndLengthensTheEnd) {
  ArenaLayout layout;
  const int64_t a = layout.Take(64), b = layout.Take(64), c = layout.Take(64);
  layout.Give(a, 64);
  layout.Give(c, 64);
  layout.Give(b, 64);
  EXPECT_EQ(layout.Take(192), 0);
  layout.Give(0, 192);
  EXPECT_EQ(layout.Take(256), 0);
  EXPECT_EQ(layout.num_bytes(), 256);
}

TEST(ArenaLayoutTest, RangesNeverOverlap) {
  testing::Random random(7);
  ArenaLayout layout;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int i = 0; i < 3000; ++i) {
    if (taken.size() > 20 || (!taken.empty() && random.Below(2) == 0)) {
      std::swap(taken[random.Below(static_cast<int64_t>(taken.size()))], taken.back());
      layout.Give(taken.back().first, taken.back().second);
      taken.pop_back();
      continue;
    }
    const int64_t bytes = 1 + random.Below(1000), offset = layout.Take(bytes);
    ASSERT_EQ(offset % ArenaLayout::kAlignment, 0);
    ASSERT_LE(offset + bytes, layout.num_bytes());
    for (const auto& [other, other_bytes] : taken) {
      ASSERT_TRUE(offset + bytes <= other || other + other_bytes <= offset);
    }
    taken.emplace_back(offset, bytes);
  }
  EXPECT_LE(layout.num_bytes(), 2 * 21 * 1024);
}

}  // namespace
}  // namespace aqt::internal
