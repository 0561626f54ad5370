// Random convolutions. AQT_TEST_SEED=N AQT_TEST_CASES=1 repeats a failing case.

#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/config/semantics.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/allocation_count.h"

namespace aqt {
namespace {

// ---- errors of the plan

DotGeneralRawConfig Int8(int spatial_dims = 1) { return ConvGeneralDilatedMake(spatial_dims, 8, 8); }

TEST(ConvGeneralPlan, ErrorsNameSideAndRemedy) {
  const Aval lhs{DType::kF32, {1, 8, 4}}, rhs{DType::kF32, {3, 4, 6}};
  const auto error = [&](const DotGeneralRawConfig& config, const Aval& l, const Aval& r) {
    const absl::Status status = ConvGeneralPlan::Make(config, l, r, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error(Int8(), lhs, {DType::kBF16, {3, 4, 6}}),
            "conv_general: lhs is f32[1,8,4], rhs bf16[3,4,6]; both must have one dtype, f32, bf16 or f16");
  DotGeneralRawConfig config = Int8();
  config.lhs.calibration_mode = CalibrationMode::kRemainingAxis;
  config.lhs.dequant_mode = DequantMode::kOtherInput;
  EXPECT_EQ(error(config, lhs, rhs),
            "conv_general: lhs: DEQUANT_MODE_OTHER_INPUT with CALIBRATION_MODE_REMAINING_AXIS; expected "
            "DEQUANT_MODE_OUTPUT or "
            "DEQUANT_MODE_THIS_INPUT, with CALIBRATION_MODE_CONTRACTING_AXIS");
  config = Int8();
  config.rhs.quantizer.calib_shared_axes.axes = {0};
  EXPECT_EQ(error(config, lhs, rhs),
            "conv_general: fwd.rhs: DEQUANT_MODE_OUTPUT: scale of rhs has shape [1,4,6]: it varies along axis 1, but "
            "only along the output channel (the last axis) can it be multiplied onto the result; use "
            "DEQUANT_MODE_THIS_INPUT for others");
  config = Int8();
  config.lhs_mid_alpha = 0.5;
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: mid alphas do not apply to a convolution");
  config = Int8();
  config.local_aqt = LocalAqt{};
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: local_aqt does not apply to a convolution");
  config = Int8();
  config.rhs.use_fwd_quant = true;
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: rhs: use_fwd_quant does not apply to a convolution");
  config = Int8();
  config.dg_accumulator_dtype = DType::kS8;
  EXPECT_EQ(error(config, lhs, rhs), "conv_general: accumulator dtype s8, expected s32, f32, bf16, f16 or none");
}

TEST(ConvGeneralPlan, CallsNameWhatDoesNotFit) {
  const Array lhs = RandomArray(DType::kF32, {1, 8, 4}, 1), rhs = RandomArray(DType::kF32, {3, 4, 6}, 2);
  DotGeneralRawConfig config = Int8();
  const ConvGeneralPlan plan = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  ArrayBuilder out(plan.out_aval());
  Residuals residuals;
  EXPECT_EQ(plan.Forward(rhs, rhs, {}, out.ref()),
            absl::InvalidArgumentError("conv_general: lhs is f32[3,4,6], but the plan is for f32[1,8,4]"));
  EXPECT_EQ(plan.Backward(out.ref(), residuals, std::nullopt, std::nullopt),
            absl::FailedPreconditionError("conv_general: Backward needs the 4 residuals of a Forward, but got 0"));
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, rhs);
  EXPECT_EQ(
      plan.Forward(lhs, weight, {}, out.ref(), &residuals),
      absl::InvalidArgumentError("conv_general: the gradient of a prepared operand is not defined; pass the float "
                                 "operand, or no Residuals"));
  QTensor per_input = *Quantize(config.rhs.quantizer, rhs, {});
  per_input.scale[0] = Array::Zeros(DType::kF32, {1, 4, 6});
  EXPECT_EQ(plan.Prepare(Side::kRhs, per_input).status(),
            absl::InvalidArgumentError("conv_general: the tensor for rhs: scale of rhs has shape [1,4,6]: it varies "
                                       "along axis 1, but only along the "
                                       "output channel (the last axis) can it be multiplied onto the result; use "
                                       "DEQUANT_MODE_THIS_INPUT for others"));
  class : public PlainProduct {
    void Contract(absl::string_view, const ArrayRef&, const ArrayRef&, const DotDims&,
                  const MutableArrayRef&) override {}
  } product;
  EXPECT_EQ(plan.Forward(lhs, rhs, {}, out.ref(), nullptr, {.product = &product}),
            absl::InvalidArgumentError("conv_general: Runtime::product contracts; it cannot convolve. Leave it null"));
  std::get<IntSymmetric>(config.lhs.quantizer.numerics).noise = Noise{};
  const ConvGeneralPlan noisy = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  EXPECT_EQ(noisy.Forward(lhs, rhs, {}, out.ref()),
            absl::FailedPreconditionError(
                "conv_general: Forward rounds stochastically and draws random numbers: set Context::key"));
}

// ---- exact values

TEST(ConvGeneralPlan, CountsByHand) {
  const DotGeneralRawConfig config = ConvGeneralDilatedMake(1, std::nullopt, std::nullopt);
  const Array lhs = Array::Of<float>({1, 2, 3, 4}, {1, 4, 1}), rhs = Array::Of<float>({1, 10, 100}, {3, 1, 1});
  const auto conv = [&](const ConvDims& dims) {
    const Array out = *QuantizedConvGeneral(config, lhs, rhs, dims);
    return std::vector<float>(out.View<float>().begin(), out.View<float>().end());
  };
  EXPECT_EQ(conv({}), (std::vector<float>{321, 432}));
  EXPECT_EQ(conv({.padding = ConvPadding::kSame}), (std::vector<float>{210, 321, 432, 43}));
  EXPECT_EQ(conv({.window_strides = {2}, .padding = ConvPadding::kSame}), (std::vector<float>{321, 43}));
  EXPECT_EQ(conv({.padding = ConvPadding::kExplicit, .explicit_padding = {{0, 0}}, .lhs_dilation = {2}}),
            (std::vector<float>{201, 20, 302, 30, 403}));
  EXPECT_EQ(conv({.padding = ConvPadding::kExplicit, .explicit_padding = {{1, 1}}, .rhs_dilation = {2}}),
            (std::vector<float>{420, 31}));
}

// 1100 products of 127 * 127 pass 2^24: the sum is exact and rounded once.
TEST(ConvGeneralPlan, SumsAbove24BitsAreExact) {
  const DotGeneralRawConfig config = [] {
    DotGeneralRawConfig raw = ConvGeneralDilatedMake(1, 8, 8);
    for (TensorConfig* t : {&raw.lhs, &raw.rhs}) std::get<IntSymmetric>(t->quantizer.numerics).preserve_max_val = true;
    return raw;
  }();
  std::vector<float> lhs(1101, 127.0f), rhs(1101, 127.0f);
  lhs[1100] = 1;
  rhs[1100] = 1;
  const Array out =
      *QuantizedConvGeneral(config, ArrayRef(lhs.data(), {1, 1101, 1}), ArrayRef(rhs.data(), {1101, 1, 1}), {});
  EXPECT_EQ(out.View<float>()[0], static_cast<float>(1100 * 127 * 127 + 1)) << "scales are 1";
}

// ---- stored tensors

TEST(ConvGeneralPlan, TakesStoredTensors) {
  const Array lhs = RandomArray(DType::kBF16, {2, 6, 5, 3}, 1), rhs = RandomArray(DType::kBF16, {3, 3, 3, 4}, 2);
  const DotGeneralRawConfig config = ConvGeneralDilatedMake(2, 8, 4);
  const ConvGeneralPlan plan = *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {});
  const Array want = *QuantizedConvGeneral(config, lhs, rhs, {});
  const QTensor stored = *Quantize(config.rhs.quantizer, rhs, {});
  EXPECT_EQ(stored.scale[0].shape(), (Shape{1, 1, 1, 4}));
  QTensor range = *Quantize(config.lhs.quantizer, lhs, {});
  EXPECT_EQ(range.scale[0].shape(), (Shape{2, 1, 1, 1}));
  range.qvalue = std::nullopt;
  const PreparedOperand weight = *plan.Prepare(Side::kRhs, stored), scales = *plan.Prepare(Side::kLhs, range);
  ArrayBuilder out(plan.out_aval());
  ASSERT_EQ(plan.Forward(DotOperand(lhs, scales), weight, {}, out.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(out).Build(), want));
  // Two scales for one tensor: 0.5 and 2 times the original.
  QTensor two = stored;
  two.scale = {Cast(stored.scale[0], DType::kBF16), Array::Scalar(1.0f)};
  two.scale[1] = *two.scale[1].Reshaped({1, 1, 1, 1});
  const ConvGeneralPlan f32 =
      *ConvGeneralPlan::Make(config, {DType::kF32, lhs.shape()}, {DType::kF32, rhs.shape()}, {});
  const PreparedOperand doubled = *f32.Prepare(Side::kRhs, two);
  const Array wide = Cast(lhs, DType::kF32);
  ArrayBuilder general(f32.out_aval()), fused(f32.out_aval());
  ASSERT_EQ(f32.Forward(wide, doubled, {}, general.ref()), absl::OkStatus());
  two.scale.pop_back();
  ASSERT_EQ(f32.Forward(wide, *f32.Prepare(Side::kRhs, two), {}, fused.ref()), absl::OkStatus());
  EXPECT_TRUE(BitEqual(std::move(general).Build(), std::move(fused).Build()));
}

TEST(ConvGeneralPlan, NothingIsAllocatedAfterTheFirstCall) {
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const DotGeneralRawConfig config = ConvGeneralDilatedMake(2, bits, bits);
    const Array lhs = RandomArray(DType::kF32, {2, 9, 8, 3}, 1), rhs = RandomArray(DType::kF32, {3, 3, 3, 4}, 2);
    const ConvGeneralPlan plan =
        *ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), {.padding = ConvPadding::kSame});
    const Array g = RandomArray(DType::kF32, plan.out_aval().shape, 3);
    ArrayBuilder out(plan.out_aval()), dlhs(lhs.aval()), drhs(rhs.aval());
    const PreparedOperand weight = bits.quantized() ? *plan.Prepare(Side::kRhs, rhs) : PreparedOperand();
    const DotOperand served = bits.quantized() ? DotOperand(weight) : DotOperand(rhs);
    Residuals residuals;
    for (int call = 0; call < 3; ++call) {
      const int64_t before = testing::AllocationCount();
      const bool ok = plan.Forward(lhs, served, {}, out.ref()).ok() &&
                      plan.Forward(lhs, rhs, {}, out.ref(), &residuals).ok() &&
                      plan.Backward(g, residuals, dlhs.ref(), drhs.ref()).ok();
      const int64_t during = testing::AllocationCount() - before;
      ASSERT_TRUE(ok);
      EXPECT_EQ(during > 0, call == 0) << during;
    }
  }
}

