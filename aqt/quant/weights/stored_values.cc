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

// Unpacks fields that follow each other in bytes, eight at a time, which fill kBits bytes. Returns their number.
template <int kBits>
int64_t UnpackEights(const uint8_t* bytes, int64_t n, int bias, float* values) {
  constexpr uint32_t kMask = (1 << kBits) - 1;
  const int64_t eights = n / 8;
  for (int64_t j = 0; j < eights; ++j) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + j * kBits, kBits);
    for (int k = 0; k < 8; ++k) {
      values[j * 8 + k] = static_cast<float>(static_cast<int>(static_cast<uint32_t>(word >> k * kBits) & kMask) - bias);
    }
  }
  return eights * 8;
}

// The same for fields that divide bytes, which becomes vector code.
template <int kBits>
int64_t UnpackBytewise(const uint8_t* bytes, int64_t n, int bias, float* values) {
  constexpr int kPerByte = 8 / kBits, kMask = (1 << kBits) - 1;
  const int64_t num_bytes = n / kPerByte;
  for (int64_t j = 0; j < num_bytes; ++j) {
    for (int c = 0; c < kPerByte; ++c) {
      values[j * kPerByte + c] = static_cast<float>((bytes[j] >> c * kBits & kMask) - bias);
    }
  }
  return num_bytes * kPerByte;
}

// Unpacks most fields of a string that is contiguous. Returns their number.
int64_t UnpackString(int bits, const uint8_t* bytes, int64_t n, int bias, float* values) {
  switch (bits) {
    case 1: return UnpackBytewise<1>(bytes, n, bias, values);
    case 2: return UnpackBytewise<2>(bytes, n, bias, values);
    case 3: return UnpackEights<3>(bytes, n, bias, values);
    case 4: return UnpackBytewise<4>(bytes, n, bias, values);
    case 5: return UnpackEights<5>(bytes, n, bias, values);
    case 6: return UnpackEights<6>(bytes, n, bias, values);
    case 7: return UnpackEights<7>(bytes, n, bias, values);
    case 8: return UnpackBytewise<8>(bytes, n, bias, values);
    default: return 0;
  }
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

void UnpackBytes(const int8_t* codes, int64_t n, float* values) {
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(codes[i]);
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
  const int bits = fields.bits;
  // Words without unused bits hold a string of fields. Words that do not follow each other are copied first, as many as
  // hold whole fields.
  int64_t done = 0;
  if (fields.per_word == 0 || fields.per_word * bits == 32) {
    if (fields.stride == 4) {
      done = UnpackString(bits, fields.words, n, bias, values);
    } else {
      constexpr int64_t kFields = 512;
      uint8_t words[kFields];
      for (; done + kFields <= n; done += kFields) {
        const uint8_t* from = fields.words + done * bits / 32 * fields.stride;
        for (int64_t w = 0; w < kFields * bits / 32; ++w, from += fields.stride) std::memcpy(words + w * 4, from, 4);
        UnpackString(bits, words, kFields, bias, values + done);
      }
    }
  }
  for (int64_t k = done; k < n; ++k) values[k] = static_cast<float>(static_cast<int>(fields[k]) - bias);
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
  // Below these bounds a value rounds to a finite one. The bits of magnitudes are ordered as the magnitudes are, NaN
  // above infinity.
  const float bound = dtype == DType::kF16    ? 65520.0f
                      : dtype == DType::kBF16 ? 0x1.ffp127f
                                              : std::numeric_limits<float>::infinity();
  const int32_t limit = std::bit_cast<int32_t>(bound);  // signed: SSE2 compares only these
  return FirstWhere(w, n, [limit](float x) { return (std::bit_cast<int32_t>(x) & 0x7fffffff) >= limit; });
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
