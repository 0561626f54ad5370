#ifndef AQT_TESTING_SAME_BITS_H_
#define AQT_TESTING_SAME_BITS_H_

#include "aqt/core/array.h"

namespace aqt {

// As BitEqual, but any NaN is equal to any other: of a NaN only that it is one is promised (docs/bits.md).
bool SameBits(const Array& a, const Array& b);

}  // namespace aqt

#endif  // AQT_TESTING_SAME_BITS_H_
