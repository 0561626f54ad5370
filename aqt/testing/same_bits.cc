#include "aqt/testing/same_bits.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"

namespace aqt {
namespace {

Array AsDoubles(const Array& x) {
  ArrayBuilder doubles(DType::kF64, x.shape());
  AQT_CHECK(CastArray(x, doubles.ref()).ok());
  return std::move(doubles).Build();
}

}  // namespace

bool SameBits(const Array& a, const Array& b) {
  if (a.aval() != b.aval()) return false;
  if (BitEqual(a, b)) return true;
  const Array x = AsDoubles(a), y = AsDoubles(b);
  const int64_t bytes = SizeOf(a.dtype());
  const auto* p = static_cast<const uint8_t*>(ArrayRef(a).data);
  const auto* q = static_cast<const uint8_t*>(ArrayRef(b).data);
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    const bool nan = std::isnan(x.View<double>()[i]) && std::isnan(y.View<double>()[i]);
    if (!nan && std::memcmp(p + i * bytes, q + i * bytes, static_cast<size_t>(bytes)) != 0) return false;
  }
  return true;
}

}  // namespace aqt
