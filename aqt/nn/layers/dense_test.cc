#include "aqt/nn/layers/dense.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/functions.h"
#include "aqt/quant/config/builders.h"
#include "aqt/testing/status_matchers.h"
#include "aqt/transforms/quantize/inject.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::nn {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

absl::StatusOr<Program> Mlp(const std::optional<QuantizedDotOptions>& dot_general) {
  return Trace(
      [&](In in) {
        const NamedScope scope("mlp");
        const Value hidden = ops::Relu(Dense(in[0], "fc1", {.features = 5, .dot_general = dot_general}));
        return Values{Dense(hidden, "fc2", {.features = 2, .use_bias = false, .dot_general = dot_general})};
      },
      {{{SlotKind::kData, "x"}, {DType::kF32, {3, 4}}}});
}

TEST(DenseTest, ProgramText) {
  absl::StatusOr<Program> program = Mlp(std::nullopt);
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: f32[3,4] data "x"
in %1: f32[4,5] param "mlp/fc1/kernel"
in %2: f32[5] param "mlp/fc1/bias"
in %3: f32[5,2] param "mlp/fc2/kernel"
const %4: f32[] = 0
const %5: f32[] = 0
%6: f32[3,5] = dot_general(%0, %1) {dims=(([1],[0]),([],[]))} @mlp/fc1
%7: f32[3,5] = broadcast(%2) {axes=[1]} @mlp/fc1
%8: f32[3,5] = add(%6, %7) @mlp/fc1
%9: f32[3,5] = broadcast(%4) {axes=[]} @mlp
%10: f32[3,5] = max(%8, %9) @mlp
%11: f32[3,5] = stop_gradient(%10) @mlp
%12: f32[3,5] = broadcast(%5) {axes=[]} @mlp
%13: bool[3,5] = gt(%8, %12) @mlp
%14: f32[3,5] = select(%13, %8, %11) @mlp
%15: f32[3,2] = dot_general(%14, %3) {dims=(([1],[0]),([],[]))} @mlp/fc2
out %15 data "0"
)");
}

// A layer that quantizes itself and one that a rule quantizes give the same program.
TEST(DenseTest, ExplicitAndInjectedQuantizationGiveTheSameText) {
  for (const QuantMode mode : {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kServe}) {
    InjectConfig config;
    config.rules.push_back({.dot_general = FullyQuantized()});
    config.param_mode = mode;
    absl::StatusOr<Program> injected = Inject(*Mlp(std::nullopt), config),
                            explicit_one = Mlp(AqtDotGeneral(FullyQuantized(), mode));
    ASSERT_THAT(injected, IsOk());
    ASSERT_THAT(explicit_one, IsOk());
    EXPECT_EQ(ToText(*explicit_one), ToText(*injected));
    EXPECT_EQ(explicit_one->InputsOfKind(SlotKind::kKey).size(), mode == QuantMode::kTrain ? 1u : 0u);
  }
}

// A layer that is used twice has one kernel and two contractions, which draw different noise.
TEST(DenseTest, ALayerThatIsUsedTwice) {
  const auto traced = [](const std::optional<QuantizedDotOptions>& dot_general) {
    const auto model = [&](In in) {
      const DenseOptions options{.features = 4, .dot_general = dot_general};
      return Values{Dense(Dense(in[0], "cell", options), "cell", options)};
    };
    return Trace(model, {{{SlotKind::kData, "x"}, {DType::kF32, {3, 4}}}});
  };
  for (const QuantMode mode : {QuantMode::kTrain, QuantMode::kConvert}) {
    InjectConfig config;
    config.rules.push_back({.dot_general = FullyQuantized()});
    config.param_mode = mode;
    absl::StatusOr<Program> injected = Inject(*traced(std::nullopt), config),
                            explicit_one = traced(AqtDotGeneral(FullyQuantized(), mode));
    ASSERT_THAT(injected, IsOk());
    ASSERT_THAT(explicit_one, IsOk());
    EXPECT_EQ(ToText(*explicit_one), ToText(*injected));
  }
}

// Two contracted axes other than the last, and two new ones.
TEST(DenseTest, GeneralProgramText) {
  const absl::StatusOr<Program> program = Trace(
      [](In in) {
        return Values{DenseGeneral(in[0], "out", {.features = {6, 7}, .axes = {1, 0}})};
      },
      {{{SlotKind::kData, "x"}, {DType::kBF16, {3, 4, 5}}}});
  ASSERT_THAT(program, IsOk());
  EXPECT_EQ(ToText(*program), R"(in %0: bf16[3,4,5] data "x"
in %1: bf16[4,3,6,7] param "out/kernel"
in %2: bf16[6,7] param "out/bias"
%3: bf16[5,6,7] = dot_general(%0, %1) {dims=(([1,0],[0,1]),([],[]))} @out
%4: bf16[5,6,7] = broadcast(%2) {axes=[1,2]} @out
%5: bf16[5,6,7] = add(%3, %4) @out
out %5 data "0"
)");
}

TEST(DenseTest, GeneralErrors) {
  const auto traced = [](const DenseGeneralOptions& options) {
    return Trace([&](In in) { return Values{DenseGeneral(in[0], "out", options)}; },
                 {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}});
  };
  EXPECT_THAT(traced({}), FailsWith(absl::StatusCode::kInvalidArgument,
                                    {"dense_general [out]: there are no features", "dense_test.cc:"}));
  EXPECT_THAT(traced({.features = {3, 0}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"dense_general [out]: features = [3,0]"}));
  EXPECT_THAT(traced({.features = {3}, .axes = {1, -1}}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"dense_general [out]", "f32[2,3]", "dense_test.cc:"}));
}

TEST(DenseTest, Errors) {
  const auto traced = [](const Shape& shape, const DenseOptions& options) {
    return Trace([&](In in) { return Values{Dense(in[0], "fc1", options)}; },
                 {{{SlotKind::kData, "x"}, {DType::kF32, shape}}});
  };
  EXPECT_THAT(traced({}, {.features = 3}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"dense [fc1]", "at least one axis", "dense_test.cc:"}));
  EXPECT_THAT(traced({2, 3}, {}), FailsWith(absl::StatusCode::kInvalidArgument,
                                            {"dense [fc1]: features = 0", "f32[2,3]", "dense_test.cc:"}));
  // A layer of the same name with another shape.
  EXPECT_THAT(Trace([](In in) { return Values{Dense(Dense(in[0], "fc1", {.features = 5}), "fc1", {.features = 5})}; },
                    {{{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"param \"fc1/kernel\"", "f32[3,5]", "f32[5,5]", "dense_test.cc:"}));
  DotGeneralConfig illegal = FullyQuantized();
  illegal.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  EXPECT_THAT(traced({2, 3}, {.features = 3, .dot_general = AqtDotGeneral(illegal)}),
              FailsWith(absl::StatusCode::kInvalidArgument, {"aqt_dot_general [fc1]: fwd.lhs", "dense_test.cc:"}));
}

}  // namespace
}  // namespace aqt::nn
