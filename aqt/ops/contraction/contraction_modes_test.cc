// Convolutions, ragged contractions and einsums with statistics and in all modes. The operations have the bits of their
// expansions, and serving the output of CONVERT gives the same bits. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing
// case.

#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/testing/environment.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::FromEnvironment;
using ::aqt::testing::IsOk;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;
using Draw = ContractionProblem (*)(Random&);

bool ConfigHasState(const DotGeneralConfig& config) {
  for (const DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    if (HasState(raw->lhs.quantizer) || HasState(raw->rhs.quantizer)) return true;
  }
  return false;
}

class ContractionModesTest : public ::testing::TestWithParam<Draw> {
 protected:
  // A problem with statistics; null for some seeds.
  static std::optional<ContractionProblem> WithState(Random& random) {
    ContractionProblem problem = GetParam()(random);
    if (problem.is_float()) return std::nullopt;
    const bool has_gradients = !std::holds_alternative<ConvDims>(problem.dims);
    DotGeneralConfig states = problem.config;
    AddStates(random, states);
    problem.config.fwd = states.fwd;
    if (has_gradients) problem.config = states;
    if (!ConfigHasState(problem.config)) return std::nullopt;
    return problem;
  }
  const int64_t first_seed_ = FromEnvironment("AQT_TEST_SEED", 1);
  const int64_t wanted_ = FromEnvironment("AQT_TEST_CASES", 150);
};

TEST_P(ContractionModesTest, GradientsAndTheirStatisticsAreExpanded) {
  int64_t legal = 0, written = 0;
  for (int64_t tries = 0; legal < wanted_ && tries < 60 * wanted_; ++tries) {
    Random random(static_cast<uint64_t>(first_seed_ + tries));
    const std::optional<ContractionProblem> problem = WithState(random);
    if (!problem.has_value()) continue;
    const absl::StatusOr<Program> loss = LossOf(*problem);
    if (!loss.ok()) continue;
    ++legal;
    SCOPED_TRACE(absl::StrCat("seed ", first_seed_ + tries, ": ", problem->ToString()));
    const absl::StatusOr<Program> fused = ValueAndGrad(*loss, {0, 1});
    ASSERT_THAT(fused, IsOk());
    const absl::StatusOr<Program> expanded = ExpandFully(*fused);
    ASSERT_THAT(expanded, IsOk());
    SlotValues values = SomeStats(*fused, random);
    EXPECT_FALSE(values.empty());
    EXPECT_EQ(InitialStats(*expanded).size(), values.size());
    values.merge(ValuesOf(*problem));
    const absl::StatusOr<SlotValues> want = EvalSlots(*expanded, values), got = EvalSlots(*fused, values);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    ASSERT_EQ(got->size(), want->size());
    for (const auto& [slot, array] : *got) {
      written += slot.kind == SlotKind::kStat ? 1 : 0;
      ASSERT_TRUE(SameBits(array, want->at(slot))) << slot.ToString();
    }
  }
  EXPECT_EQ(legal, wanted_);
  EXPECT_GT(written, wanted_ / 2);  // those of DelayedScaling
}

// Each side in its own mode; then the output of CONVERT is served.
TEST_P(ContractionModesTest, EachSideInItsMode) {
  int64_t legal = 0, written = 0, served = 0;
  for (int64_t tries = 0; legal < wanted_ && tries < 60 * wanted_; ++tries) {
    Random random(static_cast<uint64_t>(first_seed_ + tries));
    std::optional<ContractionProblem> problem =
        random.Below(3) == 0 ? std::optional(GetParam()(random)) : WithState(random);
    if (!problem.has_value() || problem->is_float() || !LossOf(*problem).ok()) continue;
    QuantizedDotOptions options{
        .config = problem->config, .with_gradient = false, .key_slot = "key", .semantics = problem->semantics};
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const bool left = side == Side::kLhs;
      const Quantizer& quantizer = (left ? problem->config.fwd.lhs : problem->config.fwd.rhs).quantizer;
      constexpr QuantMode kModes[] = {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kCalibrate};
      if (IsQuantized(quantizer.numerics)) {
        (left ? options.lhs_mode : options.rhs_mode) = kModes[random.Below(HasState(quantizer) ? 3 : 2)];
      }
      if (HasState(quantizer) && random.Below(2) == 0) {
        (left ? options.lhs_freezer : options.rhs_freezer) = FreezerMode::kScale;
      }
    }
    SCOPED_TRACE(absl::StrCat("seed ", first_seed_ + tries, ": ", problem->ToString(), " ", ToString(options.lhs_mode),
                              " ", ToString(options.rhs_mode)));
    const auto traced = [&] {
      return Trace(
          [&](In in) {
            return Values{QuantizedContraction(in, problem->dims, options, "dot", std::source_location::current())};
          },
          InputsFor(*problem), std::vector<Slot>{OutSlot()});
    };
    const absl::StatusOr<Program> fused = traced();
    if (absl::IsUnimplemented(fused.status())) continue;  // a calibration bias, ahead of time
    ASSERT_THAT(fused, IsOk());
    ++legal;
    const absl::StatusOr<Program> expanded = ExpandFully(*fused);
    ASSERT_THAT(expanded, IsOk());
    SlotValues values = SomeStats(*fused, random);
    values.merge(ValuesOf(*problem));
    const absl::StatusOr<SlotValues> want = EvalSlots(*expanded, values), got = EvalSlots(*fused, values);
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    ASSERT_EQ(got->size(), want->size());
    for (const auto& [slot, array] : *got) {
      written += slot.kind == SlotKind::kStat ? 1 : 0;
      ASSERT_TRUE(SameBits(array, want->at(slot))) << slot.ToString();
      if (slot.kind == SlotKind::kFrozen) values.emplace(slot, array);
    }
    for (QuantMode* mode : {&options.lhs_mode, &options.rhs_mode}) {
      if (*mode != QuantMode::kConvert) continue;
      *mode = QuantMode::kServe;
      ++served;
    }
    const absl::StatusOr<Program> serves = traced();
    ASSERT_THAT(serves, IsOk());
    const absl::StatusOr<SlotValues> result = EvalSlots(*serves, values);
    ASSERT_THAT(result, IsOk());
    ASSERT_TRUE(SameBits(result->at(OutSlot()), got->at(OutSlot())));
  }
  EXPECT_EQ(legal, wanted_);
  EXPECT_GT(written, wanted_ / 3);
  EXPECT_GT(served, wanted_ / 3);
}

std::string KindName(const ::testing::TestParamInfo<Draw>& info) {
  constexpr const char* kNames[] = {"Conv", "RaggedDot", "Einsum"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Kinds, ContractionModesTest,
                         ::testing::Values(&RandomConvProblem, &RandomRaggedProblem, &RandomEinsumProblem), KindName);

}  // namespace
}  // namespace aqt