// Views: transposed, strided operands and results, and panels cut into several chunks.
TEST(ConvGeneralPlan, TakesAnyStrides) {
  const Array lhs = RandomArray(DType::kF32, {2, 9, 3}, 1), rhs = RandomArray(DType::kF32, {3, 3, 4}, 2);
  const Array lhs_t = RandomArray(DType::kF32, {3, 9, 2}, 1), rhs_t = RandomArray(DType::kF32, {4, 3, 3}, 2);
  const ArrayRef lhs_view(DType::kF32, {2, 9, 3}, {1, 2, 18}, lhs_t.data()),
      rhs_view(DType::kF32, {3, 3, 4}, {1, 3, 9}, rhs_t.data());
  for (const Bits bits : {Bits(8), Bits(std::nullopt)}) {
    const ConvGeneralPlan plan =
        *ConvGeneralPlan::Make(ConvGeneralDilatedMake(1, bits, bits), lhs.aval(), rhs.aval(), {});
    ArrayBuilder dense(plan.out_aval()), wide(DType::kF32, {4, 7, 4});
    ASSERT_EQ(plan.Forward(lhs_view, rhs_view, {}, dense.ref()), absl::OkStatus());
    const MutableArrayRef every_second(DType::kF32, {2, 7, 4}, {56, 4, 1}, wide.data());
    ASSERT_EQ(plan.Forward(Array::CopyOf(lhs_view), Array::CopyOf(rhs_view), {}, every_second), absl::OkStatus());
    EXPECT_TRUE(BitEqual(std::move(dense).Build(), Array::CopyOf(every_second)));
  }
}

