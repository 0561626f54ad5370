#include "tests/golden_check/compare.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt::golden {
namespace {

bool SameValue(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool Accepts(const Tolerance& tolerance, double got, double want) {
  if (SameValue(got, want)) return true;
  if (tolerance.kind == Tolerance::Kind::kExact) return false;
  if (tolerance.po2) return got == 0.5 * want || got == 2 * want;
  if (std::isinf(want) && !std::isinf(tolerance.atol)) return false;  // inf <= inf says nothing
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
    for (int64_t i = 0; i < want.num_elements(); ++i) {
      // Exact for every dtype of recorded data; 64-bit integers beyond 2^53 do not occur.
      const double got_value = ConvertElement<double>(g[i]), want_value = ConvertElement<double>(w[i]);
      if (Accepts(tolerance, got_value, want_value)) continue;
      return absl::StrCat(Index(want.shape(), i), absl::StrFormat(": got %.10g, want %.10g", got_value, want_value));
    }
    return std::nullopt;
  });
}

}  // namespace aqt::golden
