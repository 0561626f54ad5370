// Digits with AVX-512 VNNI.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "aqt/kernels/digits/internal.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/digits/vnni.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/digits/finish-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {
namespace {

constexpr int kVectors = 4;  // of 16 columns, per panel

// D is the number of digits of a line: three, or one for integers. T is the number of lines of a tile.
template <int D>
constexpr DigitLayout kLayout = D == 1 ? DigitLayout::kBytes : DigitLayout::kWords;
// Bytes of four k: per line and per tile.
template <int D>
constexpr int64_t kLineBytes = 4 * D;
template <int D, int T>
constexpr int64_t kWordBytes{kLineBytes<D> * T};

// The maximum number of lines, and the number of panel vectors, that are multiplied by a group at a time. Weights of
// fewer bits are unpacked once for many lines.
template <int kBits, int D>
constexpr int kMostLines = D == 1 || kBits < 8 ? 4 : 2;
template <int R, int D>
constexpr int kWidth = (R * D) > 6 ? 2 : 4;
constexpr int64_t kFetchLines = 16;  // see FetchingOf
constexpr int kRowPanels = 2;        // that a row processes side by side

using D32 = hn::ScalableTag<int32_t>;
using D16 = hn::Repartition<uint16_t, D32>;
using V32 = hn::Vec<D32>;

// Keeps loads and steps in order and loads each weight once. GCC would otherwise hoist many loads and spill sums.
HWY_INLINE V32 LoadWeights(const uint8_t* p) {
  V32 weights = hn::LoadU(D32(), reinterpret_cast<const int32_t*>(p));
  __asm__ volatile("" : "+v"(weights.raw));
  return weights;
}

// The weights of one block of four k, out of the 8 / kBits blocks that share their bytes.
template <int kBits, int kBlock>
HWY_INLINE V32 Unpack(V32 packed) {
  if constexpr (kBits == 8) return packed;
  const auto shifted = hn::BitCast(D32(), hn::ShiftRight<kBits * kBlock>(hn::BitCast(D16(), packed)));
  return hn::And(shifted, hn::Set(D32(), ((1 << kBits) - 1) * 0x01010101));
}

// Assembly for the same reasons as in kernels/gemm/isa/dot.cc.
HWY_INLINE void Step(V32 weights, V32 word, V32& sum) {
  __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "v"(word.raw));
}

// The sums of R lines and V vectors of weights.
template <int R, int D, int V = kVectors>
struct Sums {
  V32 v[R][D][V];
};

HWY_INLINE V32 Word(const char* p) {
  V32 word;
  __asm__ volatile("vpbroadcastd %1, %0" : "=v"(word.raw) : "m"(*reinterpret_cast<const char(*)[4]>(p)));
  return word;
}

// Lines [kFirst, kEnd): each word is used for all vectors of weights. `tile_bytes` is the distance between tiles of
// lines.
template <int T, int kBits, int kBlock, int kFirst, int kEnd, int R, int D, int V>
HWY_INLINE void Block(const V32 (&packed)[V], const char* HWY_RESTRICT words, int64_t tile_bytes, Sums<R, D, V>& s) {
  V32 w[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) w[v] = Unpack<kBits, kBlock>(packed[v]);
#pragma GCC unroll 4
  for (int r = kFirst; r < kEnd; ++r) {
    const char* const line = words + r / T * tile_bytes + r % T * kLineBytes<D> + kBlock * kWordBytes<D, T>;
#pragma GCC unroll 3
    for (int i = 0; i < D; ++i) {
      const V32 word = Word(line + 4 * i);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) Step(w[v], word, s.v[r][i][v]);
    }
  }
}

// A tile of one line: each vector of weights is used for all words of kCount blocks starting at kFirst.
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
    for (int i = 0; i < D; ++i) w[b][i] = Word(words + (kFirst + b) * kLineBytes<D> + 4 * i);
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) AddVector<kBits, kFirst, kCount, D>(LoadWeights(weights + 64 * v), w, v, s);
}

// The blocks that share their bytes, for one line and all vectors. `fetch` is as in DigitGroupArgs.
template <int kBits, int D>
HWY_INLINE void BlocksOfLine(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, int64_t fetch,
                             Sums<1, D>& s) {
  if (fetch != 0) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(weights + fetch + 64 * v);
  }
  if constexpr (D == 1) {  // registers suffice for all blocks
    BlocksOfLine<kBits, 0, 8 / kBits>(weights, words, s);
  } else {
    BlocksOfLine<kBits, 0, 1>(weights, words, s);
    if constexpr (kBits <= 4) BlocksOfLine<kBits, 1, 1>(weights, words, s);
    if constexpr (kBits == 2) {
      BlocksOfLine<kBits, 2, 1>(weights, words, s);
      BlocksOfLine<kBits, 3, 1>(weights, words, s);
    }
  }
}

