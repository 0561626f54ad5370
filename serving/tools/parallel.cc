#include "serving/tools/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aqt::serving {

absl::Status ParallelRun(int64_t n, const ParallelOptions& options, absl::FunctionRef<int64_t(int64_t)> memory,
                         absl::FunctionRef<absl::Status(int64_t)> run) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t next = 0, running = 0, held = 0, failed = n;
  absl::Status error;
  const absl::Status out_of_memory = absl::ResourceExhaustedError(kOutOfMemory);  // created while there is memory

  const auto work = [&] {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] {
        return next >= n || failed < n || running == 0 || held + memory(next) <= options.memory_budget;
      });
      if (next >= n || failed < n) return;
      const int64_t i = next++;
      const int64_t need = memory(i);
      ++running;
      held += need;
      lock.unlock();
      absl::Status status;
      try {
        status = run(i);
      } catch (const std::bad_alloc&) {
        status = out_of_memory;
      }
      lock.lock();
      --running;
      held -= need;
      if (!status.ok() && i < failed) {
        failed = i;
        error = std::move(status);
      }
      lock.unlock();
      changed.notify_all();
    }
  };
  const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(options.threads, n));
  std::vector<std::jthread> others;  // they join even if an exception propagates
  others.reserve(threads - 1);
  const auto stop = [&](absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex);
    failed = -1;  // precedes every task: no other error replaces this one
    error = std::move(status);
  };
  try {
    while (static_cast<int64_t>(others.size()) < threads - 1) others.emplace_back(work);
  } catch (const std::system_error& e) {
    stop(absl::ResourceExhaustedError(
        absl::StrCat("cannot start thread ", others.size() + 2, " of ", threads, ": ", e.code().message(),
                     "; use fewer (--jobs), or raise the limit on threads (ulimit -u) or memory (ulimit -v)")));
  } catch (const std::bad_alloc&) {
    stop(out_of_memory);
  }
  work();
  others.clear();
  return error;
}

}  // namespace aqt::serving
