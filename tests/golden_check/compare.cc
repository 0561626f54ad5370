#include "tests/golden_check/compare.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt::golden {
namespace {

bool SameValue(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// The order of the numbers of a dtype: neighbours differ by one, and both zeros are 0. `bits` is a finite number's.
int64_t Position(uint64_t bits, int num_bits) {
  const uint64_t sign = uint64_t{1} << (num_bits - 1);
  return (bits & sign) != 0 ? -static_cast<int64_t>(bits & ~sign) : static_cast<int64_t>(bits);
}

// The distance of two values in units of their dtype; null if one of them is not finite.
template <class T>
std::optional<int64_t> UnitsApart(T a, T b) {
  if (!std::isfinite(ConvertElement<double>(a)) || !std::isfinite(ConvertElement<double>(b))) return std::nullopt;
  uint64_t a_bits = 0, b_bits = 0;
  std::memcpy(&a_bits, &a, sizeof(T));
  std::memcpy(&b_bits, &b, sizeof(T));
  return std::abs(Position(a_bits, 8 * sizeof(T)) - Position(b_bits, 8 * sizeof(T)));
}

bool Accepts(const Tolerance& tolerance, double got, double want) {
  if (SameValue(got, want)) return true;
  if (tolerance.kind != Tolerance::Kind::kRtol) return false;
  if (tolerance.po2) return got == 0.5 * want || got == 2 * want;
  if (std::isinf(want) && !std::isinf(tolerance.atol)) return false;  // inf <= inf would always hold
  return std::fabs(got - want) <= tolerance.atol + tolerance.value * std::fabs(want);
}

// "[1,2]" for the element at `linear` of a dense array.
std::string Index(const Shape& shape, int64_t linear) {
  std::vector<int64_t> index(shape.rank());
  for (int64_t axis = shape.rank() - 1; axis >= 0; --axis) {
    index[axis] = linear % shape[axis];
    linear /= shape[axis];
  }
  return absl::StrCat("[", absl::StrJoin(index, ","), "]");
}

}  // namespace

std::optional<std::string> Compare(const Array& got, const Array& want, const Tolerance& tolerance) {
  if (tolerance.kind == Tolerance::Kind::kInfo) return std::nullopt;
  if (got.aval() != want.aval()) return absl::StrCat("is ", got.aval().ToString(), ", want ", want.aval().ToString());
  return VisitDType(want.dtype(), [&]<class T>() -> std::optional<std::string> {
    const absl::Span<const T> g = got.View<T>(), w = want.View<T>();
    bool equal = true;
    for (int64_t i = 0; i < want.num_elements(); ++i) {
      // Exact for every dtype of recorded data; 64-bit integers beyond 2^53 do not occur.
      const double got_value = ConvertElement<double>(g[i]), want_value = ConvertElement<double>(w[i]);
      if (tolerance.kind == Tolerance::Kind::kUnits) {
        if (SameValue(got_value, want_value)) continue;
        equal = false;
        const std::optional<int64_t> units = UnitsApart(g[i], w[i]);
        if (units.has_value() && *units <= tolerance.value) continue;
      }
      if (Accepts(tolerance, got_value, want_value)) continue;
      return absl::StrCat(Index(want.shape(), i), absl::StrFormat(": got %.10g, want %.10g", got_value, want_value));
    }
    if (tolerance.kind == Tolerance::Kind::kUnits && equal) return "is as recorded, but listed as some units off";
    return std::nullopt;
  });
}

int64_t CountSignedZeros(const Array& got, const Array& want) {
  return VisitDType(want.dtype(), [&]<class T>() -> int64_t {
    const absl::Span<const T> g = got.View<T>(), w = want.View<T>();
    int64_t count = 0;
    for (int64_t i = 0; i < want.num_elements(); ++i) {
      const double got_value = ConvertElement<double>(g[i]), want_value = ConvertElement<double>(w[i]);
      count += got_value == 0 && want_value == 0 && std::signbit(got_value) != std::signbit(want_value);
    }
    return count;
  });
}

}  // namespace aqt::golden
