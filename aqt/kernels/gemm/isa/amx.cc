// The AMX kernels for s8 and bf16.
//
// A tile register holds 16 rows of 64 bytes. A 32 x 32 product uses all eight registers: four for sums, two for the 32
// rows of an lhs panel, and two for the 32 columns of an rhs panel. A step over 64 bytes of k is four loads and four
// products. Panels are stored so that a step is loaded directly: 32 rows of 64 bytes of the lhs, 16 groups of 128 bytes
// of the rhs. Rows and columns beyond the end are zeros in the panels, so all tiles share one configuration.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "aqt/core/ceil_div.h"
#include "aqt/kernels/gemm/amx_tiles.h"
#include "aqt/kernels/gemm/driver.h"
#include "aqt/kernels/gemm/rows.h"
#include "aqt/kernels/simd/target_highway.h"

#if !defined(AQT_SCALAR_ONLY) && defined(__x86_64__)

#include <immintrin.h>

#define AQT_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl")))

namespace aqt::kernels::internal {
namespace {

constexpr int64_t kRows = 32, kCols = 32;
constexpr int64_t kStepBytes = 2048;  // per panel of either side: 64 bytes of k for 32 rows
constexpr int64_t kGroupBytes = 4 * kCols, kRhsStride = kGroupBytes;  // of the rhs: size and distance of groups
// With this many steps an rhs panel stays in L1 (48 KiB) while lhs panels stream past it: 16 KiB of each. With 16 steps
// L1 thrashes: 40 % slower at 1024^3.
constexpr int64_t kBlockSteps = 8;
// Limits of a block of rows: its lhs panels (512 KiB) and the partial sums of one rhs panel (64 KiB) stay in L2.
constexpr int32_t kAmxBlockRows = 512, kAmxBlockBytes = 512 << 10;

constexpr TileConfig kConfig;

template <PanelFormat::Element kRhsElement>
struct S8Ops {
  using Acc = int32_t;
  static constexpr bool kIsS8 = true;
  static constexpr Target kTarget = Target::kAvx512Vnni | Target{Capability::kAmxInt8};
  static constexpr PanelFormat kLhs = format::kAmxS8Lhs, kRhs = format::With(kRhsElement, format::kVnniRhs);
  static constexpr int32_t kProductsPerCycle = 1024;
};
struct Bf16Ops {
  using Acc = float;
  static constexpr bool kIsS8 = false;
  static constexpr Target kTarget = Target::kAvx512Vnni | Target{Capability::kAmxBf16};
  static constexpr PanelFormat kLhs = format::kAmxBf16Lhs, kRhs = format::kDotBf16Rhs;
  static constexpr int32_t kProductsPerCycle = 512;
};

// Registers: sums 0 1 (rows 0-15; columns 0-15, 16-31), 2 3 (rows 16-31); lhs 4 5; rhs 6 7.

// A macro because GCC's intrinsics paste register numbers.
#define AQT_TILE_MULTIPLY(sums, lhs, rhs) \
  if constexpr (Ops::kIsS8) {             \
    _tile_dpbssd(sums, lhs, rhs);         \
  } else {                                \
    _tile_dpbf16ps(sums, lhs, rhs);       \
  }

// Adds the products of `steps` steps; with kHalf, only for the upper 16 rows.
template <class Ops, bool kHalf>
AQT_AMX inline void AddSteps(const char* lhs, const char* rhs, int64_t steps) {
  for (; steps > 0; --steps, lhs += kStepBytes, rhs += kStepBytes) {
    _tile_loadd(6, rhs, kRhsStride);
    _tile_loadd(4, lhs, 64);
    _tile_loadd(7, rhs + 64, kRhsStride);
    AQT_TILE_MULTIPLY(0, 4, 6);
    if constexpr (!kHalf) _tile_loadd(5, lhs + kStepBytes / 2, 64);
    AQT_TILE_MULTIPLY(1, 4, 7);
    if constexpr (!kHalf) {
      AQT_TILE_MULTIPLY(2, 5, 6);
      AQT_TILE_MULTIPLY(3, 5, 7);
    }
  }
}

#undef AQT_TILE_MULTIPLY

// Sums in memory are 32 x 32; `stride` is in bytes.
template <bool kHalf>
AQT_AMX inline void LoadSums(const void* sums) {
  const char* from = static_cast<const char*>(sums);
  _tile_loadd(0, from, 4 * kCols);
  _tile_loadd(1, from + 64, 4 * kCols);
  if constexpr (!kHalf) {
    _tile_loadd(2, from + 16 * 4 * kCols, 4 * kCols);
    _tile_loadd(3, from + 16 * 4 * kCols + 64, 4 * kCols);
  }
}
template <bool kHalf>
AQT_AMX inline void StoreSums(void* sums, int64_t stride) {
  char* to = static_cast<char*>(sums);
  _tile_stored(0, to, stride);
  _tile_stored(1, to + 64, stride);
  if constexpr (!kHalf) {
    _tile_stored(2, to + 16 * stride, stride);
    _tile_stored(3, to + 16 * stride + 64, stride);
  }
}
AQT_AMX inline void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

AQT_AMX inline __m512 LoadF32(const int32_t* sums) { return _mm512_cvtepi32_ps(_mm512_load_si512(sums)); }
AQT_AMX inline __m512 LoadF32(const float* sums) { return _mm512_load_ps(sums); }

// Turns a subnormal number into a zero of its sign.
template <bool kFlush>
AQT_AMX inline __m512 Flushed(__m512 x) {
  if constexpr (!kFlush) return x;
  const __m512 sign = _mm512_set1_ps(-0.0f);
  const __mmask16 subnormal = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-126f), _CMP_LT_OQ);
  return _mm512_mask_and_ps(x, subnormal, x, sign);
}

