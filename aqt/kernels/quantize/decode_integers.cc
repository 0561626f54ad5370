#include "aqt/kernels/quantize/decode_integers.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/core/check.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/quantize/decode_integers.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using IntTag = hn::RebindToSigned<FloatTag>;

// Codes that are unpacked to bytes at a time. They fill whole bytes, whatever their width.
constexpr int64_t kCodesAtOnce = 512;

// Eight fields, which fill kBits bytes, as eight bytes.
template <int kBits>
HWY_INLINE uint64_t SpreadFields(uint64_t fields) {
  constexpr uint64_t kOne = 1;
  constexpr uint64_t kFour = (kOne << 4 * kBits) - 1;
  constexpr uint64_t kTwo = ((kOne << 2 * kBits) - 1) * 0x0000000100000001u;
  constexpr uint64_t kSingle = ((kOne << kBits) - 1) * 0x0001000100010001u;
  fields = (fields & kFour) | (fields >> 4 * kBits & kFour) << 32;
  fields = (fields & kTwo) | (fields >> 2 * kBits & kTwo) << 16;
  return (fields & kSingle) | (fields >> kBits & kSingle) << 8;
}

// Bits above those of the eight fields do not count.
template <int kBits>
HWY_INLINE void UnpackFields(const uint8_t* q, int64_t n, uint8_t* code) {
  const uint8_t* const end = q + (n * kBits + 7) / 8;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8, q += kBits) {
    uint64_t fields = 0;
    if (q + sizeof fields <= end) std::memcpy(&fields, q, sizeof fields);  // a load of three bytes is slow
    else std::memcpy(&fields, q, kBits);
    fields = SpreadFields<kBits>(fields);
    std::memcpy(code + i, &fields, sizeof fields);
  }
  if (i == n) return;
  uint64_t fields = 0;
  std::memcpy(&fields, q, static_cast<size_t>(end - q));
  fields = SpreadFields<kBits>(fields);
  std::memcpy(code + i, &fields, static_cast<size_t>(n - i));
}

// Two nibbles per byte. A byte b as 16 bits: b | b << 4 has the low nibble in its low byte, and the high one in its
// high byte. The nibbles may be exchanged.
template <bool kHighFirst>
HWY_INLINE void UnpackNibbles(const uint8_t* q, int64_t n, uint8_t* code) {
  const hn::ScalableTag<uint16_t> d;
  const hn::Rebind<uint8_t, hn::ScalableTag<uint16_t>> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto b = hn::PromoteTo(d, hn::LoadU(d8, q + i / 2));
    const auto other = kHighFirst ? hn::Or(hn::ShiftRight<4>(b), hn::ShiftLeft<8>(b)) : hn::Or(b, hn::ShiftLeft<4>(b));
    const auto pair = hn::And(other, hn::Set(d, uint16_t{0x0f0f}));
    std::memcpy(code + i, &pair, sizeof pair);
  }
  for (; i < n; ++i) code[i] = (i % 2 == 0) != kHighFirst ? q[i / 2] & 15 : q[i / 2] >> 4;
}

HWY_INLINE void UnpackFieldsAny(int bits, const uint8_t* q, int64_t n, uint8_t* code) {
  switch (bits) {
    case 1: return UnpackFields<1>(q, n, code);
    case 2: return UnpackFields<2>(q, n, code);
    case 3: return UnpackFields<3>(q, n, code);
    case 4: return UnpackNibbles<false>(q, n, code);
    case 5: return UnpackFields<5>(q, n, code);
    case 6: return UnpackFields<6>(q, n, code);
    case 7: return UnpackFields<7>(q, n, code);
    default: std::memcpy(code, q, static_cast<size_t>(n));
  }
}

