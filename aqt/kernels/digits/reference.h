#ifndef AQT_KERNELS_DIGITS_REFERENCE_H_
#define AQT_KERNELS_DIGITS_REFERENCE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/kernels/digits/digits.h"

namespace aqt::kernels {

// The sum that digits.h defines for one row x and one column q, before the epilogue; slow and obvious. `scales` has one
// element per scale group of the format, or is empty. format.n is ignored.
float ReferenceDigitSum(const DigitFormat& format, absl::Span<const float> x, absl::Span<const int8_t> q,
                        absl::Span<const float> scales);

// The same for an integer x, with one unit per scale group.
float ReferenceIntegerSum(const DigitFormat& format, absl::Span<const int8_t> x, absl::Span<const float> units,
                          absl::Span<const int8_t> q, absl::Span<const float> scales);

// The total number of layers of the row, over all groups.
int64_t ReferenceDigitLayers(const DigitFormat& format, absl::Span<const float> x);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_DIGITS_REFERENCE_H_
