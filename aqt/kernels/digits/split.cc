// Splits floats into digits.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/digits/internal.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/digits/split.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using kernels::HWY_NAMESPACE::LoadFloat;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using S32 = hn::RebindToSigned<F32>;

constexpr uint32_t kSmallestNormal = 0x00800000u, kInfinity = 0x7f800000u;

// A group of a row is too short for the hardware prefetcher. So the same group of a row this far below is prefetched.
// If there is no such row, that is harmless.
constexpr int64_t kRowsAhead = 4;

HWY_INLINE hn::Vec<U32> Magnitude(hn::Vec<U32> bits) { return hn::And(bits, hn::Set(U32(), 0x7fffffffu)); }

// Magnitudes have no sign bit, so AVX2 can compare them as signed numbers.
HWY_INLINE hn::Vec<S32> LoadMagnitude(const float* values) {
  return hn::BitCast(S32(), Magnitude(hn::LoadU(U32(), reinterpret_cast<const uint32_t*>(values))));
}
HWY_INLINE hn::Vec<S32> SetMagnitude(uint32_t bits) { return hn::Set(S32(), static_cast<int32_t>(bits)); }

// Whether `count` consecutive elements of k are contiguous.
HWY_INLINE bool IsDense(const Operand& x, int64_t count) {
  return x.k.rank <= 1 && (x.k.InnerStride() == 1 || count <= 1);
}

HWY_INLINE void Prefetch(const void* p, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead)));
}

template <class T>
void LoadAs(const Operand& x, int64_t base, int64_t begin, int64_t count, int64_t pitch, float* values) {
  const T* from = static_cast<const T*>(x.data) + base;
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  if (IsDense(x, count)) {
    from += x.k.Offset(begin);
    const int64_t ahead = kRowsAhead * x.rows.InnerStride() * int64_t{sizeof(T)};
    for (; i + lanes <= count; i += lanes) {
      Prefetch(from + i, ahead);
      hn::StoreU(LoadFloat(d, from + i), d, values + i);
    }
    for (; i < count; ++i) values[i] = ToFloat(from[i]);
  } else {
    for (; i < count; ++i) values[i] = ToFloat(from[x.k.Offset(begin + i)]);
  }
  std::fill(values + i, values + pitch, 0.0f);
}

void Load(const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count, int64_t pitch, float* values) {
  const int64_t base = x.batch.Offset(b) + x.rows.Offset(row);
  switch (x.dtype) {
    case DType::kF32: return LoadAs<float>(x, base, begin, count, pitch, values);
    case DType::kBF16: return LoadAs<BFloat16>(x, base, begin, count, pitch, values);
    case DType::kF16: return LoadAs<Float16>(x, base, begin, count, pitch, values);
    default: AQT_CHECK(!"MultiplyDigits: lhs is f32, bf16 or f16");
  }
}

// The same elements in place if possible, otherwise loaded to `copy`.
const float* ValuesOf(const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count, int64_t pitch,
                      float* copy) {
  if (x.dtype != DType::kF32 || count != pitch || !IsDense(x, count)) {
    Load(x, b, row, begin, count, pitch, copy);
    return copy;
  }
  const float* values = static_cast<const float*>(x.data) + x.batch.Offset(b) + x.rows.Offset(row) + x.k.Offset(begin);
  const int64_t ahead = kRowsAhead * x.rows.InnerStride() * int64_t{sizeof(float)};
  for (int64_t i = 0; i < pitch; i += 64 / int64_t{sizeof(float)}) Prefetch(values + i, ahead);
  return values;
}

// The largest magnitude as bits: of all elements, and of those below `end`.
HWY_INLINE uint32_t MaxOf(const float* values, int64_t pitch) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(S32()));
  auto max = hn::Zero(S32());
  for (int64_t i = 0; i < pitch; i += lanes) max = hn::Max(max, LoadMagnitude(values + i));
  return hn::GetLane(hn::BitCast(U32(), hn::MaxOfLanes(S32(), max)));
}
HWY_INLINE uint32_t MaxBelow(const float* values, int64_t pitch, uint32_t end) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(S32()));
  auto max = hn::Zero(S32());
  for (int64_t i = 0; i < pitch; i += lanes) {
    const auto magnitude = LoadMagnitude(values + i);
    max = hn::Max(max, hn::IfThenElseZero(hn::Lt(magnitude, SetMagnitude(end)), magnitude));
  }
  return hn::GetLane(hn::BitCast(U32(), hn::MaxOfLanes(S32(), max)));
}

