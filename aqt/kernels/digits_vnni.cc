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

constexpr int kVectors = 4;  // of 16 columns
constexpr int64_t kTileRows = 2;
constexpr int64_t kWordBytes = 16 * kTileRows;  // of four k

using D32 = hn::ScalableTag<int32_t>;
using D16 = hn::Repartition<uint16_t, D32>;
using V32 = hn::Vec<D32>;

HWY_INLINE V32 LoadWeights(const uint8_t* p) { return hn::LoadU(D32(), reinterpret_cast<const int32_t*>(p)); }

// The weights of one block of four k out of 8 / kBits that share their bytes.
template <int kBits, int kBlock>
HWY_INLINE V32 Unpack(V32 packed) {
  if constexpr (kBits == 8) return packed;
  const auto shifted = hn::BitCast(D32(), hn::ShiftRight<kBits * kBlock>(hn::BitCast(D16(), packed)));
  return hn::And(shifted, hn::Set(D32(), ((1 << kBits) - 1) * 0x01010101));
}

// Assembly, as in gemm_dot.cc.
HWY_INLINE void Step(V32 weights, V32 word, V32& sum) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(weights.raw), "v"(word.raw));
}

template <int R>
struct Sums {
  V32 v[R][kDigits][kVectors];
};

template <int kBits, int kBlock, int R>
HWY_INLINE void Block(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, Sums<R>& s) {
  V32 w[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) w[v] = Unpack<kBits, kBlock>(LoadWeights(weights + 64 * v));
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int i = 0; i < kDigits; ++i) {
      int32_t word;
      std::memcpy(&word, words + 16 * r + 4 * i, 4);
      const V32 broadcast = hn::Set(D32(), word);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Step(w[v], broadcast, s.v[r][i][v]);
    }
  }
}

// The blocks that share their bytes. `fetch` as in DigitGroupArgs.
template <int kBits, int R>
HWY_INLINE void Blocks(const uint8_t* HWY_RESTRICT weights, const char* HWY_RESTRICT words, int64_t fetch, Sums<R>& s) {
  if (R == 1 && fetch != 0) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(weights + fetch + 64 * v);
  }
  Block<kBits, 0>(weights, words, s);
  if constexpr (kBits <= 4) Block<kBits, 1>(weights, words + kWordBytes, s);
  if constexpr (kBits == 2) {
    Block<kBits, 2>(weights, words + 2 * kWordBytes, s);
    Block<kBits, 3>(weights, words + 3 * kWordBytes, s);
  }
}

template <int R>
HWY_INLINE void Start(const DigitLine* lines, Sums<R>& s) {
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int i = 0; i < kDigits; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) s.v[r][i][v] = hn::Set(D32(), lines[r].start[i]);
    }
  }
}

template <bool kPlain>
HWY_INLINE void FinishRow(const DigitGroupArgs& args, const DigitLine& line, const V32 (&s)[kDigits][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) FinishLine(args, line, kPlain, s[0][v], s[1][v], s[2][v], v / 2, v % 2 * 16);
}

template <int R>
HWY_INLINE void Finish(const DigitGroupArgs& args, bool scales_are_plain, const DigitLine* lines, const Sums<R>& s) {
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
    if (scales_are_plain && lines[r].is_plain) FinishRow<true>(args, lines[r], s.v[r]);
    else FinishRow<false>(args, lines[r], s.v[r]);
  }
}

template <int kBits, int R>
HWY_NOINLINE void Tile(const DigitGroupArgs& args, bool scales_are_plain, const uint8_t* HWY_RESTRICT weights,
                       const DigitLine* lines, const char* HWY_RESTRICT words) {
  constexpr int kBlocks = 8 / kBits;
  Sums<R> s;
  Start(lines, s);
  for (int64_t k = 0; k < args.pitch; k += 4 * kBlocks, weights += 64 * kVectors, words += kBlocks * kWordBytes) {
    Blocks<kBits>(weights, words, args.fetch, s);
  }
  Finish(args, scales_are_plain, lines, s);
}

