#include "tests/systems_check/systems_check.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/systems_check/compare_values.h"
#include "tests/systems_check/fixed_systems.h"
#include "tests/systems_check/system_case.h"
#include "tests/systems_check/systems_compat.h"

namespace aqt::systems {
namespace {

using ::testing::HasSubstr;

TEST(SystemsCheck, RecordedCases) {
  std::ostringstream out, err;
  const int code = CheckSystems(io::LocalFileSystem(), "tests/golden/systems", {.verbose = true}, out, err);
  EXPECT_EQ(code, 0) << out.str() << err.str();
  EXPECT_THAT(out.str(), HasSubstr("jaxamp: passed 82, failed 0, not supported 0\n"));
  EXPECT_THAT(out.str(), HasSubstr("scalify: passed 431, failed 0, not supported 0\n"));
  EXPECT_THAT(out.str(), HasSubstr("fp8layers: passed 67, failed 0, not supported 0\n"));
}

// The activations, losses and optimizers of the checker equal those of the recordings in every bit: the first losses of
// the classifiers, and all steps of the layer without a bias.
TEST(SystemsCheck, FirstStepsAreExact) {
  std::ostringstream out, err;
  const int code = CheckSystems(io::LocalFileSystem(), "tests/golden/systems/steps", {.verbose = true}, out, err);
  EXPECT_EQ(code, 0) << out.str() << err.str();
  EXPECT_THAT(out.str(), HasSubstr("fp8layers: passed 7, failed 0, not supported 0\n"));
}

TEST(SystemsCheck, NamesWhatIsWrong) {
  std::ostringstream out, err;
  EXPECT_FALSE(HasSystems(io::LocalFileSystem(), "tests/golden/missing"));
  EXPECT_EQ(CheckSystems(io::LocalFileSystem(), "tests/golden/systems", {.areas = {"jaxam"}}, out, err), 2);
  EXPECT_THAT(err.str(), HasSubstr("no area jaxam; there are scalify, jaxamp, fp8layers"));
}

// ---- the library's defaults

constexpr char kFixed[] = "tests/golden/systems/fixed.json";

TEST(FixedSystems, ExactlyTheListedCasesDifferByDefault) {
  const io::FileSystem& fs = io::LocalFileSystem();
  std::ostringstream out, err;
  const SystemsOptions listed{.original = false, .fixed = kFixed};
  EXPECT_EQ(CheckSystems(fs, "tests/golden/systems", listed, out, err), 0) << out.str() << err.str();
  // The list is correct: its switches restore the recorded results, and each of them is needed.
  const absl::StatusOr<FixedSystems> list = LoadFixedSystems(fs, kFixed);
  ASSERT_TRUE(list.ok()) << list.status();
  const absl::StatusOr<std::vector<SystemArea>> areas = LoadSystems(fs, "tests/golden/systems", {});
  ASSERT_TRUE(areas.ok()) << areas.status();
  size_t seen = 0, named = 0;
  for (const SystemArea& area : *areas) {
    const auto cases = list->find(area.name);
    for (const SystemCase& system_case : area.cases) {
      SCOPED_TRACE(system_case.name);
      named += system_case.compat.empty() ? 0 : 1;
      const bool is_listed = cases != list->end() && cases->second.contains(system_case.name);
      EXPECT_EQ(WrongIn(area.name, system_case, {})->has_value(), is_listed);
      if (!is_listed) continue;
      ++seen;
      const FixedSystemCase& fixed = cases->second.at(system_case.name);
      SystemsCompat behaviour;
      for (const SystemsSwitch& one : SystemsSwitches()) {
        if (std::count(fixed.compat.begin(), fixed.compat.end(), one.name) > 0) one.of(behaviour) = true;
      }
      EXPECT_EQ(*WrongIn(area.name, system_case, behaviour), std::nullopt);
      for (const SystemsSwitch& one : SystemsSwitches()) {
        if (!one.of(behaviour)) continue;
        SystemsCompat without = behaviour;
        one.of(without) = false;
        EXPECT_TRUE(WrongIn(area.name, system_case, without)->has_value()) << one.name;
      }
    }
  }
  // All cases that were recorded as defects, and others with the same defects.
  EXPECT_GE(seen, named);
  EXPECT_EQ(named, 17u);
}

TEST(FixedSystems, OtherResultsThanListedFail) {
  const io::FileSystem& fs = io::LocalFileSystem();
  absl::StatusOr<FixedSystems> list = LoadFixedSystems(fs, kFixed);
  ASSERT_TRUE(list.ok()) << list.status();
  const std::string path = io::JoinPath(::testing::TempDir(), "fixed_systems.json");
  // A written list is read back unchanged.
  ASSERT_TRUE(SaveFixedSystems(fs, path, *list).ok());
  EXPECT_EQ(*io::ReadFile(fs, path, 1 << 26), *io::ReadFile(fs, kFixed, 1 << 26));
  FixedSystemCase& fixed = list->at("scalify").at("unsupported/tanh");
  ScaledArrays& y = std::get<ScaledArrays>(fixed.expected.begin()->second.of);
  y.data = Array::Zeros(y.data.dtype(), y.data.shape());
  list->at("jaxamp").erase("scaler/underflow");
  ASSERT_TRUE(SaveFixedSystems(fs, path, *list).ok());
  std::ostringstream out, err;
  EXPECT_EQ(CheckSystems(fs, "tests/golden/systems", {.original = false, .fixed = path}, out, err), 1);
  EXPECT_THAT(out.str(), HasSubstr("FAILED scalify unsupported/tanh"));
  EXPECT_THAT(out.str(), HasSubstr("FAILED jaxamp scaler/underflow"));
  EXPECT_THAT(out.str(), HasSubstr("failed 2, "));
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"[", "fixed_systems.json"},
           {R"({"scalify": {"a": {"compat": ["x"], "reason": "r"}}})", "scalify a: there is no switch x"},
           {R"({"scalify": {"a": {"compat": [], "reason": "r"}}})", "scalify a: an entry needs a switch and a reason"},
           {R"({"scalify": {"a": {"compat": ["exp_keeps_zero"], "reason": "r"}}})", "scalify a: "}}) {
    ASSERT_TRUE(io::WriteFile(fs, path, text, {.overwrite = true}).ok());
    EXPECT_THAT(LoadFixedSystems(fs, path).status().message(), HasSubstr(message));
  }
  EXPECT_TRUE(fs.Remove(path).ok());
}