// The number of magnitudes in [begin, end).
HWY_INLINE int64_t CountIn(const float* values, int64_t pitch, uint32_t begin, uint32_t end) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(S32()));
  const auto first = SetMagnitude(begin - 1), last = SetMagnitude(end);
  size_t count = 0;
  for (int64_t i = 0; i < pitch; i += lanes) {
    const auto magnitude = LoadMagnitude(values + i);
    count += hn::CountTrue(S32(), hn::And(hn::Gt(magnitude, first), hn::Lt(magnitude, last)));
  }
  return static_cast<int64_t>(count);
}

// round_half_even(v), for |v| < 2^23.
HWY_INLINE hn::Vec<S32> Nearest(hn::Vec<F32> v) {
#if HWY_TARGET == HWY_AVX3
  return hn::Vec<S32>{_mm512_cvtps_epi32(v.raw)};  // NearestInt would also handle larger numbers
#else
  return hn::NearestInt(v);
#endif
}

// 2^n, if it is a normal number.
HWY_INLINE float PowerOfTwo(int n) {
  const uint32_t bits = static_cast<uint32_t>(n + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

// A layer: the elements whose magnitudes are in [begin, end). x / u is x * 2^shift.
struct Layer {
  uint32_t begin, end;
  int shift;
};

// The digits of a layer, and zeros for other elements. kWhole: the only other elements are zeros and subnormal numbers,
// which become zeros anyway, and 2^shift is a normal number.
template <bool kWhole>
HWY_INLINE void SplitLayer(const float* values, int64_t pitch, const Layer& layer, uint32_t* digits,
                           int32_t* digit_sum) {
  const F32 df;
  const U32 du;
  const S32 ds;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto first = SetMagnitude(layer.begin - 1), last = SetMagnitude(layer.end);
  const int half = kWhole ? layer.shift : layer.shift / 2;
  const auto times = hn::Set(df, PowerOfTwo(half));
  const auto times_again = hn::Set(df, PowerOfTwo(layer.shift - half));
  const auto bias = hn::Set(ds, 0x808080), halves = hn::Set(ds, 0xff00ff);
  // The sums of the biased numbers, and of their digits 0 and 2, in the halves of a lane.
  static_assert(int64_t{kMaxDigitGroup} * 0xffffff < int64_t{1} << 31 && kMaxDigitGroup * 255 < 1 << 15);
  auto sums = hn::Zero(ds), sums02 = sums;
  for (int64_t i = 0; i < pitch; i += lanes) {
    auto x = hn::LoadU(df, values + i);
    if constexpr (!kWhole) {
      const auto magnitude = LoadMagnitude(values + i);
      const auto member = hn::And(hn::Gt(magnitude, first), hn::Lt(magnitude, last));
      x = hn::Mul(hn::IfThenElseZero(hn::RebindMask(df, member), x), times_again);
    }
    // Adding 128 to each digit gives bytes without borrows; flipping their top bits subtracts it again.
    const auto biased = hn::Add(Nearest(hn::Mul(x, times)), bias);
    hn::StoreU(hn::BitCast(du, hn::Xor(biased, bias)), du, digits + i);
    sums = hn::Add(sums, biased);
    sums02 = hn::Add(sums02, hn::And(biased, halves));
  }
  const int32_t sum = hn::GetLane(hn::SumOfLanes(ds, sums)), sum02 = hn::GetLane(hn::SumOfLanes(ds, sums02));
  const int32_t sum_of_biases = static_cast<int32_t>(pitch) * 128;
  digit_sum[0] = (sum02 & 0xffff) - sum_of_biases;
  digit_sum[1] = ((sum - sum02) >> 8) - sum_of_biases;
  digit_sum[2] = (sum02 >> 16) - sum_of_biases;
}

// With the unit 2^-shift no number up to this magnitude exceeds three digits. The shift follows from the biased
// exponent of 2^e >= max * 2^23 / 8355711.5 (see digits.h).
HWY_INLINE int ShiftOf(uint32_t max) { return 149 - static_cast<int>((max + 0x10101u) >> 23); }
// The same for a rest, which may be subnormal: a multiple of 2^-149.
HWY_INLINE int ShiftOfRest(uint32_t max) {
  if (max >= kSmallestNormal) return ShiftOf(max);
  return max > 8355711 ? 148 : 149;
}
HWY_INLINE float UnitOf(int shift) {
  const int half = shift / 2;
  return PowerOfTwo(-half) * PowerOfTwo(half - shift);  // exact even if subnormal
}

// The part that a layer of all elements drops: x - u v, exact. `rest` may alias `values`. Returns the largest magnitude
// as bits.
HWY_INLINE uint32_t TakeRest(const float* values, int64_t pitch, const Layer& layer, float* rest) {
  const F32 df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto first = SetMagnitude(layer.begin - 1);
  const int half = layer.shift / 2, other = layer.shift - half;
  const auto times = hn::Set(df, PowerOfTwo(half)), times_again = hn::Set(df, PowerOfTwo(other));
  const auto back = hn::Set(df, PowerOfTwo(-half)), back_again = hn::Set(df, PowerOfTwo(-other));
  for (int64_t i = 0; i < pitch; i += lanes) {
    const auto member = hn::RebindMask(df, hn::Gt(LoadMagnitude(values + i), first));
    const auto x = hn::IfThenElseZero(member, hn::LoadU(df, values + i));
    const auto scaled = hn::Mul(hn::Mul(x, times_again), times);
    const auto nearest = hn::ConvertTo(df, Nearest(scaled));
    const auto dropped = hn::Mul(hn::Mul(hn::Sub(scaled, nearest), back), back_again);
    // x / u may be too small for a float.
    hn::StoreU(hn::IfThenElse(hn::Eq(nearest, hn::Zero(df)), x, dropped), df, rest + i);
  }
  return MaxOf(rest, pitch);
}

// The layers of a short row. Not inlined, so that the code for longer rows stays small.
HWY_NOINLINE void SplitExactly(const float* values, int64_t pitch, DigitLayers& layers) {
  layers.count = 0;
  uint32_t max = MaxOf(values, pitch);
  layers.is_finite = max < kInfinity;
  if (!layers.is_finite) return;
  alignas(64) float rest[kMaxDigitGroup];
  uint32_t begin = kSmallestNormal;
  while (max >= begin && layers.count < kMaxDigitLayers) {
    const int64_t i = layers.count++;
    const Layer layer = {.begin = begin, .end = kInfinity, .shift = ShiftOfRest(max)};
    layers.unit[i] = UnitOf(layer.shift);
    SplitLayer<false>(values, pitch, layer, layers.digits[i], layers.digit_sum[i]);
    max = TakeRest(values, pitch, layer, rest);
    values = rest;
    begin = 1;  // a rest may be subnormal
  }
}

HWY_INLINE void SplitValues(const float* values, int64_t pitch, DigitLayers& layers) {
  layers.count = 0;
  uint32_t max = MaxOf(values, pitch);
  layers.is_finite = max < kInfinity;
  if (!layers.is_finite) return;
  uint32_t end = kInfinity;
  while (max >= kSmallestNormal) {
    const int64_t i = layers.count++;
    constexpr uint32_t kWindow = uint32_t{kDigitLayerBits} << 23;
    const uint32_t top = max & 0x7f800000u;
    const uint32_t large = std::max(top > kWindow ? top - kWindow : 0, kSmallestNormal);
    const int64_t num_large = CountIn(values, pitch, large, end);
    // There are at most `pitch` elements, so they rarely need to be counted.
    const bool is_half = 2 * num_large >= pitch || 2 * num_large >= CountIn(values, pitch, kSmallestNormal, end);
    const bool is_last = is_half || layers.count == kMaxDigitLayers;
    const int shift = ShiftOf(max);
    layers.unit[i] = UnitOf(shift);
    const Layer layer = {.begin = is_last ? kSmallestNormal : large, .end = end, .shift = shift};
    // With such a shift subnormal numbers are below 1/2.
    const bool is_whole = is_last && i == 0 && shift <= 124;
    if (is_whole) SplitLayer<true>(values, pitch, layer, layers.digits[i], layers.digit_sum[i]);
    else SplitLayer<false>(values, pitch, layer, layers.digits[i], layers.digit_sum[i]);
    if (is_last) return;
    end = large;
    max = MaxBelow(values, pitch, end);
  }
}

void Split(const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count, int64_t pitch, bool is_short,
           DigitLayers& layers) {
  alignas(64) float copy[kMaxDigitGroup];
  const float* const values = ValuesOf(x, b, row, begin, count, pitch, copy);
  if (is_short) return SplitExactly(values, pitch, layers);
  // For full groups the compiler knows the length of the loops.
  if (pitch == kMaxDigitGroup) SplitValues(values, kMaxDigitGroup, layers);
  else SplitValues(values, pitch, layers);
}

// A line of kWords: for each four k the digits, four bytes each, transposed to kDigits words. The words of consecutive
// fours are `stride` bytes apart. `is_last`: whether this is the last line of its tile. Other lines may store a fourth
// word, which the next line overwrites.
#if HWY_TARGET == HWY_SCALAR
void PlaceWords(const uint32_t* digits, int64_t pitch, int64_t stride, bool /*is_last*/, char* to) {
  const auto* bytes = reinterpret_cast<const char*>(digits);
  for (int64_t k = 0; k < pitch; k += 4, bytes += 16, to += stride) {
    for (int i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < kDigits; ++j) to[4 * j + i] = bytes[4 * i + j];
    }
  }
}
#else
alignas(16) constexpr uint8_t kTransposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};

