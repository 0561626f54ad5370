#include "tests/benchmarks/suite.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace aqt::benchmarks {
namespace {

using Named = std::map<std::string, double>;

TEST(Suite, NamesOfRows) {
  EXPECT_EQ((Result{"forward", "dynamic", "1x4096x4096", "int8", "aqt", 2}).name(), "dynamic/1x4096x4096/int8/2/aqt");
}

// By hand: 8 operations; f32 takes 4 s at best, in class "product"; the best peer of int8 takes 3 s.
TEST(Suite, Counters) {
  const std::vector<Result> group = {
      {"forward", "packed", "2x2x1", "f32", "aqt", 1, 5, 2, 8},     //
      {"forward", "product", "2x2x1", "f32", "eigen", 1, 4, 0, 8},  //
      {"step", "step", "2x2x1", "f32", "eigen", 1, 1, 0, 8},        //
      {"forward", "dynamic", "2x2x1", "int8", "aqt", 1, 2, 0.5, 8},
      {"forward", "dynamic", "2x2x1", "int8", "peer", 1, 3, 0, 8},
      {"forward", "dynamic", "2x2x1", "int8", "slow", 1, 6, 0, 0},
      {"", "quantize", "2x2", "f32", "aqt", 1, 1, 0.5, 0},
      {"", "quantize", "2x2", "f32", "aqt:avx2", 1, 1, 0, 0},
  };
  const std::vector<Named> want = {
      {{"gops", 8e-9 / 5}, {"roof", 0.4}, {"ratio_f32", 0.8}},
      {{"gops", 8e-9 / 4}},
      {{"gops", 8e-9}},
      {{"gops", 8e-9 / 2}, {"roof", 0.25}, {"ratio_f32", 2}, {"ratio_best", 1.5}},
      {{"gops", 8e-9 / 3}},
      {},
      {{"roof", 0.5}},
      {},
  };
  const std::vector<Named> got = Counters(group);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(group[i].name());
    ASSERT_EQ(got[i].size(), want[i].size());
    for (const auto& [name, value] : want[i]) {
      ASSERT_TRUE(got[i].contains(name)) << name;
      EXPECT_DOUBLE_EQ(got[i].at(name), value) << name;
    }
  }
}

}  // namespace
}  // namespace aqt::benchmarks
