#include "aqt/nn/layers/pool.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// The definition, for x [1, h, w, 1]: the part of each window of the padded image inside x, and the number of its
// positions.
struct Window {
  std::vector<float> inside;
  int64_t places;
};
std::vector<Window> WindowsOf(const Array& x, int64_t size, int64_t stride, bool same) {
  const int64_t h = x.shape()[1], w = x.shape()[2];
  std::vector<int64_t> starts[2];
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t extent = axis == 0 ? h : w;
    const int64_t count = same ? (extent + stride - 1) / stride : (extent - size) / stride + 1;
    const int64_t low = same ? std::max<int64_t>((count - 1) * stride + size - extent, 0) / 2 : 0;
    for (int64_t i = 0; i < count; ++i) starts[axis].push_back(i * stride - low);
  }
  std::vector<Window> windows;
  for (const int64_t top : starts[0]) {
    for (const int64_t left : starts[1]) {
      Window window{{}, size * size};
      for (int64_t i = std::max<int64_t>(top, 0); i < std::min(top + size, h); ++i) {
        for (int64_t j = std::max<int64_t>(left, 0); j < std::min(left + size, w); ++j) {
          window.inside.push_back(x.View<float>()[i * w + j]);
        }
      }
      windows.push_back(window);
    }
  }
  return windows;
}

// Small integers: sums are exact, and a mean is one rounded division.
TEST(PoolTest, IsTheDefinition) {
  const Array x = *ops::Round(Value(RandomArray({DType::kF32, {1, 7, 5, 1}}, 3, -9, 9))).ToArray();
  for (const bool same : {false, true}) {
    const ops::PoolPadding padding = same ? ops::PoolPadding::kSame : ops::PoolPadding::kValid;
    for (const auto& [size, stride] : {std::pair<int64_t, int64_t>{2, 1}, {2, 2}, {3, 2}, {1, 3}}) {
      const absl::StatusOr<Array> max =
          MaxPool(Value(x), "pool", {.window = {size, size}, .strides = {stride, stride}, .padding = padding})
              .ToArray();
      const AvgPoolOptions options{.window = {size, size}, .strides = {stride, stride}, .padding = padding};
      AvgPoolOptions inside = options;
      inside.count_padding = false;
      const absl::StatusOr<Array> mean = AvgPool(Value(x), "pool", options).ToArray(),
                                  mean_inside = AvgPool(Value(x), "pool", inside).ToArray();
      ASSERT_THAT(max, IsOk());
      ASSERT_THAT(mean, IsOk());
      ASSERT_THAT(mean_inside, IsOk());
      const std::vector<Window> windows = WindowsOf(x, size, stride, same);
      ASSERT_EQ(max->num_elements(), static_cast<int64_t>(windows.size()));
      for (size_t i = 0; i < windows.size(); ++i) {
        float sum = 0;
        for (const float v : windows[i].inside) sum += v;
        EXPECT_EQ(max->View<float>()[i], *std::max_element(windows[i].inside.begin(), windows[i].inside.end()));
        EXPECT_EQ(mean->View<float>()[i], sum / static_cast<float>(windows[i].places));
        EXPECT_EQ(mean_inside->View<float>()[i], sum / static_cast<float>(windows[i].inside.size()));
      }
    }
  }
}

absl::StatusOr<Program> Traced(const std::function<Value(const Value&)>& layer) {
  return Trace([&](In in) { return Values{layer(in[0])}; }, {{{SlotKind::kData, "x"}, {DType::kF32, {2, 6, 6, 3}}}});
}

TEST(PoolTest, LivesInItsScope) {
  const absl::StatusOr<Program> program = Traced([](const Value& x) {
    return AvgPool(MaxPool(x, "largest", {.window = {2, 2}}), "mean", {.window = {5, 5}, .strides = {5, 5}});
  });
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[2,6,6,3] data "x"
const %1: f32[] = 25
%2: f32[2,5,5,3] = reduce_window_max(%0) {window=[1,2,2,1], stride=[1,1,1,1], low=[0,0,0,0], high=[0,0,0,0]} @largest
%3: f32[2,1,1,3] = reduce_window_sum(%2) {window=[1,5,5,1], stride=[1,5,5,1], low=[0,0,0,0], high=[0,0,0,0]} @mean
%4: f32[2,1,1,3] = broadcast(%1) {axes=[]} @mean
%5: f32[2,1,1,3] = div(%3, %4) @mean
out %5 data "0"
)");
}

TEST(PoolTest, Errors) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Traced([](const Value& x) { return MaxPool(x, "pool", {.window = {2}}); }),
              FailsWith(kInvalid, {"max_pool [pool]", "1 numbers for the 2 spatial axes", "pool_test.cc:"}));
  EXPECT_THAT(Traced([](const Value& x) {
                return AvgPool(x, "pool", {.window = {2, 2}, .strides = {0, 1}});
              }),
              FailsWith(kInvalid, {"avg_pool [pool]", "window 2 and stride 0", "pool_test.cc:"}));
}

}  // namespace
}  // namespace aqt::nn