HWY_INLINE void PlaceWords(const uint32_t* digits, int64_t pitch, int64_t stride, bool is_last, char* to) {
  static_assert(kDigits == 3);
  const hn::FixedTag<uint8_t, 16> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const auto order = hn::Load(d, kTransposed);
  for (int64_t k = 0; k < pitch; k += 4, to += stride) {
    const auto bytes = hn::LoadU(d, reinterpret_cast<const uint8_t*>(digits + k));
    const auto words = hn::TableLookupBytes(bytes, order);
    if (!is_last) {
      hn::StoreU(words, d, reinterpret_cast<uint8_t*>(to));
      continue;
    }
    const uint64_t first = hn::GetLane(hn::BitCast(d64, words)), last = hn::ExtractLane(hn::BitCast(d64, words), 1);
    std::memcpy(to, &first, 8);
    std::memcpy(to + 8, &last, 4);
  }
}
#endif

// The words of a line that is a tile of its own.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE void PlaceOwnWords(const uint32_t* digits, int64_t pitch, char* to) {
  const hn::FixedTag<uint32_t, 16> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  alignas(64) static constexpr int32_t kCompacted[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15};
  const auto order = hn::LoadDup128(bytes, kTransposed);
  const auto compacted = hn::SetTableIndices(d, kCompacted);
  const auto words = hn::FirstN(d, 12);