// out[r * out_stride + j] = float(sum) * row_scale[r] * col_scale[j], rounded after each operation, for 32 columns.
template <bool kFlush, class Acc>
AQT_AMX inline void ScaleRows(const Acc* sums, int64_t rows, const TileScales& scales, float* out, int64_t out_stride) {
  const __m512 c0 = _mm512_loadu_ps(scales.col), c1 = _mm512_loadu_ps(scales.col + 16);
  for (int64_t r = 0; r < rows; ++r, sums += kCols, out += out_stride) {
    const __m512 row = _mm512_set1_ps(scales.row[r]);
    const __m512 x0 = Flushed<kFlush>(LoadF32(sums)), x1 = Flushed<kFlush>(LoadF32(sums + 16));
    const __m512 first0 = scales.col_first ? c0 : row, second0 = scales.col_first ? row : c0;
    const __m512 first1 = scales.col_first ? c1 : row, second1 = scales.col_first ? row : c1;
    const __m512 y0 = Flushed<kFlush>(_mm512_mul_ps(x0, first0)), y1 = Flushed<kFlush>(_mm512_mul_ps(x1, first1));
    __m512 z0 = Flushed<kFlush>(_mm512_mul_ps(y0, second0)), z1 = Flushed<kFlush>(_mm512_mul_ps(y1, second1));
    if (scales.adds) {
      z0 = Flushed<kFlush>(_mm512_add_ps(_mm512_loadu_ps(out), z0));
      z1 = Flushed<kFlush>(_mm512_add_ps(_mm512_loadu_ps(out + 16), z1));
    }
    _mm512_storeu_ps(out, z0);
    _mm512_storeu_ps(out + 16, z1);
  }
}

// How finished sums of full width become the output.
enum class Finish { kStore, kScale, kGeneral };

Finish FinishOf(const GemmOutput& out, const Epilogue& epi, GemmSums sums) {
  if (!out.HasRows()) return Finish::kGeneral;
  if (out.dtype == DType::kS32) return Finish::kStore;
  if (out.dtype != DType::kF32 || !epi.IsF32()) return Finish::kGeneral;
  const bool scales = epi.lhs_scale != nullptr || epi.rhs_scale != nullptr;
  // Sums of bf16 are never subnormal.
  return sums == GemmSums::kF32 && !scales && !epi.adds ? Finish::kStore : Finish::kScale;
}