// Codes of one layout, as integers.
struct SignedBytes {
  const int8_t* q;
  HWY_INLINE hn::Vec<IntTag> Vector(IntTag d, int64_t i) const {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<int8_t, IntTag>(), q + i));
  }
  HWY_INLINE int32_t One(int64_t i) const { return q[i]; }
};
struct Bytes {
  const uint8_t* q;
  HWY_INLINE hn::Vec<IntTag> Vector(IntTag d, int64_t i) const {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, IntTag>(), q + i));
  }
  HWY_INLINE int32_t One(int64_t i) const { return q[i]; }
};
struct Words {
  const uint8_t* q;
  int shift;
  uint32_t mask;
  HWY_INLINE hn::Vec<IntTag> Vector(IntTag d, int64_t i) const {
    const hn::RebindToUnsigned<IntTag> du;
    hn::Vec<decltype(du)> word;
    std::memcpy(&word, q + 4 * i, sizeof word);
    return hn::BitCast(d, hn::And(hn::ShiftRightSame(word, shift), hn::Set(du, mask)));
  }
  HWY_INLINE int32_t One(int64_t i) const {
    uint32_t word;
    std::memcpy(&word, q + 4 * i, sizeof word);
    return static_cast<int32_t>(word >> shift & mask);
  }
};

// The values [begin, end), of codes whose first one is that of value `begin`.
template <class Codes>
HWY_INLINE void ScaleRun(const DecodeIntegersArgs& args, const Codes& codes, int64_t begin, int64_t end) {
  const FloatTag d;
  const IntTag di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto bias = hn::Set(di, args.bias);
  const auto factor = hn::Set(d, args.factor);
  const auto value = [&](int64_t i) HWY_ATTR { return hn::ConvertTo(d, hn::Sub(codes.Vector(di, i - begin), bias)); };
  const auto store = [&](int64_t i, hn::Vec<FloatTag> difference, hn::Vec<FloatTag> scale)
                         HWY_ATTR { hn::StoreU(hn::Mul(hn::Mul(difference, scale), factor), d, args.x + i); };
  const auto one = [&](int64_t i, int64_t g) {
    const float zero = args.zero != nullptr ? args.zero[g] : 0.0f;
    const float difference = static_cast<float>(codes.One(i - begin) - args.bias) - zero;
    const float product = difference * args.scale[g];
    args.x[i] = product * args.factor;
  };
  int64_t i = begin;
  if (args.group_of != nullptr) {
    for (; i + lanes <= end; i += lanes) {
      const auto g = hn::LoadU(di, args.group_of + i);
      const auto zero = args.zero != nullptr ? hn::GatherIndex(d, args.zero, g) : hn::Zero(d);
      store(i, hn::Sub(value(i), zero), hn::GatherIndex(d, args.scale, g));
    }
    for (; i < end; ++i) one(i, args.group_of[i]);
    return;
  }
  for (int64_t g = i / args.group; i < end; ++g) {
    const int64_t stop = std::min(end - i, args.group - (i - g * args.group)) + i;
    const auto zero = hn::Set(d, args.zero != nullptr ? args.zero[g] : 0.0f), scale = hn::Set(d, args.scale[g]);
    for (; i + lanes <= stop; i += lanes) store(i, hn::Sub(value(i), zero), scale);
    for (; i < stop; ++i) one(i, g);
  }
}

void DecodeIntegersAny(const DecodeIntegersArgs& args) {
  switch (args.layout) {
    case CodeLayout::kBytes: return ScaleRun(args, SignedBytes{reinterpret_cast<const int8_t*>(args.q)}, 0, args.n);
    case CodeLayout::kWords: return ScaleRun(args, Words{args.q, args.shift, (1u << args.bits) - 1}, 0, args.n);
    case CodeLayout::kFields: break;
  }
  uint8_t code[kCodesAtOnce];
  for (int64_t begin = 0; begin < args.n; begin += kCodesAtOnce) {
    const int64_t n = std::min(kCodesAtOnce, args.n - begin);
    UnpackFieldsAny(args.bits, args.q + begin / 8 * args.bits, n, code);
    ScaleRun(args, Bytes{code}, begin, begin + n);
  }
}

