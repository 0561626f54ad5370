#include "aqt/kernels/gemm/report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "aqt/core/machine/verbose.h"

namespace aqt::kernels::internal {
namespace {

// Reports a product that took `seconds` (0 if that was not measured). Writes each line with one call, so that threads
// do not interleave.
void Report(const GemmKernel& kernel, const GemmProblem& problem, double seconds) {
  char time[64] = "";
  if (seconds > 0) {
    const double operations = 2.0 * problem.batch * problem.m * problem.n * problem.k;
    std::snprintf(time, sizeof(time), " %.1f us %.0f GOP/s", seconds * 1e6, operations / seconds * 1e-9);
  }
  std::fprintf(stderr, "aqt: %s %lld x %lld x %lld x %lld%s\n", kernel.name, static_cast<long long>(problem.batch),
               static_cast<long long>(problem.m), static_cast<long long>(problem.n), static_cast<long long>(problem.k),
               time);
}

Verbosity VerbosityOfProcess() {
  static const Verbosity verbosity = VerbosityFromEnvironment().value_or(Verbosity::kOff);
  return verbosity;
}

}  // namespace

GemmReport::GemmReport(const GemmKernel& kernel, const GemmProblem& problem) : kernel_(kernel), problem_(problem) {
  const Verbosity verbosity = VerbosityOfProcess();
  if (verbosity == Verbosity::kDispatch) Report(kernel, problem, 0);
  if (verbosity == Verbosity::kProfile) begin_ = std::chrono::steady_clock::now();
}

GemmReport::~GemmReport() {
  if (VerbosityOfProcess() != Verbosity::kProfile) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
  Report(kernel_, problem_, std::max(seconds.count(), 1e-9));
}

}  // namespace aqt::kernels::internal
