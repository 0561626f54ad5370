#include "serving/tools/finite.h"

#include <algorithm>
#include <cstring>

#include "aqt/core/check.h"

namespace aqt::serving {
namespace {

// A value is not finite when all bits of its exponent are set. Blocks are tested without a branch per value and have
// one length, so that the compiler vectorizes. This runs at about memory speed.
template <class Bits>
int64_t First(const void* data, Bits exponent, int64_t n) {
  constexpr int64_t kBlock = 1024;
  const auto at = [data](int64_t i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    return bits;
  };
  int64_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    Bits any = 0;
    for (int64_t i = 0; i < kBlock; ++i) any |= static_cast<Bits>((at(begin + i) & exponent) == exponent ? ~0 : 0);
    if (any != 0) break;
  }
  for (; begin < n; ++begin) {
    if ((at(begin) & exponent) == exponent) return begin;
  }
  return -1;
}

}  // namespace

int64_t FirstNonFinite(const void* data, DType dtype, int64_t n) {
  switch (dtype) {
    case DType::kF32: return First<uint32_t>(data, 0x7f800000u, n);
    case DType::kBF16: return First<uint16_t>(data, 0x7f80u, n);
    case DType::kF16: return First<uint16_t>(data, 0x7c00u, n);
    default: AQT_CHECK(false);
  }
}

}  // namespace aqt::serving
