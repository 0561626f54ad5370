// Digits with AMX-INT8, for many rows.
#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/kernels/digits/internal.h"
#include "aqt/kernels/gemm/amx_tiles.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/digits/amx.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/digits/finish-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace aqt::kernels::internal {
namespace HWY_NAMESPACE {

// 16 lines by 32 columns: six tiles of sums (three digits by two blocks of 16 columns), one of digits, one of weights.
// A row of four k of the packed weights is a tile row, so they need no layout of their own.
constexpr int64_t kTileRows = 16, kBlockColumns = 32;
constexpr int64_t kTileBytes = 1024, kWeightStride = 4 * kPanelColumns;

using D32 = hn::ScalableTag<int32_t>;

// Assembly, because Highway's attributes for this target do not name AMX. Tiles 0 to 5 are sums, 6 is digits, 7
// weights.
HWY_INLINE void LoadConfig(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" : : "m"(config)); }
HWY_INLINE void Release() { __asm__ volatile("tilerelease"); }
template <int kTile>
HWY_INLINE void Zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
HWY_INLINE void Load(const void* p, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
HWY_INLINE void Store(int32_t* p) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(int64_t{64}), "i"(kTile) : "memory");
}
// sums += digits (signed) * weights (unsigned)
template <int kTile>
HWY_INLINE void Multiply() {
  __asm__ volatile("tdpbsud %%tmm7, %%tmm6, %%tmm%c0" : : "i"(kTile));
}

// Digit sums of one block, without their start values: [digit][half of the columns][line][column].
using BlockSums = int32_t[kDigits][2][kTileRows][16];

// Multiplies one tile of lines by 32 columns; the results stay in the tiles.
HWY_INLINE void MultiplyBlock(const char* digits, const uint8_t* weights, int64_t pitch) {
  Zero<0>();
  Zero<1>();
  Zero<2>();
  Zero<3>();
  Zero<4>();
  Zero<5>();
  for (int64_t k = 0; k < pitch; k += 64, digits += kDigits * kTileBytes, weights += 16 * kWeightStride) {
    Load<7>(weights, kWeightStride);
    Load<6>(digits, 64);
    Multiply<0>();
    Load<6>(digits + kTileBytes, 64);
    Multiply<1>();
    Load<6>(digits + 2 * kTileBytes, 64);
    Multiply<2>();
    Load<7>(weights + 64, kWeightStride);
    Multiply<5>();
    Load<6>(digits + kTileBytes, 64);
    Multiply<4>();
    Load<6>(digits, 64);
    Multiply<3>();
  }
}

HWY_INLINE void StoreBlock(BlockSums& sums) {
  Store<0>(sums[0][0][0]);
  Store<1>(sums[1][0][0]);
  Store<2>(sums[2][0][0]);
  Store<3>(sums[0][1][0]);
  Store<4>(sums[1][1][0]);
  Store<5>(sums[2][1][0]);
}

// `half` selects half of the panel's columns.
HWY_INLINE void FinishBlock(const DigitGroupArgs& args, bool scales_are_plain, const BlockSums& sums, int64_t first,
                            int64_t count, int64_t half) {
  const D32 d;
  for (int64_t r = 0; r < count; ++r) {
    const DigitLine& line = args.lines[first + r];
    const bool is_plain = scales_are_plain && line.is_plain;
    for (int64_t c = 0; c < 2; ++c) {
      const auto sum = [&](int64_t i) { return hn::Add(hn::Load(d, sums[i][c][r]), hn::Set(d, line.start[i])); };
      FinishTotal(args, line, is_plain, TotalOf(sum(0), sum(1), sum(2)), half, 16 * c);
    }
  }
}

void AmxGroup(const DigitGroupArgs& args) {
  alignas(64) uint8_t bytes[kMaxDigitGroup * kPanelColumns];
  const uint8_t* weights = args.weights;
  if (args.bits < 8) {
    DecodeDigitWeights(Target::kAvx512Vnni, weights, args.bits, args.pitch, bytes);
    weights = bytes;
  }
  static constexpr TileConfig kConfig;
  LoadConfig(kConfig);
  // A block is finished while the next one is multiplied.
  alignas(64) BlockSums sums[2];
  const int64_t blocks = CeilDiv(args.num_lines, kTileRows) * 2;
  const int64_t tile_bytes = kDigits * kTileRows * args.pitch;
  const bool plain = ScalesArePlain(args.scales);
  const auto finish = [&](int64_t i) {
    const int64_t first = i / 2 * kTileRows;
    FinishBlock(args, plain, sums[i % 2], first, std::min(kTileRows, args.num_lines - first), i % 2);
  };
  // The weights of the next group follow in memory.
  const int64_t group_bytes = GroupBytes(args);
  const int64_t share = (group_bytes / 64 + blocks - 1) / std::max<int64_t>(blocks, 1) * 64;
  const uint8_t* next = args.weights + group_bytes;
  for (int64_t i = 0; i < blocks; ++i, next += share) {
    for (int64_t j = 0; j < share; j += 64) __builtin_prefetch(next + j);
    MultiplyBlock(args.digits + i / 2 * tile_bytes, weights + i % 2 * kBlockColumns * 4, args.pitch);
    if (i > 0) finish(i - 1);
    StoreBlock(sums[i % 2]);
  }
  if (blocks > 0) finish(blocks - 1);
  Release();
}

const DigitKernel* AmxKernel() {
  static constexpr DigitKernel kKernel = {"amx", DigitLayout::kTiles, kTileRows, &AmxGroup};
  return &kKernel;
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels::internal
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace aqt::kernels::internal {

const DigitKernel* DigitsAmx() {
#if HWY_TARGETS & HWY_AVX3
  return N_AVX3::AmxKernel();
#else
  return nullptr;
#endif
}

}  // namespace aqt::kernels::internal
#endif  // HWY_ONCE
