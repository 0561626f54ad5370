// The composites and their expansions into basic operations give the same bits, on random contractions.

#include "aqt/ops/contraction/aqt_dot_general.h"

#include <cstdint>
#include <map>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/aqt_dot_testing.h"
#include "aqt/ops/contraction/contraction_problems.h"
#include "aqt/ops/contraction/quantized_dot.h"
#include "aqt/ops/describe.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/testing/calibrations.h"
#include "aqt/testing/programs.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {
namespace {

using ::aqt::testing::CountOps;
using ::aqt::testing::IsOk;
using ::aqt::testing::Random;
using ::aqt::testing::RandomArray;
using ::aqt::testing::TraceWith;
using Values = std::vector<Value>;
using In = absl::Span<const Value>;

int CountComposites(const Program& program) {
  return CountOps(program, "aqt_dot_general") + CountOps(program, "aqt_dot_general_fwd") +
         CountOps(program, "aqt_dot_general_bwd") + CountOps(program, "aqt_quantize");
}

TEST(AqtDotGeneralTest, FusedIsExpandedBitForBit) {
  constexpr int kWanted = 500;
  Random random(20240607);
  // clang-format off
  std::map<std::string, int> features;
  for (const char* feature :
       {"this_input", "other_input", "use_fwd_quant", "jax_uniform", "random_centered_uniform[0]", "fp8_e5m2",
        "int8:s8", ":s4", ":none", "half_integers", "preserve_max_val", "clip_gradient", "no_clip", "no_round",
        "absmax*", "po2", "per_tensor", "scale=bf16", "-> s32", "-> f32", "-> bf16", "-> f16", "local count",
        "largest", "tiles=(contracting", "remaining 0:2x"}) {
    // clang-format on
    features[feature] = 0;
  }
  for (const Calibration& calibration : testing::AllCalibrations()) {
    const bool listed = std::holds_alternative<AbsMax>(calibration);  // as "absmax*"
    if (!listed && !HasState(calibration)) features[std::string(NameOf(calibration))] = 0;
  }
  int legal = 0;
  for (int tries = 0; legal < kWanted && tries < 40 * kWanted; ++tries) {
    const Problem problem = RandomDotProblem(random);
    if (!IsSmall(problem)) continue;
    if (!AqtDot::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), problem.dims).ok()) continue;
    ++legal;
    const std::string text = DescribeConfig(problem.config);
    for (auto& [feature, count] : features) count += absl::StrContains(text, feature) ? 1 : 0;
    const std::string repeat = absl::StrCat("try ", tries, ": ", problem.lhs.aval().ToString(), " x ",
                                            problem.rhs.aval().ToString(), " ", problem.dims.ToString(), " ", text);
    const std::vector<Array> args = {problem.lhs, problem.rhs, KeyArray(3)};
    absl::StatusOr<Program> fused = LossAndGradients(problem);
    ASSERT_THAT(fused, IsOk()) << repeat;
    ASSERT_EQ(CountComposites(*fused), 2) << repeat;
    absl::StatusOr<Program> expanded = Rewrite(*fused, ExpandAll);
    ASSERT_THAT(expanded, IsOk()) << repeat;
    ASSERT_EQ(CountComposites(*expanded), 0) << repeat;
    absl::StatusOr<std::vector<Array>> want = Eval(*expanded, args), got = Eval(*fused, args);
    ASSERT_THAT(want, IsOk()) << repeat;
    ASSERT_THAT(got, IsOk()) << repeat;
    for (size_t i = 0; i < got->size(); ++i) {
      ASSERT_TRUE(SameBits((*got)[i], (*want)[i])) << "output " << i << ", " << repeat;
    }
  }
  EXPECT_EQ(legal, kWanted);
  for (const auto& [feature, count] : features) EXPECT_GE(count, 5) << feature;
}

