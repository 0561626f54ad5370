#include "aqt/kernels/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "aqt/core/check.h"

namespace aqt::kernels {
namespace {

constexpr int kSpins = 500;  // pauses of 40 (AMD) to 140 (Intel) cycles

void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

// One ParallelFor, on its caller's stack: threads take the next index until there are none left.
struct ThreadPool::Call {
  void Work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) body(i);
  }

  const int64_t n;
  const absl::FunctionRef<void(int64_t)> body;
  std::atomic<int64_t> next = 0;
  int workers = 0;        // threads of the pool inside Work; guarded by the pool's mutex
  Call* other = nullptr;  // the rest of the list of calls
};

ThreadPool::ThreadPool(int num_threads) {
  AQT_CHECK(num_threads >= 1);
  threads_.reserve(num_threads - 1);
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { WorkerLoop(); });
  } catch (const std::system_error&) {  // a limit on threads or memory: use those that did start
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

ThreadPool::Call* ThreadPool::FindWork() const {
  for (Call* call = calls_; call != nullptr; call = call->other) {
    if (call->next.load(std::memory_order_relaxed) < call->n) return call;
  }
  return nullptr;
}

void ThreadPool::WorkerLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (Call* call = FindWork()) {
      ++call->workers;  // keeps the call alive
      lock.unlock();
      call->Work();
      lock.lock();
      if (--call->workers == 0) done_.notify_all();
      continue;
    }
    if (stop_) return;
    lock.unlock();
    for (int i = 0; i < kSpins && num_calls_.load(std::memory_order_relaxed) == 0; ++i) Pause();
    lock.lock();
    work_.wait(lock, [this] { return stop_ || FindWork() != nullptr; });
  }
}

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (threads_.empty() || n <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Call call = {.n = n, .body = body};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    call.other = calls_;
    calls_ = &call;
    ++num_calls_;
  }
  for (int64_t i = std::min<int64_t>(n - 1, static_cast<int64_t>(threads_.size())); i > 0; --i) work_.notify_one();
  call.Work();
  std::unique_lock<std::mutex> lock(mutex_);
  Call** link = &calls_;
  while (*link != &call) link = &(*link)->other;
  *link = call.other;
  --num_calls_;
  done_.wait(lock, [&call] { return call.workers == 0; });
}

}  // namespace aqt::kernels
