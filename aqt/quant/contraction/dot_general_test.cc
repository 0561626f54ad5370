#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/config/semantics.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/target.h"
#include "aqt/kernels/thread_pool.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

const DotDims kBatched{.lhs_contracting = {2}, .rhs_contracting = {0}, .lhs_batch = {1}, .rhs_batch = {1}};

DotGeneral WithoutNoise(FullyQuantizedOptions options = {}) {
  options.use_stochastic_rounding = false;
  return *FullyQuantized(options);
}

TEST(DotGeneral, ByHand) {
  // Two scales on each side, so XLA multiplies by the reciprocal of 127.5.
  const Array lhs = Array::Of<float>({1, -0.5f, 0.25f, 2}, {2, 2}), rhs = Array::Of<float>({3, 1, -1.5f, 4}, {2, 2});
  const float inv = 1.0f / 127.5f;
  const float sl[] = {1 * inv, 2 * inv}, sr[] = {3 * inv, 4 * inv};
  // 1 / (1/127.5) = 127.5 is clipped to 127; -0.5 -> -63.75 -> -64; 0.25/2 -> 15.94 -> 16.
  const int ql[2][2] = {{127, -64}, {16, 127}}, qr[2][2] = {{127, 32}, {-64, 127}};
  const absl::StatusOr<Array> out = QuantizedDotGeneral(WithoutNoise(), lhs, rhs, MatMulDims());
  ASSERT_TRUE(out.ok()) << out.status();
  for (int m = 0; m < 2; ++m) {
    for (int n = 0; n < 2; ++n) {
      const int sum = ql[m][0] * qr[0][n] + ql[m][1] * qr[1][n];
      EXPECT_EQ(out->View<float>()[m * 2 + n], (static_cast<float>(sum) * sl[m]) * sr[n]);
    }
  }
}

// Without contracting axes each element gets its own scale: 127/127.5 per side.
TEST(DotGeneral, OuterProductIsScaledDown) {
  const absl::StatusOr<Array> out =
      QuantizedDotGeneral(WithoutNoise(), Array::Of<float>({3, -7, 0.1f}, {3}), Array::Of<float>({5, 0.3f}, {2}), {});
  ASSERT_TRUE(out.ok()) << out.status();
  const float want[] = {15, 0.9f, -35, -2.1f, 0.5f, 0.03f};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(out->View<float>()[i] / want[i], 127.0 / 127.5 * (127.0 / 127.5), 1e-6);
}

// An s32 sum is rounded to f16 before it is scaled: 8 products of 127 * 127 are beyond the largest f16.
TEST(DotGeneral, SumOverflowsF16) {
  const Array ones = Cast(Array::FromSpan<float>(std::vector<float>(64, 1), {8, 8}), DType::kF16);
  const absl::StatusOr<Array> out = QuantizedDotGeneral(WithoutNoise(), ones, ones, MatMulDims());
  ASSERT_TRUE(out.ok());
  EXPECT_TRUE(std::isinf(ToFloat(out->View<Float16>()[0])));
}

// 2000 products of 127 * 127 = 32258000 need 25 bits.
TEST(DotGeneral, SumIsRoundedToF32BeforeItIsScaled) {
  std::vector<float> row(2001, 1);
  row[2000] = 0.5f;  // 64
  std::vector<float> column(2001, 1);
  column[2000] = 1.0f / 127;  // 1.0039 -> 1
  const absl::StatusOr<Array> out = QuantizedDotGeneral(WithoutNoise(), ArrayRef(row.data(), {1, 2001}),
                                                        ArrayRef(column.data(), {2001, 1}), MatMulDims());
  ASSERT_TRUE(out.ok());
  const float scale = 1.0f / 127.5f;  // one scale per side: divided
  const float sum = 2000 * 127 * 127 + 64;
  ASSERT_NE(static_cast<double>(sum + 0.0f), 2000.0 * 127 * 127 + 65);
  EXPECT_EQ(out->View<float>()[0], (sum * scale) * scale);
}

TEST(DotGeneral, UnquantizedIsThePlainProduct) {
  const Array lhs = Array::Of<float>({1, 2, 3, 4}, {2, 2}), rhs = Array::Of<float>({5, 6, 7, 8}, {2, 2});
  const absl::StatusOr<DotGeneralGradients> r =
      QuantizedDotGeneralWithGradients(DefaultUnquantizedConfig(), lhs, rhs, lhs, MatMulDims());
  ASSERT_TRUE(r.ok());
  EXPECT_TRUE(SameValues(r->out, Array::Of<float>({19, 22, 43, 50}, {2, 2})));
  EXPECT_TRUE(SameValues(r->dlhs, Array::Of<float>({17, 23, 39, 53}, {2, 2})));  // g rhs^T
  EXPECT_TRUE(SameValues(r->drhs, Array::Of<float>({10, 14, 14, 20}, {2, 2})));  // lhs^T g
}