TEST(AqtDotGeneralTest, SnrSearchThatRatesNoiseIsExpanded) {
  Problem problem{{},
                  DotGeneralMake(4, 8),
                  MatMulDims(),
                  RandomArray({DType::kF32, {3, 16}}, 1),
                  RandomArray({DType::kF32, {16, 2}}, 2)};
  Quantizer& quantizer = problem.config.fwd.lhs.quantizer;
  std::get<IntSymmetric>(quantizer.numerics).noise = Noise{};
  quantizer.calibration = SnrSearch{.candidates = {1.0, 0.8, 0.6, 0.4}};
  absl::StatusOr<Program> fused = LossAndGradients(problem);
  ASSERT_THAT(fused, IsOk());
  absl::StatusOr<Program> expanded = Rewrite(*fused, ExpandAll);
  ASSERT_THAT(expanded, IsOk());
  for (const uint32_t seed : {3u, 4u, 5u}) {
    const std::vector<Array> args = {problem.lhs, problem.rhs, KeyArray(seed)};
    const absl::StatusOr<std::vector<Array>> got = Eval(*expanded, args), want = Eval(*fused, args);
    ASSERT_THAT(got, IsOk());
    ASSERT_THAT(want, IsOk());
    for (size_t i = 0; i < want->size(); ++i) EXPECT_TRUE(BitEqual((*got)[i], (*want)[i])) << seed << " output " << i;
  }
}

// Without an expansion into basic operations it stays one operation and so keeps its mid scales.
TEST(AqtDotGeneralTest, MidAlphasAreNotExpanded) {
  Problem problem{{},
                  DotGeneralMake(8, 8, {.use_fwd_quant = false}),
                  MatMulDims(),
                  RandomArray({DType::kF32, {3, 4}}, 1),
                  RandomArray({DType::kF32, {4, 2}}, 2)};
  problem.config.fwd.lhs_mid_alpha = 0.5;
  absl::StatusOr<Program> fused = LossAndGradients(problem);
  ASSERT_THAT(fused, IsOk());
  absl::StatusOr<Program> expanded = Rewrite(*fused, ExpandAll);
  ASSERT_THAT(expanded, IsOk());
  EXPECT_EQ(CountComposites(*expanded), 1);  // the forward one
}

TEST(AqtDotGeneralTest, FusedIsExpandedWithStatistics) {
  constexpr int kWanted = 200;
  Random random(4711);
  int legal = 0, written = 0;
  for (int tries = 0; legal < kWanted && tries < 60 * kWanted; ++tries) {
    Problem problem = RandomDotProblem(random);
    AddStates(random, problem.config);
    if (!IsSmall(problem)) continue;
    const absl::StatusOr<AqtDot> dot =
        AqtDot::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), problem.dims);
    if (!dot.ok() || dot->plan().forward_state().size() + dot->plan().backward_state().size() == 0) continue;
    ++legal;
    const std::string repeat =
        absl::StrCat("try ", tries, ": ", problem.lhs.aval().ToString(), " x ", problem.rhs.aval().ToString(), " ",
                     problem.dims.ToString(), " ", DescribeConfig(problem.config));
    const Slot lhs{SlotKind::kParam, "lhs"}, rhs{SlotKind::kParam, "rhs"};
    const QuantizedDotOptions options{.config = problem.config, .key_slot = "key", .semantics = problem.semantics};
    const absl::StatusOr<Program> loss = Trace(
        [&](In in) {
          const Value out = QuantizedDot(in[0], in[1], problem.dims, options, "dot", std::source_location::current());
          const Value weights = ops::Cast(Value(RandomArray({DType::kF32, out.shape()}, 7)), out.dtype());
          return Values{ops::ReduceSum(out * weights), out};
        },
        {{lhs, problem.lhs.aval()}, {rhs, problem.rhs.aval()}});
    ASSERT_THAT(loss, IsOk()) << repeat;
    const absl::StatusOr<Program> fused = ValueAndGrad(*loss, {0, 1});
    ASSERT_THAT(fused, IsOk()) << repeat;
    ASSERT_EQ(CountComposites(*fused), 2) << repeat;
    const absl::StatusOr<Program> expanded = Rewrite(*fused, ExpandAll);
    ASSERT_THAT(expanded, IsOk()) << repeat;
    ASSERT_EQ(CountComposites(*expanded), 0) << repeat;
    SlotValues values = SomeStats(*fused, random);
    EXPECT_EQ(values.size(), dot->plan().forward_state().size() + dot->plan().backward_state().size()) << repeat;
    EXPECT_EQ(InitialStats(*expanded).size(), values.size()) << repeat;
    values.insert({{lhs, problem.lhs}, {rhs, problem.rhs}, {{SlotKind::kKey, "key"}, KeyArray(3)}});
    const absl::StatusOr<SlotValues> want = EvalSlots(*expanded, values), got = EvalSlots(*fused, values);
    ASSERT_THAT(want, IsOk()) << repeat;
    ASSERT_THAT(got, IsOk()) << repeat;
    ASSERT_EQ(got->size(), want->size()) << repeat;
    for (const auto& [slot, array] : *got) {
      written += slot.kind == SlotKind::kStat ? 1 : 0;
      ASSERT_TRUE(SameBits(array, want->at(slot))) << slot.ToString() << ", " << repeat;
    }
  }
  EXPECT_EQ(legal, kWanted);
  EXPECT_GT(written, 3 * kWanted);
}

