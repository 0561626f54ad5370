#include "aqt/quant/contraction/engine/dot_tiling.h"
#include "aqt/quant/config/semantics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/machine/thread_pool.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/einsum_equation.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

// Small integers: every sum is exact, so its order does not matter.
Array Integers(const Shape& shape, uint64_t seed) {
  const Array x = RandomArray(DType::kF32, shape, seed, 8);
  std::vector<float> values;
  for (const float v : x.View<float>()) values.push_back(static_cast<float>(static_cast<int>(v)));
  return Array::FromSpan<float>(values, shape);
}

// AQT's example: (4,8) x (8,5), the contracting axis in tiles of 4 and the rows in tiles of 2.
TEST(MakeTiledDot, ShapesOfTheProduct) {
  const absl::StatusOr<DotTiling> tiling = DotTilingFromEinsum("ab,bc->ac", {{'b', 4}, {'a', 2}});
  ASSERT_TRUE(tiling.ok()) << tiling.status();
  const absl::StatusOr<internal::TiledDot> dot = internal::MakeTiledDot(*tiling, MatMulDims(), {4, 8}, {8, 5});
  ASSERT_TRUE(dot.ok()) << dot.status();
  EXPECT_EQ(dot->lhs.shape, (Shape{2, 2, 2, 4}));
  EXPECT_EQ(dot->rhs.shape, (Shape{2, 2, 4, 5}));
  EXPECT_EQ(dot->dims, (DotDims{{3}, {2}, {2, 0}, {1, 0}}));
  EXPECT_EQ(dot->num_sums, 1);
}

struct Problem {
  const char* name;
  Shape lhs, rhs;
  DotDims dims;
  DotTiling tiling;
};

std::vector<Problem> Problems() {
  const DotDims batched{.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  const DotDims crossed{.lhs_contracting = {2, 3}, .rhs_contracting = {1, 0}};
  return {
      {"nothing", {8, 12}, {12, 6}, MatMulDims(), {}},
      {"contracting", {8, 12}, {12, 6}, MatMulDims(), *DotTilingFromEinsum("ab,bc->ac", {{'b', 3}})},
      {"remaining", {8, 12}, {12, 6}, MatMulDims(), *DotTilingFromEinsum("ab,bc->ac", {{'c', 2}, {'a', 4}})},
      {"all", {8, 12}, {12, 6}, MatMulDims(), *DotTilingFromEinsum("ab,bc->ac", {{'c', 3}, {'b', 4}, {'a', 1}})},
      {"batch", {2, 4, 6}, {2, 6, 8}, batched, *DotTilingFromEinsum("nab,nbc->nac", {{'b', 2}, {'a', 2}, {'c', 2}})},
      {"two contracting",
       {2, 3, 4, 6},
       {6, 4, 5},
       crossed,
       *DotTilingFromEinsum("xyab,bac->xyc", {{'b', 2}, {'a', 2}, {'y', 3}, {'x', 1}})}};
}

TEST(TiledDotGeneral, TheFloatResultIsThatWithoutTiles) {
  for (const Problem& problem : Problems()) {
    const Array lhs = Integers(problem.lhs, 1), rhs = Integers(problem.rhs, 2);
    const Array g = Integers(DotOutputShape(problem.dims, problem.lhs, problem.rhs), 3);
    DotGeneralConfig config = DefaultUnquantizedConfig();
    const absl::StatusOr<DotGeneralGradients> want =
        QuantizedDotGeneralWithGradients(config, lhs, rhs, g, problem.dims);
    config.tiling = problem.tiling;
    const absl::StatusOr<DotGeneralGradients> got = QuantizedDotGeneralWithGradients(config, lhs, rhs, g, problem.dims);
    ASSERT_TRUE(want.ok() && got.ok()) << problem.name << got.status();
    EXPECT_TRUE(SameValues(got->out, want->out)) << problem.name;
    EXPECT_TRUE(SameValues(got->dlhs, want->dlhs)) << problem.name;
    EXPECT_TRUE(SameValues(got->drhs, want->drhs)) << problem.name;
  }
}

// Kernels that sum the products of tiles give the bits of products that are stored and then summed, as with an
// observer.
TEST(TiledDotGeneral, SumsAsItMultiplies) {
  struct Kind {
    const char* name;
    DotGeneralConfig config;
  };
  const Kind kinds[] = {{"int8", DotGeneralMake(8, 8)},
                        {"int4 weights", DotGeneralMake(8, 4)},
                        {"fp8", DotGeneralMake(Bits::E4M3(), Bits::E4M3())},
                        {"floats", DefaultUnquantizedConfig()},
                        {"float weights", DotGeneralMake(8, std::nullopt)}};
  std::vector<Problem> problems = Problems();
  problems.push_back(
      {"many columns", {37, 256}, {256, 600}, MatMulDims(), *DotTilingFromEinsum("ab,bc->ac", {{'b', 64}})});
  for (const Kind& kind : kinds) {
    for (const Problem& problem : problems) {
      for (const kernels::Target target : kernels::SupportedTargets()) {
        SCOPED_TRACE(absl::StrCat(kind.name, ", ", problem.name, ", ", kernels::ToString(target)));
        const Array lhs = RandomArray(DType::kF32, problem.lhs, 1), rhs = RandomArray(DType::kF32, problem.rhs, 2);
        DotGeneralConfig config = kind.config;
        config.tiling = problem.tiling;
        const absl::StatusOr<DotGeneralPlan> plan =
            DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), problem.dims, {.target = target});
        ASSERT_TRUE(plan.ok()) << plan.status();
        const PreparedOperand weights = *plan->Prepare(Side::kRhs, rhs);
        Recorder recorder;
        ArrayBuilder want(plan->out_aval()), got(plan->out_aval()), prepared(plan->out_aval());
        ASSERT_EQ(plan->Forward(lhs, rhs, {}, want.ref(), nullptr, {.observer = &recorder}), absl::OkStatus());
        ASSERT_EQ(plan->Forward(lhs, rhs, {}, got.ref()), absl::OkStatus());
        ASSERT_EQ(plan->Forward(lhs, weights, {}, prepared.ref()), absl::OkStatus());
        const Array sums = std::move(want).Build();
        EXPECT_TRUE(BitEqual(std::move(got).Build(), sums));
        EXPECT_TRUE(BitEqual(std::move(prepared).Build(), sums)) << "prepared";
      }
    }
  }
}

