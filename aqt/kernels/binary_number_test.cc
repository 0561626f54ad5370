#include "aqt/kernels/binary_number.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/target.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

TEST(BinaryWithNumber, HasTheBitsOfBinary) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0, -0.0f, 1, -1, kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 1e-40f, 3e38f};
  for (int i = 0; i < 90; ++i) x.push_back(0.37f * static_cast<float>(i) - 13);
  const int64_t n = static_cast<int64_t>(x.size());
  int kinds = 0;
  for (int i = 0; i < kNumBinaryKinds; ++i) {
    const BinaryKind kind = static_cast<BinaryKind>(i);
    if (!TakesNumber(kind)) continue;
    ++kinds;
    for (const float number : {0.0f, -0.0f, 0.3f, -8.0f, kInf, std::numeric_limits<float>::quiet_NaN(), 1e-39f}) {
      const std::vector<float> numbers(x.size(), number);
      std::vector<float> want(x.size()), got(x.size());
      for (const bool first : {false, true}) {
        Binary(kind, DType::kF32, first ? numbers.data() : x.data(), first ? x.data() : numbers.data(), n, want.data());
        for (const Target target : SupportedTargets()) {
          BinaryWithNumber(kind, x.data(), number, first, n, got.data(), target);
          for (int64_t j = 0; j < n; ++j) {
            if (want[j] != want[j] && got[j] != got[j]) continue;
            EXPECT_EQ(std::memcmp(&got[j], &want[j], sizeof(float)), 0)
                << ToString(kind) << " of " << x[j] << " and " << number << ", " << ToString(target);
          }
        }
      }
    }
  }
  EXPECT_EQ(kinds, 6);
}

// Each product and the sum are rounded, also where a fused multiply-add would not be.
TEST(SumOfScaled, HasTheBitsOfItsSteps) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0, -0.0f, 1, -1, kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 1e-40f, 3e38f}, y;
  for (int i = 0; i < 90; ++i) x.push_back(0.37f * static_cast<float>(i) - 13);
  for (size_t i = 0; i < x.size(); ++i) y.push_back(x[(7 * i + 3) % x.size()] / 3);
  const int64_t n = static_cast<int64_t>(x.size());
  const auto scaled = [&](const std::vector<float>& v, float first, float second) {
    std::vector<float> out(v.size());
    BinaryWithNumber(BinaryKind::kMul, v.data(), first, false, n, out.data());
    BinaryWithNumber(BinaryKind::kMul, out.data(), second, false, n, out.data());
    return out;
  };
  for (const float a : {1.0f, 0.3f, -8.0f, 0.0f, 1e-39f}) {
    for (const float b : {1.0f, 1.7f, kInf}) {
      for (const bool subtract : {false, true}) {
        const std::vector<float> left = scaled(x, a, b), right = scaled(y, b, a);
        std::vector<float> want(x.size()), got(x.size());
        Binary(subtract ? BinaryKind::kSub : BinaryKind::kAdd, DType::kF32, left.data(), right.data(), n, want.data());
        for (const Target target : SupportedTargets()) {
          SumOfScaled({x.data(), a, b}, {y.data(), b, a}, subtract, n, got.data(), target);
          for (int64_t j = 0; j < n; ++j) {
            if (want[j] != want[j] && got[j] != got[j]) continue;
            EXPECT_EQ(std::memcmp(&got[j], &want[j], sizeof(float)), 0)
                << x[j] << " * " << a << " * " << b << ", " << y[j] << ", " << ToString(target);
          }
        }
      }
    }
  }
}

TEST(BinaryWithNumbers, EachRowHasItsOwn) {
  constexpr int64_t kRows = 3, kColumns = 37;
  const float numbers[kRows] = {0.3f, -0.0f, 7};
  std::vector<float> x(kRows * kColumns), repeated(x.size()), want(x.size()), got(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = 0.37f * static_cast<float>(i) - 13;
    repeated[i] = numbers[i / kColumns];
  }
  const int64_t n = static_cast<int64_t>(x.size());
  for (const bool first : {false, true}) {
    const float *a = first ? repeated.data() : x.data(), *b = first ? x.data() : repeated.data();
    Binary(BinaryKind::kDiv, DType::kF32, a, b, n, want.data());
    for (const Target target : SupportedTargets()) {
      BinaryWithNumbers(BinaryKind::kDiv, x.data(), numbers, first, kRows, kColumns, got.data(), target);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), n * sizeof(float)), 0) << ToString(target);
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
