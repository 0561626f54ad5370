#ifndef AQT_KERNELS_QUANTIZE_ABSMAX_H_
#define AQT_KERNELS_QUANTIZE_ABSMAX_H_

// Ranges of float matrices: the absolute maximum, or the minimum and maximum, of rows, of groups within a row, or of
// all elements.
//
// Results are exact, so they have the same bits on every target and for any blocking and order:
//   a NaN anywhere in a unit makes its results NaN (the pattern 0x7fc00000);
//   subnormal inputs keep their values (a caller that flushes them flushes the result);
//   -0 is less than +0; the absolute maximum of zeros is +0.
// absmax_reference.h is the plain version.

#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

// A strided view of a float matrix: element (r, c) is data[r * row_stride + c * col_stride]. Strides count elements,
// may be 0 or negative, and need no alignment. Fastest if one stride is 1.
struct FloatMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // kF32, kBF16 or kF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};

// The number of groups of `group` columns; the last group may be shorter.
inline int64_t NumGroups(int64_t cols, int64_t group) { return CeilDiv(cols, group); }

struct Range {
  float min;
  float max;
};

// absmax[r * NumGroups(cols, group) + g] = max |x(r, c)| over c in [g * group, (g + 1) * group) and c < cols. group >=
// 1; group = cols (if cols > 0) gives one value per row. Values have x's dtype, held in f32. With no columns nothing is
// written.
void AbsMaxGroups(const FloatMatrix& x, int64_t group, float* absmax, Target target = BestTarget());

// Like AbsMaxGroups, for the minimum and maximum.
void MinMaxGroups(const FloatMatrix& x, int64_t group, float* min, float* max, Target target = BestTarget());

// max |x(r, c)| over all elements; 0 for an empty matrix.
float AbsMaxAll(const FloatMatrix& x, Target target = BestTarget());

// The minimum and maximum over all elements; {inf, -inf} for an empty matrix.
Range MinMaxAll(const FloatMatrix& x, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_ABSMAX_H_
