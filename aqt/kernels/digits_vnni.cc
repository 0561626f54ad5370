// Digits on AVX-512 VNNI.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/kernels/digits_internal.h"
#include "aqt/kernels/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/digits_vnni.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/digits_finish-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {
namespace {

constexpr int kVectors = 4;  // of 16 columns

// The digits of a line: three, or, of integers, one.
template <int D>
constexpr DigitLayout kLayout = D == 1 ? DigitLayout::kBytes : DigitLayout::kWords;
template <int D>
constexpr int64_t kTileRows = D == 1 ? kIntegerTileRows : 2;
// Of four k, of a line and of a tile.
template <int D>
constexpr int64_t kLineBytes = D == 1 ? 4 : 16;
template <int D>
constexpr int64_t kWordBytes = kLineBytes<D>* kTileRows<D>;

// More lines than these make it pay to unpack the weights once.
template <int D>
constexpr int64_t kUnpackedLines = D == 1 ? 8 : 2;
constexpr int kRowPanels = 2;       // that a row goes over side by side
constexpr int64_t kFetchTiles = 4;  // see Lines

using D32 = hn::ScalableTag<int32_t>;
using D16 = hn::Repartition<uint16_t, D32>;
using V32 = hn::Vec<D32>;

// Loads and steps stay in their order, and each weight is loaded once: GCC would start with many loads, and spill sums.
HWY_INLINE V32 LoadWeights(const uint8_t* p) {
  V32 weights = hn::LoadU(D32(), reinterpret_cast<const int32_t*>(p));
  __asm__ volatile("" : "+v"(weights.raw));
  return weights;
}

// The weights of one block of four k out of 8 / kBits that share their bytes.
template <int kBits, int kBlock>
HWY_INLINE V32 Unpack(V32 packed) {
  if constexpr (kBits == 8) return packed;
  const auto shifted = hn::BitCast(D32(), hn::ShiftRight<kBits * kBlock>(hn::BitCast(D16(), packed)));
  return hn::And(shifted, hn::Set(D32(), ((1 << kBits) - 1) * 0x01010101));
}

// Assembly, as in gemm_dot.cc.
HWY_INLINE void Step(V32 weights, V32 word, V32& sum) {
  __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "v"(word.raw));
}

// Of R lines.
template <int R, int D>
struct Sums {
  V32 v[R][D][kVectors];
};

HWY_INLINE V32 Word(const char* p) {
  V32 word;
  __asm__ volatile("vpbroadcastd %1, %0" : "=v"(word.raw) : "m"(*reinterpret_cast<const char(*)[4]>(p)));
  return word;
}

// Some lines: each word is needed for all vectors of weights.
template <int kBits, int kBlock, int R, int D>
HWY_INLINE void Block(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, Sums<R, D>& s) {
  V32 w[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) w[v] = Unpack<kBits, kBlock>(LoadWeights(weights + 64 * v));
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int i = 0; i < D; ++i) {
      const V32 word = Word(words + kLineBytes<D> * r + 4 * i);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Step(w[v], word, s.v[r][i][v]);
    }
  }
}

// One line: each vector of weights is needed for all words, of kCount blocks from kFirst on.
template <int kBits, int kFirst, int kCount, int D, int kBlock = 0>
HWY_INLINE void AddVector(V32 packed, const V32 (&words)[kCount][D], int v, Sums<1, D>& s) {
  const V32 weights = Unpack<kBits, kFirst + kBlock>(packed);
#pragma GCC unroll 3
  for (int i = 0; i < D; ++i) Step(weights, words[kBlock][i], s.v[0][i][v]);
  if constexpr (kBlock + 1 < kCount) AddVector<kBits, kFirst, kCount, D, kBlock + 1>(packed, words, v, s);
}
template <int kBits, int kFirst, int kCount, int D>
HWY_INLINE void BlocksOfLine(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, Sums<1, D>& s) {
  V32 w[kCount][D];
#pragma GCC unroll 4
  for (int b = 0; b < kCount; ++b) {
#pragma GCC unroll 3
    for (int i = 0; i < D; ++i) w[b][i] = Word(words + (kFirst + b) * kWordBytes<D> + 4 * i);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) AddVector<kBits, kFirst, kCount, D>(LoadWeights(weights + 64 * v), w, v, s);
}

template <int kBits, int kBlock, int R, int D>
HWY_INLINE void AddBlock(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, Sums<R, D>& s) {
  if constexpr (R == 1) BlocksOfLine<kBits, kBlock, 1>(weights, words, s);
  else Block<kBits, kBlock>(weights, words + kBlock * kWordBytes<D>, s);
}

