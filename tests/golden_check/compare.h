#ifndef AQT_TESTS_GOLDEN_CHECK_COMPARE_H_
#define AQT_TESTS_GOLDEN_CHECK_COMPARE_H_

// How close a computed tensor must be to a recorded one.

#include <optional>
#include <string>
#include <vector>

#include "aqt/core/array.h"

namespace aqt::golden {

struct Tolerance {
  enum class Kind {
    kExact,  // equal values; NaN equals NaN, -0 equals +0
    kRtol,   // |got - want| <= atol + value * |want|, or equal as above
    kInfo,   // anything
  };
  Kind kind = Kind::kExact;
  double value = 0, atol = 0;  // kRtol
  // kRtol: instead of the formula, the wanted value (a power of two), its half or its double.
  bool po2 = false;
  // Names of recorded tensors to compute from, in place of the own earlier results.
  std::vector<std::string> given = {};
};

// Null when `got` is good enough; otherwise what is wrong: "is f32[2], want f32[3]", or the first element that is out
// of tolerance, "[1,2]: got 3, want 4". Dtype and shape must be equal except for kInfo. An infinite wanted value is
// reached by itself only, unless atol is infinite: then every number will do.
std::optional<std::string> Compare(const Array& got, const Array& want, const Tolerance& tolerance);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_COMPARE_H_
