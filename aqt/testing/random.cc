#include "aqt/testing/random.h"

#include "aqt/core/array_ops.h"

#include <utility>

namespace aqt::testing {

uint64_t Random::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double Random::Uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(Next() >> 11) * 0x1p-53);
}

Array RandomArray(const Aval& aval, uint64_t seed, double low, double high) {
  Random random(seed);
  ArrayBuilder numbers(DType::kF64, aval.shape);
  for (double& x : numbers.Mutable<double>()) x = random.Uniform(low, high);
  return Cast(std::move(numbers).Build(), aval.dtype);
}

}  // namespace aqt::testing
