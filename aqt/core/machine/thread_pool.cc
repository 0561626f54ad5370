#include "aqt/core/machine/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <system_error>

#include "aqt/core/check.h"

namespace aqt::kernels {
namespace {

// In pauses of 40 (AMD) to 140 (Intel) cycles. Waking a thread takes about 50 us, so a thread spins for about twice
// that time before it sleeps. It spins only briefly if another thread may need its CPU.
constexpr int kSpins = 5000, kSpinsOfTooManyThreads = 100;
constexpr int64_t kMaxRanges = 64;  // with more threads than that, threads share ranges
constexpr size_t kCacheLine = 64;
constexpr int kLockSpins = 100;  // the mutex is never held for long

void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits until `done`, for at most `spins` pauses.
template <class Done>
void Spin(int spins, Done done) {
  for (int i = 0; i < spins && !done(); ++i) Pause();
}

// Locks a mutex that others hold only briefly.
void Lock(std::unique_lock<std::mutex>& lock) {
  Spin(kLockSpins, [&lock] { return lock.try_lock(); });
  if (!lock.owns_lock()) lock.lock();
}

}  // namespace

// One ParallelFor call, on its caller's stack. Thread t starts with range t and continues with the next one.
struct ThreadPool::Call {
  struct alignas(kCacheLine) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };

  Call(int64_t n, int64_t num_threads, absl::FunctionRef<void(int64_t)> body)
      : body(body), num_ranges(std::min({n, num_threads, kMaxRanges})) {
    for (int64_t r = 0, i = 0; r < num_ranges; ++r) {
      ranges[r].next.store(i, std::memory_order_relaxed);
      ranges[r].end = i += n / num_ranges + (r < n % num_ranges);
    }
  }

  bool HasWork() const {
    return std::any_of(ranges, ranges + num_ranges,
                       [](const Range& r) { return r.next.load(std::memory_order_relaxed) < r.end; });
  }

  void Work(int64_t thread) {
    for (int64_t r = 0; r < num_ranges; ++r) {
      Range& range = ranges[(thread + r) % num_ranges];
      for (int64_t i; (i = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) body(i);
    }
  }

  const absl::FunctionRef<void(int64_t)> body;
  const int64_t num_ranges;
  Range ranges[kMaxRanges];  // those from num_ranges on are unused
  // Threads of the pool inside Work. Changed only with the pool's mutex held. Once it is 0 and the call is not listed,
  // the call may be destroyed.
  std::atomic<int> workers = 0;
  Call* other = nullptr;  // next in the list of calls
};

ThreadPool::ThreadPool(int num_threads) {
  AQT_CHECK(num_threads >= 1);
  spins_ = num_threads <= static_cast<int64_t>(std::thread::hardware_concurrency()) ? kSpins : kSpinsOfTooManyThreads;
  CPU_ZERO(&cpus_);
  pthread_getaffinity_np(pthread_self(), sizeof(cpus_), &cpus_);  // if it fails, the set stays empty
  threads_.reserve(num_threads - 1);
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { WorkerLoop(i); });
  } catch (const std::system_error&) {  // a limit on threads or memory: use those that started
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
    if (call->HasWork()) return call;
  }
  return nullptr;
}

void ThreadPool::WorkerLoop(int thread) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (Call* call = FindWork()) {
      call->workers.fetch_add(1, std::memory_order_relaxed);  // keeps the call alive
      lock.unlock();
      call->Work(thread);
      Lock(lock);
      if (call->workers.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
      continue;
    }
    if (stop_) return;
    const uint64_t started = started_.load(std::memory_order_relaxed);
    lock.unlock();
    Spin(spins_, [&] { return started_.load(std::memory_order_relaxed) != started; });
    Lock(lock);
    ++sleeping_;
    work_.wait(lock, [this] { return stop_ || FindWork() != nullptr; });
    --sleeping_;
  }
}

void ThreadPool::KeepCallersCpuFree() {
  const int cpu = sched_getcpu();
  if (cpu < 0 || cpu == callers_cpu_) return;
  callers_cpu_ = cpu;
  cpu_set_t others = cpus_;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) < static_cast<int>(threads_.size())) return;
  for (std::thread& thread : threads_) pthread_setaffinity_np(thread.native_handle(), sizeof(others), &others);
}

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (threads_.empty() || n <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Call call(n, NumThreads(), body);
  {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    Lock(lock);
    call.other = calls_;
    calls_ = &call;
    if (sleeping_ > 0) KeepCallersCpuFree();
  }
  started_.fetch_add(1, std::memory_order_relaxed);  // after the unlock: spinning threads lock the mutex next
  for (int64_t i = std::min<int64_t>(n - 1, static_cast<int64_t>(threads_.size())); i > 0; --i) work_.notify_one();
  call.Work(0);
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
