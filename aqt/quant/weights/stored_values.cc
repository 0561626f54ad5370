#include "aqt/quant/weights/stored_values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "aqt/core/check.h"

namespace aqt::stored_values {
namespace {

uint32_t LoadWord(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// The index of the first of x[0], ..., x[n - 1] that is bad; -1 if none is.
template <class T, class IsBad>
int64_t FirstWhere(const T* x, int64_t n, IsBad is_bad) {
  constexpr int64_t kBlock = 256;  // without an exit, so that it becomes vector code
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    uint32_t any = 0;
    for (int64_t i = begin; i < end; ++i) any |= is_bad(x[i]) ? 1 : 0;
    if (any != 0) return std::find_if(x + begin, x + end, is_bad) - x;
  }
  return -1;
}

// Calls f(begin, end, u) for the runs of [0, n) that share unit u.
template <class F>
void ForEachUnit(int64_t n, int64_t first, int64_t group, F f) {
  int64_t begin = 0, end = std::min(n, group - first % group);
  for (int64_t unit = 0; begin < n; ++unit) {
    f(begin, end, unit);
    begin = end;
    end = std::min(n, end + group);
  }
}

}  // namespace

float E8M0(uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f
                   : std::bit_cast<float>(uint32_t{code} << 23);  // the exponent of f32, which is 0 for 2^-127
}

void UnpackE4M3(const uint8_t* codes, int64_t n, float* values) {
  constexpr int64_t kCodes = 256;
  if (n < kCodes) {
    for (int64_t i = 0; i < n; ++i) values[i] = ToFloat(Float8E4M3FN{codes[i]});
    return;
  }
  std::array<float, kCodes> table;
  for (int64_t code = 0; code < kCodes; ++code) table[code] = ToFloat(Float8E4M3FN{static_cast<uint8_t>(code)});
  for (int64_t i = 0; i < n; ++i) values[i] = table[codes[i]];
}

int64_t FirstOutside(const int8_t* codes, int64_t n, int low, int high) {
  return FirstWhere(codes, n, [=](int8_t code) { return code < low || code > high; });
}

uint32_t BitFields::operator[](int64_t k) const {
  const uint32_t mask = (1u << bits) - 1;
  if (per_word > 0) return LoadWord(words + k / per_word * stride) >> k % per_word * bits & mask;
  const int64_t bit = k * bits;
  const int shift = static_cast<int>(bit % 32);
  const uint8_t* const at = words + bit / 32 * stride;
  uint32_t field = LoadWord(at) >> shift;
  if (shift + bits > 32) field |= LoadWord(at + stride) << (32 - shift);
  return field & mask;
}

void UnpackBits(const BitFields& fields, int64_t n, int bias, float* values) {
  for (int64_t k = 0; k < n; ++k) values[k] = static_cast<float>(static_cast<int>(fields[k]) - bias);
}

int64_t WordsFor(int64_t n, int bits, int64_t per_word) {
  return per_word > 0 ? (n + per_word - 1) / per_word : (n * bits + 31) / 32;
}

void AddToFields(int bits, int64_t n, uint8_t* words) {
  AQT_DCHECK(32 % bits == 0);
  uint32_t ones = 0;
  for (int bit = 0; bit < 32; bit += bits) ones |= 1u << bit;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t sum = LoadWord(words + 4 * i) + ones;
    std::memcpy(words + 4 * i, &sum, sizeof sum);
  }
}

void Scale(const float* q, const float* z, const float* s, int64_t n, int64_t first, int64_t group, float* w) {
  ForEachUnit(n, first, group, [&](int64_t begin, int64_t end, int64_t unit) {
    const float scale = s[unit], zero = z == nullptr ? 0.0f : z[unit];
    for (int64_t i = begin; i < end; ++i) w[i] = (q[i] - zero) * scale;
  });
}

void DivideScales(float global, int64_t n, float* s) {
  for (int64_t i = 0; i < n; ++i) s[i] = s[i] / global;
}

void MultiplyScales(float factor, int64_t n, float* s) {
  for (int64_t i = 0; i < n; ++i) s[i] = s[i] * factor;
}

void NestedScales(const uint8_t* codes, const float* map, const float* absmax, float offset, int64_t n, int64_t first,
                  int64_t block, float* s) {
  ForEachUnit(n, first, block, [&](int64_t begin, int64_t end, int64_t unit) {
    for (int64_t i = begin; i < end; ++i) s[i] = map[codes[i]] * absmax[unit] + offset;
  });
}

void Round(const float* w, int64_t n, DType dtype, uint8_t* out) {
  switch (dtype) {
    case DType::kF32: std::memcpy(out, w, n * sizeof(float)); return;
    case DType::kBF16:
      for (int64_t i = 0; i < n; ++i) {
        const uint16_t bits = RoundToBFloat16(w[i]).bits;
        std::memcpy(out + 2 * i, &bits, sizeof bits);
      }
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) {
        const uint16_t bits = RoundToFloat16(w[i]).bits;
        std::memcpy(out + 2 * i, &bits, sizeof bits);
      }
      return;
    default: AQT_CHECK(false);
  }
}

}  // namespace aqt::stored_values
