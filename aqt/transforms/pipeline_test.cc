#include "aqt/transforms/pipeline.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/trace.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

Program Loss() {
  return *Trace([](In in) { return Values{ops::ReduceSum(ops::MatMul(in[0], in[1]))}; },
                {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}, {{SlotKind::kParam, "w"}, {DType::kF32, {3, 2}}}});
}

absl::StatusOr<Program> InjectAll(const Program& program) {
  InjectConfig config;
  config.rules.push_back({.dot_general = DotGeneralMake(8, 8)});
  return Inject(program, config);
}

Pipeline Full() {
  Pipeline pipeline;
  pipeline.Add(StageKind::kInject, "inject", InjectAll);
  pipeline.Add(StageKind::kGrad, "grad", [](const Program& p) { return ValueAndGrad(p, {1}); });
  pipeline.Add(StageKind::kDce, "dce", [](const Program& p) -> absl::StatusOr<Program> { return Dce(p); });
  pipeline.Add(StageKind::kExpand, "expand", [](const Program& p) { return Expand(p); });
  return pipeline;
}

TEST(PipelineTest, ShowsEachStage) {
  std::vector<std::string> seen;
  absl::StatusOr<Program> out = Full().Run(Loss(), [&](int number, absl::string_view name, const Program& program) {
    seen.push_back(absl::StrCat(number, " ", name, ": ", CountOps(program, "dot_general"), " ",
                                CountOps(program, "aqt_dot_general") + CountOps(program, "aqt_dot_general_fwd"), " ",
                                CountOps(program, "aqt_dot_general_bwd")));
  });
  ASSERT_THAT(out, IsOk());
  EXPECT_THAT(seen,
              ElementsAre("0 source: 1 0 0", "1 inject: 0 1 0", "2 grad: 0 1 1", "3 dce: 0 1 1", "4 expand: 3 0 0"));
}

TEST(PipelineTest, ExpansionKeepsTheBits) {
  absl::StatusOr<Program> fused, expanded = Full().Run(Loss());
  Pipeline half;
  half.Add(StageKind::kInject, "inject", InjectAll);
  half.Add(StageKind::kGrad, "grad", [](const Program& p) { return ValueAndGrad(p, {1}); });
  fused = half.Run(Loss());
  ASSERT_THAT(fused, IsOk());
  ASSERT_THAT(expanded, IsOk());
  const std::vector<Array> args = {testing::RandomArray({DType::kF32, {2, 3}}, 1),
                                   testing::RandomArray({DType::kF32, {3, 2}}, 2)};
  absl::StatusOr<std::vector<Array>> a = Eval(*fused, args), b = Eval(*expanded, args);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  for (size_t i = 0; i < a->size(); ++i) EXPECT_TRUE(BitEqual((*a)[i], (*b)[i]));
}

TEST(PipelineTest, OrderIsChecked) {
  Pipeline pipeline;
  pipeline.Add(StageKind::kGrad, "gradient", [](const Program& p) { return Grad(p, {1}); });
  pipeline.Add(StageKind::kInject, "int8", InjectAll);
  EXPECT_THAT(pipeline.Run(Loss()), FailsWith(absl::StatusCode::kInvalidArgument,
                                              {"\"int8\" (inject)", "\"gradient\" (grad)", "inject, grad"}));
}

TEST(PipelineTest, ErrorsNameTheStage) {
  Pipeline pipeline;
  pipeline.Add(StageKind::kGrad, "gradient", [](const Program& p) { return Grad(p, {5}); });
  EXPECT_THAT(pipeline.Run(Loss()),
              FailsWith(absl::StatusCode::kInvalidArgument, {"stage \"gradient\": grad: no input 5"}));
}

TEST(PipelineTest, AStageNeedsAFunction) {
  Pipeline pipeline;
  pipeline.Add(StageKind::kDce, "clean", nullptr);
  EXPECT_THAT(pipeline.Run(Loss()), FailsWith(absl::StatusCode::kInvalidArgument, {"\"clean\" (dce) has no function"}));
}

TEST(PipelineTest, WritesStagesWhereTheEnvironmentSays) {
  const std::string folder = ::testing::TempDir();
  setenv("AQT_DUMP_PROGRAMS", folder.c_str(), 1);
  EXPECT_THAT(Full().Run(Loss()), IsOk());
  std::ifstream file(folder + "/02_grad.txt");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, HasSubstr("aqt_dot_general_bwd"));
  EXPECT_THAT(text, HasSubstr("pipeline_test.cc:"));
  setenv("AQT_DUMP_PROGRAMS", (folder + "/no/such/folder").c_str(), 1);
  EXPECT_THAT(Full().Run(Loss()), FailsWith(absl::StatusCode::kUnavailable, {"no/such/folder", "AQT_DUMP_PROGRAMS"}));
  unsetenv("AQT_DUMP_PROGRAMS");
}

TEST(ExpandTest, ByName) {
  absl::StatusOr<Program> gradient = ValueAndGrad(*InjectAll(Loss()), {1});
  ASSERT_THAT(gradient, IsOk());
  absl::StatusOr<Program> out = Expand(*gradient, {"aqt_dot_general_bwd"});
  ASSERT_THAT(out, IsOk());
  EXPECT_EQ(CountOps(*out, "aqt_dot_general_bwd"), 0);
  EXPECT_EQ(CountOps(*out, "aqt_dot_general_fwd"), 1);
}

}  // namespace
}  // namespace aqt
