// Every configuration, shape and call that dot_general.h rejects, with its code and message.

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

DotGeneralConfig Int8(bool use_fwd_quant = false) {
  return DotGeneralMake(8, 8, {.bwd_bits = 8, .use_fwd_quant = use_fwd_quant});
}

template <class F>
DotGeneralConfig With(F change, DotGeneralConfig config = Int8()) {
  change(config);
  return config;
}

struct Case {
  std::string message;
  DotGeneralConfig config;
  Aval lhs{DType::kF32, {4, 8}}, rhs{DType::kF32, {8, 5}};
  DotDims dims = MatMulDims();
  absl::StatusCode code = kInvalid;
};

void ExpectRefused(std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    const absl::Status status = DotGeneralPlan::Make(c.config, c.lhs, c.rhs, c.dims).status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_EQ(std::string(status.message()), c.message);
  }
}

void ThisInputOfLhs(DotGeneralConfig& c) { c.fwd.lhs.dequant_mode = DequantMode::kThisInput; }

// clang-format off
TEST(Make, RefusesOperands) {
  ExpectRefused({
      {"DotGeneral: lhs is f32[4,8], rhs bf16[8,5]; both must have one dtype: cast one of them", Int8(),
       {DType::kF32, {4, 8}}, {DType::kBF16, {8, 5}}},
      {"DotGeneral: operands are s8, expected f32, bf16 or f16", Int8(), {DType::kS8, {4, 8}}, {DType::kS8, {8, 5}}},
      {"DotGeneral: operands are f64, expected f32, bf16 or f16", Int8(), {DType::kF64, {4, 8}}, {DType::kF64, {8, 5}}},
      {"dot dims: contracting sizes differ: lhs [4,8] axis 1 = 8, rhs [7,5] axis 0 = 7", Int8(), {DType::kF32, {4, 8}},
       {DType::kF32, {7, 5}}},
  });
}

TEST(Make, RefusesModes) {
  ExpectRefused({
      {"fwd.lhs: DEQUANT_MODE_OUTPUT with CALIBRATION_MODE_REMAINING_AXIS: a scale that varies along a contracting "
       "axis cannot be applied to the product; use CALIBRATION_MODE_CONTRACTING_AXIS, or DEQUANT_MODE_THIS_INPUT",
       With([](DotGeneralConfig& c) { c.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis; })},
      {"fwd.rhs: DEQUANT_MODE_OTHER_INPUT with CALIBRATION_MODE_CONTRACTING_AXIS: a scale that varies along a "
       "remaining axis cannot be applied to the other operand; use CALIBRATION_MODE_REMAINING_AXIS",
       With([](DotGeneralConfig& c) { c.fwd.rhs.dequant_mode = DequantMode::kOtherInput; })},
      {"drhs.rhs: DEQUANT_MODE_OTHER_INPUT: scale of rhs has shape [1,8]: it varies along the remaining axis 1",
       With([](DotGeneralConfig& c) { c.drhs.rhs.dequant_mode = DequantMode::kOtherInput; })},
      {"dlhs.lhs: DEQUANT_MODE_OUTPUT: scale of lhs has shape [1,5]: it varies along the contracting axis 1",
       With([](DotGeneralConfig& c) { c.dlhs.lhs.calibration_mode = CalibrationMode::kRemainingAxis; })},
      {"fwd.rhs: DEQUANT_MODE_OTHER_INPUT multiplies the scale into the other operand, which is s8; it must be f32 or "
       "bf16: do not quantize that side, or give it DEQUANT_MODE_THIS_INPUT",
       With([](DotGeneralConfig& c) {
         c.fwd.rhs.dequant_mode = DequantMode::kOtherInput;
         c.fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
         c.fwd.dg_accumulator_dtype = std::nullopt;
       })},
      {"fwd.rhs: DEQUANT_MODE_OTHER_INPUT multiplies the scale into the other operand, which is f16; it must be f32 or "
       "bf16: do not quantize that side, or give it DEQUANT_MODE_THIS_INPUT",
       With(
           [](DotGeneralConfig& c) {
             c.fwd.rhs.dequant_mode = DequantMode::kOtherInput;
             c.fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
           },
           DotGeneralMake(std::nullopt, 8, {.use_fwd_quant = false})),
       {DType::kF16, {4, 8}}, {DType::kF16, {8, 5}}},
      {"fwd.lhs: DEQUANT_MODE_OUTPUT: scale of lhs has shape [1,8]: it varies along the contracting axis 1",
       With([](DotGeneralConfig& c) { c.fwd.lhs.quantizer.calib_shared_axes.axes = {0}; })},
  });
}

