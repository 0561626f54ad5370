// Every basic operation occurs in random programs, runs the same at once and traced, and can be differentiated.
// AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing program.

#include "aqt/testing/random_programs.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/testing/environment.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::testing {
namespace {

constexpr int kSteps = 40;

// The failure of this program; "" if there is none.
std::string Problem(uint64_t seed, int steps) {
  const std::vector<Array> args = RandomProgramArgs(seed);
  const absl::StatusOr<Program> program = RandomProgram(seed, steps);
  if (!program.ok()) return program.status().ToString();
  const absl::StatusOr<std::vector<Array>> traced = Eval(*program, args);
  if (!traced.ok()) return traced.status().ToString();
  const absl::StatusOr<std::vector<Array>> eager =
      RunEagerly([&](absl::Span<const Value> in) { return RandomFunction(seed, steps, in); }, args);
  if (!eager.ok()) return eager.status().ToString();
  if (eager->size() != traced->size()) return "another number of outputs";
  for (size_t i = 0; i < eager->size(); ++i) {
    if (!SameBits((*eager)[i], (*traced)[i])) return absl::StrCat("eager and traced differ in output ", i);
  }
  const absl::StatusOr<Program> both = ValueAndGrad(*program, {0, 1, 2, 3, 4, 5});
  if (!both.ok()) return both.status().ToString();
  const absl::StatusOr<std::vector<Array>> gradients = Eval(*both, args);
  if (!gradients.ok()) return gradients.status().ToString();
  for (size_t i = 0; i < 6; ++i) {
    if ((*gradients)[gradients->size() - 6 + i].aval() != args[i].aval()) return absl::StrCat("gradient ", i);
  }
  return "";
}

TEST(RandomProgramsTest, RunAndCanBeDifferentiated) {
  const int64_t first = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 300);
  absl::btree_map<std::string, int64_t> seen;
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = static_cast<uint64_t>(first + i);
    if (!Problem(seed, kSteps).empty()) {
      const int steps = Shrink(kSteps, [&](int fewer) { return !Problem(seed, fewer).empty(); });
      FAIL() << "seed " << seed << ", " << steps << " steps: " << Problem(seed, steps) << "\n"
             << ToText(*RandomProgram(seed, steps));
    }
    const absl::StatusOr<Program> program = RandomProgram(seed, kSteps);
    for (const Equation& eqn : program->eqns) ++seen[OpName(eqn.op)];
  }
  if (cases < 100) return;
  for (const Op& op : AllBasicOps()) EXPECT_GE(seen[OpName(op)], 20) << OpName(op);
}

TEST(RandomProgramsTest, FewerStepsAreABeginning) {
  const absl::StatusOr<Program> whole = RandomProgram(7, kSteps);
  ASSERT_THAT(whole, IsOk());
  for (const int steps : {0, 1, 10, 39}) {
    const absl::StatusOr<Program> part = RandomProgram(7, steps);
    ASSERT_THAT(part, IsOk());
    size_t same = 0;
    while (same < part->eqns.size() && part->eqns[same].op == whole->eqns[same].op &&
           part->eqns[same].in == whole->eqns[same].in) {
      ++same;
    }
    EXPECT_GE(static_cast<int>(same), steps / 2) << steps;  // not every step finds operands
  }
}

TEST(RandomProgramsTest, ShrinkFindsTheFirst) {
  EXPECT_EQ(Shrink(40, [](int steps) { return steps >= 17; }), 17);
  EXPECT_EQ(Shrink(5, [](int) { return false; }), 5);
}

}  // namespace
}  // namespace aqt::testing
