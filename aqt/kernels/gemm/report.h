#ifndef AQT_KERNELS_GEMM_REPORT_H_
#define AQT_KERNELS_GEMM_REPORT_H_

// The AQT_VERBOSE report of a matrix product. Internal.

#include <chrono>

#include "aqt/kernels/gemm/gemm.h"

namespace aqt::kernels::internal {

// Lives while a product runs, and reports it as AQT_VERBOSE asks: one line to stderr.
class GemmReport {
 public:
  GemmReport(const GemmKernel& kernel, const GemmProblem& problem);
  ~GemmReport();
  GemmReport(const GemmReport&) = delete;
  GemmReport& operator=(const GemmReport&) = delete;

 private:
  const GemmKernel& kernel_;
  const GemmProblem& problem_;
  std::chrono::steady_clock::time_point begin_;  // if it is measured
};

}  // namespace aqt::kernels::internal

#endif  // AQT_KERNELS_GEMM_REPORT_H_
