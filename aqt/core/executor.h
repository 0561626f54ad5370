#ifndef AQT_CORE_EXECUTOR_H_
#define AQT_CORE_EXECUTOR_H_

// Where parallel work runs. The library starts no threads of its own. Callers pass an Executor, or none to stay on the
// calling thread.

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace aqt {

// Runs the iterations of parallel loops.
class Executor {
 public:
  virtual ~Executor() = default;
  // The number of calls of ParallelFor's body that can run at the same time, the calling thread included; at least 1.
  virtual int NumThreads() const = 0;
  // Calls body(i) once for each i in [0, n), in any order and on any threads, and returns when all calls are done. The
  // bodies of one call write disjoint memory, so results never depend on the order. Unless the implementation says
  // otherwise, call it from one thread at a time. Never call it from inside a body.
  virtual void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) = 0;
};

// Runs everything on the calling thread. Stateless; thread-safe.
class InlineExecutor final : public Executor {
 public:
  int NumThreads() const override { return 1; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override {
    for (int64_t i = 0; i < n; ++i) body(i);
  }
};

}  // namespace aqt

#endif  // AQT_CORE_EXECUTOR_H_
