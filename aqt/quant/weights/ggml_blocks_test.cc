#include "aqt/quant/weights/ggml_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "aqt/quant/weights/ggml_types.h"
#include "gtest/gtest.h"

namespace aqt::ggml {
namespace {

TEST(GgmlTypesTest, EachIsFoundByIdAndName) {
  std::set<std::string> names;
  for (const TypeInfo& info : Types()) {
    EXPECT_EQ(FindType(static_cast<uint32_t>(info.type)), &info);
    EXPECT_EQ(FindTypeByName(info.name), &info);
    EXPECT_TRUE(names.insert(std::string(info.name)).second);
  }
  EXPECT_EQ(FindTypeByName("q4_k")->type, Type::kQ4K);
  EXPECT_EQ(FindType(4), nullptr);
  EXPECT_EQ(FindTypeByName("Q4"), nullptr);
}

// Values of several kinds, 256 at a time.
std::vector<float> Values(int kind, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(256);
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = normal(rng);
    switch (kind) {
      case 0: x[i] = value * 0.05f; break;
      case 1: x[i] = value * 1e-5f; break;
      case 2: x[i] = std::abs(value) * 100; break;
      case 3: x[i] = 3 + value * 0.01f; break;
      case 4: x[i] = -5 - std::abs(value); break;
      case 5: x[i] = i % 17 == 0 ? value * 10 : 0; break;
      case 6: x[i] = i % 64 < 40 ? 0 : value; break;
      case 7: x[i] = value / (std::abs(normal(rng)) + 0.01f); break;
      default: x[i] = 0.25f;
    }
  }
  return x;
}
constexpr int kKinds = 9;

double SquaredError(Type type, const std::vector<uint8_t>& block, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  DecodeBlocks(type, block.data(), 1, y.data());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = static_cast<double>(y[i]) - static_cast<double>(x[i]);
    sum += e * e;
  }
  return sum;
}

TEST(GgmlBlocksTest, TheSearchIsNeverWorseAndMostlyBetterThanThePlainScale) {
  std::mt19937 rng(49);
  for (const Type type : {Type::kQ4K, Type::kQ6K}) {
    std::vector<uint8_t> best(InfoOf(type).block_bytes), plain(best.size());
    int better = 0, rounds = 0;
    for (int kind = 0; kind < kKinds; ++kind) {
      for (int round = 0; round < 20; ++round, ++rounds) {
        const std::vector<float> x = Values(kind, rng);
        ASSERT_EQ(EncodeBlocks(type, x.data(), 1, best.data()), -1);
        ASSERT_EQ(EncodeBlocks(type, x.data(), 1, plain.data(), Search::kPlain), -1);
        const double error = SquaredError(type, best, x), plain_error = SquaredError(type, plain, x);
        EXPECT_LE(error, plain_error) << InfoOf(type).name << ", kind " << kind;
        if (error < 0.97 * plain_error) ++better;
      }
    }
    EXPECT_GT(better, rounds / 2);
  }
}

// In steps of the largest magnitude's scale: a value is half a step away, or, in types whose codes have one more
// negative number, a whole step if it is as large as the largest one and has the other sign. Rounding the scale to f16
// moves a value of n steps by n / 2^11. Q6_K's scales of groups are also rounded to half of a 128th of the largest.
TEST(GgmlBlocksTest, ValuesStayWithinTheirStep) {
  std::mt19937 rng(50);
  const struct {
    Type type;
    double steps;  // between the largest magnitude and 0
    double tolerance;
  } kCases[] = {{Type::kQ8_0, 127, 0.5 + 127.0 / 2048 + 0.001},
                {Type::kQ4_0, 8, 1 + 8.0 / 2048 + 0.001},
                {Type::kQ6K, 32, 1 + 32.0 / 2048 + 32 * 0.5 / 128 + 0.001}};
  for (const auto& c : kCases) {
    const int n = 256 / InfoOf(c.type).block_values;
    std::vector<uint8_t> blocks(static_cast<size_t>(n) * InfoOf(c.type).block_bytes);
    for (const int kind : {0, 2, 3, 7}) {
      const std::vector<float> x = Values(kind, rng);
      std::vector<float> y(256);
      ASSERT_EQ(EncodeBlocks(c.type, x.data(), n, blocks.data(), Search::kPlain), -1);
      DecodeBlocks(c.type, blocks.data(), n, y.data());
      for (int first = 0; first < 256; first += 32) {
        double largest = 0;
        const int unit = c.type == Type::kQ6K ? 256 : 32;  // scales of groups are multiples of the block's
        for (int i = first / unit * unit; i < first / unit * unit + unit; ++i) {
          largest = std::max(largest, std::abs(static_cast<double>(x[i])));
        }
        for (int i = first; i < first + 32; ++i) {
          EXPECT_NEAR(y[i], x[i], c.tolerance * largest / c.steps) << InfoOf(c.type).name << ", kind " << kind;
        }
      }
    }
  }
}

TEST(GgmlBlocksTest, WhatCannotBeEncodedIsFound) {
  for (const Type type : {Type::kQ8_0, Type::kQ4_0, Type::kQ4K, Type::kQ6K, Type::kMXFP4}) {
    SCOPED_TRACE(InfoOf(type).name);
    const int size = InfoOf(type).block_values;
    std::vector<float> x(2 * static_cast<size_t>(size), 0.5f);
    std::vector<uint8_t> blocks(2 * static_cast<size_t>(InfoOf(type).block_bytes));
    x[size + 3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(EncodeBlocks(type, x.data(), 2, blocks.data()), size + 3);
    x[size + 3] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(EncodeBlocks(type, x.data(), 2, blocks.data()), size + 3);
    x[size + 3] = std::numeric_limits<float>::max();
    EXPECT_EQ(EncodeBlocks(type, x.data(), 2, blocks.data()), type == Type::kMXFP4 ? -1 : size + 3);
  }
}

TEST(GgmlBlocksTest, TinyValuesBecomeZeros) {
  for (const Type type : {Type::kQ8_0, Type::kQ4_0, Type::kQ4K, Type::kQ6K, Type::kMXFP4}) {
    SCOPED_TRACE(InfoOf(type).name);
    const int size = InfoOf(type).block_values;
    for (const float value : {0.0f, 1e-45f, -1e-40f, 1e-38f}) {
      std::vector<float> x(size, value), y(size, 1);
      x[1] = 0;
      std::vector<uint8_t> block(InfoOf(type).block_bytes);
      ASSERT_EQ(EncodeBlocks(type, x.data(), 1, block.data()), -1);
      DecodeBlocks(type, block.data(), 1, y.data());
      for (const float v : y) EXPECT_LE(std::abs(v), 2e-38f);
    }
  }
}

TEST(GgmlBlocksTest, TypesWithoutADecoder) {
  for (const TypeInfo& info : Types()) {
    const bool block = info.block_values > 1;
    const bool unknown = info.type == Type::kQ8_1 || info.type == Type::kQ8K || info.type == Type::kQ1_0;
    EXPECT_EQ(CanDecode(info.type), block && !unknown) << info.name;
    EXPECT_TRUE(CanDecode(info.type) || !CanEncode(info.type)) << info.name;
  }
}

}  // namespace
}  // namespace aqt::ggml