// AQT's example: two batches whose operands vary along K in opposite ways; binary values, powers of two,
// preserve_max_val. The rows are balanced exactly by mid scales with alpha 0.5.
TEST(DotGeneral, MidScales) {
  const Array a = Array::Of<float>({1, 2, 4, 1, 4, 16}, {2, 3}), b = Array::Of<float>({4, 2, 1, 16, 4, 1}, {2, 3});
  const DotDims dims{.lhs_contracting = {1}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  DotGeneral config;
  config.fwd.lhs.quantizer = {.numerics = NumericsFromBits(1, /*preserve_max_val=*/true),
                              .calibration = AbsMax{.po2_scale = true}};
  config.fwd.rhs = config.fwd.lhs;
  const auto run = [&](const Compat& compat) {
    const absl::StatusOr<Array> out = QuantizedDotGeneral(config, a, b, dims, {}, {.semantics = {.compat = compat}});
    EXPECT_TRUE(out.ok()) << out.status();
    return std::vector<float>(out->View<float>().begin(), out->View<float>().end());
  };
  EXPECT_EQ(run({}), (std::vector<float>{48, 768}));
  ASSERT_TRUE(SetUseMidQuant(config, 0.5, std::nullopt, std::nullopt).ok());
  EXPECT_EQ(run({}), (std::vector<float>{12, 48}));  // the true product
  EXPECT_EQ(run(Compat::Original()), (std::vector<float>{12, 48}));
}

// The container s2 holds what s8 holds. Next to s8 it needs an f32 accumulator, which is exact for 64 products of up to
// 127.
TEST(DotGeneral, TwoBitWeights) {
  const Array lhs = RandomArray(DType::kF32, {3, 64}, 5), rhs = RandomArray(DType::kF32, {64, 4}, 6);
  for (const Bits lhs_bits : {Bits(), Bits(8)}) {
    DotGeneral config = DotGeneralMake(lhs_bits, 2, {.use_fwd_quant = false});
    const absl::StatusOr<Array> want = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(SetFwdRhsDTypeInt2(config).ok());
    SetAccumulatorDType(config, DType::kF32, kSkip, kSkip);
    const absl::StatusOr<Array> got = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(want.ok() && got.ok()) << got.status();
    EXPECT_TRUE(BitEqual(*got, *want));
  }
}

// One side stays a float: it is rescaled, too, and the mid scales cancel. AQT rescales only that side.
TEST(DotGeneral, MidScalesWithOneSideQuantized) {
  const Array lhs = RandomArray(DType::kF32, {8, 64}, 1), rhs = RandomArray(DType::kF32, {64, 8}, 2);
  const Array exact = *QuantizedDotGeneral(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  DotGeneral config = DotGeneralMake(std::nullopt, 8, {.use_fwd_quant = false});
  config.fwd.rhs_mid_alpha = 0.5;
  const Array out = *QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
  // 64 products, each off by at most |lhs| * s / 2, where s / 2 is 1/255 of an absmax of about 3.
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(out.View<float>()[i], exact.View<float>()[i], 1);
}

// The backward passes take the forward qvalues with their scales and mid scales: gradients near those of the floats.
TEST(DotGeneral, MidScalesWithForwardQuantization) {
  const Array lhs = RandomArray(DType::kF32, {8, 16}, 1), rhs = RandomArray(DType::kF32, {16, 8}, 2);
  const Array g = RandomArray(DType::kF32, {8, 8}, 3);
  DotGeneral config = DotGeneralMake(8, 8, {.use_fwd_quant = true});
  config.fwd.lhs_mid_alpha = 0.7;
  config.fwd.rhs_mid_alpha = 0.3;
  const DotGeneralGradients exact =
      *QuantizedDotGeneralWithGradients(DefaultUnquantizedConfig(), lhs, rhs, g, MatMulDims());
  const absl::StatusOr<DotGeneralGradients> got = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
  ASSERT_TRUE(got.ok()) << got.status();
  const auto error = [](const Array& a, const Array& b) {
    double error = 0, signal = 0;
    for (size_t i = 0; i < a.View<float>().size(); ++i) {
      error += std::pow(a.View<float>()[i] - b.View<float>()[i], 2);
      signal += std::pow(b.View<float>()[i], 2);
    }
    return std::sqrt(error / signal);
  };
  // A qvalue is within 1/255 of the largest of its group, which is some three times a typical element.
  EXPECT_LT(error(got->dlhs, exact.dlhs), 0.02);
  EXPECT_LT(error(got->drhs, exact.drhs), 0.02);
}

// What AQT 0.9.0 on CPU gives: a sum of integers where one container is s32.
TEST(DotGeneral, WideContainers) {
  const Array lhs = Array::Of<float>({0.7f, -1.3f, 2.1f, 0.4f, 1.9f, 0.3f, -0.8f, 1.1f}, {2, 4}),
              rhs = Array::Of<float>({1.2f, -0.6f, 0.5f, 2.2f, -1.7f, 0.9f, 0.1f, -0.4f}, {4, 2});
  struct Case {
    DType lhs, rhs;
    std::optional<DType> accumulator;
    std::vector<float> out;
  };
  const Case cases[] = {
      {DType::kS32, DType::kS32, std::nullopt, {-0x1.a8cd7p+1f, -0x1.8c4556p+0f, 0x1.f1357ep+1f, -0x1.a4fbd8p+0f}},
      {DType::kS32, DType::kS8, std::nullopt, {-0x1.a8cd7p+1f, -0x1.8c4556p+0f, 0x1.f1357ep+1f, -0x1.a4fbd8p+0f}},
      {DType::kS8, DType::kS32, std::nullopt, {-0x1.deb162p-4f, -0x1.3466c6p-2f, 0x1.a592dcp-2f, 0x1.145facp-5f}},
      {DType::kS32, DType::kS32, DType::kF32, {-0x1.a8cd7p+1f, -0x1.8c4556p+0f, 0x1.f1357ep+1f, -0x1.a4fbd8p+0f}},
      {DType::kF32, DType::kF32, std::nullopt, {-0x1.a8cd7p+1f, -0x1.8c4556p+0f, 0x1.f1357ep+1f, -0x1.a4fbd8p+0f}},
  };
  for (const Case& c : cases) {
    DotGeneral config = DotGeneralMake(8, 8, {.use_fwd_quant = false});
    config.fwd.lhs.quantizer.numerics = IntSymmetric{.bits = 12, .dtype = c.lhs};
    config.fwd.rhs.quantizer.numerics = IntSymmetric{.bits = 8, .dtype = c.rhs};
    config.fwd.dg_accumulator_dtype = c.accumulator;
    const absl::StatusOr<Array> out = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(std::vector<float>(out->View<float>().begin(), out->View<float>().end()), c.out)
        << ToString(c.lhs) << " x " << ToString(c.rhs);
  }
}

// On random data the original, which quantizes other operands than it calibrated for, is worse.
TEST(DotGeneral, MidScalesHelp) {
  const int64_t m = 8, k = 64, n = 8;
  Array lhs = RandomArray(DType::kF32, {m, k}, 1);
  const Array rhs = RandomArray(DType::kF32, {k, n}, 2);
  std::vector<float> outliers(lhs.View<float>().begin(), lhs.View<float>().end());
  for (int64_t i = 0; i < m; ++i) outliers[i * k + 3] *= 100;  // one loud channel
  lhs = Array::FromSpan<float>(outliers, {m, k});
  const Array exact = *QuantizedDotGeneral(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  DotGeneral config = DotGeneralMake(8, 8, {.use_fwd_quant = false});
  const auto error = [&](const Compat& compat) {
    const Array out = *QuantizedDotGeneral(config, lhs, rhs, MatMulDims(), {}, {.semantics = {.compat = compat}});
    double sum = 0;
    for (int64_t i = 0; i < m * n; ++i) sum += std::pow(out.View<float>()[i] - exact.View<float>()[i], 2);
    return std::sqrt(sum / (m * n));
  };
  const double plain = error({});
  ASSERT_TRUE(SetUseMidQuant(config, 0.5, std::nullopt, std::nullopt).ok());
  EXPECT_LT(error({}), plain / 2);
  EXPECT_GT(error({.mid_scales_on_original_operands = true}), error({}));
}

TEST(DotGeneral, ClipGradientIsZeroOutsideTheBound) {
  DotGeneral config = DotGeneralMake(8, 8, {});
  ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.5).ok());
  const Array lhs = Array::Of<float>({1, 0.4f, -0.6f, 0.1f}, {1, 4});
  const Array rhs = Array::Of<float>({1, 2, 3, 4}, {4, 1}), g = Array::Of<float>({1}, {1, 1});
  const absl::StatusOr<DotGeneralGradients> r = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
  ASSERT_TRUE(r.ok()) << r.status();
  EXPECT_EQ(r->dlhs.View<float>()[0], 0);
  EXPECT_NE(r->dlhs.View<float>()[1], 0);
  EXPECT_EQ(r->dlhs.View<float>()[2], 0);
  EXPECT_NE(r->dlhs.View<float>()[3], 0);
}

// The same gradients whether the clip mask is kept (use_fwd_quant) or computed again from the float operand, and the
// memory of the header's formula.
TEST(Residuals, MemoryFormula) {
  const Aval lhs{DType::kF32, {16, 64}}, rhs{DType::kF32, {64, 32}};
  struct Case {
    bool fwd_quant, clip;
    int64_t bytes;
  };
  const int64_t n = 16 * 64 + 64 * 32, scales = (16 + 32) * 4;
  const Case cases[] = {
      {true, false, n + scales}, {true, true, 2 * n + scales}, {false, false, 4 * n}, {false, true, 4 * n + scales}};
  for (const Case& c : cases) {
    DotGeneral config = DotGeneralMake(8, 8, {.bwd_bits = 8, .use_fwd_quant = c.fwd_quant});
    if (c.clip) {
      ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.5).ok());
    }
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(plan.ok()) << plan.status();
    int64_t planned = 0;
    for (const ResidualSlot& slot : plan->residuals()) planned += slot.aval.num_bytes();
    EXPECT_EQ(planned, c.bytes);
    Residuals residuals, borrowing(Residuals::Operands::kBorrow);
    const Array a = RandomArray(DType::kF32, lhs.shape, 1), b = RandomArray(DType::kF32, rhs.shape, 2);
    ArrayBuilder out(plan->out_aval());
    ASSERT_TRUE(plan->Forward(a, b, {}, out.ref(), &residuals).ok());
    ASSERT_TRUE(plan->Forward(a, b, {}, out.ref(), &borrowing).ok());
    EXPECT_EQ(residuals.num_bytes(), c.bytes);
    EXPECT_EQ(borrowing.num_bytes(), c.fwd_quant ? c.bytes : c.bytes - 4 * n);
    // f32 training keeps 4n bytes.
    if (c.fwd_quant) {
      EXPECT_LT(residuals.num_bytes(), 4 * n);
    }
    EXPECT_LE(residuals.num_bytes(), 4 * n + scales);

    // Through arrays and back.
    const Array g = RandomArray(DType::kF32, plan->out_aval().shape, 3);
    ArrayBuilder first(lhs), second(lhs);
    ASSERT_TRUE(plan->Backward(g, residuals, {}, first.ref(), std::nullopt).ok());
    const std::vector<Array> arrays = std::move(residuals).Release();
    ASSERT_EQ(arrays.size(), plan->residuals().size());
    ASSERT_TRUE(plan->Backward(g, Residuals::FromArrays(arrays), {}, second.ref(), std::nullopt).ok());
    EXPECT_TRUE(BitEqual(std::move(first).Build(), std::move(second).Build()));
  }
}