// Prefetches 0, 1, 2 or 4 lines of 64 bytes and advances `next`.
HWY_INLINE void Fetch(int64_t lines, const uint8_t*& next) {
  if (lines == 0) return;
  __builtin_prefetch(next);
  if (lines > 1) __builtin_prefetch(next + 64);
  if (lines > 2) {
    __builtin_prefetch(next + 128);
    __builtin_prefetch(next + 192);
  }
  next += lines * 64;
}

// The same for several lines and V vectors.
template <int T, int kBits, int kFirst, int kEnd, int R, int D, int V>
HWY_INLINE void BlocksOfLines(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, int64_t tile_bytes,
                              Sums<R, D, V>& s) {
  V32 packed[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) packed[v] = LoadWeights(weights + 64 * v);
  Block<T, kBits, 0, kFirst, kEnd>(packed, words, tile_bytes, s);
  if constexpr (kBits <= 4) Block<T, kBits, 1, kFirst, kEnd>(packed, words, tile_bytes, s);
  if constexpr (kBits == 2) {
    Block<T, kBits, 2, kFirst, kEnd>(packed, words, tile_bytes, s);
    Block<T, kBits, 3, kFirst, kEnd>(packed, words, tile_bytes, s);
  }
}

template <int R, int D, int V>
HWY_INLINE void Start(const DigitLine* lines, Sums<R, D, V>& s) {
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int i = 0; i < D; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) s.v[r][i][v] = hn::Set(D32(), lines[r].start[i]);
    }
  }
}

// R(65536 S2 + R(S0 + 256 S1)) of digits.h.
template <int D, int V>
HWY_INLINE hn::Vec<hn::ScalableTag<float>> Total(const V32 (&s)[D][V], int v) {
  if constexpr (D == 1) return hn::ConvertTo(hn::ScalableTag<float>(), s[0][v]);
  else return TotalOf(s[0][v], s[1][v], s[2][v]);
}

template <bool kPlain, int D, int V>
HWY_INLINE void FinishLine(const DigitGroupArgs& args, const DigitLine& line, int vector, const V32 (&s)[D][V]) {
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    FinishTotal(args, line, kPlain, Total(s, v), (vector + v) / 2, (vector + v) % 2 * 16);
  }
}

// The last kTail k of all lines starting at kFirst, a few lines at a time: their sums are finished while those of the
// next lines accumulate. The first lines prefetch as in Tile.
constexpr int64_t kTail = 16;
template <int T, int kBits, int kFirst, int R, int D, int V>
HWY_INLINE void FinishLines(const DigitGroupArgs& args, bool scales_are_plain, const DigitLine* lines, int vector,
                            const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, int64_t tile_bytes,
                            int64_t fetch, const uint8_t* next, Sums<R, D, V>& s) {
  constexpr int kBlocks = 8 / kBits;
  constexpr int kEnd = std::min(R, kFirst + (D == 1 ? 2 : 1));  // fewer sums would wait for each other
#pragma GCC unroll 4
  for (int64_t k = 0; k < kTail; k += 4 * kBlocks) {
    Fetch(fetch, next);
    BlocksOfLines<T, kBits, kFirst, kEnd>(weights + k / 4 / kBlocks * 64 * kVectors, words + k / 4 * kWordBytes<D, T>,
                                          tile_bytes, s);
  }
#pragma GCC unroll 2
  for (int r = kFirst; r < kEnd; ++r) {
    if (scales_are_plain && lines[r].is_plain) FinishLine<true>(args, lines[r], vector, s.v[r]);
    else FinishLine<false>(args, lines[r], vector, s.v[r]);
  }
  if constexpr (kEnd < R) {
    FinishLines<T, kBits, kEnd>(args, scales_are_plain, lines, vector, weights, words, tile_bytes, /*fetch=*/0, next,
                                s);
  }
}

// R lines, and the panel vectors that they process at a time, starting at `vector`. For each load of weights they
// prefetch `fetch` lines at `next`.
template <int T, int kBits, int R, int D>
HWY_NOINLINE void Tile(const DigitGroupArgs& args, bool scales_are_plain, int vector, const DigitLine* lines,
                       const char* HWY_RESTRICT words, int64_t tile_bytes, int64_t fetch, const uint8_t* next) {
  constexpr int kBlocks = 8 / kBits;
  const DigitGroupArgs copy = args;  // no store of a sum can change it
  Sums<R, D, kWidth<R, D>> s;
  Start(lines, s);
  const uint8_t* HWY_RESTRICT weights = args.weights + 64 * vector;
  for (int64_t k = kTail; k < copy.pitch; k += 4 * kBlocks) {
    Fetch(fetch, next);
    BlocksOfLines<T, kBits, 0, R>(weights, words, tile_bytes, s);
    weights += 64 * kVectors;
    words += kBlocks * kWordBytes<D, T>;
  }
  FinishLines<T, kBits, 0>(copy, scales_are_plain, lines, vector, weights, words, tile_bytes, fetch, next, s);
}

// How the weights of the next group, which follow in memory, get into the caches, in lines of 64 bytes.
struct Fetching {
  const uint8_t* next;
  int64_t tiles = 0;      // number of tiles that prefetch
  int64_t per_block = 0;  // lines per load of weights
  int64_t burst = 0;      // lines prefetched before each batch of digit lines
};

