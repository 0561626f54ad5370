#ifndef AQT_QUANT_NUMERICS_FP_ROWS_H_
#define AQT_QUANT_NUMERICS_FP_ROWS_H_

// Rounding to small float formats (Fp in config.h), on pieces of bf16 values held as floats. Internal.
//
// Radix 2, with sub = has_subnormals: exponents 2^0 .. 2^(2^nexp - 1 - sub); with sub also multiples of 2^-nmant below
// 1, without, there is no zero and everything below 1 becomes +-1.
//   to nearest   half a step is added to the bit pattern and the low bits are cut off: ties go away from zero; below 1
//                with sub, to even. Values beyond the largest become the largest. A NaN pattern is clamped like a
//                number, so it becomes +-max (nmant > 0) or the number that its carry gives; if all values are
//                subnormal (nexp = 0), NaN stays.
//   stochastic   random bits instead of half a step; the same draw below 1
// Radix 4: 0, +-4^-3 .. +-4^3; to nearest means that 1.6 |x| >= 4^e gives at least 4^e.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/numerics_rows.h"

namespace aqt::internal {

// InvalidArgument for meaningless formats, Unimplemented for formats that AQT describes but does not round to.
absl::Status ValidateFpFormat(const FpFormat& format);

// The largest value.
double FpMax(const FpFormat& format);

// Rounds y in place. The values are bf16, or f32 without draws. Uses 16 random bits per element.
void RoundFpRow(const FpFormat& format, const Draws& draws, float* y, int64_t n);

// The largest |y| of `dtype` that does not become NaN. Null if even NaN becomes a number (the largest, with its sign).
std::optional<float> LargestWithoutNan(const Fp& numerics, DType dtype);

}  // namespace aqt::internal

#endif  // AQT_QUANT_NUMERICS_FP_ROWS_H_
