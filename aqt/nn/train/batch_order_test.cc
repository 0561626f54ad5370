#include "aqt/nn/train/batch_order.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "aqt/core/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

TEST(BatchOrderTest, AnEpochHasEveryRowOnceInItsOwnOrder) {
  std::vector<int64_t> all(50);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int64_t> first = EpochOrder(MakeKey(3), 50, 0), second = EpochOrder(MakeKey(3), 50, 1);
  EXPECT_THAT(first, UnorderedElementsAreArray(all));
  EXPECT_THAT(second, UnorderedElementsAreArray(all));
  EXPECT_NE(first, second);
  EXPECT_NE(first, all);
  EXPECT_NE(first, EpochOrder(MakeKey(4), 50, 0));
  EXPECT_THAT(EpochOrder(MakeKey(3), 0, 0), IsEmpty());
}

TEST(BatchOrderTest, StepsGoThroughTheEpochs) {
  const Key key = MakeKey(7);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < 3; ++i) {
      const std::vector<int64_t> own = RowsOfStep(key, 11, 3, epoch * 3 + i);
      EXPECT_THAT(own, SizeIs(3));
      rows.insert(rows.end(), own.begin(), own.end());
    }
    std::vector<int64_t> order = EpochOrder(key, 11, epoch);
    order.resize(9);  // two rows are dropped
    EXPECT_EQ(rows, order);
  }
}

TEST(BatchOrderTest, SharesAreTheRowsInTheirOrder) {
  const std::vector<int64_t> rows = RowsOfStep(MakeKey(7), 20, 12, 0);
  std::vector<int64_t> joined;
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<int64_t> share = ShareOf(rows, rank, 4);
    EXPECT_THAT(share, SizeIs(3));
    joined.insert(joined.end(), share.begin(), share.end());
  }
  EXPECT_EQ(joined, rows);
}

// Every order of three rows is equally likely: chi-squared with 5 degrees of freedom is below 25.7 for all but 1 in
// 10,000 draws, and the draw is fixed.
TEST(BatchOrderTest, OrdersAreUniform) {
  constexpr int kEpochs = 6000;
  int counts[27] = {};
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = EpochOrder(MakeKey(1), 3, epoch);
    ++counts[order[0] * 9 + order[1] * 3 + order[2]];
  }
  double chi_squared = 0;
  for (const int i : {5, 7, 11, 15, 19, 21}) chi_squared += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000;
  EXPECT_LT(chi_squared, 25.7);
}

}  // namespace
}  // namespace aqt::nn