// ---- the results of the cases

// 131008 is infinite in f16, and its sum with b1 is NaN. JAX's relu keeps it. So the loss and the gradient of w2 are
// NaN. The gradient stops there and at the other sum, 0, because neither is greater than 0.
TEST(RunJaxamp, ReluKeepsNan) {
  SystemCase nan;
  nan.name = "grad/nan";
  nan.config = Json::parse(R"({"compute_dtype": "f16"})");
  nan.tolerance = Json::object();
  nan.inputs["params"] = SystemValue(SystemValue::Dict{{"w1", Array::Of<float>({131008, 0}, {1, 2})},
                                                       {"b1", Array::Of<float>({-INFINITY, 0}, {2})},
                                                       {"w2", Array::Of<float>({1, 1}, {2, 1})}});
  nan.inputs["x"] = Array::Of<float>({1}, {1, 1});
  nan.inputs["t"] = Array::Of<float>({0}, {1, 1});
  nan.expected["loss"] = Array::Scalar<float>(NAN);
  nan.expected["grads"] = SystemValue(SystemValue::Dict{{"w1", Array::Of<float>({0, 0}, {1, 2})},
                                                        {"b1", Array::Of<float>({0, 0}, {2})},
                                                        {"w2", Array::Of<float>({NAN, NAN}, {2, 1})}});
  EXPECT_EQ(*WrongIn("jaxamp", nan, {}), std::nullopt);
}

// Each infinite gradient halves the scaler: 2^15 becomes 2^-127 after 142 of them, which counts as 0 in the original.
TEST(RunJaxamp, RepetitionFlushesTheScaler) {
  SystemCase injected;
  injected.name = "inject/inf";
  injected.config = Json::parse(R"({"transform": "grad", "has_aux": false, "patience": 2, "redo_on_nan": 141})");
  injected.tolerance = Json::object();
  injected.inputs["x"] = Array::Of<float>({1}, {1});
  injected.inputs["add"] = Array::Of<float>({INFINITY}, {1});
  injected.expected["results"] = SystemValue(SystemValue::List{SystemValue(Array::Of<float>({INFINITY}, {1}))});
  injected.expected["state"] = SystemValue(SystemValue::Dict{{"patience", Array::Of<int32_t>({2}, {1})},
                                                             {"adjust_factor", Array::Of<float>({2}, {1})},
                                                             {"scaler", Array::Of<float>({0}, {1})},
                                                             {"count", Array::Of<int32_t>({0}, {1})},
                                                             {"total_resets", Array::Of<int32_t>({142}, {1})}});
  EXPECT_EQ(*WrongIn("jaxamp", injected, SystemsCompat::Original()), std::nullopt);
  EXPECT_THAT(**WrongIn("jaxamp", injected, {}), HasSubstr("state.scaler"));
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