TEST(DotGeneral, ClipMaskKeptOrComputedAgain) {
  const Array lhs = RandomArray(DType::kF32, {9, 33}, 1), rhs = RandomArray(DType::kF32, {33, 5}, 2);
  const Array g = RandomArray(DType::kF32, {9, 5}, 3);
  // Nothing is quantized backward, so use_fwd_quant changes values by quantization only; zeros come from the masks.
  std::vector<Array> zeros;
  for (const bool fwd_quant : {true, false}) {
    DotGeneral config = DotGeneralMake(8, 8, {.use_fwd_quant = fwd_quant});
    ASSERT_TRUE(SetAbsmaxCalibScale(config, 0.4).ok());
    const absl::StatusOr<DotGeneralGradients> r = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
    ASSERT_TRUE(r.ok()) << r.status();
    ArrayBuilder pattern(DType::kF32, lhs.shape());
    int64_t count = 0;
    for (int64_t i = 0; i < lhs.num_elements(); ++i) {
      count += pattern.Mutable<float>()[i] = r->dlhs.View<float>()[i] == 0;
    }
    EXPECT_GT(count, lhs.num_elements() / 4);
    zeros.push_back(std::move(pattern).Build());
  }
  EXPECT_TRUE(BitEqual(zeros[0], zeros[1]));
}

