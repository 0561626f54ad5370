#ifndef AQT_NATIVE_BIT_STRING_H_
#define AQT_NATIVE_BIT_STRING_H_

// Values of 1 to 8 bits as one string of bits: docs/formats/native.md.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"

namespace aqt::native {

// How a value of some dtype becomes a code of `bits` bits: value = code, or code + 1/2. Codes are in two's complement,
// or unsigned for u8.
struct BitPacking {
  int bits = 8;  // 1 .. 8
  bool half = false;
};

// The bytes of n codes. Element i has the bits [i * bits, (i + 1) * bits), least significant first; unused bits of the
// last byte are 0.
int64_t PackedBytes(int64_t n, int bits);

// InvalidArgument, naming position and value, unless every value has a code with the same bits (-0 has none).
absl::StatusOr<std::vector<uint8_t>> Pack(const Array& values, const BitPacking& packing);
// The inverse of Pack, for values of `aval`, whose dtype is s2, s4, s8, u8, s32, f16, bf16 or f32. `bytes` has
// PackedBytes elements. DataLoss if an unused bit is not 0, or if the dtype cannot hold a value.
absl::StatusOr<Array> Unpack(absl::Span<const uint8_t> bytes, const BitPacking& packing, const Aval& aval);

}  // namespace aqt::native

#endif  // AQT_NATIVE_BIT_STRING_H_
