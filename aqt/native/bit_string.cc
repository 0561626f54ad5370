#include "aqt/native/bit_string.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/status_macros.h"

namespace aqt::native {
namespace {

constexpr int64_t kBlock = 4096;

// The least code and the number of codes.
struct Codes {
  int least, count;
};
Codes CodesOf(DType dtype, int bits) {
  const int count = 1 << bits;
  return {dtype == DType::kU8 ? 0 : -count / 2, count};
}

}  // namespace

int64_t PackedBytes(int64_t n, int bits) { return n / 8 * bits + (n % 8 * bits + 7) / 8; }

absl::StatusOr<std::vector<uint8_t>> Pack(const Array& values, const BitPacking& packing) {
  const int64_t n = values.num_elements(), element_size = SizeOf(values.dtype());
  const Codes codes = CodesOf(values.dtype(), packing.bits);
  std::vector<uint8_t> bytes(PackedBytes(n, packing.bits) + 1);  // one more: a code is written into two bytes
  std::vector<double> block;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    block.resize(std::min(kBlock, n - begin));
    const int64_t size = static_cast<int64_t>(block.size());
    const auto* from = static_cast<const uint8_t*>(values.data()) + begin * element_size;
    AQT_RETURN_IF_ERROR(CastArray(ArrayRef(values.dtype(), {size}, from), MutableArrayRef(block.data(), {size})));
    for (int64_t i = 0; i < size; ++i) {
      const double code = block[i] - (packing.half ? 0.5 : 0);
      if (!(code >= codes.least && code < codes.least + codes.count) || code != std::floor(code) ||
          (block[i] == 0 && std::signbit(block[i]))) {
        return absl::InvalidArgumentError(
            absl::StrCat("element ", begin + i, " is ", block[i], ", which has no code of ", packing.bits, " bits (",
                         codes.least + 0.5 * packing.half, " to ", codes.least + codes.count - 1 + 0.5 * packing.half,
                         "); use more bits, or bits = 0 to store the qvalue in its dtype"));
      }
      const int64_t bit = (begin + i) * packing.bits;
      const unsigned low = static_cast<unsigned>(static_cast<int>(code)) & (codes.count - 1);
      bytes[bit / 8] |= static_cast<uint8_t>(low << bit % 8);
      bytes[bit / 8 + 1] |= static_cast<uint8_t>(low << bit % 8 >> 8);
    }
  }
  bytes.pop_back();
  return bytes;
}

absl::StatusOr<Array> Unpack(absl::Span<const uint8_t> bytes, const BitPacking& packing, const Aval& aval) {
  const int64_t n = aval.shape.num_elements(), element_size = SizeOf(aval.dtype);
  const Codes codes = CodesOf(aval.dtype, packing.bits);
  if (const int64_t used = n * packing.bits % 8; used != 0 && bytes.back() >> used != 0) {
    return absl::DataLossError("has bits past its last element");
  }
  ArrayBuilder values = ArrayBuilder::ForOverwrite(aval);
  std::vector<double> block, back;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    block.resize(std::min(kBlock, n - begin));
    back.resize(block.size());
    const int64_t size = static_cast<int64_t>(block.size());
    for (int64_t i = 0; i < size; ++i) {
      const int64_t bit = (begin + i) * packing.bits, at = bit / 8;
      const unsigned pair = bytes[at] | (at + 1 < static_cast<int64_t>(bytes.size()) ? bytes[at + 1] << 8 : 0);
      const int low = static_cast<int>(pair >> bit % 8 & (codes.count - 1));
      block[i] = (low >= codes.least + codes.count ? low - codes.count : low) + (packing.half ? 0.5 : 0);
    }
    auto* to = static_cast<uint8_t*>(values.data()) + begin * element_size;
    AQT_RETURN_IF_ERROR(
        CastArray(ArrayRef(DType::kF64, {size}, block.data()), MutableArrayRef(aval.dtype, {size}, to)));
    AQT_RETURN_IF_ERROR(CastArray(ArrayRef(aval.dtype, {size}, to), MutableArrayRef(back.data(), {size})));
    if (block != back) {
      return absl::DataLossError(absl::StrCat("has values that ", ToString(aval.dtype), " cannot hold"));
    }
  }
  return std::move(values).Build();
}

}  // namespace aqt::native
