#ifndef AQT_CORE_RNG_H_
#define AQT_CORE_RNG_H_

// Counter-based random numbers: Threefry-2x32 (20 rounds) with the key handling of jax.random, bit for bit.
//
// Nothing here has state. Number i of a draw is a function of (key, size of the draw, i), so any part of a draw can be
// computed on any thread. kernels/random/noise.h draws numbers in bulk; this file is plain and slow.
//
//   const Key key = MakeKey(0);
//   RandomBits bits(SplitKey(key, 2, 0), n);
//   for (int64_t i = 0; i < n; ++i) u[i] = UniformF32(bits.Bits32(i));   // in [0, 1)

#include <array>
#include <cstdint>
#include <ostream>

namespace aqt {

// jax.random's raw key: words (hi, lo).
struct Key {
  uint32_t hi = 0, lo = 0;
  bool operator==(const Key&) const = default;
};
std::ostream& operator<<(std::ostream& os, const Key& key);

// How counters map to random numbers.
enum class PrngLayout : uint8_t {
  kPartitionable,  // number i depends only on counter i; JAX's default since 2024
  kOriginal,       // counters paired over the whole draw (jax_threefry_partitionable off)
};

// jax.random.PRNGKey(seed): the high and low halves of the seed.
inline Key MakeKey(uint64_t seed) { return {static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(seed)}; }

// The Threefry-2x32 block function applied to the counter (x0, x1).
std::array<uint32_t, 2> Threefry2x32(Key key, uint32_t x0, uint32_t x1);

// Key number `index` of jax.random.split(key, count); 0 <= index < count < 2^31.
Key SplitKey(Key key, int64_t count, int64_t index, PrngLayout layout = PrngLayout::kPartitionable);

// jax.random.fold_in(key, data); the same in both layouts.
Key FoldIn(Key key, uint32_t data);

// jax.random.bits(key, (size,)) at 32, 16 or 8 bits per number. In the original layout, size < 2^32.
class RandomBits {
 public:
  RandomBits(Key key, int64_t size, PrngLayout layout = PrngLayout::kPartitionable)
      : key_(key), size_(size), layout_(layout) {}

  uint32_t Bits32(int64_t i) const {
    return layout_ == PrngLayout::kPartitionable ? PartitionableWord(i) : OriginalWord(i, size_);
  }
  uint16_t Bits16(int64_t i) const {
    if (layout_ == PrngLayout::kPartitionable) return static_cast<uint16_t>(PartitionableWord(i));
    return static_cast<uint16_t>(OriginalWord(i / 2, (size_ + 1) / 2) >> (16 * (i % 2)));
  }
  uint8_t Bits8(int64_t i) const {
    if (layout_ == PrngLayout::kPartitionable) return static_cast<uint8_t>(PartitionableWord(i));
    return static_cast<uint8_t>(OriginalWord(i / 4, (size_ + 3) / 4) >> (8 * (i % 4)));
  }

  const Key& key() const { return key_; }
  int64_t size() const { return size_; }
  PrngLayout layout() const { return layout_; }

 private:
  uint32_t PartitionableWord(int64_t i) const;
  uint32_t OriginalWord(int64_t i, int64_t words) const;

  Key key_;
  int64_t size_;
  PrngLayout layout_;
};

// The library's own random words. They are about eight times as fast as Threefry-2x32 if the processor has AES
// instructions. Number i is word i % 4 of the block for counter i / 4, so it depends only on the key and i. A block is
// the counter, as the lower 64 of 128 bits, xor an even key, followed by three rounds of AES (as in AESENC) with an
// odd, the even and the odd key. The two keys are eight words of Threefry-2x32. Good enough for noise; not
// cryptographic, and not the random numbers of AQT.
class FastBits {
 public:
  using Words = std::array<uint32_t, 4>;  // a block; word 0 has the lowest bits

  FastBits() : FastBits(Key()) {}
  explicit FastBits(Key key);

  // One round of AES: ShiftRows, SubBytes, MixColumns, then xor `key`. Byte i of the state is byte i % 4 of word i / 4.
  static Words AesRound(const Words& state, const Words& key);

  Words Block(uint64_t counter) const;
  uint32_t Bits32(int64_t i) const { return Block(static_cast<uint64_t>(i) / 4)[i % 4]; }

  const Words& even_key() const { return even_key_; }
  const Words& odd_key() const { return odd_key_; }

 private:
  Words even_key_, odd_key_;
};

// jax.random.uniform in f32: the upper 23 bits of `word` mapped to [0, 1).
inline float UniformF32(uint32_t word) { return __builtin_bit_cast(float, (word >> 9) | 0x3F800000u) - 1.0f; }

}  // namespace aqt

#endif  // AQT_CORE_RNG_H_
