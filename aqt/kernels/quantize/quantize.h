#ifndef AQT_KERNELS_QUANTIZE_QUANTIZE_H_
#define AQT_KERNELS_QUANTIZE_QUANTIZE_H_

// Converts float matrices to integers of 2 to 8 bits (one per int8) and back, elementwise, with given scales.
//
// With T the dtype of the floats and R(v) the f32 value v rounded to T (nearest, ties to even):
//   kMultiplyByInverse (AQT):             q = round(clamp(R(x * inv_scale), lo, hi))
//     with noise:                         q = round(clamp(R(R(x * inv_scale) + noise), lo, hi))
//   kDivideByScale (compressed-tensors):  q = round(clamp(R(R(x / scale) + zero_point), lo, hi))
//   DequantizeMatrix (both):              x = R(R(q - zero_point) * scale)
// round() goes to the nearest integer, ties to even. A NaN before round() gives q = 0. A NaN result of DequantizeMatrix
// is the positive quiet NaN of T (0x7fc00000, 0x7fc0, 0x7e00). All targets give the same bits. quantize_reference.h is
// the plain version.
//
// With `subnormals_are_zero` (AQT uses XLA's arithmetic) subnormal f32 and bf16 x and scales are treated as zero; f16
// subnormals never are. Results need no such rule: a subnormal quotient or product rounds to the integer 0, and a
// nonzero integer times a normal scale is normal; noise hides it or is 0, too. The comparison is explicit; the
// processor's own flush mode is not touched and should be off.

#include <cstdint>
#include <optional>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/scale_grid.h"
#include "aqt/kernels/random/noise.h"

namespace aqt::kernels {

// How a value becomes an integer: the formulas above.
enum class QuantizeRule : uint8_t { kMultiplyByInverse, kDivideByScale };

// The noise of a matrix: element (r, c) gets the noise derived from number first + r * row_stride + c * col_stride.
struct NoiseMatrix {
  const RandomNumbers* numbers = nullptr;  // null: no noise
  int64_t first = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

// The input, scales and output of QuantizeMatrix.
struct QuantizeMatrixArgs {
  FloatMatrix x;
  // The dtype of R, if it differs from that of x; only for an f32 x and kMultiplyByInverse.
  std::optional<DType> product_dtype;
  QuantizeRule rule = QuantizeRule::kMultiplyByInverse;
  // For kMultiplyByInverse, grid.scale holds inverse scales and grid.zero_point is null.
  ScaleGrid grid;
  // Integers with -128 <= lo <= hi <= 127: -127 and 127 for 8 bits in AQT, -128 and 127 in compressed-tensors.
  float lo = -127;
  float hi = 127;
  bool subnormals_are_zero = false;  // kMultiplyByInverse only
  NoiseMatrix noise;                 // kMultiplyByInverse only
  // If not 0, x continues past these rows, and data `ahead` elements later may be prefetched into L2.
  int64_t ahead = 0;
  // Element (r, c) goes to q[r * q_row_stride + c * q_col_stride].
  int8_t* q = nullptr;
  int64_t q_row_stride = 0;
  int64_t q_col_stride = 1;
};
// Quantizes a matrix by the formulas above.
void QuantizeMatrix(const QuantizeMatrixArgs& args, Target target = BestTarget());

// The same for 4-bit integers, packed into the words that PackWords (pack_words.h) would make of each row; row r starts
// at words[r * row_stride]. args.q is ignored. Returns false, with nothing done, where this would not be faster. It
// supports f32 and bf16 divided by scales of whole rows or of groups of a multiple of 64 elements, with AVX-512.
bool QuantizeToNibbles(const QuantizeMatrixArgs& args, int32_t* words, int64_t row_stride,
                       Target target = BestTarget());

// n elements, `stride` apart, of f32, bf16, f16 or byte integers (s8, s4, s2).
struct Line {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 1;
  // If not null, element i is multiplied by factor[i * factor_stride] and rounded to `dtype`, which must be a float.
  const float* factor = nullptr;
  int64_t factor_stride = 0;  // 0 or 1
  // Whether subnormal f32 and bf16 elements and products become zeros.
  bool subnormals_are_zero = false;
};

// out[i] = element i, for i < n.
void LoadLine(const Line& line, int64_t n, float* out, Target target = BestTarget());

// The input, scales and output of DequantizeMatrix.
struct DequantizeMatrixArgs {
  const int8_t* q = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t q_row_stride = 0;
  int64_t q_col_stride = 1;
  ScaleGrid grid;
  bool subnormals_are_zero = false;
  // Element (r, c) goes to x[r * row_stride + c * col_stride], with element type `dtype` (kF32, kBF16 or kF16).
  void* x = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};
// Dequantizes a matrix by the formula above.
void DequantizeMatrix(const DequantizeMatrixArgs& args, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_QUANTIZE_H_
