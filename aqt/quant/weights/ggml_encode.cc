// From values to blocks. In each function `x` has the values of a block and `out` its bytes.

#include "aqt/quant/weights/ggml_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/weights/ggml_grids.h"

namespace aqt::ggml {
namespace {

// Writes an f16; whether it is finite.
bool StoreHalf(float value, uint8_t* out) {
  const Float16 half = RoundToFloat16(value);
  std::memcpy(out, &half.bits, sizeof(half.bits));
  return (half.bits & 0x7c00) != 0x7c00;
}

// The value of an f16 that was written.
float LoadHalf(const uint8_t* x) {
  Float16 half{};
  std::memcpy(&half.bits, x, sizeof(half.bits));
  return ToFloat(half);
}

// The first value of the largest magnitude.
int LargestOf(const float* x, int n) {
  int largest = 0;
  for (int i = 1; i < n; ++i) {
    if (std::abs(x[i]) > std::abs(x[largest])) largest = i;
  }
  return largest;
}

// 1 / d, or 0 if d is 0 or too small for a reciprocal; the f16 of such a d is 0.
float Reciprocal(float d) {
  const float r = 1 / d;
  return std::isfinite(r) ? r : 0;
}

// To the nearest integer, ties to even, for |x| < 2^22. A plain loop of it is vectorized.
float Nearest(float x) {
  constexpr float kMagic = 0x1.8p23f;
  return (x + kMagic) - kMagic;
}

// ---- as the format's own code

bool EncodeQ8_0(const float* x, uint8_t* out) {
  const float d = std::abs(x[LargestOf(x, 32)]) / 127, inverse = Reciprocal(d);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
  return StoreHalf(d, out);
}

bool EncodeQ4_0(const float* x, uint8_t* out) {
  const float d = x[LargestOf(x, 32)] / -8, inverse = Reciprocal(d);
  const auto code = [&](float value) { return std::min(15, static_cast<int>(value * inverse + 8.5f)); };
  for (int i = 0; i < 16; ++i) out[2 + i] = static_cast<uint8_t>(code(x[i]) | code(x[i + 16]) << 4);
  return StoreHalf(d, out);
}

bool EncodeMXFP4(const float* x, uint8_t* out) {
  const float largest = std::abs(x[LargestOf(x, 32)]);
  // The logarithm is rounded to f32 first: slightly below a power of two it may be the next integer.
  const float log = static_cast<float>(std::log2(static_cast<double>(largest)));
  const int e = largest > 0 ? std::max(0, static_cast<int>(std::floor(log)) - 2 + 127) : 0;
  out[0] = static_cast<uint8_t>(e);
  const float half_scale = std::ldexp(1.0f, e - 128);
  // The first of the nearest values.
  float least[32];
  int best[32];
  for (int i = 0; i < 32; ++i) {
    least[i] = std::abs(x[i]);
    best[i] = 0;
  }
  for (int code = 1; code < 16; ++code) {
    const float value = half_scale * kE2M1Doubled[code];
    for (int i = 0; i < 32; ++i) {
      const float error = std::abs(value - x[i]);
      best[i] = error < least[i] ? code : best[i];
      least[i] = error < least[i] ? error : least[i];
    }
  }
  for (int i = 0; i < 16; ++i) out[1 + i] = static_cast<uint8_t>(best[i] | best[i + 16] << 4);
  return true;
}

// ---- by a search for the least squared error

// Candidates of a scale lie around the one that just fits the largest value: it is stretched by (range + t) / range for
// t in [-1, 1].
constexpr int kCandidates = 9;
float Stretch(int candidate) { return static_cast<float>(candidate - kCandidates / 2) * 0.25f; }

// Eight numbers at a time. Compilers do not find these vectors by themselves.
struct Eight {
  using Four __attribute__((vector_size(16))) = float;
  Four low = {}, high = {};

