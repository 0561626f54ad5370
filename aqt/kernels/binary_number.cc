#include "aqt/kernels/binary_number.h"

#include <cstdint>

#include "aqt/core/check.h"
#include "aqt/kernels/arithmetic-inl.h"
#include "aqt/kernels/elementwise.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/binary_number.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/vector-loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

void WithNumbers(BinaryKind kind, const float* x, const float* numbers, bool number_first, int64_t rows,
                 int64_t columns, float* out) {
  AQT_CHECK(internal::VisitBinary<float>(kind, [&](auto f) {
    for (int64_t r = 0; r < rows; ++r, x += columns, out += columns) {
      const float number = numbers[r];
      if (number_first) {
        ForEach(
            columns, out, [=](float v) { return f(number, v); }, x);
      } else {
        ForEach(
            columns, out, [=](float v) { return f(v, number); }, x);
      }
    }
  }));
}

void SumOf(const ScaledRow& a, const ScaledRow& b, bool subtract, int64_t n, float* out) {
  const float a1 = a.first, a2 = a.second, b1 = b.first, b2 = b.second;
  const auto map = [&](auto f) { ForEach(n, out, f, a.x, b.x); };
  // Times 1 changes nothing.
  if (a2 == 1 && b2 == 1) {
    if (subtract) return map([=](float x, float y) { return x * a1 - y * b1; });
    return map([=](float x, float y) { return x * a1 + y * b1; });
  }
  if (subtract) return map([=](float x, float y) { return x * a1 * a2 - y * b1 * b2; });
  map([=](float x, float y) { return x * a1 * a2 + y * b1 * b2; });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

bool TakesNumber(BinaryKind kind) {
  return internal::VisitBinary<float>(kind, [](auto) {});
}

void BinaryWithNumber(BinaryKind kind, const float* x, float number, bool number_first, int64_t n, float* out,
                      Target target) {
  BinaryWithNumbers(kind, x, &number, number_first, 1, n, out, target);
}

void BinaryWithNumbers(BinaryKind kind, const float* x, const float* numbers, bool number_first, int64_t rows,
                       int64_t columns, float* out, Target target) {
  AQT_HWY_DISPATCH(target, WithNumbers)(kind, x, numbers, number_first, rows, columns, out);
}

void SumOfScaled(const ScaledRow& a, const ScaledRow& b, bool subtract, int64_t n, float* out, Target target) {
  AQT_HWY_DISPATCH(target, SumOf)(a, b, subtract, n, out);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
