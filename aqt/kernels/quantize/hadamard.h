#ifndef AQT_KERNELS_QUANTIZE_HADAMARD_H_
#define AQT_KERNELS_QUANTIZE_HADAMARD_H_

// The Walsh-Hadamard transform of rows, by blocks (QuaRot, Ashkboos et al. 2024, rotates operands with it before they
// are quantized: it spreads an outlier over a block and keeps all inner products).
//
// A row of n elements is cut into blocks of `block` elements, a power of two. If n is not a multiple of it, the rest is
// cut into the powers of two that it is the sum of, the largest first: 56 = 32 + 16 + 8. Each part of m elements is
// transformed alone:
//   y[i] = elements as f32
//   for h = 1, 2, 4, ..., m / 2:  for each i whose bit h is clear:  (y[i], y[i+h]) = (y[i] + y[i+h], y[i] - y[i+h])
//   y[i] = R(y[i] * s(m)),  s(m) = 1 / sqrt(m), rounded to f32;  R: to the dtype of the elements
// Each sum, difference and product is rounded to f32 (nearest, ties to even). Subnormals are kept, also where the
// arithmetic that follows takes them as zero. The sign and payload of a NaN are
// not specified.
//
// The transform is a symmetric orthogonal matrix, and its own inverse. s(m) is a power of two, thus exact, if m is a
// power of 4. Otherwise it is rounded, and the inner product of two transformed parts is 1 - 3.4e-8 times that of the
// parts (less than a rounding of f32 changes), even in exact arithmetic.
//
// All targets give the same bits. hadamard_reference.h is the plain version.

#include <bit>
#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"

namespace aqt::kernels {

inline constexpr int64_t kMinHadamardBlock = 2, kMaxHadamardBlock = 4096;

// Calls f(first, m, count) for runs of parts of equal size m in a row of n elements, in order.
template <class F>
void ForEachHadamard(int64_t n, int64_t block, const F& f) {
  int64_t first = 0;
  for (int64_t m = block; m >= 1 && first < n; m /= 2) {
    const int64_t count = (n - first) / m;
    if (count > 0) f(first, m, count);
    first += count * m;
  }
}

// s(m).
inline float HadamardScale(int64_t m) {
  const int log2 = std::bit_width(static_cast<uint64_t>(m)) - 1;
  float scale = log2 % 2 == 0 ? 1.0f : 0x1.6a09e6p-1f;
  for (int i = 0; i < log2 / 2; ++i) scale *= 0.5f;
  return scale;
}

// Rows of contiguous elements: element (r, i) is x[r * x_row_stride + i]. `out` is x itself, with the same stride, or
// does not overlap it.
struct HadamardArgs {
  const void* x = nullptr;
  void* out = nullptr;
  DType dtype = DType::kF32;  // f32, bf16 or f16; of both
  int64_t rows = 0;
  int64_t n = 0;
  int64_t x_row_stride = 0, out_row_stride = 0;
  int64_t block = kMinHadamardBlock;  // a power of two, at most kMaxHadamardBlock
};
void HadamardRows(const HadamardArgs& args, Target target = BestTarget());

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_HADAMARD_H_
