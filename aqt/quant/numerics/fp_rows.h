#ifndef AQT_QUANT_NUMERICS_FP_ROWS_H_
#define AQT_QUANT_NUMERICS_FP_ROWS_H_

// Rounding to small float formats (Fp in config.h), on pieces of bf16 values held as floats. Internal.
//
// Radix 2, with sub = has_subnormals: exponents 2^0 .. 2^(2^nexp - 1 - sub); with sub also multiples of 2^-nmant below
// 1, without, there is no zero and everything below 1 becomes +-1.
//   to nearest   half a step is added to the bit pattern and the rest cut off: ties go away from zero; below 1 with
//                sub, to even. Beyond the largest value: the largest. A NaN pattern is clamped like a number, so it
//                ends as +-max (nmant > 0) or as the number that its carry makes of it; if all is subnormal (nexp =
//                0) NaN stays.
//   stochastic   random bits instead of half a step; the same draw below 1
// Radix 4: 0, +-4^-3 .. +-4^3; to nearest in the sense that 1.6 |x| >= 4^e gives at least 4^e.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics_rows.h"

namespace aqt::internal {

// InvalidArgument for meaningless formats, Unimplemented for those that AQT describes but does not round to.
absl::Status ValidateFpFormat(const FpFormat& format);

// The largest value.
double FpMax(const FpFormat& format);

// y = y rounded; the values are of bf16, or of f32 when there are no draws. Uses 16 bits per element.
void RoundFpRow(const FpFormat& format, const Draws& draws, float* y, int64_t n);

// The largest |y| of values of `dtype` that does not become NaN. Null if even NaN becomes a number (the largest, with
// its sign).
std::optional<float> LargestWithoutNan(const Fp& numerics, DType dtype);

}  // namespace aqt::internal

#endif  // AQT_QUANT_NUMERICS_FP_ROWS_H_
