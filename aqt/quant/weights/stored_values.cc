#include "aqt/quant/weights/stored_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "aqt/core/check.h"

namespace aqt::stored_values {
namespace {

constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

uint32_t LoadWord(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// Calls f(begin, end, u) for the runs of [0, n) that share unit u.
template <class F>
void ForEachUnit(int64_t n, int64_t first, int64_t group, F f) {
  int64_t unit = 0;
  for (int64_t begin = 0; begin < n; ++unit) {
    const int64_t end = std::min(n, begin + group - (first + begin) % group);
    f(begin, end, unit);
    begin = end;
  }
}

}  // namespace

float E2M1(uint8_t code) { return kE2M1[code & 15]; }

float E2M3(uint8_t code) {
  const int exponent = code >> 3 & 3, mantissa = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -3)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 4);
  return (code & 32) != 0 ? -magnitude : magnitude;
}

float E8M0(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int{code} - 127);
}

void UnpackE2M1(const uint8_t* bytes, int64_t num_bytes, float* values) {
  for (int64_t j = 0; j < num_bytes; ++j) {
    values[2 * j] = kE2M1[bytes[j] & 15];
    values[2 * j + 1] = kE2M1[bytes[j] >> 4];
  }
}

void UnpackE2M3(const uint8_t* bytes, int64_t num_bytes, float* values) {
  AQT_DCHECK(num_bytes % 3 == 0);
  for (int64_t j = 0; j < num_bytes / 3; ++j) {
    const uint32_t word = bytes[3 * j] | bytes[3 * j + 1] << 8 | bytes[3 * j + 2] << 16;
    for (int k = 0; k < 4; ++k) values[4 * j + k] = E2M3(static_cast<uint8_t>(word >> 6 * k & 63));
  }
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

void UnpackNibbles(const uint8_t* bytes, int64_t stride, int shift, int64_t n, float* values) {
  for (int64_t k = 0; k < n; ++k) values[k] = static_cast<float>(bytes[k * stride] >> shift & 15);
}

void LookUpNibbles(const uint8_t* bytes, int64_t first, const float* map, int64_t n, float* values) {
  for (int64_t i = 0; i < n; ++i) {
    const uint8_t pair = bytes[(first + i) / 2];
    values[i] = map[(first + i) % 2 == 0 ? pair >> 4 : pair & 15];
  }
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

void ScaleBy127th(const float* q, float s, int64_t n, float* w) {
  constexpr float kStep = 1.0f / 127.0f;
  for (int64_t i = 0; i < n; ++i) w[i] = q[i] * s * kStep;
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

int64_t FirstNotFinite(const float* w, int64_t n, DType dtype) {
  // Below these bounds a value rounds to a finite one.
  const float bound = dtype == DType::kF16 ? 65520.0f : dtype == DType::kBF16 ? 0x1.ffp127f : 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(w[i]);
    if (!(magnitude <= std::numeric_limits<float>::max()) || (bound > 0 && magnitude >= bound)) return i;
  }
  return -1;
}

void Round(const float* w, int64_t n, DType dtype, uint8_t* out) {
  switch (dtype) {
    case DType::kF32: std::memcpy(out, w, n * sizeof(float)); return;
    case DType::kBF16:
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) {
        const uint16_t bits = dtype == DType::kBF16 ? RoundToBFloat16(w[i]).bits : RoundToFloat16(w[i]).bits;
        std::memcpy(out + 2 * i, &bits, sizeof bits);
      }
      return;
    default: AQT_CHECK(false);
  }
}

}  // namespace aqt::stored_values