// The blocks that share their bytes. `fetch` as in DigitGroupArgs.
template <int kBits, int R, int D>
HWY_INLINE void Blocks(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, int64_t fetch,
                       Sums<R, D>& s) {
  if (fetch != 0) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(weights + fetch + 64 * v);
  }
  if constexpr (R == 1 && D == 1) {  // which has registers for all
    BlocksOfLine<kBits, 0, 8 / kBits>(weights, words, s);
  } else {
    AddBlock<kBits, 0>(weights, words, s);
    if constexpr (kBits <= 4) AddBlock<kBits, 1>(weights, words, s);
    if constexpr (kBits == 2) {
      AddBlock<kBits, 2>(weights, words, s);
      AddBlock<kBits, 3>(weights, words, s);
    }
  }
}

template <int R, int D>
HWY_INLINE void Start(const DigitLine* lines, Sums<R, D>& s) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int i = 0; i < D; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) s.v[r][i][v] = hn::Set(D32(), lines[r].start[i]);
    }
  }
}

// R(65536 S2 + R(S0 + 256 S1)) of digits.h.
template <int D>
HWY_INLINE hn::Vec<hn::ScalableTag<float>> Total(const V32 (&s)[D][kVectors], int v) {
  if constexpr (D == 1) return hn::ConvertTo(hn::ScalableTag<float>(), s[0][v]);
  else return TotalOf(s[0][v], s[1][v], s[2][v]);
}

template <bool kPlain, int D>
HWY_INLINE void FinishRow(const DigitGroupArgs& args, const DigitLine& line, const V32 (&s)[D][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) FinishTotal(args, line, kPlain, Total(s, v), v / 2, v % 2 * 16);
}

// Of copies, which no store of a sum can change.
template <int R, int D>
HWY_INLINE void Finish(DigitGroupArgs args, bool scales_are_plain, const DigitLine* lines, const Sums<R, D>& s) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const DigitLine& line = lines[r];
    if (scales_are_plain && line.is_plain) FinishRow<true>(args, line, s.v[r]);
    else FinishRow<false>(args, line, s.v[r]);
  }
}

template <int kBits, int R, int D>
HWY_NOINLINE void Tile(const DigitGroupArgs& args, bool scales_are_plain, const uint8_t* HWY_RESTRICT weights,
                       const DigitLine* lines, const char* HWY_RESTRICT words, int64_t fetch) {
  constexpr int kBlocks = 8 / kBits;
  Sums<R, D> s;
  Start(lines, s);
  for (int64_t k = 0; k < args.pitch; k += 4 * kBlocks, weights += 64 * kVectors, words += kBlocks * kWordBytes<D>) {
    Blocks<kBits>(weights, words, fetch, s);
  }
  Finish(args, scales_are_plain, lines, s);
}

template <int kBits, int D>
void Lines(const DigitGroupArgs& args, const uint8_t* weights) {
  constexpr int64_t kRows = kTileRows<D>;
  const int64_t tile_bytes = kWordBytes<D> * args.pitch / 4;
  const char* words = args.digits;
  // The weights of the next group follow. One tile leaves them to the processor, or fetches them while it goes (fetch).
  // Of a few tiles, the first one fetches them between its steps; of more, or if they read unpacked weights, each
  // fetches its share before it begins.
  const int64_t group_bytes = GroupBytes(args);
  const int64_t tiles = (args.num_lines + kRows - 1) / kRows;
  const bool fetches = tiles <= kFetchTiles && weights == args.weights;
  const int64_t share = tiles < 2 || fetches ? 0 : (group_bytes / 64 + tiles - 1) / tiles * 64;
  int64_t fetch = tiles < 2 ? args.fetch : fetches ? group_bytes : 0;
  if (tiles >= 2 && fetches) {  // its scales
    for (int64_t i = 64 * kVectors; i > 0; i -= 64) __builtin_prefetch(args.weights + 2 * group_bytes - i);
  }
  const uint8_t* next = args.weights + group_bytes;
  const bool plain = ScalesArePlain(args.scales);
  const DigitLine* line = args.lines;
  int64_t rows = args.num_lines;
  for (; rows >= kRows; rows -= kRows, line += kRows, words += tile_bytes, next += share) {
    for (int64_t j = 0; j < share; j += 64) __builtin_prefetch(next + j);
    Tile<kBits, kRows, D>(args, plain, weights, line, words, fetch);
    fetch = 0;
  }
  if constexpr (kRows > 2) {
    if (rows >= 2) {
      Tile<kBits, 2, D>(args, plain, weights, line, words, fetch);
      rows -= 2;
      line += 2;
      words += 2 * kLineBytes<D>;
    }
  }
  if (rows > 0) Tile<kBits, 1, D>(args, plain, weights, line, words, fetch);
}

