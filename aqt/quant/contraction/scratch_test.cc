// Memory of intermediates is planned, bounded, and shared by all plans of a thread.

#include "aqt/quant/contraction/scratch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/kernels/gemm/few_rows.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/testing/held_bytes.h"

namespace aqt {
namespace {

using internal::ScratchSlot;
using internal::SlotSizes;
using internal::Workspace;

TEST(Scratch, KeepsTheMostThatACallNeeded) {
  Scratch scratch;
  for (const int64_t bytes : {1, 1000, 500, 1000}) {
    Workspace workspace(scratch);
    EXPECT_NE(workspace.Get(ScratchSlot::kSums, bytes), nullptr);
    EXPECT_NE(workspace.Get(ScratchSlot::kNoise, 64), workspace.Get(ScratchSlot::kSums, bytes));
  }
  EXPECT_EQ(scratch.num_bytes(), 1024 + 64);
  scratch.Reserve(4096);
  EXPECT_EQ(scratch.num_bytes(), 4096);
  scratch.Reserve(100);
  EXPECT_EQ(scratch.num_bytes(), 4096);
  scratch.Free();
  EXPECT_EQ(scratch.num_bytes(), 0);
}

TEST(Scratch, MemoryOfTheCaller) {
  alignas(64) char memory[128];
  Scratch scratch(memory, sizeof(memory));
  for (int round = 0; round < 2; ++round) {
    Workspace workspace(scratch);
    EXPECT_EQ(workspace.Get(ScratchSlot::kSums, 64), memory);
    EXPECT_EQ(workspace.Get(ScratchSlot::kNoise, 64), memory + 64);
    EXPECT_NE(workspace.Get(ScratchSlot::kTiles, 1), nullptr);  // allocated
  }
  EXPECT_EQ(scratch.num_bytes(), 128) << "it stays that of the caller";
}

TEST(Scratch, ACallInsideACallDoesNotTakeItsMemory) {
  Scratch scratch;
  for (int round = 0; round < 2; ++round) {
    Workspace outer(scratch);
    auto* sums = static_cast<int32_t*>(outer.Get(ScratchSlot::kSums, 4));
    *sums = 7;
    {
      Workspace inner(scratch);
      *static_cast<int32_t*>(inner.Get(ScratchSlot::kSums, 4)) = 8;
    }
    auto* more = static_cast<int32_t*>(outer.Get(ScratchSlot::kNoise, 4));
    *more = 9;
    EXPECT_EQ(*sums, 7);
    outer.Clear();
  }
  EXPECT_EQ(scratch.num_bytes(), 128);
}

TEST(SlotSizes, TakeTheLargestOfEachSlot) {
  SlotSizes sizes;
  EXPECT_EQ(sizes.Total(), 0);
  sizes.Add(ScratchSlot::kSums, 100);
  sizes.Add(ScratchSlot::kSums, 10);
  sizes.Add(ScratchSlot::kNoise, 0);
  EXPECT_EQ(sizes.Total(), 128 + 64);
}

// A plan holds its configuration and its decisions, not the memory of its calls.
TEST(Scratch, AHundredPlansNeedNoMoreThanOne) {
  constexpr int64_t kPlan = 32 << 10;
  const Array lhs = RandomArray(DType::kF32, {512, 512}, 1), rhs = RandomArray(DType::kF32, {512, 512}, 2),
              g = RandomArray(DType::kF32, {512, 512}, 3);
  const DotGeneralConfig config = FullyQuantized({.use_stochastic_rounding = false}).value();
  Scratch scratch;
  int64_t scratch_of_one = 0, heap_of_one = 0;
  std::vector<DotGeneralPlan> plans;
  plans.reserve(100);
  for (int i = 0; i < 100; ++i) {
    plans.push_back(*DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims()));
    RunPlan(plans.back(), lhs, rhs, g, {}, {.scratch = &scratch});
    if (i > 0) continue;
    scratch_of_one = scratch.num_bytes();
    heap_of_one = ::aqt::testing::HeldBytes();
  }
  EXPECT_GT(scratch_of_one, 100 * kPlan / 8);
  EXPECT_EQ(scratch.num_bytes(), scratch_of_one);
  const int64_t heap_of_others = ::aqt::testing::HeldBytes() - heap_of_one;
  EXPECT_GT(heap_of_others, 0);
  EXPECT_LT(heap_of_others, 99 * kPlan);
}

// Calls take exactly the planned memory. Without Residuals, which hold qvalues and scales, they take more.
template <class Plan, class Run>
void ExpectPlanned(const std::string& name, const absl::StatusOr<Plan>& plan, Run run) {
  ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
  Scratch scratch;
  run(*plan, Runtime{.scratch = &scratch});
  if constexpr (std::is_same_v<Plan, EinsumPlan>) {  // its gradients convert nothing
    EXPECT_LE(scratch.num_bytes(), plan->scratch_bytes()) << name;
    EXPECT_GE(scratch.num_bytes(), plan->dot_general().scratch_bytes()) << name;
  } else {
    EXPECT_EQ(scratch.num_bytes(), plan->scratch_bytes()) << name;
  }
  Scratch reserved;
  reserved.Reserve(plan->scratch_bytes());
  run(*plan, Runtime{.scratch = &reserved});
  EXPECT_EQ(reserved.num_bytes(), plan->scratch_bytes()) << name;
}

struct NamedConfig {
  std::string name;
  DotGeneralConfig config;
};

std::vector<NamedConfig> Configs() {
  std::vector<NamedConfig> configs;
  configs.push_back({"float", DotGeneralConfig()});
  configs.push_back({"int8", *FullyQuantized({.use_stochastic_rounding = false})});
  configs.push_back({"int8 with noise", FullyQuantized()});
  configs.push_back({"int4", *FullyQuantized({.fwd_bits = 4, .bwd_bits = 4})});
  configs.push_back({"backward in float", *FullyQuantized({.bwd_bits = Bits()})});
  configs.push_back(
      {"e4m3",
       *FullyQuantized({.fwd_bits = Bits::E4M3(), .bwd_bits = Bits::E5M2(), .use_stochastic_rounding = false})});
  DotGeneralConfig this_input = *FullyQuantized({.use_stochastic_rounding = false});
  for (DotGeneralRawConfig* raw : {&this_input.fwd, &this_input.dlhs, &this_input.drhs}) {
    raw->lhs.dequant_mode = raw->rhs.dequant_mode = DequantMode::kThisInput;
    raw->dg_accumulator_dtype.reset();
  }
  configs.push_back({"dequantized first", this_input});
  DotGeneralConfig mid = *FullyQuantized({.use_fwd_quant = false});
  mid.fwd.lhs_mid_alpha = 0.5;
  configs.push_back({"mid scales", mid});
  DotGeneralConfig rotated = *FullyQuantized({.use_stochastic_rounding = false});
  for (DotGeneralRawConfig* raw : {&rotated.fwd, &rotated.dlhs, &rotated.drhs}) raw->hadamard = Hadamard{.block = 8};
  for (TensorConfig* tensor : {&rotated.fwd.lhs, &rotated.fwd.rhs}) {
    std::get<IntSymmetric>(tensor->quantizer.numerics).clip_gradient = true;
  }
  configs.push_back({"hadamard", rotated});
  DotGeneralConfig local = *FullyQuantized({.use_fwd_quant = false});
  local.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2};
  configs.push_back({"LocalAqt", local});
  DotGeneralConfig tiled = *FullyQuantized({.use_fwd_quant = false});
  tiled.tiling = DotTiling{
      .lhs = {.contraction_axes = {{.axis = 1, .tile_count = 2}}, .remaining_axes = {}},
      .rhs = {.contraction_axes = {{.axis = 0, .tile_count = 2}}, .remaining_axes = {{.axis = 1, .tile_count = 2}}}};
  configs.push_back({"tiles", tiled});
  return configs;
}

