// Random ragged contractions. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing case.

#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/config/semantics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/ragged_dot_reference.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct RaggedResults {
  Array out, dlhs, drhs;
};

RaggedResults RunRagged(const RaggedDotPlan& plan, const Array& lhs, const Array& rhs, const Array& g,
                        const std::vector<int64_t>& sizes, const Context& context, const Runtime& runtime) {
  ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
  Residuals residuals;
  EXPECT_EQ(plan.Forward(lhs, rhs, sizes, context, out.ref(), &residuals, runtime), absl::OkStatus());
  EXPECT_EQ(plan.Backward(g, residuals, sizes, context, dlhs.ref(), drhs.ref(), runtime), absl::OkStatus());
  return {std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

// ---- errors

TEST(RaggedDotPlan, ErrorsNameShapesAndConfiguration) {
  const auto error = [](const DotGeneralConfig& config, const Shape& lhs, const Shape& rhs) {
    const absl::Status status = RaggedDotPlan::Make(config, {DType::kF32, lhs}, {DType::kF32, rhs}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  DotGeneralConfig config = DotGeneralMake(8, 8);
  EXPECT_EQ(error(config, {6, 8}, {8, 5}),
            "ragged_dot: lhs is f32[6,8], rhs f32[8,5]; expected lhs [m,k], rhs [groups,k,n]");
  EXPECT_EQ(error(config, {6, 8}, {2, 7, 5}),
            "ragged_dot: lhs is f32[6,8], rhs f32[2,7,5]; expected lhs [m,k], rhs [groups,k,n]");
  config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  config.dlhs.rhs.dequant_mode = DequantMode::kOtherInput;
  EXPECT_EQ(
      error(config, {6, 8}, {2, 8, 5}),
      "ragged_dot: dlhs.rhs: DEQUANT_MODE_OTHER_INPUT would multiply a scale per group into an operand without groups");
  config = DotGeneralMake(8, 8);
  config.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2};
  EXPECT_EQ(error(config, {6, 8}, {2, 8, 5}),
            "ragged_dot: drhs: mid alphas and local_aqt are not supported with groups");
  config = DotGeneralMake(8, 8);
  config.fwd.rhs.quantizer.calib_shared_axes.axes = {1};
  EXPECT_EQ(error(config, {6, 8}, {2, 8, 5}),
            "ragged_dot: fwd.rhs: DEQUANT_MODE_OUTPUT: scale of rhs has shape [2,1,5]: it varies along the contracting "
            "axis 0");
  config = DotGeneralMake(8, 8);
  config.tiling = DotTiling{};
  EXPECT_EQ(error(config, {6, 8}, {2, 8, 5}), "ragged_dot: tiling is not supported with groups");
}

TEST(RaggedDotPlan, ErrorsNameGroupSizes) {
  const Array lhs = RandomArray(DType::kF32, {6, 8}, 1), rhs = RandomArray(DType::kF32, {2, 8, 5}, 2);
  const auto error = [&](const std::vector<int64_t>& sizes) {
    const absl::Status status = QuantizedRaggedDot(DotGeneralMake(8, 8), lhs, rhs, sizes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error({6}), "ragged_dot: group_sizes = [6]: 1 sizes, but rhs f32[2,8,5] has 2 groups");
  EXPECT_EQ(error({-1, 7}),
            "ragged_dot: group_sizes = [-1,7]: a negative size; expected how many rows of lhs f32[6,8] each group has");
}

// ---- properties

class Generator : public Choices {
 public:
  using Choices::Choices;

  DotGeneralRawConfig Raw() {
    DotGeneralRawConfig raw = DotGeneralRawMake(RandomBits(), RandomBits());
    for (TensorConfig* t : {&raw.lhs, &raw.rhs}) {
      Quantizer& q = t->quantizer;
      if (!IsQuantized(q.numerics)) continue;
      if (OneIn(8)) {
        t->dequant_mode = DequantMode::kThisInput;
        raw.dg_accumulator_dtype = std::nullopt;
      }
      if (OneIn(5)) q.scale_dtype = Pick({DType::kF32, DType::kBF16});
      if (OneIn(4)) q.calibration = AbsMax{.clipping_scale = 0.6, .po2_scale = OneIn(2)};
      if (OneIn(6)) q.calib_shared_axes.per_tensor = true;
      if (auto* n = std::get_if<IntSymmetric>(&q.numerics)) {
        n->clip_gradient = OneIn(2);
        if (OneIn(4)) n->noise = Noise{};
      }
    }
    // Without an s32 accumulator a sum of bytes would be one byte.
    if (!raw.dg_accumulator_dtype.has_value()) raw.dg_accumulator_dtype = DType::kF32;
    return raw;
  }
  DotGeneralConfig Config() {
    DotGeneralConfig config{.fwd = Raw(), .dlhs = Raw(), .drhs = Raw()};
    config.dlhs.rhs.use_fwd_quant = OneIn(2) && IsQuantized(config.fwd.rhs.quantizer.numerics);
    config.drhs.rhs.use_fwd_quant = OneIn(2) && IsQuantized(config.fwd.lhs.quantizer.numerics);
    return config;
  }

 private:
  aqt::Bits RandomBits() {
    if (OneIn(6)) return std::nullopt;
    if (OneIn(8)) return aqt::Bits::E4M3();
    return Pick({8, 8, 8, 4, 2, 1, 12});
  }
};

TEST(RaggedProperty, PlanEqualsReference) {
  const int64_t first_seed = FromEnvironment("AQT_TEST_SEED", 1), cases = FromEnvironment("AQT_TEST_CASES", 250);
  kernels::ThreadPool pool(3);
  int64_t integers = 0;
  for (int64_t i = 0; i < cases; ++i) {
    Generator random(static_cast<uint64_t>(first_seed + i));
    const DotGeneralConfig config = random.Config();
    const int64_t groups = random.Below(5), k = random.OneIn(20) ? 0 : random.Pick<int64_t>({1, 3, 8, 17}),
                  n = random.OneIn(20) ? 0 : random.Pick<int64_t>({1, 2, 5, 33});
    std::vector<int64_t> sizes;
    int64_t rows = random.OneIn(2) ? 0 : random.Below(3);
    for (int64_t j = 0; j < groups; ++j) {
      sizes.push_back(random.OneIn(3) ? 0 : random.Below(9));
      rows += sizes.back();
    }
    if (groups > 0 && random.OneIn(6)) sizes[random.Below(groups)] += 3;  // may exceed lhs
    const DType dtype = random.Pick({DType::kF32, DType::kF32, DType::kBF16, DType::kF16});
    const Array lhs = RandomArray(dtype, {rows, k}, random.Bits()),
                rhs = RandomArray(dtype, {groups, k, n}, random.Bits());
    const Array g = RandomArray(dtype, {rows, n}, random.Bits());
    const Context context{.key = MakeKey(random.Bits())};
    const Semantics semantics{.arithmetic = random.Pick({Arithmetic::kXlaCompatible, Arithmetic::kIeee}),
                              .compat = random.OneIn(2) ? Compat{} : WithSomeOfQwix(random, {})};
    SCOPED_TRACE(absl::StrCat("seed ", first_seed + i, ": ", lhs.aval().ToString(), " ", rhs.aval().ToString(), " [",
                              absl::StrJoin(sizes, ","), "]", NamesOf(semantics.compat)));

    const absl::StatusOr<RaggedDotPlan> plan = RaggedDotPlan::Make(config, lhs.aval(), rhs.aval());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const absl::StatusOr<DotGeneralGradients> want =
        ReferenceRaggedDotWithGradients(config, lhs, rhs, g, sizes, context, semantics);
    ASSERT_TRUE(want.ok()) << want.status();
    const auto exact = [](const DotGeneralRawConfig& raw) { return raw.dg_accumulator_dtype == DType::kS32; };
    integers += exact(config.fwd);
    for (const kernels::Target target : kernels::SupportedTargets()) {
      const RaggedDotPlan on_target =
          *RaggedDotPlan::Make(config, lhs.aval(), rhs.aval(), {.semantics = semantics, .target = target});
      for (const bool observed : {false, true}) {
        Recorder recorder;
        const Runtime runtime{.executor = observed ? nullptr : &pool, .observer = observed ? &recorder : nullptr};
        const RaggedResults got = RunRagged(on_target, lhs, rhs, g, sizes, context, runtime);
        const bool scalar = !target.Has(kernels::Capability::kAvx2);
        if (scalar || exact(config.fwd)) {
          EXPECT_TRUE(SameValues(got.out, want->out)) << target << observed;
        }
        if (scalar || exact(config.dlhs)) {
          EXPECT_TRUE(SameValues(got.dlhs, want->dlhs)) << target << observed;
        }
        if (scalar || exact(config.drhs)) {
          EXPECT_TRUE(SameValues(got.drhs, want->drhs)) << target << observed;
        }
        if (::testing::Test::HasFailure()) return;
        if (observed) continue;
        const absl::StatusOr<PreparedOperand> experts = on_target.Prepare(Side::kRhs, rhs, context, runtime);
        ASSERT_TRUE(experts.ok()) << experts.status();
        ArrayBuilder out(on_target.out_aval());
        ASSERT_EQ(on_target.Forward(lhs, experts->WithoutValues(), sizes, context, out.ref(), nullptr, runtime),
                  absl::OkStatus());
        EXPECT_TRUE(SameValues(std::move(out).Build(), got.out)) << target;
      }
    }
  }
  if (cases >= 100) {
    EXPECT_GE(integers, cases / 5);
  }
}

// One group with all rows is a DotGeneral, including noise and gradients, in every mode that both support.
TEST(RaggedProperty, OneGroupIsDotGeneral) {
  for (int64_t seed = 1; seed <= 60; ++seed) {
    Generator random(static_cast<uint64_t>(seed));
    DotGeneralConfig config = random.Config();
    const Array lhs = RandomArray(DType::kF32, {7, 11}, random.Bits()),
                rhs = RandomArray(DType::kF32, {11, 18}, random.Bits());
    const Array g = RandomArray(DType::kF32, {7, 18}, random.Bits());
    const Context context{.key = MakeKey(random.Bits())};
    const DotGeneralGradients want = *QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims(), context);
    const absl::StatusOr<DotGeneralGradients> got =
        QuantizedRaggedDotWithGradients(config, lhs, *rhs.Reshaped({1, 11, 18}), g, {7}, context);
    ASSERT_TRUE(got.ok()) << "seed " << seed << got.status();
    EXPECT_TRUE(BitEqual(got->out, want.out)) << "seed " << seed;
    EXPECT_TRUE(BitEqual(got->dlhs, want.dlhs)) << "seed " << seed;
    EXPECT_TRUE(BitEqual(*got->drhs.Reshaped({11, 18}), want.drhs)) << "seed " << seed;
  }
}

// The result is linear in each operand: its derivative by an element is its value at a unit vector, without error. Sums
// of at most N = m * n products in f32 differ by at most N * 2^-24 * (1 + 2^-10) of the sum of absolute values.
TEST(RaggedGradient, UnquantizedEqualsDifferences) {
  const std::vector<int64_t> sizes = {2, 0, 3};
  const Array lhs = RandomArray(DType::kF32, {6, 4}, 1), rhs = RandomArray(DType::kF32, {3, 4, 5}, 2);
  const Array g = RandomArray(DType::kF32, {6, 5}, 3);
  const RaggedDotPlan plan = *RaggedDotPlan::Make(DefaultUnquantizedConfig(), lhs.aval(), rhs.aval());
  const RaggedResults got = RunRagged(plan, lhs, rhs, g, sizes, {}, {});
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const Array& x = side == Side::kLhs ? lhs : rhs;
    const Array& d = side == Side::kLhs ? got.dlhs : got.drhs;
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      ArrayBuilder unit(x.aval()), out(plan.out_aval());
      unit.Mutable<float>()[i] = 1;
      const MutableArrayRef e = unit.ref();
      ASSERT_EQ(
          side == Side::kLhs ? plan.Forward(e, rhs, sizes, {}, out.ref()) : plan.Forward(lhs, e, sizes, {}, out.ref()),
          absl::OkStatus());
      double sum = 0, size = 0;
      for (int64_t j = 0; j < g.num_elements(); ++j) {
        const double product = static_cast<double>(g.View<float>()[j]) * out.Mutable<float>()[j];
        sum += product;
        size += std::fabs(product);
      }
      EXPECT_LE(std::fabs(d.View<float>()[i] - sum), 30 * 0x1p-24 * (1 + 0x1p-10) * size) << side << " " << i;
    }
  }
}

// Rows beyond the groups give zero, whatever their values.
TEST(RaggedDotPlan, RowsOfNoGroupAreZero) {
  std::vector<float> values(3 * 4, 1.0f);
  for (int i = 8; i < 12; ++i) values[i] = std::numeric_limits<float>::quiet_NaN();
  const Array lhs = Array::FromSpan<float>(values, {3, 4}), rhs = RandomArray(DType::kF32, {2, 4, 5}, 2);
  const Array out = *QuantizedRaggedDot(DotGeneralMake(8, 8), lhs, rhs, {1, 1});
  for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(out.View<float>()[10 + c], 0.0f);
  EXPECT_NE(out.View<float>()[0], 0.0f);
}

TEST(RaggedDotPlan, GroupsEndWithLhs) {
  const Array lhs = RandomArray(DType::kF32, {6, 4}, 1), rhs = RandomArray(DType::kF32, {3, 4, 5}, 2);
  const Array g = RandomArray(DType::kF32, {6, 5}, 3);
  const DotGeneralConfig config = DotGeneralMake(8, 8);
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::pair<std::vector<int64_t>, std::vector<int64_t>> cases[] = {
      {{3, 4, 2}, {3, 3, 0}}, {{7, 0, 1}, {6, 0, 0}}, {{1, most, most}, {1, 5, 0}}};
  for (const auto& [sizes, same_as] : cases) {
    const DotGeneralGradients got = *QuantizedRaggedDotWithGradients(config, lhs, rhs, g, sizes);
    const DotGeneralGradients want = *QuantizedRaggedDotWithGradients(config, lhs, rhs, g, same_as);
    EXPECT_TRUE(BitEqual(got.out, want.out) && BitEqual(got.dlhs, want.dlhs) && BitEqual(got.drhs, want.drhs))
        << absl::StrJoin(sizes, ",");
  }
}

// An operand that is not quantized has no scale that a mode could move.
TEST(RaggedDotPlan, ModesOfAFloatRhsHaveNoEffect) {
  const Array lhs = RandomArray(DType::kF32, {7, 16}, 1), rhs = RandomArray(DType::kF32, {1, 16, 4}, 2);
  DotGeneralConfig config = DotGeneralMake(8, std::nullopt);
  const Array want = *QuantizedRaggedDot(config, lhs, rhs, {7});
  config.fwd.rhs.dequant_mode = DequantMode::kOtherInput;
  config.fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
  const absl::StatusOr<Array> got = QuantizedRaggedDot(config, lhs, rhs, {7});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(BitEqual(*got, want));
}

// A row's result depends only on its group's matrix, not on other rows.
TEST(RaggedDotPlan, ARowAloneAndAmongOthers) {
  const Array lhs = RandomArray(DType::kF32, {9, 40}, 1), rhs = RandomArray(DType::kF32, {3, 40, 17}, 2);
  const std::vector<int64_t> sizes = {4, 0, 5};
  const PlanOptions options{.semantics = {.arithmetic = Arithmetic::kIeee}};  // XLA's rule divides if there is one row
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const DotGeneralConfig config = DotGeneralMake(bits, 8, {.use_fwd_quant = false});
    const Array all = *QuantizedRaggedDot(config, lhs, rhs, sizes, {}, options);
    for (int64_t row = 0; row < 9; ++row) {
      const ArrayRef part(lhs.View<float>().data() + row * 40, {1, 40});
      const std::vector<int64_t> one = row < 4 ? std::vector<int64_t>{1, 0, 0} : std::vector<int64_t>{0, 0, 1};
      const Array alone = *QuantizedRaggedDot(config, part, rhs, one, {}, options);
      EXPECT_TRUE(BitEqual(alone, Array::FromSpan<float>(all.View<float>().subspan(row * 17, 17), {1, 17}))) << row;
    }
  }
}

