// Properties of a contraction and its gradients that hold for any kernels: if scales are powers of two, the result does
// not depend on where they are applied; the gradients of the float contraction are its derivatives; and gradients pass
// straight through quantization.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

const DotDims kBatched = {.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};

// A forward contraction of integers in floating point containers, which every mode accepts, with power-of-two scales.
DotGeneralConfig PowersOfTwo(int bits, bool per_tensor, std::pair<DequantMode, CalibrationMode> lhs,
                             std::pair<DequantMode, CalibrationMode> rhs) {
  DotGeneralConfig config;
  for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs}) {
    tensor->quantizer.numerics = IntSymmetric{.bits = bits, .dtype = std::nullopt};
    tensor->quantizer.calib_shared_axes.per_tensor = per_tensor;
    tensor->quantizer.calibration = AbsMax{.po2_scale = true};
    std::tie(tensor->dequant_mode, tensor->calibration_mode) = tensor == &config.fwd.lhs ? lhs : rhs;
  }
  return config;
}

// Products of qvalues and of powers of two are exact, so each mode adds the same numbers, or the same ones times a
// power of two, in the same order. With one scale per tensor all modes agree, with s8 and s32 too (sums of 90 products
// of 8 bits are exact in f32); with one per channel those that share it along the same axes.
TEST(DotGeneral, DequantModesAgreeForPowersOfTwo) {
  constexpr auto kContracting = CalibrationMode::kContractingAxis, kRemaining = CalibrationMode::kRemainingAxis;
  using Modes = std::pair<DequantMode, CalibrationMode>;
  const Modes output{DequantMode::kOutput, kContracting}, this_input{DequantMode::kThisInput, kContracting},
      this_remaining{DequantMode::kThisInput, kRemaining}, other{DequantMode::kOtherInput, kRemaining};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    // The scale of another operand cannot be multiplied into f16, and sums of 8 bits overflow there.
    const int bits = dtype == DType::kF16 ? 4 : 8;
    const Array lhs = RandomArray(dtype, {2, 9, 90}, 1, 3), rhs = RandomArray(dtype, {2, 90, 7}, 2, 0.1f);
    const auto run = [&](const DotGeneralConfig& config) {
      absl::StatusOr<Array> out = QuantizedDotGeneral(config, lhs, rhs, kBatched);
      EXPECT_TRUE(out.ok()) << out.status();
      return std::move(out).value_or(Array::Scalar(0.0f));
    };
    std::vector<Modes> all{output, this_input, this_remaining};
    if (dtype != DType::kF16) all.push_back(other);
    const Array want = run(PowersOfTwo(bits, true, output, output));
    DotGeneralConfig packed = DotGeneralMake(bits, bits, {.use_fwd_quant = false});
    for (TensorConfig* tensor : {&packed.fwd.lhs, &packed.fwd.rhs}) {
      tensor->quantizer.calibration = AbsMax{.po2_scale = true};
      tensor->quantizer.calib_shared_axes.per_tensor = true;
    }
    EXPECT_TRUE(BitEqual(run(packed), want)) << ToString(dtype);
    for (const Modes& left : all) {
      for (const Modes& right : all) {
        EXPECT_TRUE(BitEqual(run(PowersOfTwo(bits, true, left, right)), want))
            << ToString(dtype) << " " << left.first << " " << right.first;
      }
    }
    EXPECT_TRUE(
        BitEqual(run(PowersOfTwo(bits, false, this_input, this_input)), run(PowersOfTwo(bits, false, output, output))))
        << ToString(dtype);
    EXPECT_TRUE(
        BitEqual(run(PowersOfTwo(bits, false, output, this_input)), run(PowersOfTwo(bits, false, this_input, output))))
        << ToString(dtype);
    if (dtype == DType::kF16) continue;
    for (const Modes& same : {output, this_input}) {
      EXPECT_TRUE(
          BitEqual(run(PowersOfTwo(bits, false, other, same)), run(PowersOfTwo(bits, false, this_remaining, same))))
          << ToString(dtype);
      EXPECT_TRUE(
          BitEqual(run(PowersOfTwo(bits, false, same, other)), run(PowersOfTwo(bits, false, same, this_remaining))))
          << ToString(dtype);
    }
  }
}

