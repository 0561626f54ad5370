// The programs of the shipped configurations as text: they differ from the float one only in the contractions that the
// rules match.

#include "examples/digits/program_text.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/io/file.h"
#include "aqt/nn/train/train_step.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "examples/digits/classifier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::aqt::testing::IsOk;
using ::testing::ElementsAre;

const Hidden kHidden = {8, 4};
constexpr int64_t kRows = 2;

aqt::Program Injected(const absl::StatusOr<aqt::Program>& source, const std::string& config) {
  const std::string path = absl::StrCat("examples/digits/configs/", config, ".textproto");
  absl::StatusOr<std::string> text = aqt::io::ReadFile(aqt::io::LocalFileSystem(), path, 1 << 20);
  EXPECT_THAT(text, IsOk());
  absl::StatusOr<aqt::InjectConfig> rules = aqt::InjectConfigFromText(*text, path);
  EXPECT_THAT(rules, IsOk());
  absl::StatusOr<aqt::Program> program = aqt::Inject(*source, *rules);
  EXPECT_THAT(program, IsOk());
  return *std::move(program);
}

std::string Forward(const std::string& config) { return ShortText(Injected(LogitsProgram(kHidden, kRows), config)); }

std::string Step(const std::string& config) {
  absl::StatusOr<aqt::Program> step = aqt::nn::TrainStep(Injected(LossProgram(kHidden, kRows), config), {});
  EXPECT_THAT(step, IsOk());
  return ShortText(*step);
}

TEST(ProgramText, Float) {
  EXPECT_EQ(Forward("float"), R"(in %0: f32[2,64] data "pixels"
in %1: f32[64,8] param "mlp/fc1/kernel"
in %2: f32[8] param "mlp/fc1/bias"
in %3: f32[8,4] param "mlp/fc2/kernel"
in %4: f32[4] param "mlp/fc2/bias"
in %5: f32[4,10] param "mlp/logits/kernel"
in %6: f32[10] param "mlp/logits/bias"
%11: f32[2,8] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @mlp/fc1
%20: f32[2,4] = dot_general(%19, %3) {dims=(([1],[0]),([],[]))} @mlp/fc2
%29: f32[2,10] = dot_general(%28, %5) {dims=(([1],[0]),([],[]))} @mlp/logits
and 18 other equations
)");
}

TEST(ProgramText, Int8) {
  EXPECT_EQ(Forward("int8"), R"(in %0: f32[2,64] data "pixels"
in %1: f32[64,8] param "mlp/fc1/kernel"
in %2: f32[8] param "mlp/fc1/bias"
in %3: f32[8,4] param "mlp/fc2/kernel"
in %4: f32[4] param "mlp/fc2/bias"
in %5: f32[4,10] param "mlp/logits/kernel"
in %6: f32[10] param "mlp/logits/bias"
in %7: u32[2] key "aqt"
%13: f32[2,8] = aqt_dot_general(%0, %1, %12) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32)} @mlp/fc1
%23: f32[2,4] = aqt_dot_general(%21, %3, %22) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32)} @mlp/fc2
%33: f32[2,10] = aqt_dot_general(%31, %5, %32) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32)} @mlp/logits
and 21 other equations
)");
}

TEST(ProgramText, Int4) {
  EXPECT_EQ(Forward("int4"), R"(in %0: f32[2,64] data "pixels"
in %1: f32[64,8] param "mlp/fc1/kernel"
in %2: f32[8] param "mlp/fc1/bias"
in %3: f32[8,4] param "mlp/fc2/kernel"
in %4: f32[4] param "mlp/fc2/bias"
in %5: f32[4,10] param "mlp/logits/kernel"
in %6: f32[10] param "mlp/logits/bias"
in %7: u32[2] key "aqt"
%13: f32[2,8] = aqt_dot_general(%0, %1, %12) {dims=(([1],[0]),([],[])), fwd=(int4:s4 absmax * int4:s4 absmax -> s32)} @mlp/fc1
%23: f32[2,4] = aqt_dot_general(%21, %3, %22) {dims=(([1],[0]),([],[])), fwd=(int4:s4 absmax * int4:s4 absmax -> s32)} @mlp/fc2
%33: f32[2,10] = aqt_dot_general(%31, %5, %32) {dims=(([1],[0]),([],[])), fwd=(int4:s4 absmax * int4:s4 absmax -> s32)} @mlp/logits
and 21 other equations
)");
}

TEST(ProgramText, Mixed) {
  EXPECT_EQ(Forward("mixed"), R"(in %0: f32[2,64] data "pixels"
in %1: f32[64,8] param "mlp/fc1/kernel"
in %2: f32[8] param "mlp/fc1/bias"
in %3: f32[8,4] param "mlp/fc2/kernel"
in %4: f32[4] param "mlp/fc2/bias"
in %5: f32[4,10] param "mlp/logits/kernel"
in %6: f32[10] param "mlp/logits/bias"
in %7: u32[2] key "aqt"
%13: f32[2,8] = aqt_dot_general(%0, %1, %12) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32)} @mlp/fc1
%23: f32[2,4] = aqt_dot_general(%21, %3, %22) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int4:s4 absmax -> s32)} @mlp/fc2
%32: f32[2,10] = dot_general(%31, %5) {dims=(([1],[0]),([],[]))} @mlp/logits
and 20 other equations
)");
}

