#ifndef AQT_KERNELS_RANDOM_NOISE_H_
#define AQT_KERNELS_RANDOM_NOISE_H_

// The random numbers of core/rng.h in bulk, and noise derived from them.
//
// Number i of a draw is a function of i alone, so any part can be computed anywhere. All targets give the same bits.

#include <cstdint>

#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"

namespace aqt::kernels {

// The numbers of one draw, and the noise derived from a number w:
//   kBits32, RandomBits::Bits32   UniformF32(w) - 0.5                    2^23 values from -0.5 to 0.5 - 2^-23
//   kBits16, RandomBits::Bits16   (w + 0.5) / 2^16 - 0.5                 2^16 values, symmetric around 0
//   kFast, FastBits::Bits32       (floor(w / 2^10) + 0.5) / 2^22 - 0.5   2^22 values, symmetric around 0
// All are computed exactly.
class RandomNumbers {
 public:
  enum class Kind : uint8_t { kBits32, kBits16, kFast };

  static RandomNumbers Bits32(const RandomBits& bits) { return RandomNumbers(Kind::kBits32, bits, FastBits()); }
  static RandomNumbers Bits16(const RandomBits& bits) { return RandomNumbers(Kind::kBits16, bits, FastBits()); }
  static RandomNumbers Fast(Key key) { return RandomNumbers(Kind::kFast, RandomBits(key, 0), FastBits(key)); }

  Kind kind() const { return kind_; }
  const RandomBits& bits() const { return bits_; }  // not for kFast
  const FastBits& fast() const { return fast_; }    // for kFast only

 private:
  RandomNumbers(Kind kind, const RandomBits& bits, const FastBits& fast) : kind_(kind), bits_(bits), fast_(fast) {}

  Kind kind_;
  RandomBits bits_;
  FastBits fast_;
};

// out[j] = number first + j * stride, for j < n; stride >= 0. All these numbers must belong to the draw. Fastest with
// stride 0 or 1.
void FillRandom(const RandomNumbers& numbers, int64_t first, int64_t stride, int64_t n, uint32_t* out,
                Target target = BestTarget());

// out[j] = the noise derived from number first + j * stride.
void FillNoise(const RandomNumbers& numbers, int64_t first, int64_t stride, int64_t n, float* out,
               Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_RANDOM_NOISE_H_
