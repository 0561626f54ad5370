#include "aqt/kernels/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "aqt/core/check.h"

namespace aqt::kernels {
namespace {

// In pauses of 40 (AMD) to 140 (Intel) cycles. Waking a thread takes some 50 us, so a thread looks for about twice that
// time before it sleeps; but not for long where another thread may need its CPU.
constexpr int kSpins = 5000, kSpinsOfTooManyThreads = 100;
constexpr int kLockSpins = 100;  // until the mutex is free: it is never held for long

void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until `done`, but for no more pauses than `spins`.
template <class Done>
void Spin(int spins, Done done) {
  for (int i = 0; i < spins && !done(); ++i) Pause();
}

// A lock of a mutex that others hold only for moments.
void Lock(std::unique_lock<std::mutex>& lock) {
  Spin(kLockSpins, [&lock] { return lock.try_lock(); });
  if (!lock.owns_lock()) lock.lock();
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
  // Threads of the pool inside Work. Changed with the pool's mutex held; once it is 0 and the call is not listed, the
  // call may be gone.
  std::atomic<int> workers = 0;
  Call* other = nullptr;  // the rest of the list of calls
};

ThreadPool::ThreadPool(int num_threads) {
  AQT_CHECK(num_threads >= 1);
  spins_ = num_threads <= static_cast<int64_t>(std::thread::hardware_concurrency()) ? kSpins : kSpinsOfTooManyThreads;
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
      call->workers.fetch_add(1, std::memory_order_relaxed);  // keeps the call alive
      lock.unlock();
      call->Work();
      Lock(lock);
      if (call->workers.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
      continue;
    }
    if (stop_) return;
    const uint64_t started = started_.load(std::memory_order_relaxed);
    lock.unlock();
    Spin(spins_, [&] { return started_.load(std::memory_order_relaxed) != started; });
    Lock(lock);
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
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    Lock(lock);
    call.other = calls_;
    calls_ = &call;
  }
  started_.fetch_add(1, std::memory_order_relaxed);  // after the mutex is free: threads that look for this lock it next
  for (int64_t i = std::min<int64_t>(n - 1, static_cast<int64_t>(threads_.size())); i > 0; --i) work_.notify_one();
  call.Work();
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  Lock(lock);
  Call** link = &calls_;
  while (*link != &call) link = &(*link)->other;
  *link = call.other;
  const auto done = [&call] { return call.workers.load(std::memory_order_acquire) == 0; };
  if (done()) return;
  lock.unlock();
  Spin(spins_, done);
  if (done()) return;
  lock.lock();
  done_.wait(lock, done);
}

}  // namespace aqt::kernels
