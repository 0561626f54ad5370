#include "aqt/nn/train/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace aqt::nn {
namespace {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// "0:08", "12:34", "1:02:03".
std::string TimeText(double seconds) {
  const int64_t all = std::llround(seconds), minutes = all / 60;
  if (minutes < 60) return absl::StrFormat("%d:%02d", minutes, all % 60);
  return absl::StrFormat("%d:%02d:%02d", minutes / 60, minutes % 60, all % 60);
}

}  // namespace

ProgressLine::ProgressLine(int64_t steps, int64_t batch, int64_t first, Clock clock)
    : steps_(steps), batch_(batch), first_(first), clock_(clock != nullptr ? std::move(clock) : SteadySeconds) {
  start_ = clock_();
}

std::string ProgressLine::At(int64_t step, double loss) const {
  const double seconds = std::max(clock_() - start_, 0.0), done = static_cast<double>(step - first_);
  const double rate = seconds > 0 && done > 0 ? done / seconds : 0.0;
  const double left = static_cast<double>(std::max<int64_t>(steps_ - step, 0));
  return absl::StrFormat("step %d/%d  loss %.4f  %.0f examples/s  %.1f steps/s  %s elapsed  %s left", step, steps_,
                         loss, rate * static_cast<double>(batch_), rate, TimeText(seconds),
                         rate > 0 ? TimeText(left / rate) : "?");
}

}  // namespace aqt::nn
