// Digits with AVX2, digits with AVX-512 without VNNI, the portable kernel, and the choice among all kernels.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/kernels/digits/internal.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/digits/madd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/digits/finish-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// vpmaddwd on s16: exact, where vpmaddubsw would saturate. The two low digits are combined into the number d0 + 256 d1,
// so there are two sums instead of three: of that number, and of d2. The number is in [-32896, 32639]. Values below
// -32768 are rare: 65536 is added to them, and subtracted from the sums at the end (Unwrapped). Intermediate sums may
// wrap too, but the final ones fit (digits.h).
constexpr int kSums = 2;
constexpr int kVectors = 4;
constexpr int64_t kTileRows = HWY_TARGET == HWY_AVX3 ? 2 : 1;  // 16 or 8 sums, out of 32 or 16 registers

using D32 = hn::ScalableTag<int32_t>;
using D16 = hn::Repartition<int16_t, D32>;
using DU16 = hn::RebindToUnsigned<D16>;
using V32 = hn::Vec<D32>;
using V16 = hn::Vec<D16>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4;
constexpr int64_t kPassColumns = kVectors * kLanes;  // 32 or 64
constexpr int64_t kPairBytes = kSums * 8;

HWY_INLINE V16 Pair(const char* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return hn::BitCast(D16(), hn::Set(D32(), pair));
}

HWY_INLINE void Step(V16 weights, V16 pair, V32& sum) {
  V32 unused = sum;
  sum = hn::ReorderWidenMulAccumulate(D32(), weights, pair, sum, unused);
  // As in kernels/gemm/isa/s8_madd.cc.
  __asm__("" : "+v"(sum.raw));
}

// The weights of four k in a vector of columns: k 0 and 2, and k 1 and 3.
struct Four {
  V16 even, odd;
};

// k 0 and 2 are the low bytes of 16-bit lanes. With 16 bits, weights are the words of WidenAs.
template <int kBits, int kBlock>
HWY_INLINE Four LoadFour(const uint8_t* HWY_RESTRICT weights, int v) {
  if constexpr (kBits == 16) {
    const auto* from = reinterpret_cast<const int16_t*>(weights + 8 * kLanes * v);
    return {hn::LoadU(D16(), from), hn::LoadU(D16(), from + 2 * kLanes)};
  } else {
    const auto mask = hn::Set(DU16(), (1 << kBits) - 1);
    const auto packed = hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(weights + 4 * kLanes * v));
    auto high = hn::ShiftRight<8 + kBits * kBlock>(packed);
    if constexpr (kBits * (kBlock + 1) < 8) high = hn::And(high, mask);
    return {hn::BitCast(D16(), hn::And(hn::ShiftRight<kBits * kBlock>(packed), mask)), hn::BitCast(D16(), high)};
  }
}

template <int kBits, int kBlock, int R>
HWY_INLINE void Block(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT pairs,
                      V32 (&s)[R][kSums][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const Four four = LoadFour<kBits, kBlock>(weights, v);
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int i = 0; i < kSums; ++i) {
        const char* at = pairs + kPairBytes * r + 8 * i;
        Step(four.even, Pair(at), s[r][i][v]);
        Step(four.odd, Pair(at + 4), s[r][i][v]);
      }
    }
  }
}

// The low sums of the columns starting at `column`, minus 65536 times the weights of each k that wrapped.
template <int kBits>
HWY_INLINE V32 Unwrapped(const DigitGroupArgs& args, const DigitLine& line, V32 sum, int64_t column) {
  constexpr int64_t kBlocks = 8 / kBits;
  const auto mask = hn::Set(D32(), (1 << kBits) - 1);
  for (int64_t i = 0; i < kMaxDigitGroup / 64; ++i) {
    for (uint64_t rest = line.wrapped[i]; rest != 0; rest &= rest - 1) {
      const int64_t k = 64 * i + __builtin_ctzll(rest);
      const uint8_t* words = args.weights + 4 * (k / 4 / kBlocks * kPanelColumns + column);
      const int shift = static_cast<int>(k % 4 * 8 + k / 4 % kBlocks * kBits);
      const V32 word = hn::LoadU(D32(), reinterpret_cast<const int32_t*>(words));
      sum = hn::Sub(sum, hn::ShiftLeft<16>(hn::And(hn::ShiftRightSame(word, shift), mask)));
    }
  }
  return sum;
}

