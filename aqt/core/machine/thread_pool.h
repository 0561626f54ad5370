#ifndef AQT_CORE_MACHINE_THREAD_POOL_H_
#define AQT_CORE_MACHINE_THREAD_POOL_H_

// An Executor with its own threads.
//
// (Eigen's pool would work, but g++'s thread sanitizer cannot see its fences, and it allocates a closure per task.)

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

// A pool of num_threads - 1 threads; the calling thread works too. Each thread starts with its own range of indices and
// then takes indices that other threads have not started. The ranges depend only on the number of indices, so repeated
// calls find their data in the same caches. An idle thread looks for work for 0.1 to 0.3 ms before it sleeps; so does
// the calling thread until the others are done. If there are more threads than CPUs, threads sleep almost at once.
// Several threads may call ParallelFor at the same time; they share the workers. The threads run on the CPUs in the
// affinity mask that the creating thread had at construction, minus the CPU of the calling thread if enough are left.
// No call allocates. The destructor joins the threads; no call may be running.
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
  // A call that still has indices to hand out, or null. The caller holds mutex_.
  Call* FindWork() const;

  // Called before threads are woken. In a virtual machine Linux may put a waking thread on the CPU of the thread that
  // woke it, although other CPUs are idle, and leave it there for milliseconds. The caller holds mutex_.
  void KeepCallersCpuFree();

  int spins_;  // pauses before a thread sleeps
  std::mutex mutex_;
  std::condition_variable work_, done_;
  Call* calls_ = nullptr;              // running calls; guarded by mutex_
  bool stop_ = false;                  // guarded by mutex_
  int sleeping_ = 0;                   // number of sleeping threads; guarded by mutex_
  int callers_cpu_ = -1;               // at the last wake-up; guarded by mutex_
  cpu_set_t cpus_;                     // affinity mask of the creating thread
  std::atomic<uint64_t> started_ = 0;  // number of calls so far; idle threads watch it
  std::vector<std::thread> threads_;
};

}  // namespace aqt::kernels

#endif  // AQT_CORE_MACHINE_THREAD_POOL_H_
