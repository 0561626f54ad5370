#include "serving/tools/finite.h"

#include <algorithm>
#include <cstring>

#include "aqt/core/check.h"

namespace aqt::serving {
namespace {

// A value is not finite when all bits of its exponent are set. Blocks are tested without a branch per value and, padded
// with zeros, have one length, so that the compiler vectorizes. This runs at about memory speed.
template <class Bits>
int64_t First(const void* data, Bits exponent, int64_t n) {
  constexpr int64_t kBlock = 1024;
  Bits block[kBlock] = {};
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    std::memcpy(block, static_cast<const char*>(data) + begin * sizeof(Bits), size * sizeof(Bits));
    if (size < kBlock) std::fill(block + size, block + kBlock, Bits{0});
    Bits any = 0;
    for (int64_t i = 0; i < kBlock; ++i) any |= static_cast<Bits>((block[i] & exponent) == exponent ? ~0 : 0);
    if (any == 0) continue;
    for (int64_t i = 0; i < size; ++i) {
      if ((block[i] & exponent) == exponent) return begin + i;
    }
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