// Products of two tiles that nearly cancel, of the smallest magnitudes: subnormal products and subnormal sums become
// zero. The kernels check only where there can be any.
TEST(TiledDotGeneral, TinySumsAsItMultiplies) {
  constexpr int64_t kRows = 9, kTile = 64, kColumns = 70;
  for (int exponent = -140; exponent <= -80; exponent += 3) {
    const Array half_x = RandomArray(DType::kF32, {kRows, kTile}, 1);
    const Array half_w = RandomArray(DType::kF32, {kTile, kColumns}, 2);
    ArrayBuilder x(DType::kF32, {kRows, 2 * kTile}), w(DType::kF32, {2 * kTile, kColumns});
    for (int64_t i = 0; i < kRows * kTile; ++i) {
      float* const to = &x.Mutable<float>()[i / kTile * 2 * kTile + i % kTile];
      to[0] = to[kTile] = std::ldexp(half_x.View<float>()[i], exponent / 2);
    }
    for (int64_t i = 0; i < kTile * kColumns; ++i) {
      float* const to = &w.Mutable<float>()[i];
      to[0] = std::ldexp(half_w.View<float>()[i], exponent - exponent / 2);
      to[kTile * kColumns] = -to[0] * (i % 3 == 0 ? 1.0f : 0x1.000002p+0f);
    }
    const Array lhs = std::move(x).Build(), rhs = std::move(w).Build();
    DotGeneralConfig config = DotGeneralMake(8, 4);
    config.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', kTile}});
    for (const kernels::Target target : kernels::SupportedTargets()) {
      SCOPED_TRACE(absl::StrCat("2^", exponent, ", ", kernels::ToString(target)));
      const absl::StatusOr<DotGeneralPlan> plan =
          DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims(), {.target = target});
      ASSERT_TRUE(plan.ok()) << plan.status();
      Recorder recorder;
      ArrayBuilder want(plan->out_aval()), got(plan->out_aval()), prepared(plan->out_aval());
      ASSERT_EQ(plan->Forward(lhs, rhs, {}, want.ref(), nullptr, {.observer = &recorder}), absl::OkStatus());
      ASSERT_EQ(plan->Forward(lhs, rhs, {}, got.ref()), absl::OkStatus());
      ASSERT_EQ(plan->Forward(lhs, *plan->Prepare(Side::kRhs, rhs), {}, prepared.ref()), absl::OkStatus());
      const Array sums = std::move(want).Build();
      EXPECT_TRUE(BitEqual(std::move(got).Build(), sums));
      EXPECT_TRUE(BitEqual(std::move(prepared).Build(), sums)) << "prepared";
    }
  }
}

