// From blocks to values. In each function `x` is a block and `y` its values; the names of parts are those of the
// tables in docs/formats/gguf.md. Plain loops: they are their own reference.

#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/weights/ggml_blocks.h"
#include "aqt/quant/weights/ggml_grids.h"

namespace aqt::ggml {
namespace {

uint16_t Load16(const uint8_t* x) {
  uint16_t value = 0;
  std::memcpy(&value, x, sizeof(value));
  return value;
}

uint32_t Load32(const uint8_t* x) {
  uint32_t value = 0;
  std::memcpy(&value, x, sizeof(value));
  return value;
}

float Half(const uint8_t* x) { return ToFloat(Float16{Load16(x)}); }

// Value i of an array of nibbles, the low one of a byte first.
int Nibble(const uint8_t* x, int i) { return x[i / 2] >> 4 * (i % 2) & 15; }

// ---- blocks of 32: the low nibbles of 16 bytes are values 0 to 15, the high ones 16 to 31

void DecodeQ8_0(const uint8_t* x, float* y) {
  const float d = Half(x);
  const auto* const q = reinterpret_cast<const int8_t*>(x + 2);
  for (int i = 0; i < 32; ++i) y[i] = d * static_cast<float>(q[i]);
}

void DecodeQ4_0(const uint8_t* x, float* y) {
  const float d = Half(x);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((x[2 + i] & 15) - 8);
    y[i + 16] = d * static_cast<float>((x[2 + i] >> 4) - 8);
  }
}

void DecodeQ4_1(const uint8_t* x, float* y) {
  const float d = Half(x), m = Half(x + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(x[4 + i] & 15) + m;
    y[i + 16] = d * static_cast<float>(x[4 + i] >> 4) + m;
  }
}

// The codes of Q5_0 and Q5_1: bit 4 of code i is bit i of the word at `qh`, the rest is in the 16 bytes after it.
void FiveBits(const uint8_t* qh, float minus, float* y) {
  const uint32_t high = Load32(qh);
  for (int i = 0; i < 16; ++i) {
    y[i] = static_cast<float>((qh[4 + i] & 15) | (high >> i & 1) << 4) - minus;
    y[i + 16] = static_cast<float>((qh[4 + i] >> 4) | (high >> (i + 16) & 1) << 4) - minus;
  }
}

void DecodeQ5_0(const uint8_t* x, float* y) {
  const float d = Half(x);
  FiveBits(x + 2, 16, y);
  for (int i = 0; i < 32; ++i) y[i] = d * y[i];
}

void DecodeQ5_1(const uint8_t* x, float* y) {
  const float d = Half(x), m = Half(x + 2);
  FiveBits(x + 4, 0, y);
  for (int i = 0; i < 32; ++i) y[i] = d * y[i] + m;
}

constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// `bytes` bytes of nibbles: the low ones first, then the high ones.
void LookUp(const uint8_t* q, int bytes, float d, const float (&values)[16], float* y) {
  for (int i = 0; i < bytes; ++i) {
    y[i] = d * values[q[i] & 15];
    y[i + bytes] = d * values[q[i] >> 4];
  }
}

void DecodeIQ4NL(const uint8_t* x, float* y) { LookUp(x + 2, 16, Half(x), kIq4Values, y); }

void DecodeMXFP4(const uint8_t* x, float* y) {
  // 2^(e - 128): half of the scale, since the values are doubled.
  const uint32_t bits = x[0] < 2 ? 0x00200000u << x[0] : static_cast<uint32_t>(x[0] - 1) << 23;
  LookUp(x + 1, 16, __builtin_bit_cast(float, bits), kE2M1Doubled, y);
}

// Half of an unsigned e4m3: bit 7 is not used, and 0x7f is 0.
float HalfE4M3(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return code == 0x7f ? 0 : 240;
  return ToFloat(Float8E4M3FN{static_cast<uint8_t>(code & 0x7f)}) * 0.5f;
}

void DecodeNVFP4(const uint8_t* x, float* y) {
  for (int j = 0; j < 4; ++j) LookUp(x + 4 + j * 8, 8, HalfE4M3(x[j]), kE2M1Doubled, y + j * 16);
}

// ---- blocks of 256 with integer codes

// Two bits of each of 32 bytes are 32 values in a row: bits 0 and 1 of the first 32 bytes, then bits 2 and 3, ...
int TwoBits(const uint8_t* q, int i) { return q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3; }

void DecodeQ2K(const uint8_t* x, float* y) {
  const uint8_t *const scales = x, *const q = x + 16;
  const float d = Half(x + 80), dmin = Half(x + 82);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(scales[group] & 15), min = dmin * static_cast<float>(scales[group] >> 4);
    for (int i = group * 16; i < group * 16 + 16; ++i) y[i] = scale * static_cast<float>(TwoBits(q, i)) - min;
  }
}

