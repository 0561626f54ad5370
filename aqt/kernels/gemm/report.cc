#include "aqt/kernels/gemm/report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "aqt/core/machine/verbose.h"

namespace aqt::kernels::internal {
namespace {

// Reports a product that took `seconds`; 0 if that was not measured. One call per line, so that threads do not mix.
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

}  // namespace

void RunReported(const GemmKernel& kernel, const GemmProblem& problem, absl::FunctionRef<void()> run) {
  static const Verbosity verbosity = VerbosityFromEnvironment().value_or(Verbosity::kOff);
  if (verbosity == Verbosity::kOff) return run();
  if (verbosity == Verbosity::kDispatch) {
    Report(kernel, problem, 0);
    return run();
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  run();
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  Report(kernel, problem, std::max(seconds.count(), 1e-9));
}

}  // namespace aqt::kernels::internal