TEST(DotGeneral, NothingIsAllocatedAfterTheFirstCall) {
  struct Case {
    const char* name;
    DotGeneral config;
    DType dtype;
  };
  DotGeneral fake = WithoutNoise({.bwd_bits = std::nullopt});
  SetFwdDequantMode(fake, DequantMode::kThisInput, DequantMode::kThisInput);
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  DotGeneral tiled = FullyQuantized();
  tiled.tiling = *DotTilingFromEinsum("mbk,kbn->bmn", {{'k', 8}, {'m', 3}});
  DotGeneral state = WithoutNoise();
  state.fwd.lhs.quantizer.calibration = state.dlhs.lhs.quantizer.calibration = DelayedScaling{};
  state.fwd.rhs.quantizer.calibration = state.drhs.rhs.quantizer.calibration = WeightedStats{.lp_dev_coeff = 1};
  state.dlhs.rhs.quantizer.calibration = state.drhs.lhs.quantizer.calibration = MeanOfAbsMax{};
  const Case cases[] = {
      {"tiled", tiled, DType::kF32},
      {"state", state, DType::kF32},
      {"packed", WithoutNoise(), DType::kF32},
      {"noise", FullyQuantized(), DType::kF32},
      {"bf16", FullyQuantized(), DType::kBF16},
      {"fake", fake, DType::kF32},
      {"v4", ConfigV4(), DType::kF32},
      {"fp8", ConfigFwdFp8(), DType::kF32},
      {"weight only", DotGeneralMake(std::nullopt, 8), DType::kF16},
      {"local",
       *FullyQuantized({.dlhs_local_aqt = LocalAqt{.contraction_axis_shard_count = 7},
                        .drhs_local_aqt = LocalAqt{.contraction_axis_shard_size = 2, .tile_largest_shape = true}}),
       DType::kBF16},
  };
  for (const Case& c : cases) {
    const Array lhs = RandomArray(c.dtype, {6, 2, 40}, 1), rhs = RandomArray(c.dtype, {40, 2, 7}, 2);
    const Array g = RandomArray(c.dtype, {2, 6, 7}, 3);
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(c.config, lhs.aval(), rhs.aval(), kBatched);
    ASSERT_TRUE(plan.ok()) << c.name << plan.status();
    ArrayBuilder out(plan->out_aval()), dlhs(plan->lhs_aval()), drhs(plan->rhs_aval());
    Residuals residuals;
    const Context context{.key = MakeKey(1), .quant_mode = QuantMode::kCalibrate};
    std::vector<ArrayBuilder> statistics;  // updated in place
    std::vector<ArrayRef> old;
    std::vector<MutableArrayRef> updated;
    for (const absl::Span<const StateSlot> slots : {plan->forward_state(), plan->backward_state()}) {
      for (const StateSlot& slot : slots) {
        statistics.emplace_back(slot.initial.aval());
        ASSERT_TRUE(CopyArray(slot.initial, statistics.back().ref()).ok());
        old.push_back(statistics.back().ref());
        updated.push_back(statistics.back().ref());
      }
    }
    const size_t split = plan->forward_state().size();
    const StateArrays forward_state{absl::MakeConstSpan(old).subspan(0, split),
                                    absl::MakeConstSpan(updated).subspan(0, split)};
    const StateArrays backward_state{absl::MakeConstSpan(old).subspan(split),
                                     absl::MakeConstSpan(updated).subspan(split)};
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan->Forward(lhs, rhs, context, out.ref(), &residuals, {}, forward_state).ok() &&
                      plan->Backward(g, residuals, context, dlhs.ref(), drhs.ref(), {}, backward_state).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok) << c.name;
      if (call == 0) {
        EXPECT_GT(during, 0) << c.name;  // the counter counts
      }
      if (call > 0) {
        EXPECT_EQ(during, 0) << c.name;
      }
    }
  }
}

