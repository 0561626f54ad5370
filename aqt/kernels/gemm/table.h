#ifndef AQT_KERNELS_GEMM_TABLE_H_
#define AQT_KERNELS_GEMM_TABLE_H_

// The table of matrix kernels. Each row says what the kernel needs, what it multiplies and what it costs. Choosing,
// testing and benchmarking are driven by the table; a new kernel is a file with its tile, plus a row.
//
// name                operands         tile      per step
// s8_amx              s8 x s8 -> s32   32 x 32   tdpbssd: 64 k of 16 rows x 16 columns
// s8_avx512_vnni                        8 x 32   vpdpbusd: 4 k; lhs as a + 128, sums start at -128 * column sums
// s8_avx_vnni                           6 x 16   the same in 256 bits
// s8_avx512                             8 x 32   vpmaddwd, vpaddd: 2 k, both sides widened to s16
// s8_avx2                               6 x 16   the same in 256 bits
// s8_sse4                               2 x 16   the same in 128 bits
// s8xs4_*             s8 x s4 -> s32             each of these with a 4-bit rhs, decoded in registers or by blocks
// bf16_amx            bf16 x bf16      32 x 32   tdpbf16ps: 32 k of 16 rows x 16 columns
// bf16_avx512_bf16          -> f32     12 x 32   vdpbf16ps: 2 k
// f32_avx512          f32 x f32        12 x 32   FMA; f32xbf16_* and f32xs8_* widen an rhs of bf16 or s8 panels
// f32_avx2                  -> f32      6 x 16   the same in 256 bits
// f32_scalar                            6 x 16   plain C++: multiplies, then adds
// emulated_*                                     geometry and arithmetic of another row in plain C++, on any machine
//
// Sums of s8 are exact modulo 2^32, so they are the same in every row. Sums of floats, each over k in ascending order:
//   f32   sum = fma(lhs, rhs, sum), one rounding per step; f32_scalar also rounds the product
//         |error| <= k * 2^-24 / (1 - k * 2^-24) * sum |lhs * rhs| with FMA (k + 1 instead of k without)
//   bf16_avx512_bf16
//         for each pair of k: sum = fma(odd lhs, odd rhs, sum), then the even one
//   bf16_amx
//         for each 32 k: the even products are accumulated by fma from 0, and so are the odd ones; then
//         sum += even + odd
// The two bf16 rows round to nearest and treat subnormal f32 values as zeros at each step. The error bound is that of
// f32 (for bf16_amx with k + 2 instead of k), plus 2^-126 for each step.

#include <cstdint>

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// The largest k whose sums are exact for all s8 values: k * 128 * 128 < 2^31. The caller must check, or split k.
inline constexpr int64_t kMaxExactK = 131071;
// The same bound if no value is -128 (AQT's integers never are): k * 127 * 127 < 2^31.
inline constexpr int64_t kMaxExactSymmetricK = 133144;

// The operand types of a product.
struct GemmTypes {
  GemmSums sums = GemmSums::kS32;
  // The narrowest of kS4, kS8, kBF16 and kF32 that can represent all values of an operand (NarrowestElement).
  PanelFormat::Element lhs = PanelFormat::Element::kS8, rhs = PanelFormat::Element::kS8;
  // Whether the rhs is packed once for many products. Its panels are then as narrow as its values.
  bool rhs_is_packed_ahead = false;
};

// The kernel expected to be fastest on a target for products of `rows` rows. For integer sums the choice depends on the
// rows, since a few are not worth a tile, but all kernels chosen for a target read the same rhs panels. For float sums
// the choice does not depend on the rows, and the bits do not depend on rhs_is_packed_ahead.
const GemmKernel& ChooseGemm(const GemmTypes& types, Target target, int64_t rows);

// The narrowest element that can represent all values of a dtype: s4, s2 -> kS4; s8 -> kS8; bf16, e4m3fn, e5m2 ->
// kBF16; else kF32.
PanelFormat::Element NarrowestElement(DType dtype);

// Every row of the table that this machine can run, including emulated ones.
absl::Span<const GemmKernel* const> AllGemmKernels();

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_TABLE_H_
