#include "aqt/core/rng.h"

#include "aqt/core/check.h"

namespace aqt {
namespace {

// The block function on n counters, in place. The loops over i have a constant length, so they are vectorized.
template <int n>
void Threefry(Key key, uint32_t* x0, uint32_t* x1) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t schedule[3] = {key.hi, key.lo, key.hi ^ key.lo ^ 0x1BD11BDAu};
  for (int i = 0; i < n; ++i) {
    x0[i] += schedule[0];
    x1[i] += schedule[1];
  }
  for (uint32_t round = 0; round < 5; ++round) {
    for (const int r : kRotations[round % 2]) {
      for (int i = 0; i < n; ++i) {
        x0[i] += x1[i];
        x1[i] = ((x1[i] << r) | (x1[i] >> (32 - r))) ^ x0[i];
      }
    }
    for (int i = 0; i < n; ++i) {
      x0[i] += schedule[(round + 1) % 3];
      x1[i] += schedule[(round + 2) % 3] + round + 1;
    }
  }
}

// Word i of threefry_2x32(key, iota(words)): the counters, padded with 0 to an even number, are cut into two halves,
// the first and the second input of the block function; its two outputs are concatenated.
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
  Threefry<1>(key, &x0, &x1);
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

void RandomBits::Fill32(int64_t first, int64_t n, uint32_t* out) const {
  constexpr int kBlock = 32;
  int64_t j = 0;
  if (layout_ == PrngLayout::kPartitionable) {
    for (; j + kBlock <= n; j += kBlock) {
      uint32_t x0[kBlock], x1[kBlock];
      for (int i = 0; i < kBlock; ++i) {
        const int64_t counter = first + j + i;
        x0[i] = static_cast<uint32_t>(counter >> 32);
        x1[i] = static_cast<uint32_t>(counter);
      }
      Threefry<kBlock>(key_, x0, x1);
      for (int i = 0; i < kBlock; ++i) out[j + i] = x0[i] ^ x1[i];
    }
  }
  for (; j < n; ++j) out[j] = Bits32(first + j);
}

uint32_t RandomBits::PartitionableWord(int64_t i) const {
  const auto [a, b] = Threefry2x32(key_, static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(i));
  return a ^ b;
}

uint32_t RandomBits::OriginalWord(int64_t i, int64_t words) const { return OriginalWordOf(key_, i, words); }

}  // namespace aqt
