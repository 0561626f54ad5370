#ifndef AQT_KERNELS_THREAD_POOL_H_
#define AQT_KERNELS_THREAD_POOL_H_

// An Executor with threads of its own.

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "aqt/core/executor.h"

namespace aqt::kernels {

// num_threads - 1 threads that sleep between calls; the calling thread works, too. Several threads may call ParallelFor
// at the same time; they then share the workers. The destructor waits for the threads to end; no call may be running.
class ThreadPool final : public Executor {
 public:
  // num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int NumThreads() const override { return num_threads_; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override;

 private:
  class Impl;
  const int num_threads_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_THREAD_POOL_H_