void DecodeQ3K(const uint8_t* x, float* y) {
  const uint8_t *const hmask = x, *const q = x + 32, *const scales = x + 96;
  const float d = Half(x + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int high = scales[8 + group % 4] >> group / 4 * 2 & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = group * 16; i < group * 16 + 16; ++i) {
      const int minus = (hmask[i % 32] >> i / 32 & 1) != 0 ? 0 : 4;
      y[i] = scale * static_cast<float>(TwoBits(q, i) - minus);
    }
  }
}

// Scale and minimum of group j of Q4_K and Q5_K, six bits each: those of groups 4 to 7 have their upper two bits in the
// bytes of groups 0 to 3.
void ScaleAndMin(const uint8_t* s, int j, int& scale, int& min) {
  if (j < 4) {
    scale = s[j] & 63;
    min = s[j + 4] & 63;
  } else {
    scale = (s[j + 4] & 15) | (s[j - 4] >> 2 & 0x30);
    min = (s[j + 4] >> 4) | (s[j] >> 2 & 0x30);
  }
}

// Q4_K, and Q5_K if `qh` is not null: its bit j is bit 4 of the codes of group j.
void DecodeWithMins(const uint8_t* x, const uint8_t* qh, const uint8_t* q, float* y) {
  const float d = Half(x), dmin = Half(x + 2);
  for (int group = 0; group < 8; ++group) {
    int scale = 0, min = 0;
    ScaleAndMin(x + 4, group, scale, min);
    const float factor = d * static_cast<float>(scale), minus = dmin * static_cast<float>(min);
    const uint8_t* const bytes = q + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      int code = bytes[i] >> shift & 15;
      if (qh != nullptr) code |= (qh[i] >> group & 1) << 4;
      y[group * 32 + i] = factor * static_cast<float>(code) - minus;
    }
  }
}

void DecodeQ4K(const uint8_t* x, float* y) { DecodeWithMins(x, nullptr, x + 16, y); }
void DecodeQ5K(const uint8_t* x, float* y) { DecodeWithMins(x, x + 16, x + 48, y); }

void DecodeQ6K(const uint8_t* x, float* y) {
  const uint8_t *const ql = x, *const qh = x + 128;
  const auto* const scales = reinterpret_cast<const int8_t*>(x + 192);
  const float d = Half(x + 208);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(scales[group]);
    const int half = group / 8, low_shift = group % 8 / 4 * 4;
    const uint8_t* const low = ql + half * 64 + group % 4 * 16;
    for (int i = 0; i < 16; ++i) {
      const int high = TwoBits(qh, group * 16 + i);
      y[group * 16 + i] = scale * static_cast<float>(((low[i] >> low_shift & 15) | high << 4) - 32);
    }
  }
}

void DecodeIQ4XS(const uint8_t* x, float* y) {
  const float d = Half(x);
  const int high = Load16(x + 2);
  for (int group = 0; group < 8; ++group) {
    const int scale = (Nibble(x + 4, group) | (high >> group * 2 & 3) << 4) - 32;
    LookUp(x + 8 + group * 16, 16, d * static_cast<float>(scale), kIq4Values, y + group * 32);
  }
}

// The first digit of a byte that holds base-3 digits as a fraction of 256, after multiplying by `power`, minus 1.
float Ternary(uint8_t byte, int power) { return static_cast<float>((byte * power % 256 * 3 >> 8) - 1); }