TEST(DotGeneral, AnyStrides) {
  // lhs stored transposed, rhs reversed along K, out and gradients written transposed.
  const Array lhs = RandomArray(DType::kF32, {5, 12}, 1), rhs = RandomArray(DType::kF32, {12, 7}, 2);
  const Array g = RandomArray(DType::kF32, {5, 7}, 3);
  ArrayBuilder lhs_t(DType::kF32, {12, 5}), rhs_r(DType::kF32, {12, 7});
  for (int m = 0; m < 5; ++m)
    for (int k = 0; k < 12; ++k) lhs_t.Mutable<float>()[k * 5 + m] = lhs.View<float>()[m * 12 + k];
  for (int k = 0; k < 12; ++k)
    for (int n = 0; n < 7; ++n) rhs_r.Mutable<float>()[(11 - k) * 7 + n] = rhs.View<float>()[k * 7 + n];
  const ArrayRef lhs_view(DType::kF32, {5, 12}, Strides{1, 5}, lhs_t.data());
  const ArrayRef rhs_view(DType::kF32, {12, 7}, Strides{-7, 1}, rhs_r.Mutable<float>().data() + 11 * 7);

  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(FullyQuantized(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok());
  const Context context{.key = MakeKey(8)};
  const PlanResults want = RunPlan(*plan, lhs, rhs, g, context);
  for (const auto storage : {Residuals::Operands::kCopy, Residuals::Operands::kBorrow}) {
    std::vector<float> out(35), dlhs(60), drhs(84);
    const MutableArrayRef out_view(DType::kF32, {5, 7}, Strides{1, 5}, out.data());
    const MutableArrayRef dlhs_view(DType::kF32, {5, 12}, Strides{1, 5}, dlhs.data());
    const MutableArrayRef drhs_view(DType::kF32, {12, 7}, Strides{1, 12}, drhs.data());
    Residuals residuals(storage);
    ASSERT_TRUE(plan->Forward(lhs_view, rhs_view, context, out_view, &residuals).ok());
    ASSERT_TRUE(plan->Backward(g, residuals, context, dlhs_view, drhs_view).ok());
    EXPECT_TRUE(SameValues(Array::CopyOf(out_view), want.out));
    EXPECT_TRUE(SameValues(Array::CopyOf(dlhs_view), want.dlhs));
    EXPECT_TRUE(SameValues(Array::CopyOf(drhs_view), want.drhs));
  }
}

TEST(DotGeneral, ThreadsAndTargetsGiveTheSameBits) {
  // Large enough to be split: 256 Ki elements, 33 million products.
  const Array lhs = RandomArray(DType::kF32, {515, 257}, 1), rhs = RandomArray(DType::kF32, {257, 253}, 2);
  const Array g = RandomArray(DType::kF32, {515, 253}, 3);
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(WithoutNoise(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok());
  const PlanResults want = RunPlan(OnTarget(*plan, kernels::Target::kScalar), lhs, rhs, g);
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const DotGeneralPlan on_target = OnTarget(*plan, target);
    for (const int threads : {1, 2, 7}) {
      kernels::ThreadPool pool(threads);
      EXPECT_TRUE(SameResults(RunPlan(on_target, lhs, rhs, g, {}, {.executor = &pool}), want))
          << threads << " threads, " << target;
    }
  }
}

TEST(DotGeneral, AnExampleAloneAndInABatch) {
  const int64_t k = 37, n = 11;
  const Array lhs = RandomArray(DType::kF32, {8, k}, 1), rhs = RandomArray(DType::kF32, {k, n}, 2);
  for (const Arithmetic arithmetic : {Arithmetic::kIeee, Arithmetic::kXlaCompatible}) {
    const PlanOptions options{.semantics = {.arithmetic = arithmetic}};
    const absl::StatusOr<Array> all = QuantizedDotGeneral(WithoutNoise(), lhs, rhs, MatMulDims(), {}, options);
    ASSERT_TRUE(all.ok());
    // With XLA's rule a single row divides where several multiply by the reciprocal: there, pairs are compared.
    const int64_t rows = arithmetic == Arithmetic::kIeee ? 1 : 2;
    for (int64_t m = 0; m + rows <= 8; ++m) {
      const ArrayRef part(lhs.View<float>().data() + m * k, {rows, k});
      const absl::StatusOr<Array> alone = QuantizedDotGeneral(WithoutNoise(), part, rhs, MatMulDims(), {}, options);
      ASSERT_TRUE(alone.ok());
      EXPECT_TRUE(BitEqual(*alone, Array::FromSpan<float>(all->View<float>().subspan(m * n, rows * n), {rows, n})));
    }
  }
}

TEST(DotGeneral, ObserverSeesEveryIntermediate) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(FullyQuantized(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok());
  Recorder recorder;
  const Context context{.key = MakeKey(0)};
  const PlanResults observed = RunPlan(*plan, lhs, rhs, g, context, {.observer = &recorder});
  EXPECT_TRUE(SameResults(observed, RunPlan(*plan, lhs, rhs, g, context)));
  std::string names;
  for (const auto& [name, value] : recorder.tensors) names += name + " " + value.aval().ToString() + "\n";
  EXPECT_EQ(
      names,
      "dlhs.accum s32[4,8]\ndlhs.dg_lhs s8[4,5]\ndlhs.dg_rhs s8[8,5]\ndlhs.lhs.key u32[2]\ndlhs.lhs.noise f32[4,5]\n"
      "dlhs.lhs.qvalue s8[4,5]\ndlhs.lhs.scale f32[4,1]\ndlhs.rhs.key u32[2]\ndlhs.rhs.noise f32[8,5]\n"
      "dlhs.rhs.qvalue s8[8,5]\ndlhs.rhs.scale f32[8,1]\ndrhs.accum s32[5,8]\ndrhs.dg_lhs s8[4,5]\n"
      "drhs.dg_rhs s8[4,8]\ndrhs.lhs.key u32[2]\ndrhs.lhs.noise f32[4,5]\ndrhs.lhs.qvalue s8[4,5]\n"
      "drhs.lhs.scale f32[1,5]\ndrhs.rhs.key u32[2]\ndrhs.rhs.noise f32[4,8]\ndrhs.rhs.qvalue s8[4,8]\n"
      "drhs.rhs.scale f32[1,8]\nfwd.accum s32[4,5]\nfwd.dg_lhs s8[4,8]\nfwd.dg_rhs s8[8,5]\n"
      "fwd.lhs.qvalue s8[4,8]\nfwd.lhs.scale f32[4,1]\nfwd.rhs.qvalue s8[8,5]\nfwd.rhs.scale f32[1,5]\n");
  const OperandKeys keys = SplitContextKey(MakeKey(0));
  EXPECT_EQ(recorder.tensors["dlhs.lhs.key"].View<uint32_t>()[0], keys.dlhs_lhs.hi);
  EXPECT_EQ(recorder.tensors["drhs.rhs.key"].View<uint32_t>()[1], keys.drhs_rhs.lo);
}

// Two-dimensional operands, by loops over all indices.
class LoopProduct : public PlainProduct {
 public:
  void Contract(absl::string_view pass, const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims,
                const MutableArrayRef& out) override {
    calls.push_back(absl::StrCat(pass, " ", lhs.aval().ToString(), " ", rhs.aval().ToString(), " ", dims.ToString(),
                                 " ", out.aval().ToString()));
    const int64_t lhs_k = dims.lhs_contracting[0], rhs_k = dims.rhs_contracting[0];
    for (int64_t i = 0; i < out.shape[0]; ++i) {
      for (int64_t j = 0; j < out.shape[1]; ++j) {
        int32_t sum = 0;
        for (int64_t k = 0; k < lhs.shape[lhs_k]; ++k) {
          sum += At(lhs, i, k, lhs_k) * At(rhs, j, k, rhs_k);
        }
        static_cast<int32_t*>(out.data)[i * out.strides[0] + j * out.strides[1]] = sum;
      }
    }
  }
  std::vector<std::string> calls;

 private:
  static int32_t At(const ArrayRef& x, int64_t row, int64_t k, int64_t k_axis) {
    return static_cast<const int8_t*>(x.data)[row * x.strides[1 - k_axis] + k * x.strides[k_axis]];
  }
};

TEST(DotGeneral, TakesAProductOfTheUsers) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(WithoutNoise(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok());
  LoopProduct product;
  EXPECT_TRUE(SameResults(RunPlan(*plan, lhs, rhs, g, {}, {.product = &product}), RunPlan(*plan, lhs, rhs, g)));
  EXPECT_EQ(product.calls, (std::vector<std::string>{"fwd s8[4,8] s8[8,5] (([1],[0]),([],[])) s32[4,5]",
                                                     "dlhs s8[4,5] s8[8,5] (([1],[1]),([],[])) s32[4,8]",
                                                     "drhs s8[4,5] s8[4,8] (([0],[0]),([],[])) s32[5,8]"}));
}

// The keys that AQT derives from PRNGKey(0).
TEST(SplitContextKey, RecordedKeys) {
  const OperandKeys want{.fwd_lhs = {4165894930u, 804218099u},
                         .fwd_rhs = {1353695780u, 2116000888u},
                         .dlhs_lhs = {346279018u, 360566543u},
                         .dlhs_rhs = {3968330031u, 3923691647u},
                         .drhs_lhs = {2799984767u, 1105366846u},
                         .drhs_rhs = {3777617834u, 145086855u}};
  EXPECT_EQ(SplitContextKey(MakeKey(0)), want);
}

TEST(Prepare, GivesTheSameBitsAsTheFloatOperand) {
  const Array lhs = RandomArray(DType::kF32, {6, 3, 20}, 1), rhs = RandomArray(DType::kF32, {20, 3, 9}, 2);
  DotGeneral weight_only = DotGeneralMake(std::nullopt, 8), fake = WithoutNoise();
  SetFwdDequantMode(fake, std::nullopt, DequantMode::kThisInput);
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  for (const DotGeneral& config : {WithoutNoise(), WithoutNoise({.fwd_bits = 4}), weight_only, fake}) {
    const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), kBatched);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ArrayBuilder want(plan->out_aval()), got(plan->out_aval());
    ASSERT_TRUE(plan->Forward(lhs, rhs, {}, want.ref()).ok());
    const Array expected = std::move(want).Build();
    const absl::StatusOr<PreparedOperand> weights = plan->Prepare(Side::kRhs, rhs);
    ASSERT_TRUE(weights.ok()) << weights.status();
    for (const kernels::Target target : kernels::SupportedTargets()) {  // also those it was not packed for
      if (config.fwd.dg_accumulator_dtype != DType::kS32 && target != kernels::BestTarget()) continue;
      ASSERT_TRUE(OnTarget(*plan, target).Forward(lhs, *weights, {}, got.ref()).ok());
      EXPECT_TRUE(SameValues(Array::CopyOf(got.ref()), expected)) << target;
    }
    // Only the scales: the weights are quantized with them.
    QTensor scales = weights->qtensor();
    scales.qvalue.reset();
    const absl::StatusOr<PreparedOperand> range = plan->Prepare(Side::kRhs, scales);
    ASSERT_TRUE(range.ok()) << range.status();
    ASSERT_TRUE(plan->Forward(lhs, DotOperand(rhs, *range), {}, got.ref()).ok());
    EXPECT_TRUE(SameValues(Array::CopyOf(got.ref()), expected));
  }
}

