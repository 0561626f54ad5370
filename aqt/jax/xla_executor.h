#ifndef AQT_JAX_XLA_EXECUTOR_H_
#define AQT_JAX_XLA_EXECUTOR_H_

// The thread pool that XLA runs a program with, as an Executor of one call.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "aqt/core/executor.h"
#include "aqt/jax/ffi_abi.h"

namespace aqt::jax {

// The calling thread, usually one of the pool's, works too. It waits only for iterations that have started, never for
// tasks in the queue of the pool: these may run later or on this very thread. jaxlib 0.4.35 does not tell the size of
// its pool; the number of processors then stands for it.
class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(const abi::CallFrame& frame);

  int NumThreads() const override { return num_threads_; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override;

 private:
  const abi::Api& api_;
  abi::ExecutionContext* const context_;
  int num_threads_ = 1;
};

}  // namespace aqt::jax

#endif  // AQT_JAX_XLA_EXECUTOR_H_