// Expands 4-bit panels to bytes, with zeros up to whole steps.
AQT_AMX inline void DecodeS4(const char* from, int64_t groups, char* to) {
  const __m512i low = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(8);
  const int64_t pairs = (groups + 1) / 2;
  for (int64_t i = 0; i < pairs; ++i, from += kGroupBytes, to += 2 * kGroupBytes) {
    for (int64_t j = 0; j < kGroupBytes; j += 64) {
      const __m512i bytes = _mm512_loadu_si512(from + j);
      const __m512i even = _mm512_and_si512(bytes, low), odd = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
      _mm512_storeu_si512(to + j, _mm512_sub_epi8(_mm512_xor_si512(even, sign), sign));
      _mm512_storeu_si512(to + kGroupBytes + j, _mm512_sub_epi8(_mm512_xor_si512(odd, sign), sign));
    }
  }
  const int64_t padding = (PanelFormat::kStepGroups - 2 * pairs % PanelFormat::kStepGroups) % PanelFormat::kStepGroups;
  std::memset(to, 0, padding * kGroupBytes);
  // GCC's tile loads do not declare that they read memory.
  __asm__ volatile("" : : "r"(to) : "memory");
}

// Implements GemmKernel::block.
template <class Ops>
AQT_AMX void Block(const GemmProblem& problem, const GemmPanels& panels, int64_t b, int64_t m0, int64_t m1, int64_t n0,
                   int64_t n1) {
  using Acc = typename Ops::Acc;
  constexpr int64_t kStepGroups = PanelFormat::kStepGroups;
  constexpr bool kIsS4 = Ops::kRhs.element == PanelFormat::Element::kS4;
  static_assert(Ops::kLhs.width == kRows && Ops::kRhs.width == kCols);
  const int64_t groups = Ops::kRhs.NumGroups(problem.k), steps = CeilDiv(groups, kStepGroups);
  const int64_t lhs_panel_bytes = Ops::kLhs.PanelBytes(problem.k), rhs_panel_bytes = Ops::kRhs.PanelBytes(problem.k);
  const char* lhs = static_cast<const char*>(panels.lhs) + b * panels.lhs_batch_bytes + m0 / kRows * lhs_panel_bytes;
  const char* rhs = static_cast<const char*>(panels.rhs) + b * panels.rhs_batch_bytes + n0 / kCols * rhs_panel_bytes;
  // Blocks have equal size, so that the last one is not a short remainder.
  const int64_t num_blocks = std::max<int64_t>(1, CeilDiv(steps, kBlockSteps));
  const int64_t block_steps = CeilDiv(steps, num_blocks);
  const int64_t whole_steps = kIsS4 ? steps : groups / kStepGroups;

  const Epilogue& epi = problem.epilogue;
  const Finish full_finish = FinishOf(problem.out, epi, std::is_same_v<Acc, float> ? GemmSums::kF32 : GemmSums::kS32);
  const int64_t row_stride = problem.out.rows.rank == 0 ? 0 : problem.out.rows.stride[0];
  float row_scales[kAmxBlockRows], col_scales[kCols];
  if (full_finish == Finish::kScale) {
    LoadScales(epi.lhs_scale == nullptr ? nullptr : epi.lhs_scale + b * epi.lhs_batch_stride, epi.lhs_stride, m0,
               m1 - m0, row_scales);
  }
  alignas(64) Acc partial[kAmxBlockRows * kCols];
  alignas(64) Acc finished[kRows * kCols];
  alignas(64) char decoded[kIsS4 ? kBlockSteps * kStepBytes : 1];
  alignas(64) char tail[kStepBytes];  // the groups after the last whole step, then zeros
  if (whole_steps < steps) std::memset(tail, 0, sizeof(tail));

  _tile_loadconfig(&kConfig);
  for (int64_t n = n0; n < n1; n += kCols, rhs += rhs_panel_bytes) {
    const int64_t cols = std::min(kCols, n1 - n);
    const char* groups_of_rhs = rhs + Ops::kRhs.HeaderBytes();
    if (whole_steps < steps) {
      std::memcpy(tail, groups_of_rhs + whole_steps * kStepBytes, (groups - whole_steps * kStepGroups) * kGroupBytes);
      // GCC's tile loads do not declare that they read memory.
      __asm__ volatile("" : : "r"(tail) : "memory");
    }
    const Finish finish = cols == kCols ? full_finish : Finish::kGeneral;
    if (finish == Finish::kScale) {
      LoadScales(epi.rhs_scale == nullptr ? nullptr : epi.rhs_scale + b * epi.rhs_batch_stride, epi.rhs_stride, n,
                 kCols, col_scales);
    }
    int64_t s = 0;
    do {
      const int64_t end = std::min(steps, s + block_steps), whole_end = std::min(end, whole_steps);
      const bool last = end == steps;
      const char* rhs_block = groups_of_rhs + Ops::kRhs.GroupBytes(s * kStepGroups);
      if constexpr (kIsS4) {
        DecodeS4(rhs_block, std::min(groups, end * kStepGroups) - s * kStepGroups, decoded);
        rhs_block = decoded;
      }
      for (int64_t m = m0; m < m1; m += kRows) {
        const int64_t rows = std::min(kRows, m1 - m);
        const char* lhs_block = lhs + (m - m0) / kRows * lhs_panel_bytes + s * kStepBytes;
        Acc* sums = partial + (m - m0) * kCols;
        char* out = nullptr;
        if (finish != Finish::kGeneral) {
          out = static_cast<char*>(problem.out.data) + 4 * (problem.out.batch.Offset(b) + m * row_stride + n);
        }
        if (rows <= kRows / 2) {
          if (s == 0) ZeroSums();
          else LoadSums<true>(sums);
          AddSteps<Ops, true>(lhs_block, rhs_block, whole_end - s);
          if (whole_end < end) AddSteps<Ops, true>(lhs_block + (whole_end - s) * kStepBytes, tail, 1);
          if (!last) StoreSums<true>(sums, 4 * kCols);
          else StoreSums<true>(finished, 4 * kCols);
        } else {
          if (s == 0) ZeroSums();
          else LoadSums<false>(sums);
          AddSteps<Ops, false>(lhs_block, rhs_block, whole_end - s);
          if (whole_end < end) AddSteps<Ops, false>(lhs_block + (whole_end - s) * kStepBytes, tail, 1);
          if (!last) {
            StoreSums<false>(sums, 4 * kCols);
          } else if (finish == Finish::kStore && rows == kRows) {
            StoreSums<false>(out, 4 * row_stride);
            continue;
          } else {
            StoreSums<false>(finished, 4 * kCols);
          }
        }
        if (!last) continue;
        if (finish == Finish::kScale) {
          const auto scale_rows = epi.subnormals_are_zero ? &ScaleRows<true, Acc> : &ScaleRows<false, Acc>;
          scale_rows(finished, rows, {row_scales + (m - m0), col_scales, /*any=*/true, epi.rhs_first, epi.adds},
                     reinterpret_cast<float*>(out), row_stride);
        } else {
          FinishTile(Target::kAvx512, problem, b, m, rows, n, cols, finished, kCols);
        }
      }
      s = end;
    } while (s < steps);
  }
  _tile_release();
}

