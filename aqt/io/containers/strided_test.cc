#include "aqt/io/containers/strided.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "aqt/core/shape.h"
#include "aqt/io/containers/container_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::io {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Strided, Simplify) {
  EXPECT_THAT(Simplify({2, 1, 3}, {3, 77, 1}, 4).extents, ElementsAre(6));
  EXPECT_TRUE(IsRowMajor(Simplify({2, 1, 3}, {3, 77, 1}, 4)));
  EXPECT_THAT(Simplify({1, 1}, {5, 5}, 4).extents, IsEmpty());
  EXPECT_TRUE(IsRowMajor(Simplify({}, {}, 4)));
  EXPECT_THAT(Simplify({4, 2, 3}, {1, 12, 4}, 4).strides, ElementsAre(1, 4));  // the last two are one
  EXPECT_FALSE(IsRowMajor(Simplify({3}, {2}, 4)));
  EXPECT_THAT(ColumnMajorStrides({4, 2, 3}), ElementsAre(1, 4, 8));
}

// Property: the same as element by element, for permuted, cut, stepped and repeated axes, and any range.
TEST(Strided, SameAsOneByOne) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 400; ++round) {
    const int rank = static_cast<int>(pick(5));
    std::vector<int64_t> extents, strides(static_cast<size_t>(rank));
    std::vector<size_t> order;
    for (int axis = 0; axis < rank; ++axis) {
      extents.push_back(1 + pick(round % 7 == 0 ? 40 : 5));
      order.push_back(static_cast<size_t>(axis));
    }
    std::shuffle(order.begin(), order.end(), random);
    int64_t stride = 1 + pick(2), span = 1;
    for (const size_t axis : order) {
      strides[axis] = pick(8) == 0 ? 0 : stride;
      span += (extents[axis] - 1) * strides[axis];
      stride = stride * extents[axis] + pick(3) * (pick(20) == 0 ? 400 : 1);
    }
    const int64_t size = int64_t{1} << pick(4);
    std::string content(static_cast<size_t>(span * size), '\0');
    for (char& c : content) c = static_cast<char>(random());
    const auto file = TextFile("x", content);
    const Shape shape{absl::MakeConstSpan(extents)};
    const int64_t n = shape.num_elements();
    std::string expected;
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, at = 0;
      for (size_t axis = extents.size(); axis-- > 0; rest /= extents[axis]) at += rest % extents[axis] * strides[axis];
      expected += content.substr(static_cast<size_t>(at * size), static_cast<size_t>(size));
    }
    const StridedView view = Simplify(shape, strides, size);
    for (int part = 0; part < 4; ++part) {
      const int64_t first = part == 0 ? 0 : pick(n);
      const int64_t count = part == 0 ? n : 1 + pick(n - first);
      std::string actual(static_cast<size_t>(count * size), '?');
      const absl::Status status = ReadStrided(*file, view, first, count, reinterpret_cast<uint8_t*>(actual.data()));
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(actual, expected.substr(static_cast<size_t>(first * size), actual.size())) << shape.ToString();
    }
  }
}

}  // namespace
}  // namespace aqt::io