  static Eight Load(const float* x) {
    Eight v;
    std::memcpy(&v.low, x, sizeof(v.low));
    std::memcpy(&v.high, x + 4, sizeof(v.high));
    return v;
  }
  void Store(float* x) const {
    std::memcpy(x, &low, sizeof(low));
    std::memcpy(x + 4, &high, sizeof(high));
  }
  // Always in the same order.
  float Total() const {
    const Four sums = low + high;
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }
  Eight& operator+=(const Eight& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
};
Eight operator+(const Eight& a, float b) { return {a.low + b, a.high + b}; }
Eight operator-(const Eight& a, float b) { return {a.low - b, a.high - b}; }
Eight operator*(const Eight& a, float b) { return {a.low * b, a.high * b}; }
Eight operator-(const Eight& a, const Eight& b) { return {a.low - b.low, a.high - b.high}; }
Eight operator*(const Eight& a, const Eight& b) { return {a.low * b.low, a.high * b.high}; }

// The nearest integers within [least, most].
Eight::Four NearestWithin(Eight::Four x, float least, float most) {
  constexpr float kMagic = 0x1.8p23f;  // as in Nearest
  x = (x + kMagic) - kMagic;
  const Eight::Four low = {least, least, least, least}, high = {most, most, most, most};
  x = low < x ? x : low;
  return x < high ? x : high;
}
Eight NearestWithin(const Eight& x, float least, float most) {
  return {NearestWithin(x.low, least, most), NearestWithin(x.high, least, most)};
}

// Q6_K: a scale for 16 values whose codes are in [-32, 31].
float BestScale(const float* x, float plain) {
  float best = plain, best_gain = 0;
  for (int candidate = 0; plain != 0 && candidate < kCandidates; ++candidate) {
    const float inverse = Reciprocal(plain) * ((32 + Stretch(candidate)) / 32);
    Eight xq, qq;
    for (int i = 0; i < 16; i += 8) {
      const Eight values = Eight::Load(x + i), q = NearestWithin(values * inverse, -32, 31);
      xq += values * q;
      qq += q * q;
    }
    // With the scale xq / qq, the squared error is that of zeros minus xq^2 / qq.
    const float scale = xq.Total() / qq.Total(), gain = xq.Total() * scale;
    if (gain > best_gain) {
      best_gain = gain;
      best = scale;
    }
  }
  return best;
}

// The codes of 16 values for the scale `step`, and their squared error.
float CodesOf16(const float* x, float step, float* q) {
  const float inverse = Reciprocal(step);
  Eight error;
  for (int i = 0; i < 16; i += 8) {
    const Eight values = Eight::Load(x + i), codes = NearestWithin(values * inverse, -32, 31);
    codes.Store(q + i);
    const Eight e = codes * step - values;
    error += e * e;
  }
  return error.Total();
}

bool EncodeQ6K(const float* x, Search search, uint8_t* out) {
  float scales[16];
  for (int group = 0; group < 16; ++group) {
    const float* const values = x + group * 16;
    const float plain = values[LargestOf(values, 16)] / -32;
    scales[group] = search == Search::kBest ? BestScale(values, plain) : plain;
  }
  if (!StoreHalf(scales[LargestOf(scales, 16)] / -128, out + 208)) return false;
  const float d = LoadHalf(out + 208), inverse = d == 0 ? 0 : Reciprocal(d);
  std::memset(out, 0, 192);
  for (int group = 0; group < 16; ++group) {
    const float* const values = x + group * 16;
    const int first = static_cast<int>(std::min(127.0f, std::max(-128.0f, Nearest(scales[group] * inverse))));
    float q[16], other[16];
    int scale = first;
    float least = CodesOf16(values, d * static_cast<float>(first), q);
    for (int s = std::max(-128, first - 1); search == Search::kBest && s <= std::min(127, first + 1); ++s) {
      if (s == first) continue;
      const float error = CodesOf16(values, d * static_cast<float>(s), other);
      if (error >= least) continue;
      least = error;
      scale = s;
      std::copy_n(other, 16, q);
    }
    out[192 + group] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    const int half = group / 8, low_shift = group % 8 / 4 * 4, high_shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      const int code = static_cast<int>(q[i]) + 32;
      out[half * 64 + group % 4 * 16 + i] |= static_cast<uint8_t>((code & 15) << low_shift);
      out[128 + half * 32 + group % 2 * 16 + i] |= static_cast<uint8_t>(code >> 4 << high_shift);
    }
  }
  return true;
}

// Q4_K: 32 values are scale * q - min, with q in [0, 15] and neither scale nor min negative.
struct ScaleMin {
  float scale = 0, min = 0;
};

ScaleMin PlainScaleMin(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float min = std::max(0.0f, -*low);
  return {(*high + min) / 15, min};
}

// The codes of 32 values, and their squared error.
float CodesOf32(const float* x, const ScaleMin& s, float* q) {
  const float inverse = s.scale == 0 ? 0 : Reciprocal(s.scale);
  Eight error;
  for (int i = 0; i < 32; i += 8) {
    const Eight values = Eight::Load(x + i), codes = NearestWithin((values + s.min) * inverse, 0, 15);
    codes.Store(q + i);
    const Eight e = (codes * s.scale - s.min) - values;
    error += e * e;
  }
  return error.Total();
}

// Sums over 32 values y, which are at least 0, and the codes q that `inverse` gives them.
struct LineSums {
  float q = 0, qq = 0, yq = 0;
};

LineSums SumsOf(const float* y, float inverse) {
  Eight q_sum, qq_sum, yq_sum;
  for (int i = 0; i < 32; i += 8) {
    const Eight values = Eight::Load(y + i), q = NearestWithin(values * inverse, 0, 15);
    q_sum += q;
    qq_sum += q * q;
    yq_sum += values * q;
  }
  return {q_sum.Total(), qq_sum.Total(), yq_sum.Total()};
}

// For each candidate, the line of least squares through the values over their codes: y = scale * q + offset, with
// y = x + plain.min. The line of the smallest squared error wins. `plain` if there is none.
ScaleMin BestScaleMin(const float* x, const ScaleMin& plain) {
  if (plain.scale == 0) return plain;
  float y[32];
  Eight y_sum;
  for (int i = 0; i < 32; i += 8) {
    const Eight values = Eight::Load(x + i) + plain.min;
    values.Store(y + i);
    y_sum += values;
  }
  const float sum_y = y_sum.Total(), inverse = Reciprocal(plain.scale);
  ScaleMin best = plain;
  float best_gain = 0;
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const LineSums sums = SumsOf(y, inverse * ((15 + Stretch(candidate)) / 15));
    const float det = 32 * sums.qq - sums.q * sums.q;
    if (det <= 0) continue;
    float scale = (32 * sums.yq - sum_y * sums.q) / det, offset = (sum_y - scale * sums.q) / 32;
    if (offset > plain.min) {  // the minimum would be above 0
      offset = plain.min;
      scale = (sums.yq - offset * sums.q) / sums.qq;
    }
    // The squared error is the sum of y^2 minus this.
    const float gain = 2 * (scale * sums.yq + offset * sum_y) - scale * scale * sums.qq - 32 * offset * offset -
                       2 * scale * offset * sums.q;
    if (!(gain > best_gain) || scale <= 0 || !std::isfinite(scale) || !std::isfinite(offset)) continue;
    best_gain = gain;
    best = {scale, plain.min - offset};
  }
  return best;
}

int SixBits(float value, float inverse) {
  return static_cast<int>(std::min(63.0f, std::max(0.0f, Nearest(value * inverse))));
}

// Scale and minimum of group j: the inverse of ScaleAndMin in ggml_decode.cc. `s` was zero.
void StoreScaleAndMin(int j, int scale, int min, uint8_t* s) {
  if (j < 4) {
    s[j] = static_cast<uint8_t>(s[j] | scale);
    s[j + 4] = static_cast<uint8_t>(s[j + 4] | min);
  } else {
    s[j + 4] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
    s[j - 4] = static_cast<uint8_t>(s[j - 4] | scale >> 4 << 6);
    s[j] = static_cast<uint8_t>(s[j] | min >> 4 << 6);
  }
}

bool EncodeQ4K(const float* x, Search search, uint8_t* out) {
  ScaleMin groups[8], largest;
  for (int group = 0; group < 8; ++group) {
    const ScaleMin plain = PlainScaleMin(x + group * 32);
    groups[group] = search == Search::kBest ? BestScaleMin(x + group * 32, plain) : plain;
    largest = {std::max(largest.scale, groups[group].scale), std::max(largest.min, groups[group].min)};
  }
  if (!StoreHalf(largest.scale / 63, out) || !StoreHalf(largest.min / 63, out + 2)) return false;
  const float d = LoadHalf(out), dmin = LoadHalf(out + 2);
  const float inverse = d == 0 ? 0 : Reciprocal(d), inverse_min = dmin == 0 ? 0 : Reciprocal(dmin);
  std::memset(out + 4, 0, 140);
  for (int group = 0; group < 8; ++group) {
    const float* const values = x + group * 32;
    const auto step = [&](int scale, int min) {
      return ScaleMin{d * static_cast<float>(scale), dmin * static_cast<float>(min)};
    };
    int scale = SixBits(groups[group].scale, inverse), min = SixBits(groups[group].min, inverse_min);
    float q[32], other[32];
    float least = CodesOf32(values, step(scale, min), q);
    const int near = search == Search::kBest ? 1 : 0, first_scale = scale, first_min = min;
    for (int s = std::max(0, first_scale - near); s <= std::min(63, first_scale + near); ++s) {
      for (int m = std::max(0, first_min - near); m <= std::min(63, first_min + near); ++m) {
        if (s == first_scale && m == first_min) continue;
        const float error = CodesOf32(values, step(s, m), other);
        if (error >= least) continue;
        least = error;
        scale = s;
        min = m;
        std::copy_n(other, 32, q);
      }
    }
    StoreScaleAndMin(group, scale, min, out + 4);
    for (int i = 0; i < 32; ++i) {
      uint8_t& byte = out[16 + group / 2 * 32 + i];
      byte = static_cast<uint8_t>(byte | static_cast<int>(q[i]) << group % 2 * 4);
    }
  }
  return true;
}

// The squared error of a block of 256 values.
double ErrorOf(Type type, const uint8_t* block, const float* x) {
  float y[256];
  DecodeBlocks(type, block, 1, y);
  double sum = 0;
  for (int i = 0; i < 256; ++i) {
    const double e = static_cast<double>(y[i]) - static_cast<double>(x[i]);
    sum += e * e;
  }
  return sum;
}

bool EncodeOne(Type type, const float* x, Search search, uint8_t* out) {
  switch (type) {
    case Type::kQ8_0: return EncodeQ8_0(x, out);
    case Type::kQ4_0: return EncodeQ4_0(x, out);
    case Type::kMXFP4: return EncodeMXFP4(x, out);
    case Type::kQ4K: return EncodeQ4K(x, search, out);
    default: return EncodeQ6K(x, search, out);
  }
}

}  // namespace