void DecodeTQ1_0(const uint8_t* x, float* y) {
  const float d = Half(x + 52);
  constexpr int kPowers[5] = {1, 3, 9, 27, 81};
  for (int p = 0; p < 5; ++p) {
    for (int i = 0; i < 32; ++i) y[p * 32 + i] = d * Ternary(x[i], kPowers[p]);
    for (int i = 0; i < 16; ++i) y[160 + p * 16 + i] = d * Ternary(x[32 + i], kPowers[p]);
    if (p == 4) break;
    for (int i = 0; i < 4; ++i) y[240 + p * 4 + i] = d * Ternary(x[48 + i], kPowers[p]);
  }
}

void DecodeTQ2_0(const uint8_t* x, float* y) {
  const float d = Half(x + 64);
  for (int i = 0; i < 256; ++i) y[i] = d * static_cast<float>(TwoBits(x, i) - 1);
}

// ---- blocks of 256 with codes from a book

constexpr float kIq2Values[4] = {0x08, 0x19, 0x2b, 0};
constexpr float kIq3XxsValues[8] = {0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e};
constexpr float kIq3SValues[8] = {0x01, 0x03, 0x05, 0x07, 0x09, 0x0b, 0x0d, 0x0f};

// Eight signs from seven bits: an even number of values is negative.
uint8_t EvenSigns(uint32_t seven) {
  seven &= 127;
  return static_cast<uint8_t>(seven | static_cast<uint32_t>(__builtin_popcount(seven) & 1) << 7);
}

float WithSign(float value, uint8_t signs, int i) { return (signs >> i & 1) != 0 ? -value : value; }

// Eight values of an entry of two-bit indices.
void Eight(uint16_t entry, float d, uint8_t signs, float* y) {
  for (int i = 0; i < 8; ++i) y[i] = WithSign(d * kIq2Values[entry >> 2 * i & 3], signs, i);
}

// Four values of an entry of four-bit indices; `signs` are those from its bit 0 on.
void Four(uint16_t entry, const float (&values)[8], float d, int signs, float* y) {
  for (int i = 0; i < 4; ++i) y[i] = WithSign(d * values[entry >> 4 * i & 7], static_cast<uint8_t>(signs), i);
}

void DecodeIQ2XXS(const uint8_t* x, float* y) {
  const float d = Half(x);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* const q = x + 2 + group * 8;
    const uint32_t word = Load32(q + 4);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    for (int k = 0; k < 4; ++k) Eight(k2XxsGrid[q[k]], scale, EvenSigns(word >> 7 * k), y + group * 32 + k * 8);
  }
}

void DecodeIQ2XS(const uint8_t* x, float* y) {
  const float d = Half(x);
  for (int k = 0; k < 32; ++k) {
    const uint16_t q = Load16(x + 2 + k * 2);
    const float scale = d * (0.5f + static_cast<float>(Nibble(x + 66, k / 2))) * 0.25f;
    Eight(k2XsGrid[q & 511], scale, EvenSigns(q >> 9), y + k * 8);
  }
}

void DecodeIQ2S(const uint8_t* x, float* y) {
  const float d = Half(x);
  const uint8_t *const q = x + 2, *const signs = x + 34, *const qh = x + 66, *const scales = x + 74;
  for (int k = 0; k < 32; ++k) {
    const float scale = d * (0.5f + static_cast<float>(Nibble(scales, k / 2))) * 0.25f;
    Eight(k2SGrid[q[k] | (qh[k / 4] >> k % 4 * 2 & 3) << 8], scale, signs[k], y + k * 8);
  }
}

void DecodeIQ3XXS(const uint8_t* x, float* y) {
  const float d = Half(x);
  for (int group = 0; group < 8; ++group) {
    const uint8_t* const q = x + 2 + group * 8;
    const uint32_t word = Load32(x + 66 + group * 4);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (int k = 0; k < 8; ++k) {
      const int signs = EvenSigns(word >> k / 2 * 7) >> k % 2 * 4;
      Four(k3XxsGrid[q[k]], kIq3XxsValues, scale, signs, y + group * 32 + k * 4);
    }
  }
}