// Each side in its own mode; then the output of CONVERT is served.
TEST(AqtDotGeneralTest, FusedIsExpandedInEveryMode) {
  constexpr int kWanted = 200;
  const Slot lhs{SlotKind::kParam, "lhs"}, rhs{SlotKind::kParam, "rhs"}, out{SlotKind::kData, "out"};
  Random random(815);
  int legal = 0, written = 0, served = 0;
  for (int tries = 0; legal < kWanted && tries < 60 * kWanted; ++tries) {
    Problem problem = RandomDotProblem(random);
    AddStates(random, problem.config);
    if (!IsSmall(problem)) continue;
    const absl::StatusOr<AqtDot> dot =
        AqtDot::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), problem.dims);
    if (!dot.ok() || dot->plan().forward_state().empty()) continue;
    ++legal;
    QuantizedDotOptions options{
        .config = problem.config, .with_gradient = false, .key_slot = "key", .semantics = problem.semantics};
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const bool left = side == Side::kLhs;
      const Quantizer& quantizer = (left ? problem.config.fwd.lhs : problem.config.fwd.rhs).quantizer;
      constexpr QuantMode kModes[] = {QuantMode::kTrain, QuantMode::kConvert, QuantMode::kCalibrate};
      if (IsQuantized(quantizer.numerics)) {
        (left ? options.lhs_mode : options.rhs_mode) = kModes[random.Below(HasState(quantizer) ? 3 : 2)];
      }
      if (HasState(quantizer) && random.Below(2) == 0) {
        (left ? options.lhs_freezer : options.rhs_freezer) = FreezerMode::kScale;
      }
    }
    const std::string repeat =
        absl::StrCat("try ", tries, ": ", problem.lhs.aval().ToString(), " x ", problem.rhs.aval().ToString(), " ",
                     problem.dims.ToString(), " ", DescribeConfig(problem.config), " ", ToString(options.lhs_mode), " ",
                     ToString(options.rhs_mode));
    const auto traced = [&] {
      return Trace(
          [&](In in) {
            return Values{QuantizedDot(in[0], in[1], problem.dims, options, "dot", std::source_location::current())};
          },
          {{lhs, problem.lhs.aval()}, {rhs, problem.rhs.aval()}}, std::vector<Slot>{out});
    };
    const absl::StatusOr<Program> fused = traced();
    ASSERT_THAT(fused, IsOk()) << repeat;
    const absl::StatusOr<Program> expanded = Rewrite(*fused, ExpandAll);
    ASSERT_THAT(expanded, IsOk()) << repeat;
    SlotValues values = SomeStats(*fused, random);
    values.insert({{lhs, problem.lhs}, {rhs, problem.rhs}, {{SlotKind::kKey, "key"}, KeyArray(3)}});
    const absl::StatusOr<SlotValues> want = EvalSlots(*expanded, values), got = EvalSlots(*fused, values);
    ASSERT_THAT(want, IsOk()) << repeat;
    ASSERT_THAT(got, IsOk()) << repeat;
    ASSERT_EQ(got->size(), want->size()) << repeat;
    for (const auto& [slot, array] : *got) {
      written += slot.kind == SlotKind::kStat ? 1 : 0;
      ASSERT_TRUE(SameBits(array, want->at(slot))) << slot.ToString() << ", " << repeat;
      if (slot.kind == SlotKind::kFrozen) values.emplace(slot, array);
    }
    for (QuantMode* mode : {&options.lhs_mode, &options.rhs_mode}) {
      if (*mode != QuantMode::kConvert) continue;
      *mode = QuantMode::kServe;
      ++served;
    }
    const absl::StatusOr<Program> serves = traced();
    ASSERT_THAT(serves, IsOk()) << repeat;
    const absl::StatusOr<SlotValues> result = EvalSlots(*serves, values);
    ASSERT_THAT(result, IsOk()) << repeat;
    ASSERT_TRUE(SameBits(result->at(out), got->at(out))) << repeat;
  }
  EXPECT_EQ(legal, kWanted);
  EXPECT_GT(written, kWanted);
  EXPECT_GT(served, kWanted / 2);
}