bool CanEncode(Type type) {
  return type == Type::kQ8_0 || type == Type::kQ4_0 || type == Type::kQ4K || type == Type::kQ6K || type == Type::kMXFP4;
}

int64_t EncodeBlocks(Type type, const float* values, int64_t n, uint8_t* blocks, Search search) {
  AQT_CHECK(CanEncode(type));
  const TypeInfo& info = InfoOf(type);
  const bool searches = search == Search::kBest && (type == Type::kQ4K || type == Type::kQ6K);
  uint8_t plain[256];
  for (int64_t i = 0; i < n; ++i) {
    const float* const x = values + i * info.block_values;
    uint8_t* const out = blocks + i * info.block_bytes;
    for (int k = 0; k < info.block_values; ++k) {
      if (!std::isfinite(x[k])) return i * info.block_values + k;
    }
    // Rounding the scales of groups to those of a block may undo what the search won.
    const bool fits = EncodeOne(type, x, search, out);
    if (!fits && !searches) return i * info.block_values + LargestOf(x, info.block_values);
    if (!searches) continue;
    if (!EncodeOne(type, x, Search::kPlain, plain)) return i * info.block_values + LargestOf(x, info.block_values);
    if (!fits || !(ErrorOf(type, out, x) <= ErrorOf(type, plain, x))) std::copy_n(plain, info.block_bytes, out);
  }
  return -1;
}

}  // namespace aqt::ggml