TEST(Make, RefusesAccumulators) {
  ExpectRefused({
      {"fwd: the accumulator is s32, but lhs enters the product as a float; s32 needs s4 or s8 on both sides (so no "
       "DEQUANT_MODE_THIS_INPUT): leave dg_accumulator_dtype out",
       With(ThisInputOfLhs)},
      {"dlhs: the accumulator is s32, but rhs enters the product as a float; s32 needs s4 or s8 on both sides (so no "
       "DEQUANT_MODE_THIS_INPUT): leave dg_accumulator_dtype out",
       With([](DotGeneralConfig& c) { c.dlhs.rhs.quantizer = {}; })},
      {"fwd: the accumulator is s32, but rhs enters the product as s2; s32 needs s4 or s8 on both sides (so no "
       "DEQUANT_MODE_THIS_INPUT): leave dg_accumulator_dtype out",
       With([](DotGeneralConfig& c) { c.fwd.rhs.quantizer.numerics = IntSymmetric{.bits = 2, .dtype = DType::kS2}; })},
      {"fwd: accumulator dtype s16, expected s32, f32, bf16, f16 or none",
       With([](DotGeneralConfig& c) { c.fwd.dg_accumulator_dtype = DType::kS16; })},
      {"fwd: a sum of 133145 products of up to 127 * 127 can overflow the s32 accumulator; use fewer bits, or an f32 "
       "accumulator",
       Int8(), {DType::kF32, {4, 133145}}, {DType::kF32, {133145, 5}}},
      {"fwd: a sum of 132105 products of up to 128 * 127 can overflow the s32 accumulator; use fewer bits, or an f32 "
       "accumulator",
       With([](DotGeneralConfig& c) { std::get<IntSymmetric>(c.fwd.lhs.quantizer.numerics).clip = false; }),
       {DType::kF32, {4, 132105}}, {DType::kF32, {132105, 5}}},
  });
}

TEST(Make, RefusesUseFwdQuant) {
  ExpectRefused({
      {"dlhs.rhs: use_fwd_quant takes the quantization of the operand in fwd, but that is not quantized",
       With([](DotGeneralConfig& c) { c.dlhs.rhs.use_fwd_quant = true; }, DotGeneralMake(8, std::nullopt))},
      {"drhs.rhs: use_fwd_quant takes the quantization of the operand in fwd, but that has "
       "CALIBRATION_MODE_REMAINING_AXIS; its scale cannot be multiplied into the gradient",
       With(
           [](DotGeneralConfig& c) {
             ThisInputOfLhs(c);
             c.fwd.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
             c.fwd.dg_accumulator_dtype = std::nullopt;
           },
           Int8(true))},
      {"dlhs.rhs: use_fwd_quant takes the quantization of the operand in fwd, but that has "
       "CALIBRATION_MODE_REMAINING_AXIS; its scale cannot be multiplied into the gradient",
       With(
           [](DotGeneralConfig& c) {
             c.fwd.rhs.dequant_mode = DequantMode::kThisInput;
             c.fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
             c.fwd.dg_accumulator_dtype = std::nullopt;
           },
           Int8(true))},
      {"dlhs.rhs: use_fwd_quant takes the quantization of the operand in fwd, but that has a bias",
       With(
           [](DotGeneralConfig& c) {
             c.fwd.rhs.dequant_mode = DequantMode::kThisInput;
             c.fwd.rhs.quantizer.calibration = Constant{.bound = 1.0, .bias = 0.5};
             c.fwd.dg_accumulator_dtype = std::nullopt;
           },
           Int8(true))},
      {"use_fwd_quant: scale of rhs has shape [8,1]: it varies along the remaining axis 0",
       With(
           [](DotGeneralConfig& c) {
             c.fwd.rhs.dequant_mode = DequantMode::kThisInput;
             c.fwd.rhs.quantizer.calib_shared_axes.axes = {1};
             c.fwd.dg_accumulator_dtype = std::nullopt;
           },
           Int8(true))},
      {"fwd.lhs: use_fwd_quant applies only to dlhs.rhs and drhs.rhs",
       With([](DotGeneralConfig& c) { c.fwd.lhs.use_fwd_quant = true; })},
      {"drhs.lhs: use_fwd_quant applies only to dlhs.rhs and drhs.rhs",
       With([](DotGeneralConfig& c) { c.drhs.lhs.use_fwd_quant = true; })},
  });
}

