#include "aqt/core/machine/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
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
      std::vector<int> calls(n);  // not atomic: bodies write disjoint memory, and the caller reads after all have
                                  // finished
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

// Each of two threads starts with its half of the indices, and finishes when the other half has none left either.
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

std::vector<int> CpusOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void UseCpus(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

// The CPUs of the second of two threads.
std::vector<int> CpusOfWorker(ThreadPool& pool) {
  std::vector<int> cpus;
  std::atomic<int> arrived = 0;
  const std::thread::id caller = std::this_thread::get_id();
  pool.ParallelFor(2, [&](int64_t) {
    if (std::this_thread::get_id() != caller) cpus = CpusOfThisThread();
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  return cpus;
}

TEST(ThreadPoolTest, ThreadsThatWakeLeaveTheCallersCpuFree) {
  const std::vector<int> all = CpusOfThisThread();
  if (all.size() < 2) GTEST_SKIP() << "one CPU";
  ThreadPool pool(2);
  for (const int cpu : {all[0], all[1], all[0]}) {
    UseCpus({cpu});
    std::vector<int> others = all;
    std::erase(others, cpu);
    std::vector<int> cpus;
    for (int i = 0; i < 1000 && cpus != others; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until the second thread sleeps too
      cpus = CpusOfWorker(pool);
    }
    EXPECT_EQ(cpus, others);
  }
  // A pool that may use only one CPU has no other CPU for its threads.
  {
    ThreadPool pool_of_one_cpu(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(CpusOfWorker(pool_of_one_cpu), std::vector<int>{all[0]});
  }
  UseCpus(all);
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