template <int D>
void VnniGroup(const DigitGroupArgs& args) {
  if (args.bits < 8 && args.num_lines > kUnpackedLines<D>) {
    alignas(64) uint8_t bytes[kMaxDigitGroup * kPanelColumns];
    DecodeDigitWeights(Target::kAvx512Vnni, args.weights, args.bits, args.pitch, bytes);
    return Lines<8, D>(args, bytes);
  }
  switch (args.bits) {
    case 8: return Lines<8, D>(args, args.weights);
    case 4: return Lines<4, D>(args, args.weights);
    default: return Lines<2, D>(args, args.weights);
  }
}

// Of P panels, which the processor reads side by side. If there are registers enough, the sums of groups stay in them.
template <int kBits, int P, int D>
HWY_NOINLINE void RowOf(const DigitRowArgs& args) {
  constexpr int kBlocks = 8 / kBits;
  const hn::ScalableTag<float> df;
  const DigitGroupArgs& first = args.first;
  const int64_t group_bytes = GroupBytes(first), panel_bytes = args.groups * group_bytes;
  const int64_t pitch = first.pitch, fetch = first.fetch, line_bytes = args.line_bytes;
  const bool has_scales = first.scales != nullptr;
  const char* line_at = reinterpret_cast<const char*>(first.lines);
  const char* HWY_RESTRICT digits = first.digits;
  const uint8_t* HWY_RESTRICT weights = first.weights;
  constexpr bool kInRegisters = P * kVectors * (D + 1) <= 16;
  const auto sum_at = [&](int p, int v)
                          HWY_ATTR { return first.sums + p * kPanelColumns + v / 2 * first.half_stride + v % 2 * 16; };
  hn::Vec<hn::ScalableTag<float>> sums[P][kVectors];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[p][v] = hn::Zero(df);
  }
  for (int64_t g = 0; g < args.groups; ++g, line_at += line_bytes, digits += line_bytes) {
    const DigitLine& line = *reinterpret_cast<const DigitLine*>(line_at);
    const char* words = digits;
    Sums<1, D> s[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) Start(&line, s[p]);
    for (int64_t k = 0; k < pitch; k += 4 * kBlocks, weights += 64 * kVectors, words += kBlocks * kWordBytes<D>) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) Blocks<kBits>(weights + p * panel_bytes, words, fetch, s[p]);
    }
    const auto unit = hn::Set(df, line.unit);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      const float* const scales = reinterpret_cast<const float*>(weights + p * panel_bytes);
      const bool is_plain = has_scales && line.is_plain && ScalesArePlain(scales);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const auto term = hn::Mul(Total(s[p].v[0], v), unit);
        auto sum = kInRegisters ? sums[p][v] : hn::LoadU(df, sum_at(p, v));
        sum = has_scales ? AddScaled(is_plain, sum, term, scales + 16 * v) : hn::Add(sum, term);
        if constexpr (kInRegisters) sums[p][v] = sum;
        else hn::StoreU(sum, df, sum_at(p, v));
      }
    }
    if (has_scales) weights += kPanelColumns * sizeof(float);
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[p][v], df, sum_at(p, v));
    }
  }
}

template <int kBits, int D>
void RowOfPanels(const DigitRowArgs& args) {
  if (args.panels == 1) RowOf<kBits, 1, D>(args);
  else RowOf<kBits, kRowPanels, D>(args);
}

template <int D>
void VnniRow(const DigitRowArgs& args) {
  switch (args.first.bits) {
    case 8: return RowOfPanels<8, D>(args);
    case 4: return RowOfPanels<4, D>(args);
    default: return RowOfPanels<2, D>(args);
  }
}

template <int D>
const DigitKernel* VnniKernel() {
  static constexpr DigitKernel kKernel = {"avx512_vnni", kLayout<D>,  kTileRows<D>,
                                          &VnniGroup<D>, &VnniRow<D>, kRowPanels};
  return &kKernel;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

const DigitKernel* DigitsVnni() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::VnniKernel<kDigits>();
#else
  return nullptr;
#endif
}

const DigitKernel* DigitsVnniOfIntegers() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::VnniKernel<1>();
#else
  return nullptr;
#endif
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
