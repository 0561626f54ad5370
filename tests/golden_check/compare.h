#ifndef AQT_TESTS_GOLDEN_CHECK_COMPARE_H_
#define AQT_TESTS_GOLDEN_CHECK_COMPARE_H_

// How close a computed tensor must be to a recorded one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aqt/core/array.h"

namespace aqt::golden {

struct Tolerance {
  enum class Kind {
    kExact,  // equal values; NaN equals NaN, -0 equals +0
    kRtol,   // |got - want| <= atol + value * |want|, or equal as above
    // At most `value` numbers of the dtype apart, and different somewhere: for what the original computes with a
    // function of its own that is sometimes off by a unit (XLA's pow). Equal values fail, so that no such case is
    // listed without need.
    kUnits,
    kInfo,  // anything
  };
  Kind kind = Kind::kExact;
  double value = 0, atol = 0;  // kRtol; value also of kUnits
  // kRtol: instead of the formula, the wanted value (a power of two), its half or its double.
  bool po2 = false;
  // Names of recorded tensors to compute from, instead of from the library's own earlier results.
  std::vector<std::string> given = {};
};

// Null if `got` is good enough; otherwise what is wrong: "is f32[2], want f32[3]", or the first element that is out of
// tolerance, "[1,2]: got 3, want 4". Dtype and shape must be equal except for kInfo. An infinite wanted value equals
// only itself, unless atol is infinite: then every number will do.
std::optional<std::string> Compare(const Array& got, const Array& want, const Tolerance& tolerance);

// How many elements are a zero of one sign in `got`, and of the other in `want`. Both have the same dtype and shape.
int64_t CountSignedZeros(const Array& got, const Array& want);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_COMPARE_H_
