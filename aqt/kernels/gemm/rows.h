#ifndef AQT_KERNELS_GEMM_ROWS_H_
#define AQT_KERNELS_GEMM_ROWS_H_

// The rows of the table of matrix kernels, grouped by defining file, and the formats that several kernels share.
// Internal to gemm_table.

#include "absl/types/span.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels::internal {

using GemmRows = absl::Span<const GemmKernel* const>;

// The kernels that this build contains, whether or not this machine can run them.
GemmRows F32Gemms();
GemmRows S8MaddGemms();  // s8 with SSE4, AVX2, AVX-512
GemmRows DotGemms();     // s8 with VNNI, bf16 with AVX-512 BF16
GemmRows AmxGemms();
GemmRows EmulatedGemms();  // the first one emulates s8_avx2

namespace format {

using Layout = PanelFormat::Layout;
using Element = PanelFormat::Element;

// The same format with another element.
constexpr PanelFormat With(Element element, PanelFormat format) {
  format.element = element;
  return format;
}

// s8_sse4: 2 x 16 takes 8 accumulators, 4 rhs vectors, the lhs broadcast and a product. The rhs is that of s8_avx2.
inline constexpr PanelFormat kSse4Lhs = {Layout::kRowSteps, Element::kS16, false, 2, 2};
// s8_avx2: 6 x 16 takes 12 accumulators, 2 rhs vectors, the lhs broadcast and a product: all 16 registers.
inline constexpr PanelFormat kAvx2Lhs = {Layout::kRowSteps, Element::kS16, false, 6, 2};
inline constexpr PanelFormat kAvx2Rhs = {Layout::kInterleaved, Element::kS8, false, 16, 2};
// s8_avx512: 8 x 32 takes 16 accumulators out of 32 registers.
inline constexpr PanelFormat kAvx512Lhs = {Layout::kRowSteps, Element::kS16, false, 8, 2};
inline constexpr PanelFormat kAvx512Rhs = {Layout::kInterleaved, Element::kS8, false, 32, 2};
// s8_avx_vnni: like s8_avx2, but a group has four k.
inline constexpr PanelFormat kAvxVnniLhs = {Layout::kRowSteps, Element::kU8Offset, false, 6, 4};
inline constexpr PanelFormat kAvxVnniRhs = {Layout::kInterleaved, Element::kS8, true, 16, 4};
// s8_avx512_vnni: 8 x 32; 2 rhs loads and 8 broadcasts for 16 products.
inline constexpr PanelFormat kVnniLhs = {Layout::kRowSteps, Element::kU8Offset, false, 8, 4};
inline constexpr PanelFormat kVnniRhs = {Layout::kInterleaved, Element::kS8, true, 32, 4};
// The rhs of s8xs4_*: the same formats with 4 bits.
inline constexpr PanelFormat kAvx2RhsS4 = With(Element::kS4, kAvx2Rhs), kAvx512RhsS4 = With(Element::kS4, kAvx512Rhs);
inline constexpr PanelFormat kAvxVnniRhsS4 = With(Element::kS4, kAvxVnniRhs), kVnniRhsS4 = With(Element::kS4, kVnniRhs);
// s8_amx: a step of an lhs panel is two tiles of 16 rows x 64 bytes. 16 groups of an rhs panel are two tiles of 16
// groups x 64 bytes side by side. The rhs is that of VNNI, which handles products of few rows; AMX ignores its
// correction.
inline constexpr PanelFormat kAmxS8Lhs = {Layout::kRowSteps, Element::kS8, false, 32, 4};
// bf16_avx512_bf16: 24 accumulators, 2 rhs vectors and a broadcast.
inline constexpr PanelFormat kDotBf16Lhs = {Layout::kRowSteps, Element::kBF16, false, 12, 2};
inline constexpr PanelFormat kDotBf16Rhs = {Layout::kInterleaved, Element::kBF16, false, 32, 2};
// bf16_amx: like s8_amx.
inline constexpr PanelFormat kAmxBf16Lhs = {Layout::kRowSteps, Element::kBF16, false, 32, 2};

}  // namespace format
}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_ROWS_H_
