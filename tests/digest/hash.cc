#include "tests/digest/hash.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"

namespace aqt::digest {
namespace {

template <class T>
bool IsNan(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(x);
  } else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16> || std::is_same_v<T, Float8E4M3FN> ||
                       std::is_same_v<T, Float8E5M2>) {
    return std::isnan(ToFloat(x));
  } else {
    return false;
  }
}

}  // namespace

void Hash::AddBytes(const void* data, int64_t n) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (int64_t i = 0; i < n; ++i) value_ = (value_ ^ bytes[i]) * 0x100000001b3u;
}

Hash& Hash::Add(int64_t number) {
  AddBytes(&number, sizeof number);
  return *this;
}

Hash& Hash::Add(absl::string_view text) {
  Add(static_cast<int64_t>(text.size()));
  AddBytes(text.data(), static_cast<int64_t>(text.size()));
  return *this;
}

Hash& Hash::Add(const ArrayRef& array) {
  Add(array.aval().ToString());
  const Array dense = Array::CopyOf(array);
  VisitDType(array.dtype, [&]<class T>() {
    for (const T& x : dense.View<T>()) {
      if (IsNan(x)) {
        Add("NaN");
      } else {
        AddBytes(&x, sizeof x);
      }
    }
  });
  return *this;
}

}  // namespace aqt::digest
