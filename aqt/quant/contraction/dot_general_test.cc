#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/config/semantics.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general_test_util.h"

namespace aqt {
namespace {

TEST(DotGeneral, ByHand) {
  // There are two scales on each side, so XLA multiplies by the reciprocal of 127.5.
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

// An s32 sum is rounded to f16 before it is scaled: 8 products of 127 * 127 exceed the largest f16.
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

// The container s2 holds the same values as s8. Multiplied with s8, it needs an f32 accumulator, which is exact for 64
// products of up to 127.
TEST(DotGeneral, TwoBitWeights) {
  const Array lhs = RandomArray(DType::kF32, {3, 64}, 5), rhs = RandomArray(DType::kF32, {64, 4}, 6);
  for (const Bits lhs_bits : {Bits(), Bits(8)}) {
    DotGeneralConfig config = DotGeneralMake(lhs_bits, 2, {.use_fwd_quant = false});
    const absl::StatusOr<Array> want = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(SetFwdRhsDTypeInt2(config).ok());
    SetAccumulatorDType(config, DType::kF32, kSkip, kSkip);
    const absl::StatusOr<Array> got = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(want.ok() && got.ok()) << got.status();
    EXPECT_TRUE(BitEqual(*got, *want));
  }
}

// Results of AQT 0.9.0 on CPU: a sum of integers where one container is s32.
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
    DotGeneralConfig config = DotGeneralMake(8, 8, {.use_fwd_quant = false});
    config.fwd.lhs.quantizer.numerics = IntSymmetric{.bits = 12, .dtype = c.lhs};
    config.fwd.rhs.quantizer.numerics = IntSymmetric{.bits = 8, .dtype = c.rhs};
    config.fwd.dg_accumulator_dtype = c.accumulator;
    const absl::StatusOr<Array> out = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(std::vector<float>(out->View<float>().begin(), out->View<float>().end()), c.out)
        << ToString(c.lhs) << " x " << ToString(c.rhs);
  }
}

TEST(DotGeneral, ClipGradientIsZeroOutsideTheBound) {
  DotGeneralConfig config = DotGeneralMake(8, 8, {});
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
    // By XLA's rule a single row divides while several multiply by the reciprocal, so pairs of rows are compared.
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

// Contracts two-dimensional operands with loops over all indices.
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

TEST(DotGeneral, EmptyExtents) {
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{0, 3, 2}, {2, 0, 3}, {2, 3, 0}, {0, 0, 0}}) {
    const Array lhs = RandomArray(DType::kF32, {m, k}, 1), rhs = RandomArray(DType::kF32, {k, n}, 2);
    const Array g = RandomArray(DType::kF32, {m, n}, 3);
    for (const DotGeneralConfig& config :
         {FullyQuantized(), DefaultUnquantizedConfig(), DotGeneralMake(std::nullopt, 8)}) {
      const absl::StatusOr<DotGeneralGradients> r =
          QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims(), {.key = MakeKey(0)});
      ASSERT_TRUE(r.ok()) << r.status();
      for (const float v : r->out.View<float>()) EXPECT_EQ(v, 0);  // an empty sum
    }
  }
}

}  // namespace
}  // namespace aqt