TEST(ScratchBytes, AreWhatADotGeneralTakes) {
  for (const auto& [dtype, rows] : {std::pair(DType::kF32, kernels::kMaxFewRows),
                                    {DType::kF32, kernels::kMaxFewRows + 2},
                                    {DType::kBF16, int64_t{12}},
                                    {DType::kF16, int64_t{12}}}) {
    const Array lhs = RandomArray(dtype, {rows, 20}, 1), rhs = RandomArray(dtype, {20, 14}, 2),
                g = RandomArray(dtype, {rows, 14}, 3);
    for (const NamedConfig& named : Configs()) {
      for (const kernels::Target target : kernels::SupportedTargets()) {
        const PlanOptions options{.target = target};
        ExpectPlanned(absl::StrCat(named.name, " ", ToString(dtype), " ", ToString(target)),
                      DotGeneralPlan::Make(named.config, lhs.aval(), rhs.aval(), MatMulDims(), options),
                      [&](const DotGeneralPlan& plan, const Runtime& runtime) {
                        ArrayBuilder out(plan.out_aval());
                        const Context context{.key = MakeKey(0)};
                        ASSERT_EQ(plan.Forward(lhs, rhs, context, out.ref(), nullptr, runtime), absl::OkStatus());
                        RunPlan(plan, lhs, rhs, g, context, runtime);
                      });
      }
    }
  }
}

TEST(ScratchBytes, AreWhatARaggedDotTakes) {
  const Array lhs = RandomArray(DType::kF32, {12, 20}, 1), rhs = RandomArray(DType::kF32, {3, 20, 8}, 2),
              g = RandomArray(DType::kF32, {12, 8}, 3);
  for (const NamedConfig& named : Configs()) {
    if (named.name == "mid scales" || named.name == "hadamard" || named.name == "LocalAqt" || named.name == "tiles")
      continue;
    ExpectPlanned(named.name, RaggedDotPlan::Make(named.config, lhs.aval(), rhs.aval()),
                  [&](const RaggedDotPlan& plan, const Runtime& runtime) {
                    ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
                    Residuals residuals;
                    const std::vector<int64_t> sizes = {0, 12, 0};
                    const Context context{.key = MakeKey(0)};
                    for (Residuals* kept : {static_cast<Residuals*>(nullptr), &residuals}) {
                      ASSERT_EQ(plan.Forward(lhs, rhs, sizes, context, out.ref(), kept, runtime), absl::OkStatus());
                    }
                    ASSERT_EQ(plan.Backward(g, residuals, sizes, context, dlhs.ref(), drhs.ref(), runtime),
                              absl::OkStatus());
                  });
  }
}

