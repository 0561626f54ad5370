#include "aqt/jax/bounded_cache.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace aqt::jax {
namespace {

TEST(BoundedCache, KeepsTheValuesThatWereUsedLast) {
  BoundedCache<std::string> cache(2);
  int made = 0;
  const auto get = [&](const std::string& key) {
    return **cache.Get(key, [&]() -> absl::StatusOr<std::string> { return absl::StrCat(key, ++made); });
  };
  EXPECT_EQ(get("a"), "a1");
  EXPECT_EQ(get("b"), "b2");
  EXPECT_EQ(get("a"), "a1");
  EXPECT_EQ(get("c"), "c3");  // b goes
  EXPECT_EQ(get("a"), "a1");
  EXPECT_EQ(get("b"), "b4");
  EXPECT_EQ(cache.size(), 2u);
}

TEST(BoundedCache, ForgetsErrors) {
  BoundedCache<int> cache(2);
  EXPECT_FALSE(cache.Get("a", [] { return absl::InternalError("no"); }).ok());
  EXPECT_EQ(**cache.Get("a", []() -> absl::StatusOr<int> { return 5; }), 5);
}

TEST(BoundedCache, ThreadsGetTheValueOfTheirKey) {
  BoundedCache<int> cache(3);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const int key = i % 5;
        EXPECT_EQ(**cache.Get(absl::StrCat(key), [&]() -> absl::StatusOr<int> { return key; }), key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.size(), 3u);
}

}  // namespace
}  // namespace aqt::jax