TEST(RaggedDotPlan, SameBitsForAnyThreadsAndStoredTensors) {
  const DotGeneralConfig config = DotGeneralMake(8, 8, {.bwd_bits = 8});
  const std::vector<int64_t> sizes = {40, 0, 71, 9};
  const Array lhs = RandomArray(DType::kF32, {120, 200}, 1), rhs = RandomArray(DType::kF32, {4, 200, 150}, 2);
  const Array g = RandomArray(DType::kF32, {120, 150}, 3);
  const RaggedDotPlan plan = *RaggedDotPlan::Make(config, lhs.aval(), rhs.aval());
  const RaggedResults want = RunRagged(plan, lhs, rhs, g, sizes, {}, {});
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const RaggedDotPlan on_target = *RaggedDotPlan::Make(config, lhs.aval(), rhs.aval(), {.target = target});
    for (const int threads : {1, 2, 7}) {
      kernels::ThreadPool pool(threads);
      const RaggedResults got = RunRagged(on_target, lhs, rhs, g, sizes, {}, {.executor = &pool});
      EXPECT_TRUE(BitEqual(got.out, want.out) && BitEqual(got.dlhs, want.dlhs) && BitEqual(got.drhs, want.drhs))
          << threads << " threads, " << target;
    }
  }
  const QTensor stored = *Quantize(config.fwd.rhs.quantizer, rhs, {0, 1});
  EXPECT_EQ(stored.scale[0].shape(), (Shape{1, 1, 150}));
  ArrayBuilder served(plan.out_aval()), prepared(plan.out_aval());
  ASSERT_EQ(plan.Forward(lhs, *plan.Prepare(Side::kRhs, stored), sizes, {}, served.ref()), absl::OkStatus());
  ASSERT_EQ(plan.Forward(lhs, *plan.Prepare(Side::kRhs, rhs), sizes, {}, prepared.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(served).Build(), want.out));
  EXPECT_TRUE(BitEqual(std::move(prepared).Build(), want.out));
}

TEST(RaggedDotPlan, NothingIsAllocatedAfterTheFirstCall) {
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const DotGeneralConfig config = DotGeneralMake(bits, bits, {.bwd_bits = bits});
    const Array lhs = RandomArray(DType::kF32, {9, 8}, 1), rhs = RandomArray(DType::kF32, {3, 8, 5}, 2);
    const Array g = RandomArray(DType::kF32, {9, 5}, 3);
    const RaggedDotPlan plan = *RaggedDotPlan::Make(config, lhs.aval(), rhs.aval());
    const int64_t sizes[] = {4, 0, 3};
    ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
    Residuals residuals;
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan.Forward(lhs, rhs, sizes, {}, out.ref(), &residuals).ok() &&
                      plan.Backward(g, residuals, sizes, {}, dlhs.ref(), drhs.ref()).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok);
      EXPECT_EQ(during > 0, call == 0) << during;
    }
  }
}

}  // namespace
}  // namespace aqt
