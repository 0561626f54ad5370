#include "aqt/quant/weights/stored_values.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::stored_values {
namespace {

using ::testing::ElementsAre;

TEST(StoredValues, PowersOfTwo) {
  for (int code = 0; code < 255; ++code) EXPECT_EQ(E8M0(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127));
  EXPECT_TRUE(std::isnan(E8M0(255)));
}

TEST(StoredValues, UnpacksE4M3AsTheDtypeDoes) {
  std::vector<uint8_t> codes(300);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (const int64_t n : {7, 300}) {
    std::vector<float> values(n);
    UnpackE4M3(codes.data(), n, values.data());
    for (int64_t i = 0; i < n; ++i) {
      const float expected = ToFloat(Float8E4M3FN{codes[i]});
      EXPECT_TRUE(values[i] == expected || (std::isnan(values[i]) && std::isnan(expected))) << i;
    }
  }
}

TEST(StoredValues, BitFieldsCrossWords) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (const bool padded : {false, true}) {
      const int64_t per_word = padded ? 32 / bits : 0, n = 41;
      std::vector<uint32_t> words(WordsFor(n, bits, per_word));
      // One bit at a time.
      for (int64_t k = 0; k < n; ++k) {
        for (int b = 0; b < bits; ++b) {
          const int64_t bit = padded ? k / per_word * 32 + k % per_word * bits + b : k * bits + b;
          if (k * 37 >> b & 1) words[bit / 32] |= 1u << bit % 32;
        }
      }
      const BitFields fields{reinterpret_cast<const uint8_t*>(words.data()), 4, bits, per_word};
      for (int64_t k = 0; k < n; ++k) EXPECT_EQ(fields[k], (k * 37) & ((1 << bits) - 1)) << bits << " " << k;
    }
  }
}

TEST(StoredValues, UnpacksRunsOfFields) {
  const uint8_t bytes[] = {0x21, 0x43, 0x65, 0x87};
  float values[8];
  UnpackBits({bytes, 4, 4, 0}, 8, 8, values);
  EXPECT_THAT(values, ElementsAre(-7, -6, -5, -4, -3, -2, -1, 0));
}

TEST(StoredValues, FindsIntegersOutOfRange) {
  std::vector<int8_t> codes(600);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(static_cast<int>(i % 16) - 8);
  EXPECT_EQ(FirstOutside(codes.data(), 600, -8, 7), -1);
  EXPECT_EQ(FirstOutside(codes.data(), 600, -7, 7), 0);
  EXPECT_EQ(FirstOutside(codes.data(), 600, -8, 6), 15);
  codes[599] = 8;
  EXPECT_EQ(FirstOutside(codes.data(), 600, -8, 7), 599);
  EXPECT_EQ(FirstOutside(codes.data(), 599, -8, 7), -1);
}

TEST(StoredValues, AddToFieldsCarries) {
  uint32_t word = 0x67950df6;  // fields 6, 15, 13, 0, 5, 9, 7, 6 from the least significant one on
  uint8_t bytes[4];
  std::memcpy(bytes, &word, 4);
  AddToFields(4, 1, bytes);
  std::memcpy(&word, bytes, 4);
  EXPECT_EQ(word, 0x67950df6u + 0x11111111u);
  EXPECT_EQ(word >> 4 & 15, 0u);   // 15 + 1
  EXPECT_EQ(word >> 8 & 15, 15u);  // 13 + 1, and the carry
}

TEST(StoredValues, ScalesRunsThatBeginWithinAGroup) {
  const std::vector<float> q = {1, 2, 3, 4, 5}, z = {1, 0, 2}, s = {2, 3, 5};
  std::vector<float> w(5);
  Scale(q.data(), z.data(), s.data(), 5, /*first=*/3, /*group=*/2, w.data());  // groups of 1, 2 and 2 elements
  EXPECT_THAT(w, ElementsAre(0, 6, 9, 10, 15));
  for (int64_t first = 0; first < 9; ++first) {
    for (int64_t group = 1; group < 7; ++group) {
      const std::vector<float> scales = {2, 3, 5, 7, 11, 13};
      std::vector<float> got(5);
      Scale(q.data(), nullptr, scales.data(), 5, first, group, got.data());
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(got[i], q[i] * scales[(first + i) / group - first / group]);
    }
  }
  Scale(q.data(), nullptr, s.data(), 5, 0, 5, w.data());
  EXPECT_THAT(w, ElementsAre(2, 4, 6, 8, 10));
}

// The order of the operations shows in the last bit.
TEST(StoredValues, RoundsAfterEachOperation) {
  const uint8_t code = 1;
  const float map[] = {0, 1 + 0x1p-12f}, absmax = 1 + 0x1p-12f;
  float scale;
  NestedScales(&code, map, &absmax, 0x1p-24f, 1, 0, 64, &scale);
  const auto product = static_cast<float>(double{map[1]} * absmax);  // drops 2^-24, which the offset would complete
  EXPECT_EQ(scale, static_cast<float>(double{product} + 0x1p-24));
}

TEST(StoredValues, RoundsToEachDtype) {
  const std::vector<float> w = {1, -2.71828f, 1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-11f, 1 + 0x3p-11f, 65519, 1e-7f};
  const auto n = static_cast<int64_t>(w.size());
  std::vector<uint8_t> bytes(4 * w.size());
  Round(w.data(), n, DType::kF32, bytes.data());
  EXPECT_EQ(std::memcmp(bytes.data(), w.data(), 4 * w.size()), 0);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Round(w.data(), n, dtype, bytes.data());
    for (int64_t i = 0; i < n; ++i) {
      uint16_t bits;
      std::memcpy(&bits, &bytes[2 * i], 2);
      EXPECT_EQ(bits, dtype == DType::kF16 ? RoundToFloat16(w[i]).bits : RoundToBFloat16(w[i]).bits) << i;
    }
  }
}

}  // namespace
}  // namespace aqt::stored_values
