// Tiles in plain C++ with exactly the geometry and arithmetic of the SIMD tiles, for machines without SIMD and for
// testing blocking, packing, tails and epilogues on any machine.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aqt/kernels/gemm_driver.h"
#include "aqt/kernels/gemm_s8_internal.h"

namespace aqt::kernels::internal {
namespace {

template <const PanelFormat& kLhsFormat, const PanelFormat& kRhsFormat, int64_t kGroups, int64_t kWideBytes>
struct EmulatedTile {
  static constexpr Target kTarget = Target::kScalar;
  using Acc = int32_t;
  static constexpr PanelFormat kLhs = kLhsFormat, kRhs = kRhsFormat;
  static constexpr int64_t kBlockGroups = kGroups, kWideRhsElementBytes = kWideBytes;
  static constexpr int kNr = kRhs.width, kGroup = kRhs.k_group;
  using Lhs = std::conditional_t<kLhs.element == PanelFormat::Element::kS16, int16_t, uint8_t>;

  static void Widen(const char* rhs, int64_t groups, char* wide) {
    for (int64_t i = 0; i < groups * kNr * kGroup; ++i) {
      const int16_t value = static_cast<int8_t>(rhs[i]);
      std::memcpy(wide + 2 * i, &value, 2);
    }
  }

  template <int R, bool kWide>
  static void Accumulate(const char* lhs, const char* rhs, int64_t groups, const int32_t* init, int64_t init_stride,
                         int32_t* out) {
    using Rhs = std::conditional_t<kWide, int16_t, int8_t>;
    uint32_t sums[R][kNr];  // wraps, as the instructions do
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kNr; ++j) sums[r][j] = init == nullptr ? 0 : static_cast<uint32_t>(init[r * init_stride + j]);
    }
    for (int64_t g = 0; g < groups; ++g) {
      Rhs b[kNr * kGroup];
      std::memcpy(b, rhs + g * static_cast<int64_t>(sizeof(b)), sizeof(b));
      const char* step = lhs + g / PanelFormat::kStepGroups * kLhs.width * 64 + g % PanelFormat::kStepGroups * 4;
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
    std::memcpy(out, sums, sizeof(sums));
  }

  template <int R, bool kWide>
  static void Multiply(const char* lhs, const char* rhs, int64_t groups, const int32_t* init, int64_t init_stride,
                       const float* row_scale, const float* col_scale, float* out, int64_t out_stride) {
    int32_t sums[R * kNr];
    Accumulate<R, kWide>(lhs, rhs, groups, init, init_stride, sums);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kNr; ++j) {
        const float x = static_cast<float>(sums[r * kNr + j]);
        out[r * out_stride + j] = x * row_scale[r] * col_scale[j];
      }
    }
  }
};

template <class Tile>
constexpr GemmKernel MakeKernel(const char* name) {
  return {name, Tile::kTarget, Tile::kLhs, Tile::kRhs, &GemmBlock<Tile>};
}

constexpr GemmKernel kAvx2 = MakeKernel<EmulatedTile<kAvx2Lhs, kAvx2Rhs, 256, 2>>("emulated_avx2");
constexpr GemmKernel kAvx512 = MakeKernel<EmulatedTile<kAvx512Lhs, kAvx512Rhs, 192, 2>>("emulated_avx512");
constexpr GemmKernel kVnni = MakeKernel<EmulatedTile<kVnniLhs, kVnniRhs, 192, 0>>("emulated_avx512_vnni");

}  // namespace

absl::Span<const GemmKernel* const> EmulatedGemmS8() {
  static constexpr const GemmKernel* kAll[] = {&kAvx2, &kAvx512, &kVnni};
  return kAll;
}

}  // namespace aqt::kernels::internal
