#include "aqt/kernels/move/gather.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "aqt/kernels/simd/arithmetic-inl.h"

namespace aqt::kernels {
namespace {

int64_t RowOf(int32_t number, int64_t rows) { return std::clamp<int64_t>(number, 0, rows - 1); }

template <class T>
void ScatterAddOf(const T* updates, int64_t outer, int64_t rows, int64_t inner, absl::Span<const int32_t> numbers,
                  T* out) {
  using C = internal::ComputeType<T>;
  std::vector<C> wide(std::is_same_v<T, C> ? 0 : rows * inner);
  for (int64_t o = 0; o < outer; ++o, out += rows * inner) {
    C* sums = wide.data();
    if constexpr (std::is_same_v<T, C>) sums = out;
    std::fill_n(sums, rows * inner, C{0});
    for (const int32_t number : numbers) {
      C* row = sums + RowOf(number, rows) * inner;
      for (int64_t i = 0; i < inner; ++i) row[i] = internal::AddWrapping(row[i], internal::Load(updates[i]));
      updates += inner;
    }
    if constexpr (!std::is_same_v<T, C>) {
      for (int64_t i = 0; i < rows * inner; ++i) out[i] = internal::Store<T>(sums[i]);
    }
  }
}

}  // namespace

void TakeRows(DType dtype, const void* x, int64_t outer, int64_t rows, int64_t inner, absl::Span<const int32_t> numbers,
              void* out) {
  const int64_t bytes = inner * SizeOf(dtype);
  const char* from = static_cast<const char*>(x);
  char* to = static_cast<char*>(out);
  if (bytes == 0) return;
  for (int64_t o = 0; o < outer; ++o, from += rows * bytes) {
    for (const int32_t number : numbers) {
      std::memcpy(to, from + RowOf(number, rows) * bytes, bytes);
      to += bytes;
    }
  }
}

void ScatterAddRows(DType dtype, const void* updates, int64_t outer, int64_t rows, int64_t inner,
                    absl::Span<const int32_t> numbers, void* out) {
  if (outer * rows * inner == 0) return;
  internal::VisitArithmetic(dtype, [&]<class T>() {
    ScatterAddOf(static_cast<const T*>(updates), outer, rows, inner, numbers, static_cast<T*>(out));
  });
}

}  // namespace aqt::kernels
