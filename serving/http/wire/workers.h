#ifndef AQT_SERVING_HTTP_WIRE_WORKERS_H_
#define AQT_SERVING_HTTP_WIRE_WORKERS_H_

// Threads that run jobs in the order in which they came.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace aqt::serving {

// Thread-safe. The queue is bounded by the caller (waiting()).
class Workers {
 public:
  Workers() = default;
  // Runs the jobs that wait, and ends the threads.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Starts `n` threads, or as many as the system allows. ResourceExhausted if it allows none.
  absl::Status Start(int n);
  void Add(std::function<void()> job);
  // Jobs that no thread has begun.
  int64_t waiting() const;

 private:
  void Loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_WORKERS_H_