TEST(ConvGeneralPlan, ManyWindowsAreTakenInParts) {
  // One example's windows take 3 * 3 * 64 * 96 * 96 = 5.3 MB in s8 and 21 MB in f32: examples are packed one by one,
  // and in f32 also kernel rows.
  const Array lhs = RandomArray(DType::kF32, {3, 98, 98, 64}, 1), rhs = RandomArray(DType::kF32, {3, 3, 64, 2}, 2);
  const DotGeneralRawConfig config = Int8(2);
  const Array got = *QuantizedConvGeneral(config, lhs, rhs, {});
  const Array last(Aval{DType::kF32, {1, 98, 98, 64}}, {lhs.buffer(), lhs.View<float>().data() + 2 * 98 * 98 * 64});
  const Array one = *QuantizedConvGeneral(config, last, rhs, {}, {}, {.semantics = {.arithmetic = Arithmetic::kIeee}});
  const Array ieee = *QuantizedConvGeneral(config, lhs, rhs, {}, {}, {.semantics = {.arithmetic = Arithmetic::kIeee}});
  EXPECT_TRUE(BitEqual(one, Array::CopyOf(ArrayRef(ieee.View<float>().data() + 2 * 96 * 96 * 2, {1, 96, 96, 2}))));
  EXPECT_EQ(got.num_elements(), 3 * 96 * 96 * 2);
}

}  // namespace
}  // namespace aqt