TEST(Make, RefusesMidAlphas) {
  ExpectRefused({
      {"fwd: mid alphas need CALIBRATION_MODE_CONTRACTING_AXIS on both sides, but rhs has "
       "CALIBRATION_MODE_REMAINING_AXIS",
       With([](DotGeneralConfig& c) {
         c.fwd.lhs_mid_alpha = 0.5;
         c.fwd.rhs.calibration_mode = CalibrationMode::kRemainingAxis;
         c.fwd.rhs.dequant_mode = DequantMode::kThisInput;
       })},
      {"dlhs: rhs_mid_alpha = nan, expected a finite number",
       With([](DotGeneralConfig& c) { c.dlhs.rhs_mid_alpha = std::nan(""); })},
  });
}

TEST(Make, RefusesTensors) {
  ExpectRefused({
      {"fwd.rhs: a calibration with a bias needs DEQUANT_MODE_THIS_INPUT, not DEQUANT_MODE_OUTPUT",
       With([](DotGeneralConfig& c) { c.fwd.rhs.quantizer.calibration = Constant{.bound = 1.0, .bias = 0.5}; })},
      {"dlhs.lhs: IntSymmetric: bits = 23, but 1 to 22 can be represented",
       With([](DotGeneralConfig& c) { c.dlhs.lhs.quantizer.numerics = IntSymmetric{.bits = 23, .dtype = std::nullopt}; })},
      {"fwd.lhs: Quantizer: int8:s8 needs a calibration, such as AbsMax",
       With([](DotGeneralConfig& c) { c.fwd.lhs.quantizer.calibration.reset(); })},
      {"fwd.lhs: Constant: bound = 0, expected a number > 0 that f32 holds",
       With([](DotGeneralConfig& c) { c.fwd.lhs.quantizer.calibration = Constant{.bound = 0.0}; })},
      {"fwd.lhs: Quantizer: shared axes of f32[4,8]: axis 2 is out of range for rank 2 (-2 to 1 are allowed)",
       With([](DotGeneralConfig& c) { c.fwd.lhs.quantizer.calib_shared_axes.axes = {2}; })},
  });
}

