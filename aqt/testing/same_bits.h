#ifndef AQT_TESTING_SAME_BITS_H_
#define AQT_TESTING_SAME_BITS_H_

#include "aqt/core/array.h"

namespace aqt {

// Like BitEqual, but any NaN equals any other NaN: the bits of a NaN are not promised (docs/bits.md).
bool SameBits(const Array& a, const Array& b);

}  // namespace aqt

#endif  // AQT_TESTING_SAME_BITS_H_
