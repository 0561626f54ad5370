#include "aqt/graph/program.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/trace.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::HasSubstr;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Program Small() {
  return *Trace(
      [](In in) {
        return Values{ops::Exp(in[0]) * Value(Array::Of<float>({1, 2}, {2}))};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {2}}}});
}

TEST(CheckTest, AcceptsWhatIsTracedAndRefusesWhatIsDamaged) {
  EXPECT_THAT(Check(Small()), IsOk());
  struct Damage {
    std::string want;
    std::function<void(Program&)> apply;
  };
  for (const Damage& damage : std::vector<Damage>{
           {"used before it is bound", [](Program& p) { std::swap(p.eqns[0], p.eqns[1]); }},
           {"bound twice", [](Program& p) { p.eqns[1].out[0] = p.eqns[0].out[0]; }},
           {"bound twice", [](Program& p) { p.inputs.push_back(p.inputs[0]); }},
           {"bound twice or unknown", [](Program& p) { p.eqns[1].out[0] = 99; }},
           {"used before it is bound", [](Program& p) { p.eqns[0].in[0] = -1; }},
           {"used before it is bound", [](Program& p) { p.outputs[0].var = 99; }},
           {"inferred as f32[2]", [](Program& p) { p.vars[p.eqns[0].out[0]].shape = {3}; }},
           {"has 0 outputs", [](Program& p) { p.eqns[1].out.clear(); }},
           {"takes 1 operand", [](Program& p) { p.eqns[0].in.push_back(p.inputs[0].var); }},
           {"declared as", [](Program& p) { p.consts.begin()->second = Array::Scalar(1.0f); }},
           {"unknown scope", [](Program& p) { p.eqns[0].scope = 5; }},
           {"two outputs are named data \"0\"", [](Program& p) { p.outputs.push_back(p.outputs[0]); }},
       }) {
    Program program = Small();
    damage.apply(program);
    EXPECT_THAT(Check(program), FailsWith(absl::StatusCode::kInternal, {damage.want}));
  }
}

TEST(TextTest, NumbersFollowTheBindingNotTheIds) {
  Program program = Small();
  const std::string text = ToText(program);
  // The same program with its variables renamed: 0 1 2 3 -> 7 5 3 1.
  const auto renamed = [](VarId var) { return 7 - 2 * var; };
  Program other = program;
  other.vars.assign(8, Aval{});
  for (VarId var = 0; var < 4; ++var) other.vars[renamed(var)] = program.vars[var];
  other.consts.clear();
  for (const auto& [var, array] : program.consts) other.consts.emplace(renamed(var), array);
  for (Equation& eqn : other.eqns) {
    for (VarId& var : eqn.in) var = renamed(var);
    for (VarId& var : eqn.out) var = renamed(var);
  }
  for (Program::Port& port : other.inputs) port.var = renamed(port.var);
  for (Program::Port& port : other.outputs) port.var = renamed(port.var);
  ASSERT_THAT(Check(other), IsOk());
  EXPECT_EQ(ToText(other), text);
}

std::string ConstantText(const Array& array) {
  const Program program = *Trace([&](In) { return Values{Value(array)}; }, {});
  return ToText(program);
}

TEST(TextTest, Constants) {
  EXPECT_EQ(ConstantText(Array::Scalar(0.1f)), "const %0: f32[] = 0.1000000015\nout %0 data \"0\"\n");
  EXPECT_EQ(ConstantText(Array::Scalar(0.1)), "const %0: f64[] = 0.10000000000000001\nout %0 data \"0\"\n");
  EXPECT_THAT(ConstantText(Array::Of<bool>({true, false}, {2})), HasSubstr("= {1, 0}"));
  EXPECT_THAT(ConstantText(Array::Scalar(std::numeric_limits<uint32_t>::max())), HasSubstr("= 4294967295"));
  // Adjacent integers that a double cannot distinguish.
  EXPECT_THAT(ConstantText(Array::Scalar(int64_t{9007199254740993})), HasSubstr("s64[] = 9007199254740993\n"));
  EXPECT_THAT(ConstantText(Array::Of<int64_t>({-9007199254740993, 5}, {2})), HasSubstr("= {-9007199254740993, 5}"));
  EXPECT_THAT(ConstantText(Array::Zeros(DType::kF32, {0})), HasSubstr("= {}"));
  EXPECT_THAT(ConstantText(Array::Scalar(-std::numeric_limits<float>::infinity())), HasSubstr("= -inf"));
  const std::string nine = ConstantText(Array::Zeros(DType::kF32, {9}));
  EXPECT_THAT(nine, ::testing::ContainsRegex("= hash [0-9a-f]{16}"));
  EXPECT_NE(nine, ConstantText(Array::Of<float>({0, 0, 0, 0, 0, 0, 0, 0, 1}, {9})));
}

TEST(ScopeTableTest, KeepsEachNameOnce) {
  ScopeTable table;
  EXPECT_EQ(table.Intern(""), 0);
  const ScopeTable::Id a = table.Intern("a");
  EXPECT_EQ(table.Intern("b"), a + 1);
  EXPECT_EQ(table.Intern("a"), a);
  EXPECT_EQ(table[a], "a");
  EXPECT_EQ(table.size(), 3);
}

}  // namespace
}  // namespace aqt