// Dlhs contracts the 5 columns of rhs, drhs the 4 rows of lhs.
TEST(Make, RefusesLocalAqt) {
  ExpectRefused({
      {"dlhs: local_aqt: needs a contraction_axis_shard_count",
       With([](DotGeneralConfig& c) { c.dlhs.local_aqt = LocalAqt{}; })},
      {"drhs: local_aqt: contraction_axis_shard_size belongs to tile_largest_shape; set that, or use "
       "contraction_axis_shard_count",
       With([](DotGeneralConfig& c) {
         c.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2, .contraction_axis_shard_size = 2};
       })},
      {"drhs: local_aqt: tile_largest_shape needs a contraction_axis_shard_size",
       With([](DotGeneralConfig& c) { c.drhs.local_aqt = LocalAqt{.tile_largest_shape = true}; })},
      {"drhs: local_aqt: tile_largest_shape cuts by contraction_axis_shard_size; leave contraction_axis_shard_count "
       "out",
       With([](DotGeneralConfig& c) {
         c.drhs.local_aqt = LocalAqt{
             .contraction_axis_shard_count = 2, .contraction_axis_shard_size = 2, .tile_largest_shape = true};
       })},
      {"dlhs: local_aqt: contraction_axis_shard_count = 0, expected at least 1",
       With([](DotGeneralConfig& c) { c.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 0}; })},
      {"drhs: local_aqt: contraction_axis_shard_size = -1, expected at least 1",
       With([](DotGeneralConfig& c) {
         c.drhs.local_aqt = LocalAqt{.contraction_axis_shard_size = -1, .tile_largest_shape = true};
       })},
      {"dlhs: local_aqt: contracting axis 1 of lhs [4,5] (axis 1 of rhs) has extent 5, which is not a multiple of "
       "contraction_axis_shard_count = 2",
       With([](DotGeneralConfig& c) { c.dlhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2}; })},
      {"drhs: local_aqt: contracting axis 0 of lhs [4,5] (axis 0 of rhs) has extent 4, which is not a multiple of "
       "contraction_axis_shard_size = 3",
       With([](DotGeneralConfig& c) {
         c.drhs.local_aqt = LocalAqt{.contraction_axis_shard_size = 3, .tile_largest_shape = true};
       })},
      {"drhs.rhs: calib_shared_axes cannot be set with local_aqt, which gives each part its own scales",
       With([](DotGeneralConfig& c) {
         c.drhs.local_aqt = LocalAqt{.contraction_axis_shard_count = 2};
         c.drhs.rhs.quantizer.calib_shared_axes.per_tensor = true;
       })},
      {"fwd: local_aqt applies only to dlhs and drhs",
       With([](DotGeneralConfig& c) { c.fwd.local_aqt = LocalAqt{}; })},
  });
}

TEST(Make, RefusesTilings) {
  ExpectRefused({
      {"lhs: tiling: axis 2 is out of range for shape [4,8]",
       With([](DotGeneralConfig& c) { c.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = 2, .tile_size = 2}}}}; })},
      {"rhs: tiling: axis 1 of shape [8,5] cannot be cut into parts of size 2",
       With([](DotGeneralConfig& c) { c.tiling = DotTiling{.rhs = {.remaining_axes = {{.axis = 1, .tile_size = 2}}}}; })},
      {"tiling: lhs.contraction_axes names axis 0, but the contracting axes of lhs are [1]",
       With([](DotGeneralConfig& c) { c.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = 0, .tile_size = 2}}}}; })},
      {"tiling: rhs.remaining_axes names axis 0, but the remaining axes of rhs are [1]",
       With([](DotGeneralConfig& c) { c.tiling = DotTiling{.rhs = {.remaining_axes = {{.axis = -2, .tile_size = 2}}}}; })},
      {"tiling: contraction_axes cut 1 axes of lhs and 0 of rhs; they are cut in pairs",
       With([](DotGeneralConfig& c) { c.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = 1, .tile_size = 2}}}}; })},
      {"tiling: contraction_axes[0]: axis 1 of lhs has 4 tiles, axis 0 of rhs has 2; they must have equally many",
       With([](DotGeneralConfig& c) {
         c.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = 1, .tile_count = 4}}},
                              .rhs = {.contraction_axes = {{.axis = 0, .tile_count = 2}}}};
       })},
      {"tiling: contraction_axes[0] cuts axis 0 of lhs and axis 1 of rhs, but axis 0 of lhs is contracted with axis 0 "
       "of rhs; give this contraction a rule with a tiling of its own axes",
       With([](DotGeneralConfig& c) {
         c.tiling = DotTiling{.lhs = {.contraction_axes = {{.axis = 0, .tile_count = 2}}},
                              .rhs = {.contraction_axes = {{.axis = 1, .tile_count = 2}}}};
       }),
       {DType::kF32, {4, 4}}, {DType::kF32, {4, 4}}, DotDims{.lhs_contracting = {0, 1}, .rhs_contracting = {0, 1}}},
  });
}
// clang-format on

