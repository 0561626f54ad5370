#ifndef AQT_TESTING_COUNTING_POOL_H_
#define AQT_TESTING_COUNTING_POOL_H_

// A pool of two threads that counts its calls.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/thread_pool.h"

namespace aqt::testing {

class CountingPool final : public Executor {
 public:
  int NumThreads() const override { return pool_.NumThreads(); }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override {
    ++calls;
    pool_.ParallelFor(n, body);
  }
  int calls = 0;  // of ParallelFor

 private:
  kernels::ThreadPool pool_{2};
};

}  // namespace aqt::testing

#endif  // AQT_TESTING_COUNTING_POOL_H_