// Prepared integers in tiles of k, which some targets multiply as one product with scales per group, give the bits of
// products of tiles: any widths, tile sizes, numbers of rows, axes and calibrations.
TEST(TiledDotGeneral, PreparedIntegers) {
  const DotDims batched{.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  const DotDims crossed{.lhs_contracting = {1, 2}, .rhs_contracting = {1, 0}};
  kernels::ThreadPool pool(3);
  int64_t seed = 0;
  for (const int64_t tile : {4, 16, 32, 48, 64, 128, 256}) {
    for (const int64_t rows : {1, 2, 3, 4, 7, 8, 9, 20, 70}) {
      const int64_t k = 2 * tile, columns = 1 + seed * 37 % 150;
      const std::vector<Problem> problems = {
          {"matrices", {rows, k}, {k, columns}, MatMulDims(), *DotTilingFromEinsum("ab,bc->ac", {{'b', tile}})},
          {"batches", {2, rows, k}, {2, k, columns}, batched, *DotTilingFromEinsum("nab,nbc->nac", {{'b', tile}})},
          {"tiles of two axes",
           {rows, 4, k},
           {k, 4, columns},
           crossed,
           *DotTilingFromEinsum("axb,bxc->ac", {{'b', tile}, {'x', 2}})},
          {"tiles of rows and columns",
           {2 * rows, k},
           {k, 2 * columns},
           MatMulDims(),
           *DotTilingFromEinsum("ab,bc->ac", {{'b', tile}, {'a', rows}, {'c', columns}})}};
      for (const Problem& problem : problems) {
        const int lhs_bits = 2 + static_cast<int>(seed % 7), rhs_bits = std::vector<int>{4, 8, 2, 3, 6}[seed % 5];
        DotGeneralConfig config = DotGeneralMake(lhs_bits, rhs_bits);
        config.fwd.lhs.quantizer.calib_shared_axes.per_tensor = seed % 3 == 0;
        config.tiling = problem.tiling;
        ++seed;
        SCOPED_TRACE(
            absl::StrCat(problem.name, ", ", rows, " rows, tiles of ", tile, ", ", lhs_bits, " x ", rhs_bits, " bits"));
        const Array lhs = RandomArray(DType::kF32, problem.lhs, seed), rhs = RandomArray(DType::kF32, problem.rhs, 2);
        for (const kernels::Target target : kernels::SupportedTargets()) {
          const absl::StatusOr<DotGeneralPlan> plan =
              DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), problem.dims, {.target = target});
          ASSERT_TRUE(plan.ok()) << plan.status();
          const PreparedOperand weights = *plan->Prepare(Side::kRhs, rhs), x = *plan->Prepare(Side::kLhs, lhs);
          const PreparedOperand packed = weights.WithoutValues();
          Recorder recorder;
          ArrayBuilder want(plan->out_aval());
          ASSERT_EQ(plan->Forward(lhs, rhs, {}, want.ref(), nullptr, {.observer = &recorder}), absl::OkStatus());
          const Array sums = std::move(want).Build();
          for (const DotOperand& first : {DotOperand(lhs), DotOperand(x)}) {
            for (const DotOperand& second : {DotOperand(weights), DotOperand(packed)}) {
              ArrayBuilder got(plan->out_aval());
              ASSERT_EQ(plan->Forward(first, second, {}, got.ref(), nullptr, {.executor = &pool}), absl::OkStatus());
              EXPECT_TRUE(BitEqual(std::move(got).Build(), sums)) << kernels::ToString(target);
            }
          }
        }
      }
    }
  }
}