// A side that was quantized ahead of time gives the same bits as one that the operation quantizes.
TEST(AqtDotGeneralTest, PreparedSidesGiveTheSameBits) {
  Random random(5);
  int legal = 0;
  for (int tries = 0; legal < 100 && tries < 10000; ++tries) {
    const Problem problem = RandomDotProblem(random);
    absl::StatusOr<AqtDot> dot =
        AqtDot::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), problem.dims, problem.semantics);
    const auto quantized = [](const TensorConfig& tensor) {
      return !std::holds_alternative<NoNumerics>(tensor.quantizer.numerics);
    };
    if (!IsSmall(problem) || !dot.ok() || !quantized(problem.config.fwd.lhs) || !quantized(problem.config.fwd.rhs))
      continue;
    ++legal;
    const auto fn = [&](In in) {
      const SourceLine here;
      const AqtDot::Operand lhs{in[0]}, rhs{in[1]};
      const AqtDot::Operand q_lhs = dot->Quantize(Side::kLhs, in[0], in[2], here);
      const AqtDot::Operand q_rhs = dot->Quantize(Side::kRhs, in[1], in[2], here);
      // Only the scale is given; it quantizes the operand.
      const AqtDot::Operand s_lhs{in[0], q_lhs.scale, /*is_quantized=*/false};
      const AqtDot::Operand s_rhs{in[1], q_rhs.scale, /*is_quantized=*/false};
      return Values{dot->Apply(lhs, rhs, in[2], here),     dot->Apply(lhs, q_rhs, in[2], here),
                    dot->Apply(q_lhs, rhs, in[2], here),   dot->Apply(q_lhs, q_rhs, in[2], here),
                    dot->Apply(s_lhs, q_rhs, in[2], here), dot->Apply(q_lhs, s_rhs, in[2], here),
                    dot->Apply(s_lhs, s_rhs, in[2], here)};
    };
    const std::vector<Array> args = {problem.lhs, problem.rhs, KeyArray(9)};
    absl::StatusOr<Program> program = TraceWith(fn, args);
    ASSERT_THAT(program, IsOk()) << DescribeConfig(problem.config);
    absl::StatusOr<std::vector<Array>> out = Eval(*program, args), expanded = Eval(*Rewrite(*program, ExpandAll), args);
    ASSERT_THAT(out, IsOk());
    ASSERT_THAT(expanded, IsOk());
    for (size_t i = 0; i < out->size(); ++i) {
      EXPECT_TRUE(SameBits((*out)[i], (*out)[0])) << i << ": " << DescribeConfig(problem.config);
      EXPECT_TRUE(SameBits((*out)[i], (*expanded)[i])) << i << ": " << DescribeConfig(problem.config);
    }
  }
  EXPECT_EQ(legal, 100);
}

}  // namespace
}  // namespace aqt
