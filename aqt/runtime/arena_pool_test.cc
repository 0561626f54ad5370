#include "aqt/runtime/arena_pool.h"

#include <utility>

#include "aqt/graph/basic_ops.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

TEST(ArenaPoolTest, TakesTheSmallestThatIsLargeEnoughAndGrows) {
  ArenaPool pool;
  ArenaPool::Arena small = pool.Take(100), large = pool.Take(1000);
  const void *const small_memory = small.memory.get(), *const large_memory = large.memory.get();
  pool.Give(std::move(large));
  pool.Give(std::move(small));
  EXPECT_EQ(pool.free_bytes(), 1100);
  small = pool.Take(60);
  EXPECT_EQ(small.memory.get(), small_memory);
  EXPECT_EQ(small.bytes, 100);
  large = pool.Take(60);
  EXPECT_EQ(large.memory.get(), large_memory);
  pool.Give(std::move(small));
  pool.Give(std::move(large));
  pool.Give(pool.Take(3000));  // instead of the one of 1000
  EXPECT_EQ(pool.free_bytes(), 3100);
}

TEST(ArenaPoolTest, ExecutablesShareTheirArenas) {
  const auto pool = std::make_shared<ArenaPool>();
  const auto fn = [](absl::Span<const Value> in) {
    return std::vector<Value>{ops::ReduceSum(ops::Exp(ops::MatMul(in[0], in[0])), {1})};
  };
  const Array small = testing::RandomArray({DType::kF32, {8, 8}}, 1),
              large = testing::RandomArray({DType::kF32, {64, 64}}, 2);
  const Program one = *testing::TraceWith(fn, {small}), two = *testing::TraceWith(fn, {large});
  const Executable shared_one = *Executable::Make(one, {.arenas = pool}),
                   shared_two = *Executable::Make(two, {.arenas = pool});
  for (int i = 0; i < 2; ++i) {  // the second time in the arena of the other program
    const auto got_one = shared_one.Run({small}), got_two = shared_two.Run({large});
    ASSERT_THAT(got_one, testing::IsOk());
    ASSERT_THAT(got_two, testing::IsOk());
    EXPECT_TRUE(BitEqual((*got_one)[0], (*Executable::Make(one)->Run({small}))[0]));
    EXPECT_TRUE(BitEqual((*got_two)[0], (*Executable::Make(two)->Run({large}))[0]));
    EXPECT_EQ(pool->free_bytes(), shared_two.arena_bytes());
  }
}

}  // namespace
}  // namespace aqt
