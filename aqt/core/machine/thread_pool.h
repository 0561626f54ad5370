#ifndef AQT_CORE_MACHINE_THREAD_POOL_H_
#define AQT_CORE_MACHINE_THREAD_POOL_H_

// An Executor with threads of its own.
//
// (Eigen's pool would do, but its fences are invisible to g++'s thread sanitizer, and it allocates a closure per task.)

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "aqt/core/executor.h"

namespace aqt::kernels {

// num_threads - 1 threads; the calling thread works, too. Each thread begins with a range of indices of its own, the
// same in all calls with as many, and then takes those that others have not begun: equal calls find their data in the
// same caches. An idle thread looks for work for 0.1 to 0.3 ms, and so does the calling thread until the others are
// done; then it sleeps. Where there are more threads than CPUs, it sleeps nearly at once. Several threads may call
// ParallelFor at the same time; they then share the workers. The threads run on the CPUs that the thread which made the
// pool could use then, without the caller's if there are enough. No call allocates. The destructor waits for the
// threads to end; no call may be running.
class ThreadPool final : public Executor {
 public:
  // num_threads >= 1. If the system refuses to start that many, the pool has fewer: see NumThreads().
  explicit ThreadPool(int num_threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int NumThreads() const override { return static_cast<int>(threads_.size()) + 1; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override;

 private:
  struct Call;

  void WorkerLoop(int thread);
  // A call that still has indices to hand out; null if there is none. The caller holds mutex_.
  Call* FindWork() const;

  // Before threads are woken: in a virtual machine Linux may put a thread that wakes on the CPU of the thread that woke
  // it, though others are idle, and leave it there for milliseconds. The caller holds mutex_.
  void KeepCallersCpuFree();

  int spins_;  // pauses before a thread sleeps
  std::mutex mutex_;
  std::condition_variable work_, done_;
  Call* calls_ = nullptr;              // running calls; guarded by mutex_
  bool stop_ = false;                  // guarded by mutex_
  int sleeping_ = 0;                   // threads; guarded by mutex_
  int callers_cpu_ = -1;               // when threads were last woken; guarded by mutex_
  cpu_set_t cpus_;                     // of the thread that made the pool
  std::atomic<uint64_t> started_ = 0;  // calls so far; what idle threads look at
  std::vector<std::thread> threads_;
};

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_THREAD_POOL_H_
