#include "aqt/kernels/reduce/reduce_window.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/kernels/reduce/reduce_kind.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Two axes, element by element.
struct Reference {
  std::vector<float> results;
  std::vector<int32_t> numbers;
};
Reference ReduceSlowly(ReduceKind kind, const WindowAxis& rows, const WindowAxis& columns,
                       const std::vector<float>& x) {
  Reference out;
  for (int64_t i = 0; i < rows.windows; ++i) {
    for (int64_t j = 0; j < columns.windows; ++j) {
      float result = kind == ReduceKind::kSum    ? 0
                     : kind == ReduceKind::kProd ? 1
                     : kind == ReduceKind::kMax  ? -kInf
                                                 : kInf;
      int32_t number = -1;
      for (int64_t k = 0; k < rows.window; ++k) {
        for (int64_t l = 0; l < columns.window; ++l) {
          const int64_t row = i * rows.stride - rows.low + k, column = j * columns.stride - columns.low + l;
          if (row < 0 || row >= rows.size || column < 0 || column >= columns.size) continue;
          const int32_t at = static_cast<int32_t>(row * columns.size + column);
          const float v = x[at];
          const bool wins =
              number < 0 ||
              (!std::isnan(x[number]) && (std::isnan(v) || (kind == ReduceKind::kMax ? v > x[number] : v < x[number])));
          if (wins) number = at;
          if (kind == ReduceKind::kSum) result += v;
          if (kind == ReduceKind::kProd) result *= v;
        }
      }
      if ((kind == ReduceKind::kMax || kind == ReduceKind::kMin) && number >= 0) result = x[number];
      out.results.push_back(result);
      out.numbers.push_back(std::max(number, 0));
    }
  }
  return out;
}

TEST(ReduceWindowTest, AgreesWithTheReference) {
  std::mt19937_64 random(1);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    WindowAxis axes[2];
    for (WindowAxis& axis : axes) {
      axis.size = below(9);
      axis.window = 1 + below(4);
      axis.stride = 1 + below(3);
      axis.low = below(axis.window);
      const int64_t padded = axis.size + axis.low + below(axis.window);
      axis.windows = padded < axis.window ? 0 : (padded - axis.window) / axis.stride + 1;
    }
    if (trial % 4 == 0) axes[1] = {axes[1].size * 40, 1, 1, 0, axes[1].size * 40};  // channels
    std::vector<float> x(axes[0].size * axes[1].size);
    for (float& v : x) v = static_cast<float>(below(5)) - 2;  // ties
    if (!x.empty() && trial % 3 == 0) x[below(static_cast<int64_t>(x.size()))] = std::nanf("");
    for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax, ReduceKind::kMin, ReduceKind::kProd}) {
      const Reference want = ReduceSlowly(kind, axes[0], axes[1], x);
      std::vector<float> results(want.results.size());
      ReduceWindow(kind, DType::kF32, axes, x.data(), results.data());
      for (size_t i = 0; i < results.size(); ++i) {
        ASSERT_TRUE(results[i] == want.results[i] || (std::isnan(results[i]) && std::isnan(want.results[i])))
            << trial << " " << ToString(kind) << " " << i << ": " << results[i] << ", want " << want.results[i];
      }
      if (kind == ReduceKind::kSum || kind == ReduceKind::kProd) continue;
      std::vector<int32_t> numbers(want.numbers.size());
      ArgReduceWindow(kind == ReduceKind::kMax ? ArgKind::kMax : ArgKind::kMin, DType::kF32, axes, x.data(),
                      numbers.data());
      ASSERT_EQ(numbers, want.numbers) << trial << " " << ToString(kind);
    }
  }
}

TEST(ReduceWindowTest, OtherTypes) {
  const WindowAxis whole[] = {{300, 300, 1, 0, 1}};
  const std::vector<BFloat16> ones(300, RoundToBFloat16(1.0f));  // a bf16 sum would stop at 256
  BFloat16 sum;
  ReduceWindow(ReduceKind::kSum, DType::kBF16, whole, ones.data(), &sum);
  EXPECT_EQ(ToFloat(sum), 300.0f);
  const WindowAxis two[] = {{3, 2, 1, 0, 2}};
  const int32_t integers[] = {std::numeric_limits<int32_t>::max(), 1, -5};
  int32_t out[2];
  ReduceWindow(ReduceKind::kSum, DType::kS32, two, integers, out);
  EXPECT_EQ(out[0], std::numeric_limits<int32_t>::min());
  EXPECT_EQ(out[1], -4);
  ReduceWindow(ReduceKind::kMin, DType::kS32, two, integers, out);
  EXPECT_EQ(out[1], -5);
  const double doubles[] = {-0.0, 0.0, -0.0};
  double largest[2];
  ReduceWindow(ReduceKind::kMax, DType::kF64, two, doubles, largest);
  EXPECT_FALSE(std::signbit(largest[0]));
  ArgReduceWindow(ArgKind::kMax, DType::kF64, two, doubles, out);
  EXPECT_EQ(out[0], 0);  // ties give the first
}

TEST(ReduceWindowTest, AScalarIsAWindow) {
  const float x = 3;
  float out = 0;
  ReduceWindow(ReduceKind::kSum, DType::kF32, {}, &x, &out);
  EXPECT_EQ(out, 3);
}

}  // namespace
}  // namespace aqt::kernels
