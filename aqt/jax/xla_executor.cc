#include "aqt/jax/xla_executor.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>

namespace aqt::jax {
namespace {

// A parallel loop. Its tasks may outlive the call: they then find no iteration left, and `body` is not used.
struct Loop {
  Loop(int64_t count, absl::FunctionRef<void(int64_t)> loop_body) : n(count), body(loop_body) {}

  // Runs iterations until all have been started.
  void Work() {
    int64_t finished = 0;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n; ++finished) body(i);
    if (finished == 0) return;
    if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == n) done.notify_all();
  }

  // Waits for the iterations that other threads run.
  void Wait() {
    constexpr int kSpins = 2000;
    for (int spin = 0; spin < kSpins; ++spin) {
      if (done.load(std::memory_order_acquire) == n) return;
      __builtin_ia32_pause();
    }
    for (int64_t seen; (seen = done.load(std::memory_order_acquire)) != n;) done.wait(seen, std::memory_order_acquire);
  }

  const int64_t n;
  const absl::FunctionRef<void(int64_t)> body;
  std::atomic<int64_t> next = 0, done = 0;
};

using SharedLoop = std::shared_ptr<Loop>;

void RunTask(void* data) {
  const std::unique_ptr<SharedLoop> loop(static_cast<SharedLoop*>(data));
  (*loop)->Work();
}

void Destroy(const abi::Api& api, abi::Error* error) {
  abi::DestroyErrorArguments arguments{
      .struct_size = sizeof(abi::DestroyErrorArguments), .extensions = nullptr, .error = error};
  api.destroy_error(&arguments);
}

}  // namespace

XlaExecutor::XlaExecutor(const abi::CallFrame& frame) : api_(*frame.api), context_(frame.context) {
  constexpr int64_t kMost = 1024;
  if (api_.struct_size < offsetof(abi::Api, num_threads) + sizeof(api_.num_threads)) {
    num_threads_ = static_cast<int>(std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMost));
    return;
  }
  int64_t num_threads = 0;
  abi::NumThreadsArguments arguments{.struct_size = sizeof(abi::NumThreadsArguments),
                                     .extensions = nullptr,
                                     .context = context_,
                                     .num_threads = &num_threads};
  if (abi::Error* error = api_.num_threads(&arguments); error != nullptr) {
    Destroy(api_, error);  // there is no pool
    return;
  }
  num_threads_ = static_cast<int>(std::clamp<int64_t>(num_threads, 1, kMost));
}

void XlaExecutor::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  const int64_t helpers = std::min<int64_t>(num_threads_, n) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  const SharedLoop loop = std::make_shared<Loop>(n, body);
  for (int64_t i = 0; i < helpers; ++i) {
    auto* data = new SharedLoop(loop);
    abi::ScheduleArguments arguments{.struct_size = sizeof(abi::ScheduleArguments),
                                     .extensions = nullptr,
                                     .context = context_,
                                     .task = RunTask,
                                     .data = data};
    if (abi::Error* error = api_.schedule(&arguments); error != nullptr) {
      Destroy(api_, error);
      delete data;
      break;
    }
  }
  loop->Work();
  loop->Wait();
}

}  // namespace aqt::jax