TEST(ProgramText, TrainingStepOfMixed) {
  EXPECT_EQ(Step("mixed"), R"(in %0: f32[2,64] data "pixels"
in %1: f32[2,10] data "labels"
in %2: f32[64,8] param "mlp/fc1/kernel"
in %3: f32[8] param "mlp/fc1/bias"
in %4: f32[8,4] param "mlp/fc2/kernel"
in %5: f32[4] param "mlp/fc2/bias"
in %6: f32[4,10] param "mlp/logits/kernel"
in %7: f32[10] param "mlp/logits/bias"
in %8: u32[2] key "aqt"
%37: f32[2,8], %38: s8[2,64], %39: f32[2,1], %40: s8[64,8], %41: f32[1,8] = aqt_dot_general_fwd(%0, %2, %36) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int8:s8 absmax -> s32)} @mlp/fc1
%51: f32[2,4], %52: s8[2,8], %53: f32[2,1], %54: s4[8,4], %55: f32[1,4] = aqt_dot_general_fwd(%49, %4, %50) {dims=(([1],[0]),([],[])), fwd=(int8:s8 absmax * int4:s4 absmax -> s32)} @mlp/fc2
%64: f32[2,10] = dot_general(%63, %6) {dims=(([1],[0]),([],[]))} @mlp/logits
%94: f32[2,4] = dot_general(%92, %6) {dims=(([1],[1]),([],[]))} @grad(mlp/logits)
%95: f32[10,4] = dot_general(%92, %63) {dims=(([0],[0]),([],[]))} @grad(mlp/logits)
%100: f32[2,8], %101: f32[8,4] = aqt_dot_general_bwd(%98, %52, %53, %54, %55, %50) {dims=(([1],[0]),([],[])), dlhs=(int8:s8+jax_uniform absmax * int8:s8+jax_uniform absmax use_fwd_quant -> s32), drhs=(int8:s8+jax_uniform absmax * int8:s8+jax_uniform absmax use_fwd_quant -> s32), ieee} @grad(mlp/fc2)
%105: f32[2,64], %106: f32[64,8] = aqt_dot_general_bwd(%103, %38, %39, %40, %41, %36) {dims=(([1],[0]),([],[])), dlhs=(int8:s8+jax_uniform absmax * int8:s8+jax_uniform absmax use_fwd_quant -> s32), drhs=(int8:s8+jax_uniform absmax * int8:s8+jax_uniform absmax use_fwd_quant -> s32), ieee} @grad(mlp/fc1)
and 90 other equations
)");
}

// "operation [scope] -> outputs" of each equation.
std::vector<std::string> Equations(const aqt::Program& program) {
  std::vector<std::string> lines;
  for (const aqt::Equation& eqn : program.eqns) {
    lines.push_back(absl::StrCat(aqt::OpName(eqn.op), " [", program.scope(eqn), "] -> ",
                                 absl::StrJoin(eqn.out, ", ", [&](std::string* out, aqt::VarId var) {
                                   absl::StrAppend(out, program.aval(var).ToString());
                                 })));
  }
  return lines;
}

// The equations of a program that are not in the float one.
std::vector<std::string> TakeNew(const std::string& config) {
  const std::vector<std::string> old = Equations(*LogitsProgram(kHidden, kRows));
  std::vector<std::string> added;
  size_t next = 0;
  for (const std::string& line : Equations(Injected(LogitsProgram(kHidden, kRows), config))) {
    if (next < old.size() && line == old[next]) {
      ++next;
      continue;
    }
    added.push_back(line);
    // A quantized contraction replaces the float one.
    if (absl::StartsWith(line, "aqt_dot_general ")) {
      EXPECT_EQ(absl::StrCat("aqt_", old[next]), line);
      ++next;
    }
  }
  EXPECT_EQ(next, old.size());
  return added;
}

TEST(ProgramText, NothingElseChanges) {
  EXPECT_THAT(TakeNew("float"), ElementsAre());
  const std::string fc1[] = {"fold_in_key [mlp/fc1] -> u32[2]", "aqt_dot_general [mlp/fc1] -> f32[2,8]"};
  const std::string fc2[] = {"fold_in_key [mlp/fc2] -> u32[2]", "aqt_dot_general [mlp/fc2] -> f32[2,4]"};
  const std::string logits[] = {"fold_in_key [mlp/logits] -> u32[2]", "aqt_dot_general [mlp/logits] -> f32[2,10]"};
  for (const char* config : {"int8", "int4"}) {
    EXPECT_THAT(TakeNew(config), ElementsAre(fc1[0], fc1[1], fc2[0], fc2[1], logits[0], logits[1])) << config;
  }
  EXPECT_THAT(TakeNew("mixed"), ElementsAre(fc1[0], fc1[1], fc2[0], fc2[1]));
}

}  // namespace
}  // namespace digits