TEST(ScratchBytes, AreWhatAConvolutionTakes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Array lhs = RandomArray(dtype, {2, 9, 7, 4}, 1), rhs = RandomArray(dtype, {3, 2, 2, 6}, 2);
    const ConvDims dims{.window_strides = {2, 1}, .padding = ConvPadding::kSame, .feature_group_count = 2};
    for (const auto& [lhs_bits, rhs_bits] : {std::pair<Bits, Bits>{8, 8}, {Bits(), Bits()}, {8, Bits()}, {4, 8}}) {
      const DotGeneralRawConfig config = ConvGeneralDilatedMake(/*spatial_dims=*/2, lhs_bits, rhs_bits);
      ExpectPlanned("conv", ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims),
                    [&](const ConvGeneralPlan& plan, const Runtime& runtime) {
                      ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
                      const Array g = RandomArray(dtype, plan.out_aval().shape, 3);
                      Residuals residuals;
                      for (Residuals* kept : {static_cast<Residuals*>(nullptr), &residuals}) {
                        ASSERT_EQ(plan.Forward(lhs, rhs, {}, out.ref(), kept, runtime), absl::OkStatus());
                      }
                      ASSERT_EQ(plan.Backward(g, residuals, dlhs.ref(), drhs.ref(), runtime), absl::OkStatus());
                    });
    }
  }
}

TEST(ScratchBytes, AreAtLeastWhatAnEinsumTakes) {
  const Array lhs = RandomArray(DType::kBF16, {6, 5, 3}, 1), rhs = RandomArray(DType::kF32, {5, 8}, 2),
              g = RandomArray(DType::kF32, {8, 6}, 3);
  for (const NamedConfig& named : Configs()) {
    if (named.name == "tiles" || named.name == "LocalAqt") continue;
    ExpectPlanned(named.name, EinsumPlan::Make("abx,bc->ca", named.config, lhs.aval(), rhs.aval()),
                  [&](const EinsumPlan& plan, const Runtime& runtime) {
                    ArrayBuilder out(plan.out_aval()), dlhs(plan.lhs_aval()), drhs(plan.rhs_aval());
                    Residuals residuals;
                    const Context context{.key = MakeKey(0)};
                    for (Residuals* kept : {static_cast<Residuals*>(nullptr), &residuals}) {
                      ASSERT_EQ(plan.Forward(lhs, rhs, context, out.ref(), kept, runtime), absl::OkStatus());
                    }
                    ASSERT_EQ(plan.Backward(g, residuals, context, dlhs.ref(), drhs.ref(), runtime), absl::OkStatus());
                  });
  }
}

// A prepared weight is not packed again: the call takes less than a plan that packs.
TEST(ScratchBytes, APreparedWeightTakesNoPanels) {
  const Array lhs = RandomArray(DType::kF32, {1, 512}, 1), rhs = RandomArray(DType::kF32, {512, 512}, 2);
  const DotGeneralPlan plan = *DotGeneralPlan::Make(*FullyQuantized({.use_stochastic_rounding = false}), lhs.aval(),
                                                    rhs.aval(), MatMulDims(), {.passes = PlanPasses::kForwardOnly});
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, rhs);
  ArrayBuilder out(plan.out_aval());
  Scratch scratch;
  ASSERT_EQ(plan.Forward(lhs, weight, {}, out.ref(), nullptr, {.scratch = &scratch}), absl::OkStatus());
  EXPECT_LT(scratch.num_bytes(), 64 * 1024);
  EXPECT_GT(plan.scratch_bytes(), 512 * 512);
}

// An observer that runs a contraction itself.
TEST(Scratch, AnObserverMayRunAPlan) {
  class Contracts final : public Observer {
   public:
    explicit Contracts(const DotGeneralPlan& plan) : plan_(plan) {}
    void OnTensor(absl::string_view, const ArrayRef&) override {
      const Array x = RandomArray(DType::kF32, {16, 16}, 5);
      ArrayBuilder out(plan_.out_aval());
      ASSERT_EQ(plan_.Forward(x, x, {}, out.ref()), absl::OkStatus());
    }

   private:
    const DotGeneralPlan& plan_;
  };
  const Array x = RandomArray(DType::kF32, {16, 16}, 1), y = RandomArray(DType::kF32, {16, 16}, 2);
  const DotGeneralPlan plan =
      *DotGeneralPlan::Make(*FullyQuantized({.use_stochastic_rounding = false}), x.aval(), y.aval(), MatMulDims());
  Contracts observer(plan);
  const PlanResults want = RunPlan(plan, x, y, x), got = RunPlan(plan, x, y, x, {}, {.observer = &observer});
  EXPECT_TRUE(SameResults(want, got));
}

}  // namespace
}  // namespace aqt
