#include "aqt/kernels/quantize/decode_integers.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/decode_integers_reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

using ::testing::ElementsAre;

std::vector<uint8_t> TestBytes(int64_t n) {
  std::vector<uint8_t> bytes(n);
  for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i * 151 + i / 256 * 37);
  return bytes;
}

// Values whose products with small integers are rounded.
std::vector<float> TestScales(int64_t n) {
  std::vector<float> scales(n);
  for (int64_t i = 0; i < n; ++i)
    scales[i] = std::ldexp(1.0f + 0.013f * static_cast<float>(i), static_cast<int>(i % 9));
  return scales;
}

// Runs `decode` with every target and compares the bits with those of `reference`. The value after the result must not
// change.
template <class Args, class Decode, class Reference>
void ExpectEqual(Args args, Decode decode, Reference reference) {
  std::vector<float> want(args.n + 1, 99), got;
  args.x = want.data();
  reference(args);
  for (const Target target : SupportedTargets()) {
    got.assign(args.n + 1, 99);
    args.x = got.data();
    decode(args, target);
    for (int64_t i = 0; i <= args.n; ++i) {
      ASSERT_EQ(__builtin_bit_cast(uint32_t, got[i]), __builtin_bit_cast(uint32_t, want[i]))
          << target << ", value " << i << " of " << args.n << ", groups of " << args.group;
    }
  }
}

void ExpectAsReference(const DecodeIntegersArgs& args) { ExpectEqual(args, DecodeIntegers, reference::DecodeIntegers); }

constexpr int64_t kLengths[] = {0, 1, 2, 7, 8, 9, 15, 16, 31, 33, 100, 127, 128, 511, 512, 513, 1031};
constexpr int64_t kGroups[] = {1, 2, 7, 16, 32, 48, 511, 513, 5000};

TEST(DecodeIntegers, LayoutsLengthsAndGroups) {
  const std::vector<float> scale = TestScales(2000), zero = TestScales(2100);
  for (const int64_t n : kLengths) {
    for (const int64_t group : kGroups) {
      DecodeIntegersArgs args;
      args.n = n;
      args.group = group;
      args.scale = scale.data();
      args.zero = group % 2 == 0 ? nullptr : zero.data() + 50;
      args.factor = group % 3 == 0 ? 1.0f / 127.0f : 1.0f;
      for (int bits = 1; bits <= 8; ++bits) {
        args.bits = bits;
        args.bias = bits % 3 == 0 ? 0 : 1 << (bits - 1);
        for (const CodeLayout layout : {CodeLayout::kBytes, CodeLayout::kFields, CodeLayout::kWords}) {
          args.layout = layout;
          args.shift = layout == CodeLayout::kWords ? static_cast<int>(n % (33 - bits)) : 0;
          // No byte behind the codes, so that a sanitizer sees a read past them.
          const int64_t size = layout == CodeLayout::kBytes   ? n
                               : layout == CodeLayout::kWords ? 4 * n
                                                              : (n * bits + 7) / 8;
          const std::vector<uint8_t> q = TestBytes(size + 1);
          args.q = q.data() + 1;
          ExpectAsReference(args);
        }
      }
    }
  }
}

TEST(DecodeIntegers, GroupsInAnyOrder) {
  const std::vector<float> scale = TestScales(40), zero = TestScales(50);
  const std::vector<uint8_t> q = TestBytes(2000);
  std::vector<int32_t> group_of(1031);
  for (size_t i = 0; i < group_of.size(); ++i) group_of[i] = static_cast<int32_t>(i * 17 % 40);
  for (const int64_t n : kLengths) {
    for (const CodeLayout layout : {CodeLayout::kBytes, CodeLayout::kFields}) {
      DecodeIntegersArgs args;
      args.q = q.data();
      args.layout = layout;
      args.bits = layout == CodeLayout::kFields ? 3 : 8;
      args.n = n;
      args.group_of = group_of.data();
      args.scale = scale.data();
      ExpectAsReference(args);
      args.zero = zero.data() + 10;
      ExpectAsReference(args);
    }
  }
}

