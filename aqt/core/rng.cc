#include "aqt/core/rng.h"

#include "aqt/core/check.h"

namespace aqt {
namespace {

// The product of two bytes as polynomials over GF(2), modulo x^8 + x^4 + x^3 + x + 1.
constexpr uint8_t MultiplyInField(uint8_t a, uint8_t b) {
  uint32_t product = 0;
  for (int bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1) != 0) product ^= static_cast<uint32_t>(a) << bit;
  }
  for (int bit = 14; bit >= 8; --bit) {
    if ((product >> bit & 1) != 0) product ^= 0x11bu << (bit - 8);
  }
  return static_cast<uint8_t>(product);
}

// SubBytes: the inverse in that field (x^254; 0 for 0), followed by an affine map.
constexpr uint8_t Substitute(uint8_t x) {
  uint8_t inverse = 1;
  for (int i = 0; i < 254; ++i) inverse = MultiplyInField(inverse, x);
  uint32_t result = 0x63;
  for (int turn = 0; turn < 5; ++turn) result ^= static_cast<uint32_t>(inverse) << turn;
  return static_cast<uint8_t>(result ^ result >> 8);
}

uint32_t RotateLeft(uint32_t x, int bits) { return (x << bits) | (x >> (32 - bits)); }

// The contribution of byte 0 of a column to the column after SubBytes and MixColumns.
const std::array<uint32_t, 256>& Columns() {
  static const std::array<uint32_t, 256> columns = [] {
    std::array<uint32_t, 256> result;
    for (int x = 0; x < 256; ++x) {
      const uint32_t s = Substitute(static_cast<uint8_t>(x)), twice = MultiplyInField(static_cast<uint8_t>(s), 2);
      result[x] = twice | s << 8 | s << 16 | (twice ^ s) << 24;
    }
    return result;
  }();
  return columns;
}

// Word i of threefry_2x32(key, iota(words)). The counters, padded with 0 to an even count, are split into two halves:
// the first and the second input of the block function. Its two outputs are concatenated.
uint32_t OriginalWordOf(Key key, int64_t i, int64_t words) {
  AQT_DCHECK(i >= 0 && i < words && words < (int64_t{1} << 32));
  const int64_t half = (words + 1) / 2;
  const int64_t first = i < half ? i : i - half;
  const int64_t second = first + half < words ? first + half : 0;
  return Threefry2x32(key, static_cast<uint32_t>(first), static_cast<uint32_t>(second))[i < half ? 0 : 1];
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Key& key) { return os << "[" << key.hi << "," << key.lo << "]"; }

std::array<uint32_t, 2> Threefry2x32(Key key, uint32_t x0, uint32_t x1) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t schedule[3] = {key.hi, key.lo, key.hi ^ key.lo ^ 0x1BD11BDAu};
  x0 += schedule[0];
  x1 += schedule[1];
  for (uint32_t round = 0; round < 5; ++round) {
    for (const int r : kRotations[round % 2]) {
      x0 += x1;
      x1 = RotateLeft(x1, r) ^ x0;
    }
    x0 += schedule[(round + 1) % 3];
    x1 += schedule[(round + 2) % 3] + round + 1;
  }
  return {x0, x1};
}

Key SplitKey(Key key, int64_t count, int64_t index, PrngLayout layout) {
  AQT_DCHECK(0 <= index && index < count);
  if (layout == PrngLayout::kPartitionable) {
    const auto [hi, lo] = Threefry2x32(key, static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(index));
    return {hi, lo};
  }
  return {OriginalWordOf(key, 2 * index, 2 * count), OriginalWordOf(key, 2 * index + 1, 2 * count)};
}

Key FoldIn(Key key, uint32_t data) {
  const auto [hi, lo] = Threefry2x32(key, 0, data);
  return {hi, lo};
}

uint32_t RandomBits::PartitionableWord(int64_t i) const {
  const auto [a, b] = Threefry2x32(key_, static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(i));
  return a ^ b;
}

uint32_t RandomBits::OriginalWord(int64_t i, int64_t words) const { return OriginalWordOf(key_, i, words); }

FastBits::FastBits(Key key) {
  for (uint32_t i = 0; i < 4; ++i) {
    const auto [even, odd] = Threefry2x32(key, 0, i);
    even_key_[i] = even;
    odd_key_[i] = odd;
  }
}

FastBits::Words FastBits::Block(uint64_t counter) const {
  Words x = even_key_;
  x[0] ^= static_cast<uint32_t>(counter);
  x[1] ^= static_cast<uint32_t>(counter >> 32);
  return AesRound(AesRound(AesRound(x, odd_key_), even_key_), odd_key_);
}

FastBits::Words FastBits::AesRound(const Words& state, const Words& key) {
  const std::array<uint32_t, 256>& columns = Columns();
  Words result = key;
  for (int column = 0; column < 4; ++column) {
    for (int row = 0; row < 4; ++row) {
      const uint32_t byte = state[(column + row) % 4] >> (8 * row) & 0xff;  // ShiftRows
      result[column] ^= row == 0 ? columns[byte] : RotateLeft(columns[byte], 8 * row);
    }
  }
  return result;
}

}  // namespace aqt
