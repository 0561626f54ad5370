#include "aqt/kernels/quantize/hadamard_reference.h"

#include <cmath>
#include <cstdint>

#include "aqt/kernels/quantize/quantize_reference.h"

namespace aqt::kernels::reference {

void HadamardRow(DType dtype, int64_t block, int64_t n, float* row) {
  for (int64_t part = block; n > 0; part = n >= block ? block : part / 2) {
    if (part > n) continue;
    for (int64_t h = 1; h < part; h *= 2) {
      for (int64_t i = 0; i < part; ++i) {
        if ((i & h) != 0) continue;
        const float a = row[i], b = row[i + h];
        row[i] = a + b;
        row[i + h] = a - b;
      }
    }
    const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(part)));
    for (int64_t i = 0; i < part; ++i) row[i] = RoundToDType(row[i] * scale, dtype);
    row += part;
    n -= part;
  }
}

}  // namespace aqt::kernels::reference
