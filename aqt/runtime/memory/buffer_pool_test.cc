#include "aqt/runtime/memory/buffer_pool.h"

#include <memory>
#include <optional>

#include "aqt/testing/own_memory.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

TEST(BufferPoolTest, WhatIsHeldIsNotGivenAgain) {
  BufferPool pool(1000);
  std::shared_ptr<void> first = pool.Take(100);
  const void* const data = first.get();
  EXPECT_NE(pool.Take(100).get(), data);
  const std::shared_ptr<void> copy = first;
  first.reset();
  EXPECT_NE(pool.Take(100).get(), data);  // it is still in use
}

TEST(BufferPoolTest, TheOldOwnerIsGone) {
  BufferPool pool(1000);
  std::shared_ptr<void> first = pool.Take(100);
  const void* const data = first.get();
  const std::weak_ptr<void> watched = first;
  first.reset();
  first = pool.Take(100);
  EXPECT_EQ(first.get(), data);
  EXPECT_TRUE(watched.expired());
}

TEST(BufferPoolTest, KeepsOnlySoMuch) {
  BufferPool pool(150);
  std::shared_ptr<void> a = pool.Take(100), b = pool.Take(100);
  const void* const first = a.get();
  a.reset();
  b.reset();  // freed
  a = pool.Take(100);
  EXPECT_EQ(a.get(), first);
  const std::shared_ptr<void> occupied = pool.Take(100);
  EXPECT_NE(occupied.get(), first);
}

TEST(BufferPoolTest, MemoryOutlivesThePool) {
  std::optional<BufferPool> pool(1000);
  const std::shared_ptr<void> memory = pool->Take(100);
  pool.reset();
  ::aqt::testing::ExpectKeepsItsContents(memory.get(), 100);
}

}  // namespace
}  // namespace aqt::internal
