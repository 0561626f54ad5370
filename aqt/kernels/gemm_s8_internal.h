#ifndef AQT_KERNELS_GEMM_S8_INTERNAL_H_
#define AQT_KERNELS_GEMM_S8_INTERNAL_H_

// Shared by the files of gemm_s8.

#include "absl/types/span.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/panel_format.h"

namespace aqt::kernels::internal {

// avx2: 6 x 16 takes 12 accumulators, 2 rhs vectors, the broadcast lhs and a product: all 16 registers.
inline constexpr PanelFormat kAvx2Lhs = {PanelFormat::Layout::kRowSteps, PanelFormat::Element::kS16, false, 6, 2};
inline constexpr PanelFormat kAvx2Rhs = {PanelFormat::Layout::kInterleaved, PanelFormat::Element::kS8, false, 16, 2};
// avx512: 8 x 32 takes 16 accumulators of 32 registers.
inline constexpr PanelFormat kAvx512Lhs = {PanelFormat::Layout::kRowSteps, PanelFormat::Element::kS16, false, 8, 2};
inline constexpr PanelFormat kAvx512Rhs = {PanelFormat::Layout::kInterleaved, PanelFormat::Element::kS8, false, 32, 2};
// avx512_vnni: 8 x 32; 2 rhs loads and 8 broadcasts for 16 products.
inline constexpr PanelFormat kVnniLhs = {PanelFormat::Layout::kRowSteps, PanelFormat::Element::kU8Offset, false, 8, 4};
inline constexpr PanelFormat kVnniRhs = {PanelFormat::Layout::kInterleaved, PanelFormat::Element::kS8, true, 32, 4};

// Null in builds without VNNI.
const GemmKernel* GemmS8Vnni();

// The first one has avx2's geometry.
absl::Span<const GemmKernel* const> EmulatedGemmS8();

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_S8_INTERNAL_H_
