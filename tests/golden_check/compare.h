#ifndef AQT_TESTS_GOLDEN_CHECK_COMPARE_H_
#define AQT_TESTS_GOLDEN_CHECK_COMPARE_H_

// The tolerance of a computed tensor.

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
    // At most `value` units of the dtype apart, and different somewhere: for results of a function of the original that
    // is sometimes off by a unit (XLA's pow). Equal values fail, so that no case is listed needlessly.
    kUnits,
    kInfo,  // anything
  };
  Kind kind = Kind::kExact;
  double value = 0, atol = 0;  // kRtol; value also of kUnits
  // kRtol: instead of the formula, accepts the wanted value (a power of two), its half or its double.
  bool po2 = false;
  // Names of recorded tensors that replace the library's own earlier results.
  std::vector<std::string> given = {};
};

// Null if `got` is within the tolerance; otherwise the error: "is f32[2], want f32[3]", or the first element that is
// out of tolerance, "[1,2]: got 3, want 4". Dtype and shape must be equal except for kInfo. An infinite wanted value
// equals only itself, unless atol is infinite: then every number passes.
std::optional<std::string> Compare(const Array& got, const Array& want, const Tolerance& tolerance);

// The number of elements that are zero with different signs in `got` and `want`. Both have the same dtype and shape.
int64_t CountSignedZeros(const Array& got, const Array& want);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_COMPARE_H_