// A masked tensor equals one with zeros at the masked places, dequantized before the product or after it.
TEST(Prepare, TakesASparsityMask) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  DotGeneral fake = WithoutNoise();
  fake.fwd.rhs.dequant_mode = DequantMode::kThisInput;
  fake.fwd.dg_accumulator_dtype = std::nullopt;
  for (const DotGeneral& config : {WithoutNoise(), fake}) {
    const DotGeneralPlan plan = *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
    const QTensor dense = plan.Prepare(Side::kRhs, rhs)->qtensor();
    // Two of four along the contracting axis; whole columns.
    std::vector<int8_t> two_of_four(40), columns = {1, 1, 0, 1, 0};
    for (int i = 0; i < 40; ++i) two_of_four[i] = (i / 5 + i % 5) % 4 < 2 ? 1 : 0;
    for (const Array& mask : {Array::FromSpan<int8_t>(two_of_four, {8, 5}), Array::FromSpan<int8_t>(columns, {1, 5}),
                              Cast(Array::FromSpan<int8_t>(two_of_four, {8, 5}), DType::kBF16)}) {
      QTensor sparse = dense, zeroed = dense;
      sparse.sparsity_mask = mask;
      ArrayBuilder q(dense.qvalue->aval());
      const Array keep = Cast(mask, DType::kF32);
      for (int i = 0; i < 40; ++i) {
        const float k = keep.View<float>()[keep.num_elements() == 5 ? i % 5 : i];
        q.Mutable<int8_t>()[i] = static_cast<int8_t>(dense.qvalue->View<int8_t>()[i] * static_cast<int>(k));
      }
      zeroed.qvalue = std::move(q).Build();
      ArrayBuilder got(plan.out_aval()), want(plan.out_aval());
      const absl::StatusOr<PreparedOperand> prepared = plan.Prepare(Side::kRhs, sparse);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_TRUE(plan.Forward(lhs, *prepared, {}, got.ref()).ok());
      ASSERT_TRUE(plan.Forward(lhs, *plan.Prepare(Side::kRhs, zeroed), {}, want.ref()).ok());
      EXPECT_TRUE(SameValues(std::move(got).Build(), std::move(want).Build()));
      EXPECT_TRUE(SameValues(*prepared->qtensor().Dequantize(), *sparse.Dequantize()));
    }
  }
}

