#ifndef AQT_KERNELS_GEMM_F32_H_
#define AQT_KERNELS_GEMM_F32_H_

// f32 x f32 -> f32 kernels, for float contractions and as a yardstick for the integer kernels. bf16, f16, fp8 and
// integer operands are converted, exactly, while packing.
//
// Each sum starts at 0 and takes k steps sum = fma(lhs, rhs, sum), k ascending. Targets with FMA round once per step,
// and agree with each other bit for bit. kScalar multiplies and adds with two roundings.
// |error| <= k * 2^-24 / (1 - k * 2^-24) * sum |lhs * rhs| with FMA (k + 1 instead of k without).

#include "absl/types/span.h"
#include "aqt/kernels/gemm.h"
#include "aqt/kernels/target.h"

namespace aqt::kernels {

const GemmKernel& GemmF32(Target target);

// Every kernel that this machine can run.
absl::Span<const GemmKernel* const> AllGemmF32();

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_F32_H_