void DecodeIQ3S(const uint8_t* x, float* y) {
  const float d = Half(x);
  const uint8_t *const q = x + 2, *const qh = x + 66, *const signs = x + 74, *const scales = x + 106;
  for (int k = 0; k < 64; ++k) {
    const float scale = d * static_cast<float>(1 + 2 * Nibble(scales, k / 8));
    Four(k3SGrid[q[k] | (qh[k / 8] >> k % 8 & 1) << 8], kIq3SValues, scale, signs[k / 2] >> k % 2 * 4, y + k * 4);
  }
}

// Eight values of the book of IQ1: -1, 0 or 1, plus `delta`.
void EightTernary(uint16_t entry, float d, float delta, float* y) {
  for (int i = 0; i < 8; ++i) y[i] = d * (static_cast<float>((entry >> 2 * i & 3) - 1) + delta);
}

void DecodeIQ1S(const uint8_t* x, float* y) {
  const float d = Half(x);
  for (int k = 0; k < 32; ++k) {
    const int word = Load16(x + 34 + k / 4 * 2);
    const float scale = d * static_cast<float>(2 * (word >> 12 & 7) + 1);
    const int high = word >> k % 4 * 3 & 7;
    EightTernary(k1Grid[x[2 + k] | high << 8], scale, (word & 0x8000) != 0 ? -0.125f : 0.125f, y + k * 8);
  }
}

void DecodeIQ1M(const uint8_t* x, float* y) {
  const uint8_t *const qh = x + 32, *const scales = x + 48;
  // The upper nibbles of the four words of scales are the scale of the block.
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= static_cast<uint32_t>(Load16(scales + 2 * i) >> 12) << 4 * i;
  const float d = ToFloat(Float16{static_cast<uint16_t>(bits)});
  for (int k = 0; k < 32; ++k) {
    const int group = k / 2, high = Nibble(qh, k);
    const int scale = Load16(scales + group / 4 * 2) >> group % 4 * 3 & 7;
    EightTernary(k1Grid[x[k] | (high & 7) << 8], d * static_cast<float>(2 * scale + 1),
                 (high & 8) != 0 ? -0.125f : 0.125f, y + k * 8);
  }
}

using Decode = void (*)(const uint8_t*, float*);

Decode DecodeOf(Type type) {
  switch (type) {
    case Type::kQ4_0: return DecodeQ4_0;
    case Type::kQ4_1: return DecodeQ4_1;
    case Type::kQ5_0: return DecodeQ5_0;
    case Type::kQ5_1: return DecodeQ5_1;
    case Type::kQ8_0: return DecodeQ8_0;
    case Type::kQ2K: return DecodeQ2K;
    case Type::kQ3K: return DecodeQ3K;
    case Type::kQ4K: return DecodeQ4K;
    case Type::kQ5K: return DecodeQ5K;
    case Type::kQ6K: return DecodeQ6K;
    case Type::kIQ2XXS: return DecodeIQ2XXS;
    case Type::kIQ2XS: return DecodeIQ2XS;
    case Type::kIQ2S: return DecodeIQ2S;
    case Type::kIQ3XXS: return DecodeIQ3XXS;
    case Type::kIQ3S: return DecodeIQ3S;
    case Type::kIQ1S: return DecodeIQ1S;
    case Type::kIQ1M: return DecodeIQ1M;
    case Type::kIQ4NL: return DecodeIQ4NL;
    case Type::kIQ4XS: return DecodeIQ4XS;
    case Type::kTQ1_0: return DecodeTQ1_0;
    case Type::kTQ2_0: return DecodeTQ2_0;
    case Type::kMXFP4: return DecodeMXFP4;
    case Type::kNVFP4: return DecodeNVFP4;
    default: return nullptr;
  }
}

}  // namespace

bool CanDecode(Type type) { return DecodeOf(type) != nullptr; }

void DecodeBlocks(Type type, const uint8_t* blocks, int64_t n, float* values) {
  const Decode decode = DecodeOf(type);
  AQT_CHECK(decode != nullptr);
  const TypeInfo& info = InfoOf(type);
  for (int64_t i = 0; i < n; ++i) decode(blocks + i * info.block_bytes, values + i * info.block_values);
}

}  // namespace aqt::ggml