TEST(DecodeIntegers, ByHand) {
  const uint8_t bytes[] = {0x21, 0x43, 0x65, 0x87, 0xfe, 0xff, 0xff, 0xff};
  const float one = 1, scale[] = {0.5f, 2}, zero[] = {1, -1};
  for (const Target target : SupportedTargets()) {
    float x[8];
    DecodeIntegersArgs args;
    args.q = bytes;
    args.layout = CodeLayout::kFields;
    args.bits = 4;
    args.bias = 8;
    args.n = 8;
    args.group = 8;
    args.scale = &one;
    args.x = x;
    DecodeIntegers(args, target);
    EXPECT_THAT(x, ElementsAre(-7, -6, -5, -4, -3, -2, -1, 0)) << target;
    args.group = 4;
    args.scale = scale;
    args.zero = zero;
    DecodeIntegers(args, target);
    EXPECT_THAT(x, ElementsAre(-4, -3.5f, -3, -2.5f, -4, -2, 0, 2)) << target;
    args.layout = CodeLayout::kWords;
    args.shift = 8;
    args.bias = 0;
    args.n = 2;
    args.group = 1;
    DecodeIntegers(args, target);
    EXPECT_EQ(x[0], (3 - 1) * 0.5f) << target;
    EXPECT_EQ(x[1], (15 + 1) * 2) << target;
    args.layout = CodeLayout::kBytes;
    args.q = bytes + 3;
    args.zero = nullptr;
    DecodeIntegers(args, target);
    EXPECT_EQ(x[0], (0x87 - 256) * 0.5f) << target;
    EXPECT_EQ(x[1], -4) << target;
  }
}

// The order of the operations shows in the last bit.
TEST(DecodeIntegers, RoundsAfterEachOperation) {
  const uint8_t q = 93;
  const float s = 0.1f;
  float x;
  DecodeIntegers({.q = &q, .n = 1, .scale = &s, .factor = 1.0f / 127.0f, .x = &x});
  EXPECT_EQ(x, static_cast<float>(static_cast<float>(93 * static_cast<double>(s)) *
                                  static_cast<double>(static_cast<float>(1.0 / 127))));
}

TEST(DecodeByMap, LengthsGroupsAndFirstCodes) {
  const std::vector<float> scale = TestScales(2000), map = TestScales(16);
  for (const int64_t n : kLengths) {
    for (const int64_t group : kGroups) {
      for (const int64_t first : {0, 1, 2, 5, 64, 8191}) {
        const std::vector<uint8_t> q = TestBytes((first % 2 + n + 1) / 2 + 1);
        ExpectEqual(
            DecodeByMapArgs{
                .q = q.data() + 1, .map = map.data(), .first = first, .n = n, .group = group, .scale = scale.data()},
            DecodeByMap, reference::DecodeByMap);
      }
    }
  }
}

TEST(DecodeByMap, ByHand) {
  const uint8_t bytes[] = {0x21, 0x43};
  const float map[16] = {0, 10, 20, 30, 40}, scale[] = {1, 3};
  for (const Target target : SupportedTargets()) {
    float x[3];
    DecodeByMap({.q = bytes, .map = map, .first = 1, .n = 3, .group = 2, .scale = scale, .x = x}, target);
    EXPECT_THAT(x, ElementsAre(10, 120, 90)) << target;
  }
}

TEST(TransposeWords, AnyShape) {
  for (const int64_t rows : {0, 1, 3, 8, 17, 40}) {
    for (const int64_t cols : {0, 1, 5, 8, 16, 33}) {
      std::vector<uint32_t> from(rows * (cols + 2) + 1);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i);
      std::vector<uint32_t> want(cols * (rows + 3) + 1, 7);
      for (int64_t c = 0; c < cols; ++c) {
        for (int64_t r = 0; r < rows; ++r) want[c * (rows + 3) + r] = from[r * (cols + 2) + c];
      }
      for (const Target target : SupportedTargets()) {
        std::vector<uint32_t> to(want.size(), 7);
        TransposeWords(from.data(), rows, cols, cols + 2, to.data(), rows + 3, target);
        EXPECT_EQ(to, want) << target << " " << rows << "x" << cols;
      }
    }
  }
}

}  // namespace
}  // namespace aqt::kernels