#pragma GCC unroll 8
  for (int64_t k = 0; k < pitch; k += 16, to += 48) {
    const auto v = hn::BitCast(bytes, hn::LoadU(d, digits + k));
    const auto packed = hn::TableLookupLanes(hn::BitCast(d, hn::TableLookupBytes(v, order)), compacted);
    // The next words overwrite what is stored past these.
    if (k + 16 < pitch) hn::StoreU(packed, d, reinterpret_cast<uint32_t*>(to));
    else hn::BlendedStore(packed, words, d, reinterpret_cast<uint32_t*>(to));
  }
}
#else
HWY_INLINE void PlaceOwnWords(const uint32_t* digits, int64_t pitch, char* to) {
  PlaceWords(digits, pitch, 4 * kDigits, /*is_last=*/true, to);
}
#endif

// Stores four k of kPairs. Returns a bit for each k whose low number wraps.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE uint64_t Pairs(const uint32_t* digits, char* to) {
  uint64_t wrapped = 0;
  int16_t pairs[8];
  for (int i = 0; i < 4; ++i) {
    const int32_t low = static_cast<int8_t>(digits[i]) + 256 * static_cast<int8_t>(digits[i] >> 8);
    const int at = i / 2 + i % 2 * 2;
    pairs[at] = static_cast<int16_t>(low);
    pairs[at + 4] = static_cast<int8_t>(digits[i] >> 16);
    wrapped |= uint64_t{low < INT16_MIN} << i;
  }
  std::memcpy(to, pairs, sizeof(pairs));
  return wrapped;
}
#else
HWY_INLINE uint64_t Pairs(const uint32_t* digits, char* to) {
  const hn::FixedTag<int32_t, 4> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  const auto word = hn::LoadU(d, reinterpret_cast<const int32_t*>(digits));
  // A negative d0 borrows from the byte above.
  const auto low = hn::Sub(word, hn::ShiftLeft<1>(hn::And(word, hn::Set(d, 0x80))));
  const auto high = hn::ShiftRight<8>(hn::ShiftLeft<8>(word));
  const auto both = hn::Or(hn::And(low, hn::Set(d, 0xffff)), hn::And(high, hn::Set(d, ~0xffff)));
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15};
  hn::StoreU(hn::TableLookupBytes(hn::BitCast(bytes, both), hn::Load(bytes, kOrder)), bytes,
             reinterpret_cast<uint8_t*>(to));
  const auto is_wrapped = hn::Eq(hn::And(word, hn::Set(d, 0xff80)), hn::Set(d, 0x8080));
  uint8_t bits[8] = {};
  hn::StoreMaskBits(d, is_wrapped, bits);
  return bits[0];
}
#endif

