#include "serving/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace aqt::serving {

absl::Status ParallelRun(int64_t n, const ParallelOptions& options, absl::FunctionRef<int64_t(int64_t)> memory,
                         absl::FunctionRef<absl::Status(int64_t)> run) {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t next = 0, running = 0, held = 0, failed = n;
  absl::Status error;

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
      absl::Status status = run(i);
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
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  return error;
}

}  // namespace aqt::serving
