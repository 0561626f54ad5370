#ifndef AQT_CORE_EXECUTOR_H_
#define AQT_CORE_EXECUTOR_H_

// Where parallel work runs. The library starts no thread of its own: a caller passes an Executor, or none for one
// thread.

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace aqt {

class Executor {
 public:
  virtual ~Executor() = default;
  // How many calls of ParallelFor's body can run at the same time, the calling thread included; at least 1.
  virtual int NumThreads() const = 0;
  // Calls body(i) once for each i in [0, n), in any order, on any threads, and returns when all are done. Results never
  // depend on the order: bodies of one call write disjoint memory. Called from one thread at a time unless the
  // implementation says otherwise; bodies do not call ParallelFor themselves.
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
