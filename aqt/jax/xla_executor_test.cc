#include "aqt/jax/xla_executor.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "aqt/jax/fake_xla.h"
#include "gtest/gtest.h"

namespace aqt::jax {
namespace {

TEST(XlaExecutor, RunsEveryIterationOnceWhateverThePoolDoes) {
  for (const Pool pool : {Pool::kNone, Pool::kInCaller, Pool::kNever, Pool::kThreads}) {
    FakeXla xla(pool, 4);
    XlaExecutor executor(xla.Frame());
    EXPECT_EQ(executor.NumThreads(), pool == Pool::kNone ? 1 : 4);
    for (const int64_t n : {0, 1, 2, 3, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      executor.ParallelFor(n, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(XlaExecutor, AssumesAThreadForEachProcessorWithAnOlderXla) {
  FakeXla xla(Pool::kThreads, 4);
  abi::CallFrame frame = xla.Frame();
  abi::Api api = *frame.api;
  api.struct_size = offsetof(abi::Api, unused);  // as jaxlib 0.4.35 states it
  frame.api = &api;
  EXPECT_EQ(XlaExecutor(frame).NumThreads(), std::max<int>(1, std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace aqt::jax
