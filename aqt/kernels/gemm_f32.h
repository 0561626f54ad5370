#ifndef AQT_KERNELS_GEMM_F32_H_
#define AQT_KERNELS_GEMM_F32_H_

// f32 x f32 -> f32 kernels, for float contractions and as a yardstick for the integer kernels. bf16, f16, fp8 and
// integer operands are converted, exactly, while packing.
//
// Each sum starts at 0 and takes k steps sum = fma(lhs, rhs, sum), k ascending. Targets with FMA round once per step,
// and agree with each other bit for bit. kScalar multiplies and adds with two roundings.
// |error| <= k * 2^-24 / (1 - k * 2^-24) * sum |lhs * rhs| with FMA (k + 1 instead of k without).

#include "absl/types/span.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/panel_format.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

// The kernel whose rhs panels hold `rhs`: kF32, or kBF16 or kS8 for an rhs that these hold exactly. Narrow panels are
// widened as they are read: less memory traffic for an rhs that is packed once, and the same bits.
const GemmKernel& GemmF32(Target target, PanelFormat::Element rhs = PanelFormat::Element::kF32);

// The narrowest element that holds all values of a dtype: s8, s4, s2 -> kS8; bf16, e4m3fn, e5m2 -> kBF16; else kF32.
PanelFormat::Element NarrowestF32Panels(DType dtype);

// Every kernel that this machine can run, with f32 panels.
absl::Span<const GemmKernel* const> AllGemmF32();

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_F32_H_
