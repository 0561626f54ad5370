#include "aqt/kernels/thread_pool.h"

#include <algorithm>
#include <atomic>

#include "unsupported/Eigen/CXX11/ThreadPool"

#include "aqt/core/check.h"

namespace aqt::kernels {
namespace {

// One ParallelFor: threads take the next index until none is left.
struct Call {
  Call(int64_t n, absl::FunctionRef<void(int64_t)> body, int helpers) : n(n), body(body), helpers_left(helpers) {}

  void Work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) body(i);
  }

  const int64_t n;
  const absl::FunctionRef<void(int64_t)> body;
  std::atomic<int64_t> next = 0;
  Eigen::Barrier helpers_left;
};

}  // namespace

class ThreadPool::Impl : public Eigen::ThreadPool {
 public:
  using Eigen::ThreadPool::ThreadPool;
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), impl_(num_threads > 1 ? std::make_unique<Impl>(num_threads - 1) : nullptr) {
  AQT_CHECK(num_threads >= 1);
}

ThreadPool::~ThreadPool() = default;

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  const int helpers = static_cast<int>(std::min<int64_t>(num_threads_, n)) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Call call(n, body, helpers);
  for (int i = 0; i < helpers; ++i) {
    impl_->Schedule([&call] {
      call.Work();
      call.helpers_left.Notify();
    });
  }
  call.Work();
  call.helpers_left.Wait();
}

}  // namespace aqt::kernels
