// Tests what an Executable allocates. This program has its own aligned operator new, which arrays use;
// allocation_count.h counts the other one.

#include <cstdint>
#include <cstdlib>
#include <new>
#include <unordered_map>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/allocation_count.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace {

int64_t live_bytes = 0, most_bytes = 0, aligned_allocations = 0;

}  // namespace

void* operator new(size_t bytes, std::align_val_t alignment) {
  const size_t step = static_cast<size_t>(alignment), header = step;
  char* p = static_cast<char*>(std::aligned_alloc(step, header + (bytes + step - 1) / step * step));
  if (p == nullptr) std::abort();
  *reinterpret_cast<size_t*>(p) = bytes;
  ++aligned_allocations;
  live_bytes += static_cast<int64_t>(bytes);
  if (live_bytes > most_bytes) most_bytes = live_bytes;
  return p + header;
}
void operator delete(void* p, std::align_val_t alignment) noexcept {
  if (p == nullptr) return;
  char* start = static_cast<char*>(p) - static_cast<size_t>(alignment);
  live_bytes -= static_cast<int64_t>(*reinterpret_cast<size_t*>(start));
  std::free(start);
}
void operator delete(void* p, size_t, std::align_val_t alignment) noexcept { operator delete(p, alignment); }

namespace aqt {
namespace {

using ::aqt::testing::IsOk;
using ::aqt::testing::RandomArray;
using Arrays = std::vector<Array>;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

// A product, elementwise operations, broadcasts, reductions and their gradients. Extents are multiples of 16, so no
// array is rounded up to whole cache lines.
Program Example(Arrays& args) {
  args = {RandomArray({DType::kF32, {32, 48}}, 1), RandomArray({DType::kF32, {48}}, 2),
          RandomArray({DType::kF32, {48, 64}}, 3)};
  const auto fn = [](In in) {
    const Value y = ops::LogSoftmax(ops::MatMul(ops::Relu(in[0] * in[1] + 0.5), in[2]));
    return Values{ops::Mean(y * y)};
  };
  return *ValueAndGrad(*testing::TraceWith(fn, args), {0, 1, 2});
}

TEST(ExecutableMemoryTest, TheFirstCallTakesThePeakThatIsPredicted) {
  Arrays args;
  const Program program = Example(args);
  const absl::StatusOr<Executable> executable = Executable::Make(program);
  ASSERT_THAT(executable, IsOk());
  const int64_t before = live_bytes;
  most_bytes = live_bytes;
  const absl::StatusOr<Arrays> outputs = executable->Run(args);
  ASSERT_THAT(outputs, IsOk());
  EXPECT_EQ(most_bytes - before, (executable->peak_bytes() + 63) / 64 * 64) << executable->ToString();
}

TEST(ExecutableMemoryTest, LaterCallsAllocateOnlyOutputsThatAreStillHeld) {
  Arrays args;
  const absl::StatusOr<Executable> executable = Executable::Make(Example(args));
  ASSERT_THAT(executable, IsOk());
  absl::StatusOr<Arrays> outputs = executable->Run(args);
  ASSERT_THAT(outputs, IsOk());
  int64_t before = aligned_allocations;
  outputs = executable->Run(args);  // while the first outputs are in use
  EXPECT_EQ(aligned_allocations - before, static_cast<int64_t>(outputs->size()));
  before = aligned_allocations;
  for (int i = 0; i < 5; ++i) outputs = executable->Run(args);
  EXPECT_EQ(aligned_allocations, before);
}

TEST(ExecutableMemoryTest, NothingIsAllocatedIntoGivenMemory) {
  Arrays args;
  const absl::StatusOr<Executable> executable = Executable::Make(Example(args));
  ASSERT_THAT(executable, IsOk());
  std::vector<ArrayBuilder> given;
  std::vector<MutableArrayRef> memory;
  for (const Program::Port& port : executable->program().outputs)
    given.emplace_back(executable->program().aval(port.var));
  for (ArrayBuilder& builder : given) memory.push_back(builder.ref());
  ASSERT_THAT(executable->RunInto(args, memory), IsOk());
  const int64_t aligned = aligned_allocations, others = testing::AllocationCount();
  bool ok = true;
  for (int i = 0; i < 3; ++i) ok &= executable->RunInto(args, memory).ok();
  const int64_t others_after = testing::AllocationCount();
  EXPECT_TRUE(ok);
  EXPECT_EQ(aligned_allocations, aligned);
  EXPECT_EQ(others_after, others);
}

}  // namespace
}  // namespace aqt
