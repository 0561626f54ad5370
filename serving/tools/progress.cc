#include "serving/tools/progress.h"

#include <algorithm>
#include <iomanip>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aqt/io/printable.h"
#include "serving/tools/text.h"

namespace aqt::serving {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr size_t kBarWidth = 30;
constexpr size_t kNameWidth = 40;

// The end of a name, which says more than its beginning.
std::string ShortName(absl::string_view name) {
  const std::string text = io::PrintableLine(name);
  size_t begin = text.size() > kNameWidth ? text.size() - kNameWidth : 0;
  while (begin < text.size() && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) ++begin;  // within a character
  return text.substr(begin);
}

std::string HumanTime(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return absl::StrCat(s, "s");
  return s < 3600 ? absl::StrFormat("%dm%02ds", s / 60, s % 60) : absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
}

std::string HumanSpeed(double bytes_per_second) {
  if (bytes_per_second >= 1e6) return absl::StrFormat("%.0f MB/s", bytes_per_second / 1e6);
  if (bytes_per_second >= 1e3) return absl::StrFormat("%.0f kB/s", bytes_per_second / 1e3);
  return absl::StrFormat("%.0f B/s", bytes_per_second);
}

}  // namespace

Progress::Progress(ProgressStyle style, int64_t total_bytes, std::ostream& out, Clock clock)
    : style_(style),
      total_bytes_(std::max<int64_t>(total_bytes, 1)),
      out_(&out),
      clock_(std::move(clock)),
      start_(clock_()),
      last_(start_) {}

Progress::Progress(Report report)
    : style_(ProgressStyle::kNone),
      total_bytes_(1),
      out_(nullptr),
      report_(std::move(report)),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

void Progress::Add(int64_t bytes, absl::string_view what) {
  if (style_ == ProgressStyle::kNone && !report_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  done_bytes_ += bytes;
  if (report_) return report_(done_bytes_, what);
  const auto now = clock_();
  if (now - last_ < (style_ == ProgressStyle::kBar ? Seconds(0.1) : Seconds(10))) return;
  last_ = now;
  const double elapsed = Seconds(now - start_).count();
  const double share = std::min(1.0, static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
  const std::string left = share > 0 ? HumanTime(elapsed / share - elapsed) : "?";
  const std::string numbers =
      absl::StrFormat("%3.0f%% %s of %s, %s, %s left", 100 * share, HumanBytes(done_bytes_), HumanBytes(total_bytes_),
                      HumanSpeed(static_cast<double>(done_bytes_) / std::max(elapsed, 1e-9)), left);
  if (style_ == ProgressStyle::kLines) {
    *out_ << numbers << ": " << io::Printable(what) << "\n" << std::flush;
    return;
  }
  const size_t filled = static_cast<size_t>(share * kBarWidth);
  std::string line = absl::StrCat("[", std::string(filled, '#'), std::string(kBarWidth - filled, ' '), "] ", numbers,
                                  "  ", ShortName(what));
  const size_t width = line.size();
  if (width < width_) line.append(width_ - width, ' ');
  width_ = width;
  *out_ << "\r" << line << std::flush;
}

void Progress::Finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // May run while an exception propagates, so it allocates nothing.
  if (width_ > 0)
    *out_ << "\r" << std::setw(static_cast<int>(width_)) << ""
          << "\r" << std::flush;
  width_ = 0;
}

}  // namespace aqt::serving