void Place(const DigitKernel& kernel, const uint32_t* digits, int64_t pitch, int64_t line, char* group,
           DigitLine& own) {
  const int64_t rows = kernel.tile_rows, row = line % rows;
  char* tile = group + line / rows * kernel.TileBytes(pitch);
  switch (kernel.layout) {
    case DigitLayout::kWords:
      if (rows > 1) PlaceWords(digits, pitch, rows * 4 * kDigits, row == rows - 1, tile + row * 4 * kDigits);
      else if (pitch == kMaxDigitGroup) PlaceOwnWords(digits, kMaxDigitGroup, tile);
      else PlaceOwnWords(digits, pitch, tile);
      return;
    case DigitLayout::kPairs:
      std::fill(std::begin(own.wrapped), std::end(own.wrapped), uint64_t{0});
      for (int64_t k = 0; k < pitch; k += 4) {
        own.wrapped[k / 64] |= Pairs(digits + k, tile + (k / 4 * rows + row) * 16) << (k % 64);
      }
      return;
    case DigitLayout::kTiles:
      for (int64_t k = 0; k < pitch; k += 64) {
        for (int64_t i = 0; i < kDigits; ++i) {
          auto* to = reinterpret_cast<uint8_t*>(tile) + ((k / 64 * kDigits + i) * rows + row) * 64;
          for (int64_t j = 0; j < 64; ++j) to[j] = static_cast<uint8_t>(digits[k + j] >> (8 * i));
        }
      }
      return;
    case DigitLayout::kBytes: return;  // only for integers: PlaceIntegers
  }
}