// kBits is the width of the packed weights; kWidth is the width of the weights that are read: kBits or 16.
template <int kBits, int kWidth, int R>
HWY_NOINLINE void Tile(const DigitGroupArgs& args, bool scales_are_plain, const uint8_t* first_weights,
                       const DigitLine* lines, const char* HWY_RESTRICT first_pair) {
  constexpr int kBlocks = kWidth == 16 ? 1 : 8 / kWidth;
  constexpr int64_t kColumnBytes = kWidth == 16 ? 8 : 4;
  constexpr int64_t kBlockBytes = kPairBytes * kTileRows;
  for (int64_t c = 0; c < kPanelColumns; c += kPassColumns) {
    const uint8_t* weights = first_weights + kColumnBytes * c;
    const char* pairs = first_pair;
    V32 s[R][kSums][kVectors];
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
      const int32_t* start = lines[r].start;
      const int32_t starts[kSums] = {start[0] + 256 * start[1], start[2]};
#pragma GCC unroll 2
      for (int i = 0; i < kSums; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) s[r][i][v] = hn::Set(D32(), starts[i]);
      }
    }
    for (int64_t k = 0; k < args.pitch;
         k += 4 * kBlocks, weights += kColumnBytes * kPanelColumns, pairs += kBlocks * kBlockBytes) {
      Block<kWidth, 0>(weights, pairs, s);
      if constexpr (kBlocks >= 2) Block<kWidth, 1>(weights, pairs + kBlockBytes, s);
      if constexpr (kBlocks == 4) {
        Block<kWidth, 2>(weights, pairs + 2 * kBlockBytes, s);
        Block<kWidth, 3>(weights, pairs + 3 * kBlockBytes, s);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int64_t column = c + kLanes * v;
        const V32 low = Unwrapped<kBits>(args, lines[r], s[r][0][v], column);
        FinishTotal(args, lines[r], scales_are_plain && lines[r].is_plain, TotalOf(low, s[r][1][v]),
                    column / kHalfColumns, column % kHalfColumns);
      }
    }
  }
}

// Widens all weights of a group to 16 bits.
template <int kBits, int kBlock>
HWY_INLINE void WidenBlock(const uint8_t* HWY_RESTRICT weights, int16_t* HWY_RESTRICT to) {
  for (int v = 0; v < kPanelColumns / kLanes; ++v) {
    const Four four = LoadFour<kBits, kBlock>(weights, v);
    hn::StoreU(four.even, D16(), to + 4 * kLanes * v);
    hn::StoreU(four.odd, D16(), to + 4 * kLanes * v + 2 * kLanes);
  }
}

template <int kBits>
void WidenAs(const uint8_t* weights, int64_t pitch, int16_t* to) {
  constexpr int64_t kBlocks = 8 / kBits, kBlockSize = 4 * kPanelColumns;
  for (int64_t k = 0; k < pitch; k += 4 * kBlocks, weights += kBlockSize, to += kBlocks * kBlockSize) {
    WidenBlock<kBits, 0>(weights, to);
    if constexpr (kBlocks >= 2) WidenBlock<kBits, 1>(weights, to + kBlockSize);
    if constexpr (kBlocks == 4) {
      WidenBlock<kBits, 2>(weights, to + 2 * kBlockSize);
      WidenBlock<kBits, 3>(weights, to + 3 * kBlockSize);
    }
  }
}

template <int kBits, int kWidth>
void Tiles(const DigitGroupArgs& args, const uint8_t* weights) {
  const int64_t tile_bytes = kTileRows * 4 * args.pitch;
  const char* pairs = args.digits;
  const bool plain = ScalesArePlain(args.scales);
  int64_t i = 0;
  for (; i + kTileRows <= args.num_lines; i += kTileRows, pairs += tile_bytes) {
    Tile<kBits, kWidth, kTileRows>(args, plain, weights, args.lines + i, pairs);
  }
  if (i < args.num_lines) Tile<kBits, kWidth, 1>(args, plain, weights, args.lines + i, pairs);
}

template <int kBits>
void Lines(const DigitGroupArgs& args) {
  // If a tile has one row, widening the weights once pays off. 8-bit weights cost less to unpack, so they need more
  // rows.
  if constexpr (kTileRows == 1) {
    if (args.num_lines > (kBits == 8 ? 16 : 2)) {
      alignas(64) int16_t wide[kMaxDigitGroup * kPanelColumns];
      WidenAs<kBits>(args.weights, args.pitch, wide);
      return Tiles<kBits, 16>(args, reinterpret_cast<const uint8_t*>(wide));
    }
  }
  Tiles<kBits, kBits>(args, args.weights);
}

void MaddGroup(const DigitGroupArgs& args) {
  switch (args.bits) {
    case 8: return Lines<8>(args);
    case 4: return Lines<4>(args);
    default: return Lines<2>(args);
  }
}

const DigitKernel* MaddKernel() {
  static constexpr DigitKernel kKernel = {HWY_TARGET == HWY_AVX2 ? "avx2" : "avx512", DigitLayout::kPairs, kTileRows,
                                          &MaddGroup};
  return &kKernel;
}

#endif  // HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