// One row leaves this to the processor unless told to prefetch. The tiles of a few rows share the prefetching evenly,
// since distant memory delivers no faster. Two or three rows have no time to spare, so the first tile prefetches
// everything. Many rows have enough tiles for short bursts between them.
template <int kBits, int D>
Fetching FetchingOf(const DigitGroupArgs& args) {
  constexpr int kMost = kMostLines<kBits, D>, kPasses = kVectors / kWidth<kMost, D>;
  const int64_t rows = args.num_lines, weight_lines = args.pitch * kBits / 8;
  if (rows < 2) return {.next = args.weights + args.fetch, .tiles = args.fetch != 0, .per_block = kVectors};
  const uint8_t* const next = args.weights + GroupBytes(args);
  const int64_t scale_lines = args.scales == nullptr ? 0 : kVectors;
  if (rows > kFetchLines) {
    const int64_t bursts = rows / kMost;
    return {.next = next, .burst = (weight_lines + scale_lines + bursts - 1) / bursts};
  }
  for (int64_t i = 0; i < scale_lines; ++i) __builtin_prefetch(next + 64 * (weight_lines + i));
  const int64_t tiles = rows / kMost * kPasses + (rows % kMost + 1) / 2;
  const int64_t per_block = rows < 4 ? kVectors : tiles < kVectors ? 2 : 1;
  return {.next = next, .tiles = kVectors / per_block, .per_block = per_block};
}

// Processes R lines at a time, starting at `done`, while that many are left.
template <int T, int kBits, int R, int D>
HWY_INLINE void LinesOf(const DigitGroupArgs& args, bool scales_are_plain, Fetching& fetching, int64_t& done) {
  const int64_t tile_bytes = kWordBytes<D, T> * args.pitch / 4, blocks = args.pitch * kBits / 32;
  for (; done + R <= args.num_lines; done += R) {
    for (int64_t i = 0; i < fetching.burst; ++i, fetching.next += 64) __builtin_prefetch(fetching.next);
    const char* const words = args.digits + done / T * tile_bytes + done % T * kLineBytes<D>;
    for (int vector = 0; vector < kVectors; vector += kWidth<R, D>) {
      const int64_t fetch = fetching.tiles > 0 ? fetching.per_block : 0;
      Tile<T, kBits, R, D>(args, scales_are_plain, vector, args.lines + done, words, tile_bytes, fetch, fetching.next);
      --fetching.tiles;
      fetching.next += 64 * fetch * blocks;
    }
  }
}

template <int T, int kBits, int D>
void Lines(const DigitGroupArgs& args) {
  constexpr int kMost = kMostLines<kBits, D>;
  const bool plain = ScalesArePlain(args.scales);
  Fetching fetching = FetchingOf<kBits, D>(args);
  int64_t done = 0;
  LinesOf<T, kBits, kMost, D>(args, plain, fetching, done);
  fetching.burst = 0;
  if constexpr (kMost > 2) LinesOf<T, kBits, 2, D>(args, plain, fetching, done);
  LinesOf<T, kBits, 1, D>(args, plain, fetching, done);
}

template <int D, int T>
void VnniGroup(const DigitGroupArgs& args) {
  switch (args.bits) {
    case 8: return Lines<T, 8, D>(args);
    case 4: return Lines<T, 4, D>(args);
    default: return Lines<T, 2, D>(args);
  }
}

// A row whose lines are tiles of their own, times P panels, which the processor reads side by side. If there are enough
// registers, the sums of groups stay in them.
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
    for (int64_t k = 0; k < pitch; k += 4 * kBlocks, weights += 64 * kVectors, words += kBlocks * kLineBytes<D>) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) BlocksOfLine<kBits>(weights + p * panel_bytes, words, fetch, s[p]);
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

template <int D, int T>
const DigitKernel* VnniKernel() {
  static constexpr DigitKernel kKernel = {
      "avx512_vnni", kLayout<D>, T, &VnniGroup<D, T>, T == 1 ? &VnniRow<D> : nullptr, kRowPanels};
  return &kKernel;
}

// With tiles of one line, a single row reads only its own words. Two rows use such tiles too. Four rows, which only
// weights of fewer bits use, need just one address if they form one tile.
const DigitKernel* VnniKernelOf(int bits, int64_t rows) {
  return rows == 1 || bits == 8 ? VnniKernel<kDigits, 1>() : VnniKernel<kDigits, 4>();
}
const DigitKernel* VnniKernelOfIntegers(int64_t rows) {
  return rows == 1 ? VnniKernel<1, 1>() : VnniKernel<1, kMaxIntegerTileRows>();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

const DigitKernel* DigitsVnni([[maybe_unused]] int bits, [[maybe_unused]] int64_t rows) {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::VnniKernelOf(bits, rows);
#else
  return nullptr;
#endif
}

const DigitKernel* DigitsVnniOfIntegers([[maybe_unused]] int64_t rows) {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::VnniKernelOfIntegers(rows);
#else
  return nullptr;
#endif
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
