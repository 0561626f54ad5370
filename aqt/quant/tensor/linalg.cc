#include "aqt/quant/tensor/linalg.h"

#include <algorithm>
#include <cmath>

namespace aqt::kernels {
namespace {

// Rows with this many columns (in Cholesky, columns with this many rows) stay in cache while the whole matrix streams
// past. Results do not depend on it: every element is computed from the same numbers in the same order.
constexpr int64_t kBlock = 64;

// Calls f(first, end) for blocks that cover [begin, end).
template <class F>
void ForEachBlock(int64_t begin, int64_t end, Executor* executor, F f) {
  if (begin >= end) return;
  const int64_t blocks = (end - begin + kBlock - 1) / kBlock;
  const auto run = [&](int64_t block) {
    const int64_t first = begin + block * kBlock;
    f(first, std::min(first + kBlock, end));
  };
  if (executor != nullptr) return executor->ParallelFor(blocks, run);
  for (int64_t block = 0; block < blocks; ++block) run(block);
}

}  // namespace

double Dot(const double* a, const double* b, int64_t n) {
  double s[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) s[j] += a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) s[j] += a[i + j] * b[i + j];
  for (int64_t j = 0; j < 4; ++j) s[j] += s[j + 4];
  return (s[0] + s[2]) + (s[1] + s[3]);
}

void AddScaled(double a, const double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}

int64_t CholeskyLower(int64_t n, double* a, Executor* executor) {
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = std::min(first + kBlock, n);
    const auto off_diagonal = [&](int64_t i, int64_t j) {
      a[i * n + j] = (a[i * n + j] - Dot(a + i * n, a + j * n, j)) / a[j * n + j];
    };
    for (int64_t i = first; i < end; ++i) {
      for (int64_t j = first; j < i; ++j) off_diagonal(i, j);
      const double pivot = a[i * n + i] - Dot(a + i * n, a + i * n, i);
      if (!(pivot > 0) || std::isinf(pivot)) return i;
      a[i * n + i] = std::sqrt(pivot);
    }
    ForEachBlock(end, n, executor, [&](int64_t i_first, int64_t i_end) {
      for (int64_t i = i_first; i < i_end; ++i) {
        for (int64_t j = first; j < end; ++j) off_diagonal(i, j);
      }
    });
  }
  return -1;
}

void InvertLower(int64_t n, const double* l, double* inverse, Executor* executor) {
  // By columns of the inverse: each is the solution for one column of the identity.
  ForEachBlock(0, n, executor, [&](int64_t first, int64_t end) {
    for (int64_t i = 0; i < n; ++i) {
      double* row = inverse + i * n + first;
      std::fill_n(row, end - first, 0.0);
      if (i < first) continue;
      if (i < end) row[i - first] = 1;
      for (int64_t k = first; k < i; ++k) AddScaled(-l[i * n + k], inverse + k * n + first, row, end - first);
      for (int64_t j = 0; j < end - first; ++j) row[j] /= l[i * n + i];
    }
  });
}

}  // namespace aqt::kernels
