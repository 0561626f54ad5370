#include "aqt/quant/weights/e4m3_rows.h"

#include <array>
#include <cmath>
#include <limits>

#include "aqt/quant/numerics/arith.h"

namespace aqt::internal {
namespace {

constexpr float kMax = 448;  // the largest finite value
constexpr uint8_t kNaN = 0x7f;

uint32_t Bits(float v) { return __builtin_bit_cast(uint32_t, v); }

// The code of v with |v| <= 448, rounded to nearest, ties to even.
uint8_t Encode(float v) {
  const uint32_t bits = Bits(v), abs = bits & 0x7fffffffu;
  // Codes below 2^-6 count multiples of 2^-9, which is the last bit of a float in [2^14, 2^15).
  const uint32_t small = Bits(__builtin_bit_cast(float, abs) + 0x1p14f) - Bits(0x1p14f);
  // The others keep three bits after the leading one; the bias falls from 127 to 7.
  const uint32_t normal = ((abs + 0x7ffffu + (abs >> 20 & 1u)) >> 20) - (120u << 3);
  const uint32_t code = (abs < Bits(0x1p-6f) ? small : normal) | (bits >> 24 & 0x80u);
  return static_cast<uint8_t>(abs > 0x7f800000u ? kNaN : code);
}

uint8_t EncodePlainly(float v) { return std::isnan(v) ? kNaN : RoundTo<Float8E4M3FN>(v).bits; }

template <class T, class EncodeOne>
void Quantize(const T* x, int64_t stride, int64_t n, float scale, Float8E4M3FN* q, EncodeOne encode) {
  for (int64_t k = 0; k < n; ++k) {
    const float y = Arith<T>::Round(ToFloat(x[k * stride]) / scale);
    q[k].bits = encode(y < -kMax ? -kMax : y > kMax ? kMax : y);  // a NaN stays
  }
}

const std::array<float, 256>& Values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> out;
    for (int code = 0; code < 256; ++code) out[code] = ToFloat(Float8E4M3FN{static_cast<uint8_t>(code)});
    return out;
  }();
  return values;
}

}  // namespace

void QuantizeE4M3(const void* x, DType dtype, int64_t stride, int64_t n, float scale, Float8E4M3FN* q, bool reference) {
  VisitFloat(dtype, [&]<class T>() {
    const T* row = static_cast<const T*>(x);
    if (reference) Quantize(row, stride, n, scale, q, EncodePlainly);
    else Quantize(row, stride, n, scale, q, Encode);
  });
}

void DequantizeE4M3(const Float8E4M3FN* q, int64_t n, float scale, void* x, DType dtype) {
  const std::array<float, 256>& values = Values();
  VisitFloat(dtype, [&]<class T>() {
    T* row = static_cast<T*>(x);
    for (int64_t k = 0; k < n; ++k) {
      const float y = values[q[k].bits] * scale;
      row[k] = ConvertElement<T>(std::isnan(y) ? std::numeric_limits<float>::quiet_NaN() : y);
    }
  });
}

}  // namespace aqt::internal
