#include "aqt/kernels/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

TEST(ThreadPoolTest, CallsTheBodyOncePerIndex) {
  for (int threads : {1, 2, 7, 70}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.NumThreads(), threads);
    for (int64_t n : {0, 1, 2, 6, 7, 8, 1000}) {
      std::vector<int> calls(n);  // not atomic: bodies write disjoint memory, and the caller reads after all have ended
      pool.ParallelFor(n, [&](int64_t i) { ++calls[i]; });
      EXPECT_EQ(calls, std::vector<int>(n, 1)) << "threads " << threads << ", n " << n;
    }
  }
}

TEST(ThreadPoolTest, ManyShortCalls) {
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int call = 0; call < 2000; ++call) {
    int64_t values[4] = {};
    pool.ParallelFor(4, [&](int64_t i) { values[i] = i; });
    for (int64_t v : values) sum += v;
  }
  EXPECT_EQ(sum, 2000 * 6);
}

TEST(ThreadPoolTest, SeveralCallersShareTheWorkers) {
  ThreadPool pool(2);
  std::atomic<int64_t> total = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int call = 0; call < 100; ++call) pool.ParallelFor(10, [&](int64_t i) { total += i; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 3 * 100 * 45);
}

// Two bodies that wait for each other finish only if they run at the same time.
TEST(ThreadPoolTest, BodiesRunAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> arrived = 0;
  pool.ParallelFor(2, [&](int64_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

// Each of two threads begins with its half of the indices, and ends when there are none left in the other half either.
TEST(ThreadPoolTest, ThreadsBeginWithRangesOfTheirOwn) {
  ThreadPool pool(2);
  std::vector<std::thread::id> threads(7);
  for (int call = 0; call < 10; ++call) {
    std::atomic<int> arrived = 0;
    pool.ParallelFor(7, [&](int64_t i) {
      threads[i] = std::this_thread::get_id();
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(threads[0], std::this_thread::get_id());
    EXPECT_NE(threads[4], std::this_thread::get_id());
  }
  // The second thread cannot leave its first index before all others are done.
  std::atomic<int> done = 0;
  pool.ParallelFor(7, [&](int64_t i) {
    while (i == 4 && done < 6) std::this_thread::yield();
    ++done;
  });
  EXPECT_EQ(done, 7);
}

// Threads with stacks of 1/8 of the address space: the system cannot start all of them.
TEST(ThreadPoolTest, HasFewerThreadsWhereTheSystemRefusesMore) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 44), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  {
    ThreadPool pool(100);
    EXPECT_LT(pool.NumThreads(), 100);
    std::atomic<int64_t> sum = 0;
    pool.ParallelFor(1000, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 999 * 1000 / 2);
  }
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  pthread_attr_destroy(&usual);
  pthread_attr_destroy(&huge);
}

}  // namespace
}  // namespace aqt::kernels
