#include "aqt/runtime/memory/array_pool.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/memory_source.h"
#include "aqt/testing/own_memory.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

TEST(ArrayPoolTest, WhatIsGivenBackIsTakenAgain) {
  ArrayPool pool(1000);
  std::shared_ptr<void> first = pool.Take(100);
  const void* const data = first.get();
  const std::weak_ptr<void> watched = first;
  EXPECT_NE(pool.Take(100).get(), data);  // it is still in use
  first.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(pool.kept_bytes(), 200);
  const std::shared_ptr<void> again = pool.Take(100), other = pool.Take(100);
  EXPECT_TRUE(again.get() == data || other.get() == data);
  EXPECT_EQ(pool.kept_bytes(), 0);
}

// Kept memory is freed for memory in use.
TEST(ArrayPoolTest, TheTotalIsBounded) {
  ArrayPool pool(300);
  pool.Take(100);
  pool.Take(120);
  EXPECT_EQ(pool.kept_bytes(), 220);
  std::shared_ptr<void> a = pool.Take(80);
  EXPECT_EQ(pool.kept_bytes(), 220);
  std::shared_ptr<void> b = pool.Take(90);  // frees the larger one
  EXPECT_EQ(pool.kept_bytes(), 100);
  std::shared_ptr<void> c = pool.Take(500);  // more than the bound: nothing can be kept
  EXPECT_EQ(pool.kept_bytes(), 0);
  a.reset();
  EXPECT_EQ(pool.kept_bytes(), 0);
  c.reset();
  EXPECT_EQ(pool.kept_bytes(), 0);
  b.reset();
  EXPECT_EQ(pool.kept_bytes(), 90);
}

TEST(ArrayPoolTest, MemoryOutlivesThePool) {
  std::optional<ArrayPool> pool(1000);
  const std::shared_ptr<void> memory = pool->Take(100);
  pool.reset();
  ::aqt::testing::ExpectKeepsItsContents(memory.get(), 100);
}

TEST(ArrayPoolTest, LargeArraysOfTheThreadComeFromIt) {
  const int64_t kLarge = kMinSourceBytes;
  ArrayPool pool(10 * kLarge);
  {
    const UseMemorySource use(&pool);
    EXPECT_EQ(UseMemorySource::Current(), &pool);
    Array::Zeros(DType::kS8, {kLarge - 1});
    EXPECT_EQ(pool.kept_bytes(), 0);
    Array::Zeros(DType::kS8, {kLarge});
    EXPECT_EQ(pool.kept_bytes(), kLarge);
    const UseMemorySource none(nullptr);
    Array::Zeros(DType::kS8, {2 * kLarge});
    EXPECT_EQ(pool.kept_bytes(), kLarge);
  }
  EXPECT_EQ(UseMemorySource::Current(), nullptr);
  // Zeros are zeros even in reused memory.
  const UseMemorySource use(&pool);
  ArrayBuilder builder(DType::kS8, {kLarge});
  builder.Mutable<int8_t>()[7] = 3;
  std::move(builder).Build();
  EXPECT_EQ(Array::Zeros(DType::kS8, {kLarge}).View<int8_t>()[7], 0);
}

}  // namespace
}  // namespace aqt::internal
