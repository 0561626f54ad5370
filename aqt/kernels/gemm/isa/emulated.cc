// Tiles in plain C++ with exactly the geometry and arithmetic of the SIMD tiles. For machines without SIMD, and for
// testing blocking, packing, tails and epilogues on any machine.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aqt/core/dtype.h"
#include "aqt/core/subnormals.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/rows.h"

namespace aqt::kernels::internal {
namespace {

template <const PanelFormat& kLhsFormat, const PanelFormat& kRhsFormat, int64_t kGroups, int64_t kWideBytes = 0>
struct EmulatedTile {
  static constexpr Target kTarget = Target::kScalar;
  static constexpr int32_t kProductsPerCycle = 1;
  using Acc = int32_t;
  static constexpr PanelFormat kLhs = kLhsFormat, kRhs = kRhsFormat;
  static constexpr int64_t kBlockGroups = kGroups, kWideRhsElementBytes = kWideBytes;
  static constexpr int kNr = kRhs.width, kGroup = kRhs.k_group;
  using Lhs = std::conditional_t<kLhs.element == PanelFormat::Element::kS16, int16_t,
                                 std::conditional_t<kLhs.element == PanelFormat::Element::kS8, int8_t, uint8_t>>;

  // Element i of group g.
  static int8_t Load(const char* rhs, int64_t g, int64_t i) {
    constexpr int64_t kElements = kNr * kGroup;
    if constexpr (kRhs.element != PanelFormat::Element::kS4) return static_cast<int8_t>(rhs[g * kElements + i]);
    const int bits = static_cast<uint8_t>(rhs[g / 2 * kElements + i]) >> (g % 2 * 4) & 15;
    return static_cast<int8_t>(bits < 8 ? bits : bits - 16);
  }

  using WideRhs = std::conditional_t<kWideBytes == 2, int16_t, int8_t>;
  static void Widen(const char* rhs, int64_t groups, char* wide) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < kNr * kGroup; ++i, wide += sizeof(WideRhs)) {
        const WideRhs value = Load(rhs, g, i);
        std::memcpy(wide, &value, sizeof(value));
      }
    }
  }

  template <int R, bool kWide>
  static void Accumulate(TileLhs lhs, const char* rhs, int64_t groups, const int32_t* init, int64_t init_stride,
                         int64_t /*fetch*/, int32_t* out, int64_t out_stride) {
    using Rhs = std::conditional_t<kWide, WideRhs, int8_t>;
    uint32_t sums[R][kNr];  // wraps, as the instructions do
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kNr; ++j) sums[r][j] = init == nullptr ? 0 : static_cast<uint32_t>(init[r * init_stride + j]);
    }
    for (int64_t g = 0; g < groups; ++g) {
      Rhs b[kNr * kGroup];
      if constexpr (kWide) {
        std::memcpy(b, rhs + g * static_cast<int64_t>(sizeof(b)), sizeof(b));
      } else {
        for (int64_t i = 0; i < kNr * kGroup; ++i) b[i] = Load(rhs, g, i);
      }
      const char* step = lhs.Group(g, kLhs.width);
      for (int r = 0; r < R; ++r) {
        Lhs a[kGroup];
        std::memcpy(a, step + r * 64, 4);
        for (int j = 0; j < kNr; ++j) {
          int32_t products = 0;
          for (int i = 0; i < kGroup; ++i) products += a[i] * b[j * kGroup + i];
          sums[r][j] += static_cast<uint32_t>(products);
        }
      }
    }
    for (int r = 0; r < R; ++r) std::memcpy(out + r * out_stride, sums[r], sizeof(sums[r]));
  }

  template <int R, bool kWide, bool kFlush, class T>
  static void Multiply(TileLhs lhs, const char* rhs, int64_t groups, const int32_t* init, int64_t init_stride,
                       int64_t /*fetch*/, const TileScales& scales, T* out, int64_t out_stride) {
    int32_t sums[R * kNr];
    Accumulate<R, kWide>(lhs, rhs, groups, init, init_stride, 0, sums, kNr);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kNr; ++j) {
        StoreScaled(kFlush, static_cast<float>(sums[r * kNr + j]), scales, r, j, out + r * out_stride + j);
      }
    }
  }
};

// The arithmetic of the bf16 instructions: subnormal operands and results are zeros.
float FlushedFma(float a, float b, float c) {
  return FlushSubnormal(std::fma(FlushSubnormal(a), FlushSubnormal(b), FlushSubnormal(c)));
}

// Adds the products of at most 16 groups of two to a sum.
struct DotBf16 {  // vdpbf16ps
  static constexpr PanelFormat kLhs = format::kDotBf16Lhs;
  static float Add(float sum, const float (*a)[2], const float (*b)[2], int64_t groups) {
    for (int64_t g = 0; g < groups; ++g) sum = FlushedFma(a[g][0], b[g][0], FlushedFma(a[g][1], b[g][1], sum));
    return sum;
  }
};
struct AmxBf16 {  // tdpbf16ps
  static constexpr PanelFormat kLhs = format::kAmxBf16Lhs;
  static float Add(float sum, const float (*a)[2], const float (*b)[2], int64_t groups) {
    float even = 0, odd = 0;
    for (int64_t g = 0; g < groups; ++g) {
      even = FlushedFma(a[g][0], b[g][0], even);
      odd = FlushedFma(a[g][1], b[g][1], odd);
    }
    return FlushSubnormal(sum + FlushSubnormal(even + odd));
  }
};