#if HWY_TARGET == HWY_SCALAR
void Decode(const uint8_t* packed, int bits, int64_t pitch, uint8_t* bytes) {
  const int64_t blocks = 8 / bits;
  for (int64_t k = 0; k < pitch; k += 4 * blocks, packed += 4 * kPanelColumns) {
    for (int64_t block = 0; block < blocks; ++block, bytes += 4 * kPanelColumns) {
      for (int64_t i = 0; i < 4 * kPanelColumns; ++i) {
        bytes[i] = static_cast<uint8_t>(packed[i] >> (bits * block) & ((1 << bits) - 1));
      }
    }
  }
}
#else
template <int kBits>
void DecodeAs(const uint8_t* HWY_RESTRICT packed, int64_t pitch, uint8_t* HWY_RESTRICT bytes) {
  const hn::ScalableTag<uint16_t> d;
  const auto mask = hn::Set(d, ((1 << kBits) - 1) * 0x0101);
  const int64_t lane_bytes = 2 * static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kBlockBytes = 4 * kPanelColumns;
  for (int64_t k = 0; k < pitch; k += 32 / kBits, packed += kBlockBytes, bytes += 8 / kBits * kBlockBytes) {
    for (int64_t i = 0; i < kBlockBytes; i += lane_bytes) {
      const auto v = hn::LoadU(d, reinterpret_cast<const uint16_t*>(packed + i));
      const auto store = [&](auto shifted, int64_t block) {
        hn::StoreU(hn::And(shifted, mask), d, reinterpret_cast<uint16_t*>(bytes + block * kBlockBytes + i));
      };
      store(v, 0);
      store(hn::ShiftRight<kBits>(v), 1);
      if constexpr (kBits == 2) {
        store(hn::ShiftRight<4>(v), 2);
        store(hn::ShiftRight<6>(v), 3);
      }
    }
  }
}
void Decode(const uint8_t* packed, int bits, int64_t pitch, uint8_t* bytes) {
  if (bits == 4) DecodeAs<4>(packed, pitch, bytes);
  else DecodeAs<2>(packed, pitch, bytes);
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels::internal {
namespace {

// Plain C++ for every machine. D is the number of digits: kDigits for kWords, or one for kBytes.
template <int64_t D>
void EmulatedGroup(const DigitGroupArgs& args) {
  const uint8_t* weights = args.weights;
  alignas(64) uint8_t bytes[kMaxDigitGroup * kPanelColumns];
  if (args.bits < 8) {
    DecodeDigitWeights(Target::kScalar, weights, args.bits, args.pitch, bytes);
    weights = bytes;
  }
  for (int64_t line = 0; line < args.num_lines; ++line) {
    const DigitLine& own = args.lines[line];
    const int8_t* words = reinterpret_cast<const int8_t*>(args.digits) + line * args.pitch * D;
    int32_t sums[kDigits][kPanelColumns] = {};
    for (int64_t i = 0; i < D; ++i) {
      std::fill(sums[i], sums[i] + kPanelColumns, own.start[i]);
      for (int64_t k = 0; k < args.pitch; k += 4) {
        const int8_t* word = words + D * k + 4 * i;
        const uint8_t* block = weights + k * kPanelColumns;
        for (int64_t c = 0; c < kPanelColumns; ++c) {
          sums[i][c] += word[0] * block[4 * c] + word[1] * block[4 * c + 1] + word[2] * block[4 * c + 2] +
                        word[3] * block[4 * c + 3];
        }
      }
    }
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const int64_t at = c / kHalfColumns * args.half_stride + own.row * kHalfColumns + c % kHalfColumns;
      const float low = static_cast<float>(sums[0][c] + 256 * sums[1][c]);
      float term = (65536.0f * static_cast<float>(sums[2][c]) + low) * own.unit;
      if (args.scales == nullptr) {
        args.sums[at] += term;
        continue;
      }
      if (!own.is_first) term += args.parts[at];
      args.parts[at] = term;
      if (own.is_last) args.sums[at] = AddScaled(args.sums[at], term, args.scales[c]);
    }
  }
}

}  // namespace

const DigitKernel& DigitsEmulated() {
  static constexpr DigitKernel kKernel = {"emulated", DigitLayout::kWords, 1, &EmulatedGroup<kDigits>};
  return kKernel;
}

const DigitKernel& DigitsEmulatedOfIntegers() {
  static constexpr DigitKernel kKernel = {"emulated", DigitLayout::kBytes, 1, &EmulatedGroup<1>};
  return kKernel;
}

const DigitKernel& DigitKernelFor(Target target, const DigitFormat& format, int64_t rows, bool integers) {
  if (integers) {
    const DigitKernel* const vnni = DigitsVnniOfIntegers(rows);
    return vnni != nullptr && target.Has(Capability::kAvx512Vnni) ? *vnni : DigitsEmulatedOfIntegers();
  }
  const DigitKernel* amx = DigitsAmx();
  if (amx != nullptr && target.Has(Capability::kAmxInt8) && target.Has(Capability::kAvx512) && rows >= amx->tile_rows &&
      format.GroupPitch() % 64 == 0) {
    return *amx;
  }
  const DigitKernel* const vnni = DigitsVnni(format.bits, rows);
  if (vnni != nullptr && target.Has(Capability::kAvx512Vnni)) return *vnni;
#if HWY_TARGETS & HWY_AVX3
  if (target.Has(Capability::kAvx512)) return *N_AVX3::MaddKernel();
#endif
#if HWY_TARGETS & HWY_AVX2
  if (target.Has(Capability::kAvx2)) return *N_AVX2::MaddKernel();
#endif
  return DigitsEmulated();
}

void DecodeDigitWeights(Target target, const uint8_t* packed, int bits, int64_t pitch, uint8_t* bytes) {
  AQT_HWY_DISPATCH(target, Decode)(packed, bits, pitch, bytes);
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