// One number is a thousand times the others: in its own tile it does not absorb 1270 and 10.
TEST(TiledDotGeneral, EachTileHasItsOwnScale) {
  const Array lhs = Array::Of<float>({1270, 10, 1.27e6f, 1e4f}, {1, 4}), ones = Array::Of<float>({1, 1, 1, 1}, {4, 1});
  DotGeneralConfig config = DotGeneralMake(8, 8);
  for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs}) {
    std::get<IntSymmetric>(tensor->quantizer.numerics).preserve_max_val = true;
  }
  for (const auto& [tile_size, want] : {std::pair<int64_t, float>{4, 1280000}, {2, 1281280}}) {
    config.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', tile_size}});
    const absl::StatusOr<Array> out =
        QuantizedDotGeneral(config, lhs, ones, MatMulDims(), {}, {.semantics = {.arithmetic = Arithmetic::kIeee}});
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->View<float>()[0], want) << tile_size;
  }
}

// A stored weight has the tiled shape and gives the same bits as the float weight.
TEST(TiledDotGeneral, StoredWeights) {
  DotGeneralConfig config = DotGeneralMake(8, 8);
  config.tiling.emplace();
  config.tiling->lhs.contraction_axes = {{.axis = -1, .tile_count = 2}};
  config.tiling->rhs.contraction_axes = {{.axis = 0, .tile_count = 2}};
  const Array x = RandomArray(DType::kF32, {3, 3136}, 1), weight = RandomArray(DType::kF32, {3136, 256}, 2);
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, x.aval(), weight.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<DotGeneralPlan::QuantizedAvals> avals = plan->quantized_avals(Side::kRhs);
  ASSERT_TRUE(avals.ok()) << avals.status();
  EXPECT_EQ(avals->qvalue, (Aval{DType::kS8, {2, 1568, 256}}));
  EXPECT_EQ(avals->scale, (Aval{DType::kF32, {2, 1, 256}}));

  const absl::StatusOr<PreparedOperand> prepared = plan->Prepare(Side::kRhs, weight);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->qtensor().qvalue->aval(), avals->qvalue);
  EXPECT_EQ(prepared->qtensor().scale[0].aval(), avals->scale);
  ArrayBuilder want(plan->out_aval()), got(plan->out_aval()), stored(plan->out_aval());
  ASSERT_TRUE(plan->Forward(x, weight, {}, want.ref()).ok());
  ASSERT_TRUE(plan->Forward(x, *prepared, {}, got.ref()).ok());
  const Array wanted = std::move(want).Build();
  EXPECT_TRUE(BitEqual(std::move(got).Build(), wanted));

  // The same, quantized as a tensor with a tiling.
  const absl::StatusOr<TilingState> tiling = TilingState::Make(weight.shape(), {{.axis = 0, .tile_count = 2}});
  const absl::StatusOr<QTensor> tensor = Quantize(config.fwd.rhs.quantizer, weight, {0}, {}, {}, &*tiling);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  const absl::StatusOr<PreparedOperand> from_tensor = plan->Prepare(Side::kRhs, *tensor);
  ASSERT_TRUE(from_tensor.ok()) << from_tensor.status();
  ASSERT_TRUE(plan->Forward(x, *from_tensor, {}, stored.ref()).ok());
  EXPECT_TRUE(BitEqual(std::move(stored).Build(), wanted));

  const absl::StatusOr<DotGeneralPlan> untiled =
      DotGeneralPlan::Make(DotGeneralMake(8, 8), x.aval(), weight.aval(), MatMulDims());
  const absl::Status status = untiled->Prepare(Side::kRhs, *tensor).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "DotGeneral: the tensor for fwd.rhs is tiled as [2,1568,256], but the plan is for [3136,256]; give the "
            "configuration the same tiling");
}