template <class Arithmetic>
struct EmulatedBf16Tile {
  static constexpr Target kTarget = Target::kScalar;
  static constexpr int32_t kProductsPerCycle = 1;
  using Acc = float;
  static constexpr PanelFormat kLhs = Arithmetic::kLhs, kRhs = format::kDotBf16Rhs;
  static constexpr int64_t kBlockGroups = 128, kWideRhsElementBytes = 0;
  static constexpr int64_t kNr = kRhs.width, kStep = PanelFormat::kStepGroups;

  static void Load(const char* group, float* pair) {
    BFloat16 values[2];
    std::memcpy(values, group, 4);
    pair[0] = ToFloat(values[0]);
    pair[1] = ToFloat(values[1]);
  }

  template <int R, bool kWide>
  static void Accumulate(TileLhs lhs, const char* rhs, int64_t groups, const float* init, int64_t init_stride,
                         int64_t /*fetch*/, float* out, int64_t out_stride) {
    float sums[R * kNr];
    for (int64_t i = 0; i < R * kNr; ++i) sums[i] = init == nullptr ? 0.0f : init[i / kNr * init_stride + i % kNr];
    for (int64_t first = 0; first < groups; first += kStep, rhs += kStep * kNr * 4) {
      const int64_t count = groups - first < kStep ? groups - first : kStep;
      for (int64_t i = 0; i < R * kNr; ++i) {
        float a[kStep][2], b[kStep][2];
        for (int64_t g = 0; g < count; ++g) {
          Load(lhs.Group(first + g, kLhs.width) + i / kNr * 64, a[g]);
          Load(rhs + (g * kNr + i % kNr) * 4, b[g]);
        }
        sums[i] = Arithmetic::Add(sums[i], a, b, count);
      }
    }
    for (int r = 0; r < R; ++r) std::memcpy(out + r * out_stride, sums + r * kNr, kNr * sizeof(float));
  }

  template <int R, bool kWide, bool kFlush, class T>
  static void Multiply(TileLhs lhs, const char* rhs, int64_t groups, const float* init, int64_t init_stride,
                       int64_t /*fetch*/, const TileScales& scales, T* out, int64_t out_stride) {
    float sums[R * kNr];
    Accumulate<R, kWide>(lhs, rhs, groups, init, init_stride, 0, sums, kNr);
    for (int64_t i = 0; i < R * kNr; ++i) {
      StoreScaled(kFlush, sums[i], scales, i / kNr, i % kNr, out + i / kNr * out_stride + i % kNr);
    }
  }
};

template <class Tile>
constexpr GemmKernel Emulated(const char* name) {
  return GemmOf<Tile>(name, /*emulated=*/true);
}

constexpr GemmKernel kSse4 = Emulated<EmulatedTile<format::kSse4Lhs, format::kAvx2Rhs, 256, 2>>("emulated_s8_sse4");
constexpr GemmKernel kSse4S4 =
    Emulated<EmulatedTile<format::kSse4Lhs, format::kAvx2RhsS4, 256, 2>>("emulated_s8xs4_sse4");
constexpr GemmKernel kAvx2 = Emulated<EmulatedTile<format::kAvx2Lhs, format::kAvx2Rhs, 256, 2>>("emulated_s8_avx2");
constexpr GemmKernel kAvxVnni =
    Emulated<EmulatedTile<format::kAvxVnniLhs, format::kAvxVnniRhs, 256>>("emulated_s8_avx_vnni");
constexpr GemmKernel kAvx512 =
    Emulated<EmulatedTile<format::kAvx512Lhs, format::kAvx512Rhs, 192, 2>>("emulated_s8_avx512");
constexpr GemmKernel kVnni = Emulated<EmulatedTile<format::kVnniLhs, format::kVnniRhs, 192>>("emulated_s8_avx512_vnni");
constexpr GemmKernel kAmx = Emulated<EmulatedTile<format::kAmxS8Lhs, format::kVnniRhs, 128>>("emulated_s8_amx");
constexpr GemmKernel kAvx2S4 =
    Emulated<EmulatedTile<format::kAvx2Lhs, format::kAvx2RhsS4, 256, 2>>("emulated_s8xs4_avx2");
constexpr GemmKernel kAvxVnniS4 =
    Emulated<EmulatedTile<format::kAvxVnniLhs, format::kAvxVnniRhsS4, 256, 1>>("emulated_s8xs4_avx_vnni");
constexpr GemmKernel kAvx512S4 =
    Emulated<EmulatedTile<format::kAvx512Lhs, format::kAvx512RhsS4, 192, 2>>("emulated_s8xs4_avx512");
constexpr GemmKernel kVnniS4 =
    Emulated<EmulatedTile<format::kVnniLhs, format::kVnniRhsS4, 192, 1>>("emulated_s8xs4_avx512_vnni");
constexpr GemmKernel kAmxS4 =
    Emulated<EmulatedTile<format::kAmxS8Lhs, format::kVnniRhsS4, 128, 1>>("emulated_s8xs4_amx");
constexpr GemmKernel kBf16 = Emulated<EmulatedBf16Tile<DotBf16>>("emulated_bf16_avx512_bf16");
constexpr GemmKernel kBf16Amx = Emulated<EmulatedBf16Tile<AmxBf16>>("emulated_bf16_amx");

}  // namespace

GemmRows EmulatedGemms() {
  static constexpr const GemmKernel* kAll[] = {&kAvx2,     &kAvxVnni, &kAvx512, &kVnni, &kAmx,    &kAvx2S4, &kAvxVnniS4,
                                               &kAvx512S4, &kVnniS4,  &kAmxS4,  &kSse4, &kSse4S4, &kBf16,   &kBf16Amx};
  return kAll;
}

}  // namespace aqt::kernels::internal
