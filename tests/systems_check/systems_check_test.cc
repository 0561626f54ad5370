#include "tests/systems_check/systems_check.h"

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/systems_check/compare_values.h"
#include "tests/systems_check/system_case.h"

namespace aqt::systems {
namespace {

using ::testing::HasSubstr;

TEST(SystemsCheck, RecordedCases) {
  std::ostringstream out, err;
  const int code = CheckSystems(io::LocalFileSystem(), "tests/golden/systems", {}, /*verbose=*/true, out, err);
  EXPECT_EQ(code, 0) << out.str() << err.str();
  EXPECT_THAT(out.str(), HasSubstr("jaxamp: passed 82, failed 0, not supported 0\n"));
  EXPECT_THAT(out.str(), HasSubstr("scalify: passed 431, failed 0, not supported 0\n"));
  EXPECT_THAT(out.str(), HasSubstr("fp8layers: passed 67, failed 0, not supported 0\n"));
}

TEST(SystemsCheck, NamesWhatIsWrong) {
  std::ostringstream out, err;
  EXPECT_FALSE(HasSystems(io::LocalFileSystem(), "tests/golden/missing"));
  EXPECT_EQ(CheckSystems(io::LocalFileSystem(), "tests/golden/systems", {"jaxam"}, false, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("no area jaxam; there are scalify, jaxamp, fp8layers"));
}

// ---- the pass rules

SystemCase Case(const std::string& tolerance, SystemValue::Dict expected) {
  SystemCase result;
  result.tolerance = Json::parse(tolerance);
  result.config = Json::parse(R"({"k": [1, 3]})");
  result.expected = std::move(expected);
  return result;
}
SystemValue Floats(std::vector<float> values) {
  return SystemValue(Array::FromSpan<float>(values, {static_cast<int64_t>(values.size())}));
}
bool Passes(const std::string& tolerance, const SystemValue& got, const SystemValue& want) {
  return !CompareOutputs({{"y", got}}, Case(tolerance, {{"y", want}})).has_value();
}

TEST(CompareOutputs, ElementRule) {
  constexpr char kTolerance[] = R"({"atol": 0.5, "rtol": 0.25})";
  EXPECT_TRUE(Passes(kTolerance, Floats({5.5f}), Floats({4})));
  EXPECT_FALSE(Passes(kTolerance, Floats({5.6f}), Floats({4})));
  EXPECT_TRUE(Passes(kTolerance, Floats({-0.0f, NAN, -INFINITY}), Floats({0, NAN, -INFINITY})));
  EXPECT_FALSE(Passes(kTolerance, Floats({1}), Floats({NAN})));
  EXPECT_FALSE(Passes(kTolerance, Floats({INFINITY}), Floats({1})));
  EXPECT_FALSE(Passes(kTolerance, Floats({NAN}), Floats({1})));
  EXPECT_FALSE(Passes(kTolerance, SystemValue(Array::Of<int32_t>({4}, {1})), Floats({4})));
  EXPECT_FALSE(
      Passes(kTolerance, SystemValue(Array::Of<int32_t>({5}, {1})), SystemValue(Array::Of<int32_t>({4}, {1}))));
  EXPECT_FALSE(Passes(kTolerance, Floats({4, 4}), Floats({4})));
}

TEST(CompareOutputs, StructureMustMatch) {
  const SystemValue scaled(ScaledArrays{Array::Of<float>({1}, {1}), Array::Scalar<float>(2)});
  EXPECT_TRUE(Passes("{}", scaled, scaled));
  EXPECT_FALSE(Passes("{}", Floats({2}), scaled));
  const SystemValue list(SystemValue::List{Floats({1})}), dict(SystemValue::Dict{{"a", Floats({1})}});
  EXPECT_TRUE(Passes("{}", list, list));
  EXPECT_FALSE(Passes("{}", list, dict));
  EXPECT_FALSE(Passes("{}", SystemValue(SystemValue::List{}), list));
  EXPECT_FALSE(Passes("{}", SystemValue(SystemValue::Dict{{"b", Floats({1})}}), dict));
  EXPECT_TRUE(CompareOutputs({}, Case("{}", {{"y", dict}})).has_value());
}

TEST(CompareOutputs, RulesOfTheirOwn) {
  EXPECT_TRUE(Passes(R"({"atol": 0, "y": {"atol": 1}})", Floats({2}), Floats({1})));
  EXPECT_FALSE(Passes(R"({"atol": 1, "y": {}})", Floats({2}), Floats({1})));
  const SystemValue a(ScaledArrays{Array::Of<float>({1}, {1}), Array::Scalar<float>(2)});
  const SystemValue b(ScaledArrays{Array::Of<float>({1}, {1}), Array::Scalar<float>(3)});
  EXPECT_TRUE(Passes(R"({"scale": {"atol": 1}})", a, b));
  EXPECT_FALSE(Passes(R"({"atol": 1, "scale": {"atol": 0}})", a, b));
  EXPECT_TRUE(Passes(R"({"accept_factor": [1, 2], "accept_base": "2^-config.k"})", Floats({1, 0.125f}),
                     Floats({0.5f, 0.125f})));
  EXPECT_FALSE(
      Passes(R"({"accept_factor": [1, 2], "accept_base": "2^-config.k"})", Floats({1, 0.5f}), Floats({0.5f, 0.125f})));
  constexpr char kFlips[] = R"({"y": {"max_flips_fraction": 0.5, "flip_step": "one_fp8_step"}})";
  EXPECT_TRUE(Passes(kFlips, Floats({9, 8}), Floats({8, 8})));
  EXPECT_FALSE(Passes(kFlips, Floats({9, 9}), Floats({8, 8})));
  EXPECT_FALSE(Passes(kFlips, Floats({10, 8}), Floats({8, 8})));
  constexpr char kMean[] = R"({"y": {"atol": 1, "final_mean_rtol": 0.1, "final_mean_last": 2}})";
  EXPECT_TRUE(Passes(kMean, Floats({0, 1.5f, 0.5f}), Floats({1, 1, 1})));
  EXPECT_FALSE(Passes(kMean, Floats({1, 1.5f, 1}), Floats({1, 1, 1})));
  EXPECT_FALSE(Passes(R"({"atoll": 1})", Floats({1}), Floats({1})));
}

}  // namespace
}  // namespace aqt::systems
