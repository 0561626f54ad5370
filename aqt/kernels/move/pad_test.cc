#include "aqt/kernels/move/pad.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/machine/thread_pool.h"

namespace aqt::kernels {
namespace {

TEST(Pad, PutsZerosAroundAndBetween) {
  const std::vector<int32_t> source = {1, 2, 3};
  std::vector<int32_t> out(8, -1);
  const PadAxis axis{.size = 3, .stride = 1, .dilation = 2, .low = 1, .padded = 8};
  Pad(source.data(), 4, {axis}, out.data(), nullptr);
  EXPECT_EQ(out, (std::vector<int32_t>{0, 1, 0, 2, 0, 3, 0, 0}));
}

TEST(Pad, CutsOff) {
  const std::vector<int32_t> source = {1, 2, 3, 4, 5};
  std::vector<int32_t> out(3, -1);
  Pad(source.data(), 4, {{.size = 5, .stride = 1, .dilation = 2, .low = -3, .padded = 3}}, out.data(), nullptr);
  EXPECT_EQ(out, (std::vector<int32_t>{0, 3, 0}));
  const PadAxis rows{.size = 1, .stride = 5, .padded = 1};
  out.assign(3, -1);
  Pad(source.data(), 4, {rows, {.size = 5, .stride = 1, .dilation = 1, .low = -1, .padded = 3}}, out.data(), nullptr);
  EXPECT_EQ(out, (std::vector<int32_t>{2, 3, 4}));
  out.assign(3, -1);
  Pad(source.data(), 4, {rows, {.size = 5, .stride = 1, .dilation = 1, .low = -9, .padded = 3}}, out.data(), nullptr);
  EXPECT_EQ(out, (std::vector<int32_t>{0, 0, 0}));
}

// Compares each element of random arrays with the source element that a search finds for it.
TEST(Pad, EqualsSearch) {
  std::mt19937_64 engine(1);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(engine); };
  ThreadPool pool(3);
  for (int round = 0; round < 300; ++round) {
    // The large arrays justify several threads.
    const bool large = round % 50 == 0;
    const int64_t largest = large ? 30 : 6;
    PadAxis axes[3];
    int64_t stride = 1, padded = 1, sources = 1;
    for (int i = 2; i >= 0; --i) {
      axes[i] = {.size = below(largest),
                 .stride = stride,
                 .dilation = 1 + below(3),
                 .low = below(7) - 3,
                 .padded = large ? 60 : below(2 * largest)};
      stride *= axes[i].size + below(2);
      sources += axes[i].stride * (axes[i].size + 1);
      padded *= axes[i].padded;
    }
    std::vector<int16_t> source(sources), out(padded, -1), threaded(padded, -1);
    for (int16_t& v : source) v = static_cast<int16_t>(1 + below(1000));
    Pad(source.data(), 2, axes, out.data(), nullptr);
    Pad(source.data(), 2, axes, threaded.data(), &pool);
    EXPECT_EQ(out, threaded);
    int64_t place = 0;
    const auto find = [](const PadAxis& axis, int64_t at) {
      for (int64_t i = 0; i < axis.size; ++i) {
        if (i * axis.dilation + axis.low == at) return i;
      }
      return int64_t{-1};
    };
    for (int64_t a = 0; a < axes[0].padded; ++a) {
      for (int64_t b = 0; b < axes[1].padded; ++b) {
        for (int64_t c = 0; c < axes[2].padded; ++c, ++place) {
          const int64_t i = find(axes[0], a), j = find(axes[1], b), k = find(axes[2], c);
          const int16_t want =
              i < 0 || j < 0 || k < 0 ? 0 : source[i * axes[0].stride + j * axes[1].stride + k * axes[2].stride];
          ASSERT_EQ(out[place], want) << absl::StrCat("round ", round, ": ", a, " ", b, " ", c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
