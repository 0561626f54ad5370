#ifndef AQT_TESTING_RANDOM_H_
#define AQT_TESTING_RANDOM_H_

// Arrays of pseudo-random numbers for tests: a seed gives the same numbers on every machine.

#include <cstdint>

#include "aqt/core/array.h"

namespace aqt::testing {

// A small, fast generator (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // In 0 .. n-1; n >= 1.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  // In [low, high).
  double Uniform(double low, double high);

 private:
  uint64_t state_;
};

// Numbers drawn uniformly from [low, high), then rounded to the dtype.
Array RandomArray(const Aval& aval, uint64_t seed, double low = -2, double high = 2);

}  // namespace aqt::testing

#endif  // AQT_TESTING_RANDOM_H_
