#include "aqt/kernels/reduce/cumulative.h"

#include <algorithm>
#include <cstdint>

#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::kernels {
namespace {

// Sums of this many neighbours are kept at a time.
constexpr int64_t kSums = 256;

template <class T>
void CumulativeSumOf(const T* x, int64_t outer, int64_t n, int64_t inner, bool reverse, T* out) {
  using C = internal::ComputeType<T>;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t first = 0; first < inner; first += kSums) {
      const int64_t count = std::min(kSums, inner - first);
      C sums[kSums];
      std::fill(sums, sums + count, C{0});
      for (int64_t k = 0; k < n; ++k) {
        const int64_t row = (o * n + (reverse ? n - 1 - k : k)) * inner + first;
        for (int64_t i = 0; i < count; ++i) {
          sums[i] = internal::AddWrapping(sums[i], internal::Load(x[row + i]));
          out[row + i] = internal::Store<T>(sums[i]);
        }
      }
    }
  }
}

}  // namespace

void CumulativeSum(DType dtype, const void* x, int64_t outer, int64_t n, int64_t inner, bool reverse, void* out) {
  internal::VisitArithmetic(dtype, [&]<class T>() {
    CumulativeSumOf(static_cast<const T*>(x), outer, n, inner, reverse, static_cast<T*>(out));
  });
}

}  // namespace aqt::kernels