// The contraction is linear in each operand, so its derivative by an element is its value at a unit vector, without
// error: dlhs[i] = sum of g * (e_i x rhs). Sums of n products in f32 differ by at most n * 2^-24 * (1 + 2^-10) of the
// sum of absolute values.
TEST(DotGeneral, UnquantizedGradientsEqualDifferences) {
  struct Case {
    Shape lhs, rhs;
    DotDims dims;
  };
  const Case cases[] = {
      {{4, 8}, {8, 5}, MatMulDims()},
      {{2, 6, 7}, {2, 7, 3}, kBatched},
      {{3, 4, 5, 2},
       {2, 4, 6, 3},
       {.lhs_contracting = {1, 0}, .rhs_contracting = {1, 3}, .lhs_batch = {3}, .rhs_batch = {0}}},
      {{3}, {4}, {}},
      {{6}, {6}, {.lhs_contracting = {0}, .rhs_contracting = {0}}},
  };
  for (const Case& c : cases) {
    const Array lhs = RandomArray(DType::kF32, c.lhs, 1), rhs = RandomArray(DType::kF32, c.rhs, 2);
    const absl::StatusOr<DotGeneralPlan> plan =
        DotGeneralPlan::Make(DefaultUnquantizedConfig(), lhs.aval(), rhs.aval(), c.dims);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Array g = RandomArray(DType::kF32, plan->out_aval().shape, 3);
    const PlanResults got = RunPlan(*plan, lhs, rhs, g);
    for (const Side side : {Side::kLhs, Side::kRhs}) {
      const Array& x = side == Side::kLhs ? lhs : rhs;
      const Array& d = side == Side::kLhs ? got.dlhs : got.drhs;
      for (int64_t i = 0; i < x.num_elements(); ++i) {
        ArrayBuilder unit(x.aval()), out(plan->out_aval());
        unit.Mutable<float>()[i] = 1;
        const MutableArrayRef e = unit.ref();
        ASSERT_EQ(side == Side::kLhs ? plan->Forward(e, rhs, {}, out.ref()) : plan->Forward(lhs, e, {}, out.ref()),
                  absl::OkStatus());
        double sum = 0, size = 0;
        for (int64_t j = 0; j < g.num_elements(); ++j) {
          const double product = static_cast<double>(g.View<float>()[j]) * out.Mutable<float>()[j];
          sum += product;
          size += std::fabs(product);
        }
        EXPECT_LE(std::fabs(d.View<float>()[i] - sum),
                  static_cast<double>(g.num_elements()) * 0x1p-24 * (1 + 0x1p-10) * size)
            << c.lhs.ToString() << " " << side << " " << i;
      }
    }
  }
}

// 1 where the gradient passes: everywhere, or with clip_gradient where the scaled value is within the clip bound,
// which is rounded to the dtype of the values.
Array Mask(const Quantizer& quantizer, const Array& x, int64_t contracting_axis) {
  std::vector<float> mask(x.num_elements(), 1);
  const auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
  if (integer != nullptr && integer->clip_gradient) {
    const Array scaled = Cast(*Quantize(quantizer, x, {contracting_axis})->ScaledValue(x), DType::kF32);
    const float exact = static_cast<float>(ClipBound(*integer));
    const Array bound = Cast(Cast(ArrayRef(&exact, {}), x.dtype()), DType::kF32);
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = std::fabs(scaled.View<float>()[static_cast<int64_t>(i)]) <= bound.View<float>()[0];
    }
  }
  return Cast(ArrayRef(mask.data(), x.shape()), x.dtype());
}