// Interleaves R rows of `pitch` bytes in the layout kBytes, and computes their sums.
#if HWY_TARGET == HWY_SCALAR
template <int R>
void Interleave(const int8_t* const (&rows)[kMaxIntegerTileRows], int64_t pitch, char* tile, int32_t* sums) {
  for (int r = 0; r < R; ++r) {
    sums[r] = 0;
    for (int64_t k = 0; k < pitch; ++k) sums[r] += rows[r][k];
    for (int64_t k = 0; k < pitch; k += 4) std::memcpy(tile + R * k + 4 * r, rows[r] + k, 4);
  }
}
#else
template <int R>
void Interleave(const int8_t* const (&rows)[kMaxIntegerTileRows], int64_t pitch, char* tile, int32_t* sums) {
  static_assert(R == 1 || R == 4);
  const hn::FixedTag<uint32_t, 4> words;
  const hn::FixedTag<uint8_t, 16> bytes;
  const hn::FixedTag<uint64_t, 2> sum_tag;
  const auto offset = hn::Set(bytes, 128);
  hn::Vec<decltype(sum_tag)> sum[R];
  for (auto& s : sum) s = hn::Zero(sum_tag);
  for (int64_t k = 0; k < pitch; k += 16) {
    hn::Vec<decltype(words)> v[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const auto row = hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(rows[r]) + k);
      v[r] = hn::BitCast(words, row);
      sum[r] = hn::Add(sum[r], hn::SumsOf8(hn::Xor(row, offset)));
    }
    auto* const to = reinterpret_cast<uint32_t*>(tile + R * k);
    if constexpr (R == 1) hn::StoreU(v[0], words, to);
    else hn::StoreInterleaved4(v[0], v[1], v[2], v[3], words, to);
  }
  for (int r = 0; r < R; ++r) {
    const auto total = hn::GetLane(hn::SumOfLanes(sum_tag, sum[r]));
    sums[r] = static_cast<int32_t>(total) - 128 * static_cast<int32_t>(pitch);
  }
}
#endif

void PlaceIntegerRows(const Operand& x, int64_t b, int64_t row, int64_t rows, int64_t begin, int64_t count,
                      int64_t pitch, int64_t tile_rows, char* tile, int32_t* sums) {
  alignas(64) int8_t padded[kMaxIntegerTileRows][kMaxDigitGroup];
  const int8_t* from[kMaxIntegerTileRows];
  const bool is_dense = IsDense(x, count);
  for (int64_t r = 0; r < tile_rows; ++r) {
    const bool exists = r < rows;
    const int8_t* own = static_cast<const int8_t*>(x.data);
    if (exists) own += x.batch.Offset(b) + x.rows.Offset(row + r);
    if (exists && is_dense && count == pitch) {
      from[r] = own + x.k.Offset(begin);
      continue;
    }
    const int64_t here = exists ? count : 0;
    for (int64_t k = 0; k < here; ++k) padded[r][k] = own[x.k.Offset(begin + k)];
    std::fill(padded[r] + here, padded[r] + pitch, int8_t{0});
    from[r] = padded[r];
  }
  if (tile_rows == 1) Interleave<1>(from, pitch, tile, sums);
  else Interleave<kMaxIntegerTileRows>(from, pitch, tile, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {

void LoadDigitSource(Target target, const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count,
                     int64_t pitch, float* values) {
  AQT_HWY_DISPATCH(target, Load)(x, b, row, begin, count, pitch, values);
}

void SplitDigits(Target target, const Operand& x, int64_t b, int64_t row, int64_t begin, int64_t count, int64_t pitch,
                 bool is_short, DigitLayers& layers) {
  AQT_HWY_DISPATCH(target, Split)(x, b, row, begin, count, pitch, is_short, layers);
}

void PlaceIntegers(Target target, const Operand& x, int64_t b, int64_t row, int64_t rows, int64_t begin, int64_t count,
                   int64_t pitch, int64_t tile_rows, char* tile, int32_t* sums) {
  AQT_HWY_DISPATCH(target, PlaceIntegerRows)(x, b, row, rows, begin, count, pitch, tile_rows, tile, sums);
}

void PlaceDigits(Target target, const DigitKernel& kernel, const uint32_t* digits, int64_t pitch, int64_t line,
                 char* group, DigitLine& own) {
  AQT_HWY_DISPATCH(target, Place)(kernel, digits, pitch, line, group, own);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
