#include "serving/http/wire/workers.h"

#include <system_error>
#include <utility>

namespace aqt::serving {

absl::Status Workers::Start(int n) {
  for (int i = 0; i < n; ++i) {
    try {
      threads_.emplace_back([this] { Loop(); });
    } catch (const std::system_error&) {
      if (i == 0) return absl::ResourceExhaustedError("no thread can be started; raise the limit of processes");
      break;
    }
  }
  return absl::OkStatus();
}

Workers::~Workers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::Add(std::function<void()> job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

int64_t Workers::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

void Workers::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ended_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace aqt::serving
