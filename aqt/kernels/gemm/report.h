#ifndef AQT_KERNELS_GEMM_REPORT_H_
#define AQT_KERNELS_GEMM_REPORT_H_

// The AQT_VERBOSE report of a matrix product. Internal.

#include "absl/functional/function_ref.h"
#include "aqt/kernels/gemm/gemm.h"

namespace aqt::kernels::internal {

// Runs a product and reports it as AQT_VERBOSE asks: one line to stderr.
void RunReported(const GemmKernel& kernel, const GemmProblem& problem, absl::FunctionRef<void()> run);

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_REPORT_H_
