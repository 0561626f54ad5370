#ifndef AQT_KERNELS_QUANTIZE_QUANTIZE_TESTING_H_
#define AQT_KERNELS_QUANTIZE_QUANTIZE_TESTING_H_

// Float data and matrix layouts for the tests of absmax.h and quantize.h.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/absmax.h"

namespace aqt::kernels {

// The kinds of test values.
enum class Values {
  kUsual,    // within +-8, often at ties of x.5 or exact zeros
  kAnyBits,  // any bit pattern: NaN, infinities, subnormals
  kFinite,   // any bit pattern except NaN and infinity
};

template <class T>
std::vector<T> TestFloats(int64_t n, Values values, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> result(n);
  for (T& x : result) {
    if (values == Values::kUsual) {
      const float v = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-28f;
      x = RoundTo<T>(random() % 4 == 0 ? static_cast<float>(static_cast<int>(v * 2)) / 2 : v);
      continue;
    }
    do {
      const uint32_t bits = random();
      std::memcpy(static_cast<void*>(&x), &bits, sizeof x);
    } while (values == Values::kFinite && !(ToFloat(x) - ToFloat(x) == 0));
  }
  return result;
}

// Positive numbers of T held in f32.
template <class T>
std::vector<float> ScalesOf(int64_t n, Values values, uint32_t seed) {
  std::vector<float> scales(n);
  const std::vector<T> data = TestFloats<T>(n, values, seed);
  for (int64_t i = 0; i < n; ++i) scales[i] = std::fabs(ToFloat(data[i]));
  return scales;
}

// The values of all 65536 bit patterns of a 16-bit type.
template <class T>
std::vector<T> AllCodes() {
  std::vector<T> result(65536);
  for (uint32_t i = 0; i < 65536; ++i) result[i] = T{static_cast<uint16_t>(i)};
  return result;
}

// The memory layout of a rows x cols matrix.
enum class MatrixLayout { kRowMajor, kPaddedRows, kTransposed, kScattered, kReversed };
inline constexpr MatrixLayout kMatrixLayouts[] = {MatrixLayout::kRowMajor, MatrixLayout::kPaddedRows,
                                                  MatrixLayout::kTransposed, MatrixLayout::kScattered,
                                                  MatrixLayout::kReversed};
inline std::ostream& operator<<(std::ostream& os, MatrixLayout layout) {
  constexpr const char* kNames[] = {"row_major", "padded_rows", "transposed", "scattered", "reversed"};
  return os << kNames[static_cast<int>(layout)];
}

struct Placement {
  int64_t offset, row_stride, col_stride, size;  // offset of the first element; required memory
};
inline Placement PlacementOf(MatrixLayout layout, int64_t rows, int64_t cols) {
  switch (layout) {
    case MatrixLayout::kRowMajor: return {0, cols, 1, rows * cols};
    case MatrixLayout::kPaddedRows: return {1, cols + 3, 1, 1 + rows * (cols + 3)};  // no row is aligned
    case MatrixLayout::kTransposed: return {0, 1, rows, rows * cols};
    case MatrixLayout::kScattered: return {0, 3 * cols, 3, 3 * rows * cols};
    case MatrixLayout::kReversed: break;
  }
  return {std::max<int64_t>(rows * cols - 1, 0), -cols, -1, rows * cols};
}

template <class T>
FloatMatrix MatrixOf(const std::vector<T>& data, MatrixLayout layout, int64_t rows, int64_t cols) {
  const Placement p = PlacementOf(layout, rows, cols);
  return {data.data() + p.offset, kDTypeOf<T>, rows, cols, p.row_stride, p.col_stride};
}

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_QUANTIZE_QUANTIZE_TESTING_H_