TEST(Prepare, IsSharedByPlansOfOtherBatchesAndCheckedByAll) {
  const Array rhs = RandomArray(DType::kF32, {16, 16}, 2), lhs = RandomArray(DType::kF32, {5, 16}, 1);
  const auto plan = [&](const DotDims& dims, int64_t rows) {
    return *DotGeneralPlan::Make(WithoutNoise(), {DType::kF32, {rows, 16}}, rhs.aval(), dims);
  };
  const DotGeneralPlan three = plan(MatMulDims(), 3), five = plan(MatMulDims(), 5);
  const PreparedOperand prepared = *three.Prepare(Side::kRhs, rhs);
  ArrayBuilder want(five.out_aval()), got(five.out_aval());
  ASSERT_TRUE(five.Forward(lhs, rhs, {}, want.ref()).ok());
  ASSERT_TRUE(five.Forward(lhs, prepared, {}, got.ref()).ok());
  EXPECT_TRUE(BitEqual(std::move(got).Build(), std::move(want).Build()));
  // The same shape, but contracted along the other axis: the scale does not fit.
  const DotGeneralPlan transposed = plan({.lhs_contracting = {1}, .rhs_contracting = {1}}, 5);
  ArrayBuilder out(transposed.out_aval());
  EXPECT_EQ(
      transposed.Forward(lhs, prepared, {}, out.ref()).message(),
      "DotGeneral: the tensor for fwd.rhs: scale of rhs has shape [1,16]: it varies along the contracting axis 1");
  // A single scale fits both plans, and the panels of one are not used for the other.
  QTensor single;
  std::vector<int8_t> q(256);
  for (int i = 0; i < 256; ++i) q[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  single.qvalue = Array::FromSpan<int8_t>(q, {16, 16});
  single.scale.push_back(Array::Of<float>({0.5f}, {1, 1}));
  const PreparedOperand of_five = *five.Prepare(Side::kRhs, single),
                        of_transposed = *transposed.Prepare(Side::kRhs, single);
  ArrayBuilder direct(transposed.out_aval()), shared(transposed.out_aval());
  ASSERT_TRUE(transposed.Forward(lhs, of_transposed, {}, direct.ref()).ok());
  ASSERT_TRUE(transposed.Forward(lhs, of_five, {}, shared.ref()).ok());
  EXPECT_TRUE(BitEqual(std::move(shared).Build(), std::move(direct).Build()));
}

TEST(Prepare, RefusesTensorsThatDoNotFit) {
  const Aval lhs{DType::kF32, {4, 8}}, rhs{DType::kF32, {8, 5}};
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(WithoutNoise(), lhs, rhs, MatMulDims());
  ASSERT_TRUE(plan.ok());
  const Array weights = RandomArray(DType::kF32, {8, 5}, 2);
  const QTensor good = plan->Prepare(Side::kRhs, weights)->qtensor();
  struct Case {
    const char* message;
    QTensor tensor;
  };
  QTensor no_scale = good, wrong_dtype = good, per_row = good, biased = good;
  no_scale.scale.clear();
  wrong_dtype.qvalue = Cast(*good.qvalue, DType::kS4);
  per_row.scale[0] = Array::FromSpan<float>(std::vector<float>(8, 1), {8, 1});
  biased.bias.push_back(good.scale[0]);
  const Case cases[] = {
      {"DotGeneral: the tensor for fwd.rhs has no scale", no_scale},
      {"DotGeneral: the tensor for fwd.rhs has the qvalue s4[8,5], expected s8[8,5]", wrong_dtype},
      {"DotGeneral: the tensor for fwd.rhs: scale of rhs has shape [8,1]: it varies along the contracting axis 0",
       per_row},
      {"DotGeneral: the tensor for fwd.rhs has a bias, which needs DEQUANT_MODE_THIS_INPUT", biased},
  };
  for (const Case& c : cases) {
    const absl::Status status = plan->Prepare(Side::kRhs, c.tensor).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), c.message);
  }
  QTensor masked = good;
  masked.sparsity_mask = Array::Of<float>({1, 0, 1, 0.5f, 1}, {1, 5});
  EXPECT_EQ(plan->Prepare(Side::kRhs, masked).status(),
            absl::InvalidArgumentError("DotGeneral: the tensor for fwd.rhs has 0.5 in its sparsity mask (element 3), "
                                       "expected only 0 and 1"));
  masked.sparsity_mask = Array::Zeros(DType::kS8, {5, 8});
  EXPECT_EQ(plan->Prepare(Side::kRhs, masked).status().code(), absl::StatusCode::kInvalidArgument);
  masked.qvalue.reset();
  EXPECT_EQ(plan->Prepare(Side::kRhs, masked).status(),
            absl::UnimplementedError(
                "DotGeneral: the tensor for fwd.rhs has a sparsity mask but no qvalue; give it a qvalue"));
  const absl::StatusOr<DotGeneralPlan> plain = DotGeneralPlan::Make(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->Prepare(Side::kRhs, good).status(),
            absl::InvalidArgumentError("DotGeneral: the tensor for fwd.rhs: this side is not quantized"));
}