TEST(Make, AcceptsTheLargestSums) {
  EXPECT_TRUE(DotGeneralPlan::Make(Int8(), {DType::kF32, {1, 133144}}, {DType::kF32, {133144, 1}}, MatMulDims()).ok());
  EXPECT_TRUE(DotGeneralPlan::Make(DotGeneralMake(4, 4), {DType::kF32, {1, 40000000}}, {DType::kF32, {40000000, 1}},
                                   MatMulDims())
                  .ok());
}

// All pairs of modes on each of the six sides; the other side of the product is not quantized. In dlhs and drhs the
// error reports the scale that does not fit.
TEST(Make, LegalModePairs) {
  for (const bool lhs : {true, false}) {
    for (DotGeneralRawConfig DotGeneralConfig::*const raw :
         {&DotGeneralConfig::fwd, &DotGeneralConfig::dlhs, &DotGeneralConfig::drhs}) {
      for (const DequantMode dequant : {DequantMode::kOutput, DequantMode::kThisInput, DequantMode::kOtherInput}) {
        for (const CalibrationMode calibration : {CalibrationMode::kContractingAxis, CalibrationMode::kRemainingAxis}) {
          DotGeneralConfig config = DefaultUnquantizedConfig();
          TensorConfig& tensor = lhs ? (config.*raw).lhs : (config.*raw).rhs;
          tensor.quantizer = QuantizerMake(8);
          tensor.dequant_mode = dequant;
          tensor.calibration_mode = calibration;
          const bool contracting = calibration == CalibrationMode::kContractingAxis;
          const bool legal = dequant == DequantMode::kThisInput || contracting == (dequant == DequantMode::kOutput);
          const absl::Status status =
              DotGeneralPlan::Make(config, {DType::kF32, {4, 8}}, {DType::kF32, {8, 5}}, MatMulDims()).status();
          EXPECT_EQ(status.code(), legal ? absl::StatusCode::kOk : kInvalid) << dequant << calibration << status;
          if (legal) continue;
          const char* const name = raw == &DotGeneralConfig::fwd    ? "fwd"
                                   : raw == &DotGeneralConfig::dlhs ? "dlhs"
                                                                    : "drhs";
          const std::string problem = raw == &DotGeneralConfig::fwd
                                          ? absl::StrCat(" with ", ToString(calibration), ": ")
                                          : absl::StrCat(": scale of ", lhs ? "lhs" : "rhs");
          EXPECT_EQ(std::string(status.message())
                        .find(absl::StrCat(name, lhs ? ".lhs: " : ".rhs: ", ToString(dequant), problem)),
                    0u)
              << status;
        }
      }
    }
  }
}

