// The composites and their expansions into basic operations give the same bits, on random contractions.

#include "aqt/ops/aqt_dot_general.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
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
#include "aqt/graph/eval.h"
#include "aqt/graph/grad.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/program.h"
#include "aqt/graph/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/aqt_dot_testing.h"
#include "aqt/ops/contraction_problems.h"
#include "aqt/ops/describe.h"
#include "aqt/ops/quantized_dot.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/semantics.h"
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

// Extents of 0 to 19 with a taste for small ones; rank up to 6, operands and result of up to 2000 elements.
Problem RandomProblem(Random& random) {
  Problem problem;
  if (random.Below(3) == 0) problem.semantics.arithmetic = Arithmetic::kIeee;
  if (random.Below(3) == 0) problem.semantics.prng_layout = PrngLayout::kOriginal;
  if (random.Below(6) == 0) {
    problem.config = FullyQuantized();
  } else {
    problem.config = {RandomRaw(random, false), RandomRaw(random, true), RandomRaw(random, true)};
  }
  const DType dtype = std::vector<DType>{DType::kF32, DType::kF32, DType::kBF16, DType::kF16}[random.Below(4)];
  struct Axis {
    int64_t extent;
    int kind;  // 0 batch, 1 contracting, 2 remaining
    int pair;
  };
  const auto extent = [&]() -> int64_t {
    const int64_t pick = random.Below(20);
    return pick == 0 ? 0 : pick < 4 ? 1 : pick < 14 ? 1 + random.Below(6) : 1 + random.Below(19);
  };
  std::vector<Axis> sides[2];
  const int64_t batch = random.Below(3) == 0 ? 1 + random.Below(2) : 0,
                contracting = random.Below(8) == 0 ? 0 : 1 + random.Below(2);
  for (int i = 0; i < batch + contracting; ++i) {
    const Axis axis{extent(), i < batch ? 0 : 1, i};
    sides[0].push_back(axis);
    sides[1].push_back(axis);
  }
  for (std::vector<Axis>& side : sides) {
    for (int64_t i = random.Below(3); i > 0; --i) side.push_back({extent(), 2, -1});
    for (size_t i = side.size(); i > 1; --i) std::swap(side[i - 1], side[random.Below(static_cast<int64_t>(i))]);
  }
  Shape shapes[2];
  for (int s = 0; s < 2; ++s) {
    for (const Axis& axis : sides[s]) shapes[s].push_back(axis.extent);
  }
  for (int pair = 0; pair < batch + contracting; ++pair) {
    int64_t at[2];
    for (int s = 0; s < 2; ++s) {
      at[s] = std::find_if(sides[s].begin(), sides[s].end(), [&](const Axis& a) { return a.pair == pair; }) -
              sides[s].begin();
    }
    (pair < batch ? problem.dims.lhs_batch : problem.dims.lhs_contracting).push_back(at[0]);
    (pair < batch ? problem.dims.rhs_batch : problem.dims.rhs_contracting).push_back(at[1]);
  }
  if (random.Below(5) == 0) {
    // Two tiles of each even axis; the first contracting axis in tiles of one place.
    DotTiling& tiling = problem.config.tiling.emplace();
    for (size_t i = 0; i < problem.dims.lhs_contracting.size(); ++i) {
      const int64_t axis = problem.dims.lhs_contracting[i], other = problem.dims.rhs_contracting[i];
      if (i > 0 && shapes[0][axis] % 2 != 0) continue;
      AxisTiling tiles;
      (i > 0 ? tiles.tile_count : tiles.tile_size) = i > 0 ? 2 : 1;
      tiles.axis = axis;
      tiling.lhs.contraction_axes.push_back(tiles);
      tiles.axis = other;
      tiling.rhs.contraction_axes.push_back(tiles);
    }
    for (int s = 0; s < 2; ++s) {
      for (size_t axis = 0; axis < sides[s].size(); ++axis) {
        if (sides[s][axis].kind != 2 || sides[s][axis].extent % 2 != 0) continue;
        TensorTiling& tensor = s == 0 ? tiling.lhs : tiling.rhs;
        tensor.remaining_axes.push_back({.axis = static_cast<int64_t>(axis), .tile_count = 2});
      }
    }
  }
  // LocalAqt cuts dlhs by an extent that fits half of the time, and drhs by one that always does.
  if (random.Below(4) == 0) {
    problem.config.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 1 + random.Below(4)};
    problem.config.drhs.local_aqt = LocalAqt{.contraction_axis_shard_size = 1, .tile_largest_shape = true};
    for (DotGeneralRaw* raw : {&problem.config.dlhs, &problem.config.drhs}) {
      raw->lhs.quantizer.calib_shared_axes = raw->rhs.quantizer.calib_shared_axes = {};
    }
  }
  // Mostly ordinary numbers; sometimes tiny ones (subnormal products), zeros, ties.
  const double magnitude = std::vector<double>{1, 1, 1, 3, 1e-3, 1e-20, 1e-38, 0}[random.Below(8)];
  problem.lhs = RandomArray({dtype, shapes[0]}, random.Next(), -magnitude, magnitude);
  problem.rhs = RandomArray({dtype, shapes[1]}, random.Next());
  return problem;
}

bool IsSmall(const Problem& problem) {
  constexpr int64_t kMaxElements = 2000;
  return problem.lhs.num_elements() <= kMaxElements && problem.rhs.num_elements() <= kMaxElements &&
         DotOutputShape(problem.dims, problem.lhs.shape(), problem.rhs.shape()).num_elements() <= kMaxElements;
}

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
    const Problem problem = RandomProblem(random);
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

// Without an expansion into basic operations it stays one operation, rather than losing its mid scales.
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
    Problem problem = RandomProblem(random);
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

// Each side in its own mode; then what CONVERT stored is served.
TEST(AqtDotGeneralTest, FusedIsExpandedInEveryMode) {
  constexpr int kWanted = 200;
  const Slot lhs{SlotKind::kParam, "lhs"}, rhs{SlotKind::kParam, "rhs"}, out{SlotKind::kData, "out"};
  Random random(815);
  int legal = 0, written = 0, served = 0;
  for (int tries = 0; legal < kWanted && tries < 60 * kWanted; ++tries) {
    Problem problem = RandomProblem(random);
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

// A side that was quantized before gives the same bits as one that is quantized in the operation.
TEST(AqtDotGeneralTest, PreparedSidesGiveTheSameBits) {
  Random random(5);
  int legal = 0;
  for (int tries = 0; legal < 100 && tries < 10000; ++tries) {
    const Problem problem = RandomProblem(random);
    absl::StatusOr<AqtDot> dot =
        AqtDot::Make(problem.config, problem.lhs.aval(), problem.rhs.aval(), problem.dims, problem.semantics);
    const auto quantized = [](const Tensor& tensor) {
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
      // Only the scale is given; the operand is quantized with it.
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