// Every form of a given operand, against the float operand that it replaces.
TEST(Prepare, Gradients) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), weights = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  for (const bool use_fwd_quant : {false, true}) {
    for (const bool clip_gradient : {false, true}) {
      for (const bool tiled : {false, true}) {
        DotGeneral config = WithoutNoise({.use_fwd_quant = use_fwd_quant});
        for (Tensor* tensor : {&config.fwd.lhs, &config.fwd.rhs}) {
          tensor->quantizer.calibration = AbsMax{.clipping_scale = 0.5};
          std::get<IntSymmetric>(tensor->quantizer.numerics).clip_gradient = clip_gradient;
        }
        if (tiled) config.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', 4}, {'a', 2}});
        DotGeneral dummy = config;
        dummy.fwd.allow_dummy_gradient_into_qtensor = true;
        const absl::StatusOr<DotGeneralPlan> plan =
            DotGeneralPlan::Make(config, lhs.aval(), weights.aval(), MatMulDims());
        const absl::StatusOr<DotGeneralPlan> allowed =
            DotGeneralPlan::Make(dummy, lhs.aval(), weights.aval(), MatMulDims());
        ASSERT_TRUE(plan.ok() && allowed.ok());
        const PlanResults want = RunPlan(*plan, lhs, weights, g);
        const absl::StatusOr<PreparedOperand> full = plan->Prepare(Side::kRhs, weights);
        ASSERT_TRUE(full.ok()) << full.status();
        QTensor scales_only = full->qtensor();
        scales_only.qvalue.reset();
        const absl::StatusOr<PreparedOperand> scales = plan->Prepare(Side::kRhs, scales_only);
        ASSERT_TRUE(scales.ok()) << scales.status();

        const auto run = [&](const DotGeneralPlan& p, const DotOperand& rhs) {
          ArrayBuilder out(p.out_aval()), dlhs(p.lhs_aval()), drhs(p.rhs_aval());
          Residuals residuals;
          EXPECT_EQ(p.Forward(lhs, rhs, {}, out.ref(), &residuals), absl::OkStatus());
          EXPECT_EQ(p.Backward(g, residuals, {}, dlhs.ref(), drhs.ref()), absl::OkStatus());
          return PlanResults{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
        };
        EXPECT_TRUE(SameResults(run(*plan, {weights, *scales}), want)) << use_fwd_quant << clip_gradient << tiled;
        EXPECT_TRUE(SameResults(run(*allowed, {weights, *full}), want)) << use_fwd_quant << clip_gradient << tiled;
        ArrayBuilder out(plan->out_aval());
        Residuals residuals;
        EXPECT_EQ(
            plan->Forward(lhs, *full, {}, out.ref(), &residuals).message(),
            "DotGeneral: fwd.rhs is given as a tensor with a qvalue, into which no gradient flows; pass the float "
            "operand, or no Residuals, or set fwd.allow_dummy_gradient_into_qtensor to pass its gradient on as if it "
            "had been quantized here");
        if (use_fwd_quant && !clip_gradient) {
          EXPECT_TRUE(SameResults(run(*allowed, *full), want)) << tiled;
        } else {
          EXPECT_EQ(allowed->Forward(lhs, *full, {}, out.ref(), &residuals).message(),
                    "DotGeneral: fwd.rhs is given as a tensor with a qvalue, but the gradients need its float operand, "
                    "too: pass both, or set use_fwd_quant in dlhs.rhs");
        }
        if (use_fwd_quant && !tiled) {
          scales_only.scale = {Array::Of<float>({0.1f}, {1, 1})};
          const absl::StatusOr<PreparedOperand> single = plan->Prepare(Side::kRhs, scales_only);
          ASSERT_TRUE(single.ok()) << single.status();
          EXPECT_EQ(
              plan->Forward(lhs, {weights, *single}, {}, out.ref(), &residuals).message(),
              "DotGeneral: fwd.rhs is given as a tensor, but its gradient needs one scale f32[1,5] and no bias; it has "
              "the scales f32[1,1] and 0 biases");
        }
      }
    }
  }
}

TEST(DotGeneral, EmptyExtents) {
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{0, 3, 2}, {2, 0, 3}, {2, 3, 0}, {0, 0, 0}}) {
    const Array lhs = RandomArray(DType::kF32, {m, k}, 1), rhs = RandomArray(DType::kF32, {k, n}, 2);
    const Array g = RandomArray(DType::kF32, {m, n}, 3);
    for (const DotGeneral& config : {FullyQuantized(), DefaultUnquantizedConfig(), DotGeneralMake(std::nullopt, 8)}) {
      const absl::StatusOr<DotGeneralGradients> r =
          QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims(), {.key = MakeKey(0)});
      ASSERT_TRUE(r.ok()) << r.status();
      for (const float v : r->out.View<float>()) EXPECT_EQ(v, 0);  // an empty sum
    }
  }
}

}  // namespace
}  // namespace aqt
