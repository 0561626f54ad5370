#include "aqt/runtime/profile.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/runtime/executable.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace aqt {
namespace {

using ::testing::HasSubstr;
using Clock = Profile::Clock;

TEST(ProfileTest, AddsUpByKindScopeAndStep) {
  Profile profile;
  const int64_t owner = Profile::NewOwner();
  const std::vector<Profile::Step> steps = {
      {"mul", "fused", "a", 2048}, {"dot", "dot_general", "a/\"b\"", 1024}, {"add", "fused", "c", 1024}};
  const int first = profile.Register(owner, steps);
  EXPECT_EQ(profile.Register(owner, steps), first);
  const Clock::time_point now = Clock::now();
  for (int call = 0; call < 2; ++call) {
    for (int i = 0; i < 3; ++i) profile.Add(first + i, now, now + std::chrono::microseconds(2 - i % 2));
  }
  const std::string table = profile.Table();
  EXPECT_THAT(table, HasSubstr("       4.0  80.0%       3.0     0.77  fused\n"));
  EXPECT_THAT(table, HasSubstr("       1.0  20.0%       1.0     1.02  dot_general\n"));
  EXPECT_THAT(table, HasSubstr("       2.0  40.0%       2.0     1.02  mul @a\n"));

  const nlohmann::json trace = nlohmann::json::parse(profile.Trace());
  ASSERT_EQ(trace["traceEvents"].size(), 6u);
  EXPECT_EQ(trace["traceEvents"][1]["name"], "dot");
  EXPECT_EQ(trace["traceEvents"][1]["args"]["scope"], "a/\"b\"");
  EXPECT_EQ(trace["traceEvents"][1]["dur"], 1.0);
}

TEST(ProfileTest, AnExecutableNamesItsSteps) {
  const Array x = testing::RandomArray({DType::kF32, {8, 8}}, 1);
  const auto fn = [](absl::Span<const Value> in) {
    const NamedScope scope("layer");
    return std::vector<Value>{ops::Exp(ops::MatMul(in[0], in[0]) * 2.0) + 1.0};
  };
  const absl::StatusOr<Executable> executable = Executable::Make(*testing::TraceWith(fn, {x}));
  ASSERT_THAT(executable, testing::IsOk());
  Profile profile;
  ASSERT_THAT(executable->Run({x}, &profile), testing::IsOk());
  ASSERT_THAT(executable->Run({x}, &profile), testing::IsOk());
  const std::string table = profile.Table();
  EXPECT_THAT(table, HasSubstr("fused: mul, exp, add @layer\n"));
  EXPECT_THAT(table, HasSubstr("  dot_general @layer\n"));
  EXPECT_EQ(nlohmann::json::parse(profile.Trace())["traceEvents"].size(), 4u);
}

}  // namespace
}  // namespace aqt