TEST(Calls, RefuseArraysAndContextsThatDoNotFit) {
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(FullyQuantized(), {DType::kF32, {4, 8}}, {DType::kF32, {8, 5}}, MatMulDims());
  const absl::StatusOr<DotGeneralPlan> other =
      DotGeneralPlan::Make(Int8(), {DType::kF32, {4, 8}}, {DType::kF32, {8, 5}}, MatMulDims());
  ASSERT_TRUE(plan.ok() && other.ok());
  EXPECT_FALSE(plan->ForwardNeedsKey());
  EXPECT_TRUE(plan->BackwardNeedsKey());
  const Array lhs = Array::Zeros(DType::kF32, {4, 8}), rhs = Array::Zeros(DType::kF32, {8, 5});
  const Array g = Array::Zeros(DType::kF32, {4, 5});
  ArrayBuilder out(plan->out_aval()), dlhs(plan->lhs_aval());
  const Context context{.key = MakeKey(0)};
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const std::string& message) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(std::string(status.message()), message);
  };
  expect(plan->Forward(g, rhs, context, out.ref()), kInvalid,
         "DotGeneral: lhs is f32[4,5], but the plan is for f32[4,8]");
  expect(plan->Forward(lhs, g, context, out.ref()), kInvalid,
         "DotGeneral: rhs is f32[4,5], but the plan is for f32[8,5]");
  expect(plan->Forward(lhs, rhs, context, dlhs.ref()), kInvalid,
         "DotGeneral: out is f32[4,8], but the plan is for f32[4,5]");

  Residuals residuals, none;
  ASSERT_TRUE(plan->Forward(lhs, rhs, {}, out.ref(), &residuals).ok());
  expect(plan->Backward(lhs, residuals, context, dlhs.ref(), std::nullopt), kInvalid,
         "DotGeneral: g is f32[4,8], but the plan is for f32[4,5]");
  expect(plan->Backward(g, residuals, context, out.ref(), std::nullopt), kInvalid,
         "DotGeneral: dlhs is f32[4,5], but the plan is for f32[4,8]");
  expect(plan->Backward(g, residuals, {}, dlhs.ref(), std::nullopt), absl::StatusCode::kFailedPrecondition,
         "DotGeneral: Backward rounds stochastically and draws random numbers: set Context::key");
  expect(plan->Backward(g, none, context, dlhs.ref(), std::nullopt), absl::StatusCode::kFailedPrecondition,
         "DotGeneral: Backward needs the 4 residuals of a Forward, but got 0");
  ASSERT_TRUE(other->Forward(lhs, rhs, {}, out.ref(), &none).ok());
  expect(plan->Backward(g, none, context, dlhs.ref(), std::nullopt), absl::StatusCode::kFailedPrecondition,
         "DotGeneral: Backward needs the 4 residuals of a Forward, but got 2");
  const std::vector<Array> wrong{g, g, g, g};
  expect(plan->Backward(g, Residuals::FromArrays(wrong), context, dlhs.ref(), std::nullopt), kInvalid,
         "DotGeneral: residual 0 is f32[4,5], but this plan keeps s8[4,8]: it belongs to another plan");
  const absl::StatusOr<DotGeneralPlan> mid = DotGeneralPlan::Make(
      With([](DotGeneralConfig& c) { c.fwd.lhs_mid_alpha = 0.5; }), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(mid.ok());
  expect(mid->Prepare(Side::kLhs, lhs).status(), kInvalid,
         "DotGeneral: the tensor for fwd.lhs: with mid alphas a quantized operand depends on the other one");
  const absl::StatusOr<DotGeneralPlan> plain =
      DotGeneralPlan::Make(DefaultUnquantizedConfig(), lhs.aval(), rhs.aval(), MatMulDims());
  ASSERT_TRUE(plain.ok());
  expect(plain->Prepare(Side::kLhs, QTensor{}).status(), kInvalid,
         "DotGeneral: the tensor for fwd.lhs: this side is not quantized");
  expect(plain->Prepare(Side::kLhs, QTensor{.qvalue = rhs}).status(), kInvalid,
         "DotGeneral: the tensor for fwd.lhs is f32[8,5], but the plan is for f32[4,8]");
}

// Make of every kind of plan checks this, so calls need not. Runs on machines without VNNI, and with --config=scalar.
TEST(Make, RefusesATargetThatThisMachineDoesNotRun) {
  const PlanOptions options{.target = kernels::Target::kAvx512Vnni};
  if (kernels::IsSupported(*options.target)) GTEST_SKIP() << "this machine runs all targets";
  const Aval lhs{DType::kF32, {4, 8}}, rhs{DType::kF32, {8, 5}}, experts{DType::kF32, {2, 8, 5}};
  const Aval x{DType::kF32, {2, 7, 3}}, kernel{DType::kF32, {3, 3, 4}};
  const absl::Status statuses[] = {
      DotGeneralPlan::Make(Int8(), lhs, rhs, MatMulDims(), options).status(),
      EinsumPlan::Make("ab,bc->ac", Int8(), lhs, rhs, options).status(),
      RaggedDotPlan::Make(Int8(), lhs, experts, options).status(),
      ConvGeneralPlan::Make(ConvGeneralDilatedMake(1, 8, 8), x, kernel, {}, options).status(),
      QuantizedDotGeneral(Int8(), Array::Zeros(DType::kF32, {4, 8}), Array::Zeros(DType::kF32, {8, 5}), MatMulDims(),
                          {}, options)
          .status(),
  };
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), kInvalid);
    EXPECT_THAT(status.message(),
                ::testing::HasSubstr("PlanOptions: this machine does not run the target avx512_vnni"));
  }
}

}  // namespace
}  // namespace aqt