// map[code] for vectors of codes.
class Map {
 public:
  explicit HWY_INLINE Map(const float* map) : map_(map) {}
  HWY_INLINE hn::Vec<FloatTag> operator()(FloatTag d, const uint8_t* code) const {
    const IntTag di;
    const auto index = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, IntTag>(), code));
    constexpr size_t kLanes = hn::MaxLanes(FloatTag());
    if constexpr (kLanes == 16) {
      return hn::TableLookupLanes(hn::LoadU(d, map_), hn::IndicesFromVec(d, index));
    } else if constexpr (kLanes == 8) {
      const auto lane = hn::IndicesFromVec(d, hn::And(index, hn::Set(di, 7)));
      return hn::IfThenElse(hn::RebindMask(d, hn::Gt(index, hn::Set(di, 7))),
                            hn::TableLookupLanes(hn::LoadU(d, map_ + 8), lane),
                            hn::TableLookupLanes(hn::LoadU(d, map_), lane));
    } else {
      return hn::GatherIndex(d, map_, index);
    }
  }

 private:
  const float* map_;
};

void DecodeByMapAny(const DecodeByMapArgs& args) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Map map(args.map);
  uint8_t buffer[kCodesAtOnce];
  int64_t i = 0, group = 0, group_end = args.group - args.first % args.group;  // of the value that follows
  const int64_t skip = args.first % 2;
  while (i < args.n) {
    // The first byte may begin with a code that is not asked for.
    const int64_t lead = i == 0 ? skip : 0, n = std::min(kCodesAtOnce - lead, args.n - i);
    UnpackNibbles<true>(args.q + (i + skip) / 2, lead + n, buffer);
    const uint8_t* const code = buffer + lead - i;
    for (const int64_t end = i + n; i < end;) {
      const int64_t stop = std::min(group_end, end);
      const auto scale = hn::Set(d, args.scale[group]);
      for (; i + lanes <= stop; i += lanes) hn::StoreU(hn::Mul(map(d, code + i), scale), d, args.x + i);
      for (; i < stop; ++i) args.x[i] = args.map[code[i]] * args.scale[group];
      if (i < group_end) continue;
      ++group;
      group_end += std::min(args.group, args.n - group_end);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// Four rows and four columns.
HWY_INLINE void TransposeTile(const uint32_t* from, int64_t from_stride, uint32_t* to, int64_t to_stride) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d2;
  const auto row = [&](int64_t r) HWY_ATTR { return hn::LoadU(d, from + r * from_stride); };
  const auto store = [&](int64_t c, hn::Vec<decltype(d2)> column)
                         HWY_ATTR { hn::StoreU(hn::BitCast(d, column), d, to + c * to_stride); };
  const auto r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
  const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1));
  const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1));
  const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
  const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
  store(0, hn::InterleaveLower(d2, low01, low23));
  store(1, hn::InterleaveUpper(d2, low01, low23));
  store(2, hn::InterleaveLower(d2, high01, high23));
  store(3, hn::InterleaveUpper(d2, high01, high23));
}
#endif

void TransposeWordsAny(const uint32_t* from, int64_t rows, int64_t cols, int64_t from_stride, uint32_t* to,
                       int64_t to_stride) {
  // The words of a cache line of each column are written together: the lines may share a set of the cache.
  constexpr int64_t kRows = 16;
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = std::min(rows, begin + kRows);
    int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; end - begin == kRows && c + 4 <= cols; c += 4) {
      for (int64_t r = begin; r < end; r += 4) {
        TransposeTile(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
      }
    }
#endif
    for (; c < cols; ++c) {
      for (int64_t r = begin; r < end; ++r) to[c * to_stride + r] = from[r * from_stride + c];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void DecodeIntegers(const DecodeIntegersArgs& args, Target target) {
  AQT_DCHECK(args.group > 0 && args.bits >= 1 && args.bits <= 8);
  AQT_HWY_DISPATCH(target, DecodeIntegersAny)(args);
}

void DecodeByMap(const DecodeByMapArgs& args, Target target) {
  AQT_DCHECK(args.group > 0 && args.first >= 0);
  AQT_HWY_DISPATCH(target, DecodeByMapAny)(args);
}

void TransposeWords(const uint32_t* from, int64_t rows, int64_t cols, int64_t from_stride, uint32_t* to,
                    int64_t to_stride, Target target) {
  AQT_HWY_DISPATCH(target, TransposeWordsAny)(from, rows, cols, from_stride, to, to_stride);
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