TEST(TiledDotGeneral, ThreadsTargetsAndStridesGiveTheSameBits) {
  const Array lhs = RandomArray(DType::kBF16, {48, 64}, 1), rhs = RandomArray(DType::kBF16, {64, 96}, 2);
  const Array g = RandomArray(DType::kBF16, {48, 96}, 3);
  DotGeneralConfig config = FullyQuantized();
  config.tiling = *DotTilingFromEinsum("ab,bc->ac", {{'b', 16}, {'a', 8}, {'c', 32}});
  const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Context context{.key = MakeKey(1)};
  const PlanResults want = RunPlan(*plan, lhs, rhs, g, context);
  for (const kernels::Target target : kernels::SupportedTargets()) {
    const DotGeneralPlan on_target = OnTarget(*plan, target);
    for (const int threads : {1, 2, 7}) {
      kernels::ThreadPool pool(threads);
      EXPECT_TRUE(SameResults(RunPlan(on_target, lhs, rhs, g, context, {.executor = &pool}), want))
          << threads << " threads, " << target;
    }
  }
  // Results written transposed.
  ArrayBuilder out(DType::kBF16, {96, 48}), dlhs(DType::kBF16, {64, 48}), drhs(DType::kBF16, {96, 64});
  const auto transposed = [](ArrayBuilder& builder) {
    const Shape& shape = builder.aval().shape;
    return MutableArrayRef(DType::kBF16, {shape[1], shape[0]}, Strides{1, shape[1]}, builder.data());
  };
  Residuals residuals(Residuals::Operands::kBorrow);
  ASSERT_TRUE(plan->Forward(lhs, rhs, context, transposed(out), &residuals).ok());
  ASSERT_TRUE(plan->Backward(g, residuals, context, transposed(dlhs), transposed(drhs)).ok());
  EXPECT_TRUE(SameValues(Array::CopyOf(transposed(out)), want.out));
  EXPECT_TRUE(SameValues(Array::CopyOf(transposed(dlhs)), want.dlhs));
  EXPECT_TRUE(SameValues(Array::CopyOf(transposed(drhs)), want.drhs));
}

TEST(DotTilingFromEinsum, SortsAxesByTheirKind) {
  const absl::StatusOr<DotTiling> tiling = DotTilingFromEinsum("nab,nbc->nac", {{'c', 5}, {'b', 3}, {'a', 2}});
  ASSERT_TRUE(tiling.ok()) << tiling.status();
  DotTiling want;
  want.lhs = {.contraction_axes = {{.axis = 2, .tile_size = 3}}, .remaining_axes = {{.axis = 1, .tile_size = 2}}};
  want.rhs = {.contraction_axes = {{.axis = 1, .tile_size = 3}}, .remaining_axes = {{.axis = 2, .tile_size = 5}}};
  EXPECT_TRUE(*tiling == want);
}

TEST(DotTilingFromEinsum, Refuses) {
  using Sizes = std::vector<std::pair<char, int64_t>>;
  const std::string which =
      " in the result, but only axes that occur once in exactly two of them can be tiled: contracting and remaining "
      "ones";
  const struct {
    const char* equation;
    Sizes sizes;
    std::string message;
  } cases[] = {
      {"ab->ba", {}, std::string(ParseEinsum("ab->ba", 2, 0).status().message())},
      {"a1,1c->ac", {}, std::string(ParseEinsum("a1,1c->ac", 1, 1).status().message())},
      {"...b,bc->...c", {}, "tiling: \"...b,bc->...c\" has an ellipsis, so its axes have no numbers; spell it out"},
      {"nab,nbc->nac", {{'n', 2}}, "tiling: axis n of \"nab,nbc->nac\" is 1 times in lhs, 1 in rhs and 1" + which},
      {"ab,bc->ac", {{'x', 2}}, "tiling: axis x of \"ab,bc->ac\" is 0 times in lhs, 0 in rhs and 0" + which},
      {"aab,bc->ac", {{'a', 2}}, "tiling: axis a of \"aab,bc->ac\" is 2 times in lhs, 0 in rhs and 1" + which},
      {"ab,bc->ac", {{'b', 2}, {'b', 2}}, "tiling: axis b of \"ab,bc->ac\" is tiled twice"},
      {"ab,bc->ac", {{'b', 0}}, "tiling: axis b of \"ab,bc->ac\" has tile size 0, expected at least 1"},
  };
  for (const auto& c : cases) {
    const absl::Status status = DotTilingFromEinsum(c.equation, c.sizes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), c.message);
  }
}

}  // namespace
}  // namespace aqt
