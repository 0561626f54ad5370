#ifndef AQT_SERVING_TOOLS_PROGRESS_H_
#define AQT_SERVING_TOOLS_PROGRESS_H_

// Shows the progress of a long run on standard error, or reports it to a function.

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"

namespace aqt::serving {

enum class ProgressStyle : uint8_t {
  kNone,
  kBar,    // one line, redrawn at most ten times a second
  kLines,  // a line every ten seconds
};

// Thread-safe.
class Progress {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // Writes to `out`, which must outlive it. `total_bytes` is the total work.
  Progress(ProgressStyle style, int64_t total_bytes, std::ostream& out, Clock clock = std::chrono::steady_clock::now);
  // Calls `report` for each Add, with the work done so far and `what`; never from two threads at a time.
  using Report = std::function<void(int64_t done_bytes, absl::string_view what)>;
  explicit Progress(Report report);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Adds `bytes` to the work done; `what` is the tensor being processed.
  void Add(int64_t bytes, absl::string_view what);
  // Erases the bar.
  void Finish();

 private:
  const ProgressStyle style_;
  const int64_t total_bytes_;
  std::ostream* const out_;
  const Report report_;
  const Clock clock_;
  const std::chrono::steady_clock::time_point start_;

  std::mutex mutex_;
  int64_t done_bytes_ = 0;
  std::chrono::steady_clock::time_point last_;
  size_t width_ = 0;  // of the bar on the screen
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_PROGRESS_H_