template <int kBits>
void Lines(const DigitGroupArgs& args, const uint8_t* weights) {
  const int64_t tile_bytes = kTileRows * 4 * args.pitch;
  const char* words = args.digits;
  // The weights of the next group follow. One tile leaves them to the processor, or fetches them while it goes (fetch).
  const int64_t group_bytes = GroupBytes(args);
  const int64_t tiles = (args.num_lines + 1) / 2, share = tiles < 2 ? 0 : (group_bytes / 64 + tiles - 1) / tiles * 64;
  const uint8_t* next = args.weights + group_bytes;
  const bool plain = ScalesArePlain(args.scales);
  int64_t i = 0;
  for (; i + 2 <= args.num_lines; i += 2, words += tile_bytes, next += share) {
    for (int64_t j = 0; j < share; j += 64) __builtin_prefetch(next + j);
    Tile<kBits, 2>(args, plain, weights, args.lines + i, words);
  }
  if (i < args.num_lines) Tile<kBits, 1>(args, plain, weights, args.lines + i, words);
}

void VnniGroup(const DigitGroupArgs& args) {
  // With more tiles it pays to unpack the weights once.
  if (args.bits < 8 && args.num_lines > kTileRows) {
    alignas(64) uint8_t bytes[kMaxDigitGroup * kPanelColumns];
    DecodeDigitWeights(Target::kAvx512Vnni, args.weights, args.bits, args.pitch, bytes);
    return Lines<8>(args, bytes);
  }
  switch (args.bits) {
    case 8: return Lines<8>(args, args.weights);
    case 4: return Lines<4>(args, args.weights);
    default: return Lines<2>(args, args.weights);
  }
}

// Of P panels, which the processor reads side by side.
template <int kBits, int P>
HWY_NOINLINE void RowOf(const DigitRowArgs& args) {
  constexpr int kBlocks = 8 / kBits;
  DigitGroupArgs group = args.first;
  const char* line = reinterpret_cast<const char*>(group.lines);
  const int64_t group_bytes = GroupBytes(group), panel_bytes = args.groups * group_bytes;
  for (int64_t g = 0; g < args.groups; ++g, line += args.line_bytes, group.digits += args.line_bytes) {
    group.lines = reinterpret_cast<const DigitLine*>(line);
    const uint8_t* HWY_RESTRICT weights = args.first.weights + g * group_bytes;
    const char* words = group.digits;
    Sums<1> s[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) Start(group.lines, s[p]);
    for (int64_t k = 0; k < group.pitch; k += 4 * kBlocks, weights += 64 * kVectors, words += kBlocks * kWordBytes) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) Blocks<kBits>(weights + p * panel_bytes, words, group.fetch, s[p]);
    }
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      if (args.first.scales != nullptr) group.scales = reinterpret_cast<const float*>(weights + p * panel_bytes);
      group.sums = args.first.sums + p * kPanelColumns;
      Finish(group, ScalesArePlain(group.scales), group.lines, s[p]);
    }
  }
}

template <int kBits>
void RowOfPanels(const DigitRowArgs& args) {
  if (args.panels == 2) RowOf<kBits, 2>(args);
  else RowOf<kBits, 1>(args);
}

void VnniRow(const DigitRowArgs& args) {
  switch (args.first.bits) {
    case 8: return RowOfPanels<8>(args);
    case 4: return RowOfPanels<4>(args);
    default: return RowOfPanels<2>(args);
  }
}

const DigitKernel* VnniKernel() {
  static constexpr DigitKernel kKernel = {"avx512_vnni", DigitLayout::kWords, kTileRows, &VnniGroup, &VnniRow};
  return &kKernel;
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

const DigitKernel* DigitsVnni() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::VnniKernel();
#else
  return nullptr;
#endif
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