// a * b of matrices, rounded to the dtype of a; b is broadcast along the axes where its extent is 1.
Array Times(const Array& a, const Array& b) {
  const Array x = Cast(a, DType::kF32), y = Cast(b, DType::kF32);
  std::vector<float> product(a.num_elements());
  for (int64_t i = 0; i < a.shape()[0]; ++i) {
    for (int64_t j = 0; j < a.shape()[1]; ++j) {
      const int64_t at = (b.shape()[0] == 1 ? 0 : i * b.shape()[1]) + (b.shape()[1] == 1 ? 0 : j);
      product[i * a.shape()[1] + j] = x.View<float>()[i * a.shape()[1] + j] * y.View<float>()[at];
    }
  }
  return Cast(ArrayRef(product.data(), a.shape()), a.dtype());
}

// dlhs = mask * (g x rhs), the float product of the original operands; with use_fwd_quant
// dlhs = mask * ((g * scale of rhs) x qvalue of rhs). No factor for the rounding, none for the scale. drhs likewise.
TEST(DotGeneral, QuantizationIsPassedStraightThrough) {
  const DotDims dlhs_dims = {.lhs_contracting = {1}, .rhs_contracting = {1}},
                drhs_dims = {.lhs_contracting = {0}, .rhs_contracting = {0}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Array lhs = RandomArray(dtype, {6, 33}, 1), rhs = RandomArray(dtype, {33, 5}, 2);
    const Array g = RandomArray(dtype, {6, 5}, 3);
    for (const Bits bits : {Bits(8), Bits(4), Bits(1), Bits(12), Bits::E4M3()}) {
      for (const bool use_fwd_quant : {false, true}) {
        for (const bool clip_gradient : {false, true}) {
          DotGeneralConfig config = DotGeneralMake(bits, bits, {.use_fwd_quant = use_fwd_quant});
          for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs}) {
            tensor->quantizer.calibration = AbsMax{.clipping_scale = 0.5};
            auto* integer = std::get_if<IntSymmetric>(&tensor->quantizer.numerics);
            if (integer != nullptr) integer->clip_gradient = clip_gradient;
          }
          const std::string what = absl::StrCat(ToString(dtype), " ", Describe(config.fwd.lhs.quantizer.numerics),
                                                use_fwd_quant ? " use_fwd_quant" : "", clip_gradient ? " clip" : "");
          const absl::StatusOr<DotGeneralGradients> got =
              QuantizedDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims());
          ASSERT_TRUE(got.ok()) << what << got.status();
          Array g_for_lhs = g, g_for_rhs = g, saved_lhs = lhs, saved_rhs = rhs;
          if (use_fwd_quant) {
            const QTensor q_lhs = *Quantize(config.fwd.lhs.quantizer, lhs, {1}),
                          q_rhs = *Quantize(config.fwd.rhs.quantizer, rhs, {0});
            g_for_lhs = Times(g, q_rhs.scale[0]);
            g_for_rhs = Times(g, q_lhs.scale[0]);
            saved_lhs = Cast(*q_lhs.qvalue, dtype);
            saved_rhs = Cast(*q_rhs.qvalue, dtype);
          }
          const DotGeneralConfig plain = DefaultUnquantizedConfig();
          const Array dlhs = *QuantizedDotGeneral(plain, g_for_lhs, saved_rhs, dlhs_dims);
          const Array drhs = *QuantizedDotGeneral(plain, saved_lhs, g_for_rhs, drhs_dims);
          const Array lhs_mask = Mask(config.fwd.lhs.quantizer, lhs, 1),
                      rhs_mask = Mask(config.fwd.rhs.quantizer, rhs, 0);
          EXPECT_TRUE(SameValues(got->dlhs, Times(dlhs, lhs_mask))) << what;
          EXPECT_TRUE(SameValues(got->drhs, Times(drhs, rhs_mask))) << what;
          // The masks hide some elements, but not all.
          if (clip_gradient && bits == Bits(8)) {
            EXPECT_FALSE(SameValues(got->dlhs, dlhs)) << what;
            EXPECT_FALSE(SameValues(got->dlhs, Array::Zeros(dtype, {6, 33}))) << what;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace aqt