template <class Ops>
constexpr GemmKernel KernelOf(const char* name) {
  return {.name = name,
          .sums = std::is_same_v<typename Ops::Acc, float> ? GemmSums::kF32 : GemmSums::kS32,
          .target = Ops::kTarget,
          .lhs = Ops::kLhs,
          .rhs = Ops::kRhs,
          .emulated = false,
          .products_per_cycle = Ops::kProductsPerCycle,
          .row_unit = kRows / 2,
          .block_rows = kAmxBlockRows,
          .block_bytes = kAmxBlockBytes,
          .block = &Block<Ops>};
}

constexpr GemmKernel kS8 = KernelOf<S8Ops<PanelFormat::Element::kS8>>("s8_amx");
constexpr GemmKernel kS8xS4 = KernelOf<S8Ops<PanelFormat::Element::kS4>>("s8xs4_amx");
constexpr GemmKernel kBf16 = KernelOf<Bf16Ops>("bf16_amx");

}  // namespace

GemmRows AmxGemms() {
  static constexpr const GemmKernel* kAll[] = {&kS8, &kS8xS4, &kBf16};
  return kAll;
}

}  // namespace aqt::kernels::internal

#else

namespace aqt::kernels::internal {
GemmRows AmxGemms() { return {}; }
}  // namespace aqt::kernels::internal

#endif
