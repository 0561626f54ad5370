// Infinities, NaN and subnormal numbers in quantized contractions, and modes that only some shapes allow.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/reference/dot_general_reference.h"
#include "aqt/testing/same_bits.h"

namespace aqt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

// lhs [4,2] x rhs [2,1] with 8 bits and a constant bound of 1 on lhs: elements beyond it are clipped.
DotGeneralConfig ClippedLhs() {
  DotGeneralConfig config = DefaultUnquantizedConfig();
  config.fwd.lhs.quantizer = QuantizerMake(8);
  std::get<IntSymmetric>(config.fwd.lhs.quantizer.numerics).clip_gradient = true;
  config.fwd.lhs.quantizer.calibration = Constant{.bound = 1.0};
  return config;
}

// Stock XLA selects between the gradient and 0 in f32 and f16; in bf16 it multiplies, as IEEE arithmetic does for all
// dtypes, and gives NaN (recorded from aqtp 0.9.0).
TEST(ClipGradient, OfAnInfiniteOrNaNGradient) {
  const Array lhs = Array::Of<float>({0.5f, 3, -3, 0.25f, 0.5f, 3, 0.5f, 3}, {4, 2});
  const Array rhs = Array::Of<float>({1, 1}, {2, 1}), g = Array::Of<float>({kInf, kNaN, -kInf, 2}, {4, 1});
  const float chosen[] = {kInf, 0, 0, kNaN, -kInf, 0, 2, 0}, multiplied[] = {kInf, kNaN, kNaN, kNaN, -kInf, kNaN, 2, 0};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Arithmetic arithmetic : {Arithmetic::kXlaCompatible, Arithmetic::kIeee}) {
      const bool multiplies = arithmetic == Arithmetic::kIeee || dtype == DType::kBF16;
      const Array want(Array::FromSpan<float>(multiplies ? multiplied : chosen, {4, 2}));
      const Semantics semantics{.arithmetic = arithmetic};
      const Array x = Cast(lhs, dtype), y = Cast(rhs, dtype), cotangent = Cast(g, dtype);
      const absl::StatusOr<DotGeneralPlan> plan =
          DotGeneralPlan::Make(ClippedLhs(), x.aval(), y.aval(), MatMulDims(), {.semantics = semantics});
      ASSERT_EQ(plan.status(), absl::OkStatus());
      EXPECT_TRUE(SameValues(Cast(RunPlan(*plan, x, y, cotangent).dlhs, DType::kF32), want))
          << dtype << static_cast<int>(arithmetic);
      const absl::StatusOr<DotGeneralGradients> reference =
          ReferenceDotGeneralWithGradients(ClippedLhs(), x, y, cotangent, MatMulDims(), {}, semantics);
      ASSERT_EQ(reference.status(), absl::OkStatus());
      EXPECT_TRUE(SameValues(Cast(reference->dlhs, DType::kF32), want)) << dtype << static_cast<int>(arithmetic);
    }
  }
}

// Small floats compare the rounded value with their bound, and only NaN exceeds it. Formats without NaN round it to a
// number (recorded from aqtp 0.9.0).
TEST(ClipGradient, OfASmallFloatThatIsNaN) {
  const Array lhs = Array::Of<float>({kNaN, 0.5f, 100, -1}, {4, 1});
  const Array rhs = Array::Of<float>({2}, {1, 1}), g = Array::Of<float>({1, 2, 3, 4}, {4, 1});
  for (const FpFormat& format : {FpFormat{.nexp = 0, .nmant = 4}, FpFormat{.nexp = 2, .nmant = 1}}) {
    for (const bool use_fwd_quant : {false, true}) {
      DotGeneralConfig config = DefaultUnquantizedConfig();
      config.fwd.lhs.quantizer = {.numerics = Fp{.format = format, .clip_gradient = true},
                                  .calibration = Constant{.bound = 1.0}};
      config.drhs.rhs.use_fwd_quant = use_fwd_quant;
      const Array want = Array::Of<float>({format.nexp == 0 ? 0.0f : 2.0f, 4, 6, 8}, {4, 1});
      const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
      ASSERT_EQ(plan.status(), absl::OkStatus());
      EXPECT_TRUE(SameValues(RunPlan(*plan, lhs, rhs, g, {}, {}).dlhs, want)) << format.nexp << use_fwd_quant;
      const absl::StatusOr<DotGeneralGradients> reference =
          ReferenceDotGeneralWithGradients(config, lhs, rhs, g, MatMulDims(), {}, {});
      ASSERT_EQ(reference.status(), absl::OkStatus());
      EXPECT_TRUE(SameValues(reference->dlhs, want)) << format.nexp << use_fwd_quant;
    }
  }
}

// An observer prevents fusion. Results have the same bits; a NaN stays a NaN. Here sums are multiplied by infinite
// scales (from infinite bounds; in f16 also from finite ones beyond its range) and, if all elements are tiny, by scales
// that give subnormal products.
void ExpectNoBitChangedByAnObserver(bool float8, float size) {
  const float specials[] = {1, -1, 0, 1e37f, -1e37f, 3e38f, 6e4f, kInf, -kInf, kNaN, 1e-39f};
  const int64_t count = static_cast<int64_t>(std::size(specials));
  int64_t nans = 0;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::optional<DType> scale_dtype : {std::optional<DType>(), std::optional<DType>(DType::kF16)}) {
      for (int64_t seed = 0; seed < 12; ++seed) {
        const Array random = RandomArray(DType::kF32, {6, 9}, static_cast<uint64_t>(seed), 1);
        std::vector<float> left(random.View<float>().begin(), random.View<float>().end()), right = left;
        // Each row of lhs, and the first columns of rhs, has one special element.
        for (int64_t r = 0; r < 6; ++r) left[r * 9 + (r + seed) % 9] = specials[(r + seed) % count];
        for (int64_t c = 0; c < 6; ++c) right[((c + 2 * seed) % 9) * 6 + c] = specials[(c * 5 + seed) % count];
        for (std::vector<float>* x : {&left, &right}) {
          for (float& v : *x) v *= size;
        }
        const Array lhs = Cast(ArrayRef(left.data(), {6, 9}), dtype), rhs = Cast(ArrayRef(right.data(), {9, 6}), dtype);
        const Array g = Cast(ArrayRef(left.data(), {6, 6}), dtype);
        const Bits bits = float8 ? Bits::E4M3() : Bits(8), bwd_bits = float8 ? Bits::E5M2() : Bits(8);
        DotGeneralConfig config = DotGeneralMake(bits, bits, {.bwd_bits = bwd_bits, .use_fwd_quant = seed % 2 == 0});
        for (TensorConfig* tensor : {&config.fwd.lhs, &config.fwd.rhs, &config.dlhs.lhs, &config.drhs.rhs}) {
          tensor->quantizer.scale_dtype = scale_dtype;
        }
        const absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
        ASSERT_EQ(plan.status(), absl::OkStatus());
        for (const kernels::Target target : kernels::SupportedTargets()) {
          const DotGeneralPlan on_target = OnTarget(*plan, target);
          Recorder recorder;
          const PlanResults plain = RunPlan(on_target, lhs, rhs, g);
          const PlanResults seen = RunPlan(on_target, lhs, rhs, g, {}, {.observer = &recorder});
          EXPECT_TRUE(SameBits(plain.out, seen.out)) << dtype << " " << seed << " " << target;
          EXPECT_TRUE(SameBits(plain.dlhs, seen.dlhs)) << dtype << " " << seed << " " << target;
          EXPECT_TRUE(SameBits(plain.drhs, seen.drhs)) << dtype << " " << seed << " " << target;
          const Array out = Cast(seen.out, DType::kF32);
          for (const float v : out.View<float>()) nans += std::isnan(v);
        }
      }
    }
  }
  EXPECT_GT(nans, 0);
}

TEST(Observer, ChangesNoBitOfInfinitiesAndNaN) {
  ExpectNoBitChangedByAnObserver(/*float8=*/false, 1);
  ExpectNoBitChangedByAnObserver(/*float8=*/true, 1);
}
TEST(Observer, ChangesNoBitOfTinyProducts) {
  ExpectNoBitChangedByAnObserver(/*float8=*/false, 7e-20f);
  ExpectNoBitChangedByAnObserver(/*float8=*/true, 7e-20f);
}

// Unquantized operands: subnormal elements become zero before the product, not only the sums after it.
TEST(Subnormals, OfUnquantizedOperandsAreZero) {
  const std::vector<float> tiny(8, 1e-39f), large(8, 1e3f);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Array lhs = Cast(ArrayRef(tiny.data(), {1, 8}), dtype), rhs = Cast(ArrayRef(large.data(), {8, 1}), dtype);
    const Array zero = Array::Zeros(dtype, {1, 1});
    EXPECT_TRUE(SameValues(*QuantizedDotGeneral(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims()), zero)) << dtype;
    // A convolution with one window, and the gradient of its kernel.
    const Array image = Cast(ArrayRef(tiny.data(), {1, 8, 1}), dtype),
                kernel = Cast(ArrayRef(large.data(), {8, 1, 1}), dtype),
                g = Cast(ArrayRef(large.data(), {1, 1, 1}), dtype);
    const absl::StatusOr<DotGeneralGradients> conv =
        QuantizedConvGeneralWithGradients(DotGeneralRawConfig(), image, kernel, g, {});
    ASSERT_EQ(conv.status(), absl::OkStatus());
    EXPECT_TRUE(SameValues(conv->out, Array::Zeros(dtype, {1, 1, 1}))) << dtype;
    EXPECT_TRUE(SameValues(conv->drhs, Array::Zeros(dtype, {8, 1, 1}))) << dtype;
    const int64_t sizes[] = {1};
    const Array experts = Cast(ArrayRef(large.data(), {1, 8, 1}), dtype);
    EXPECT_TRUE(SameValues(*QuantizedRaggedDot(DefaultUnquantizedConfig(), lhs, experts, sizes), zero)) << dtype;
  }
  // Subnormals of f16 are kept.
  const Array lhs = Cast(Array::Of<float>({0x1p-24f, 0x1p-24f}, {1, 2}), DType::kF16);
  const Array rhs = Cast(Array::Of<float>({1, 1}, {2, 1}), DType::kF16);
  const absl::StatusOr<Array> out = QuantizedDotGeneral(DefaultUnquantizedConfig(), lhs, rhs, MatMulDims());
  EXPECT_EQ(Cast(*out, DType::kF32).View<float>()[0], 0x1p-23f);
}

// A negative clipping scale gives a negative scale. Even if the scale is so small that its inverse turns a subnormal x
// into a normal number, that x is treated as zero, in the fused kernels and in the others.
TEST(Subnormals, AreZeroUnderANegativeScale) {
  DotGeneralConfig config = DotGeneralMake(4, 4);
  config.fwd.lhs.quantizer.calibration = AbsMax{.clipping_scale = -0.7};
  const Array lhs = Array::Of<float>({2e-37f, 1e-38f}, {1, 2}), rhs = Array::Of<float>({1, 0, 0, 1}, {2, 2});
  Recorder recorder;
  const absl::StatusOr<Array> fused = QuantizedDotGeneral(config, lhs, rhs, MatMulDims());
  const absl::StatusOr<Array> seen =
      QuantizedDotGeneral(config, lhs, rhs, MatMulDims(), {}, {}, {.observer = &recorder});
  ASSERT_EQ(fused.status(), absl::OkStatus());
  EXPECT_TRUE(SameBits(*fused, *seen));
  EXPECT_EQ(fused->View<float>()[1], 0);
}

// A convolution rounds its inputs to the dtype of its operands, as AQT does: here qvalues of 12 bits, held in f32
// because the scale is f32, are rounded to bf16.
TEST(Conv, ConvertsQvaluesToTheDtypeOfTheOperands) {
  DotGeneralRawConfig config;
  config.lhs.quantizer = QuantizerMake(12);
  config.lhs.quantizer.scale_dtype = DType::kF32;
  const Array lhs = Cast(Array::Of<float>({1, 0.501f, 0.25f}, {1, 3, 1}), DType::kBF16);
  const Array rhs = Cast(Array::Of<float>({1}, {1, 1, 1}), DType::kBF16);
  Recorder recorder;
  ASSERT_TRUE(QuantizedConvGeneral(config, lhs, rhs, {}, {}, {}, {.observer = &recorder}).ok());
  const Array qvalue = recorder.tensors.at("fwd.lhs.qvalue"), sums = recorder.tensors.at("fwd.accum");
  EXPECT_EQ(qvalue.dtype(), DType::kF32);
  ASSERT_FALSE(SameValues(Cast(Cast(qvalue, DType::kBF16), DType::kF32), qvalue));
  EXPECT_TRUE(SameValues(Cast(sums, DType::kF32), Cast(Cast(qvalue, DType::kBF16), DType::kF32)));
}

// AQT's builder always sets an s32 accumulator, and its convolution ignores the field.
TEST(Conv, AnS32AccumulatorOfFloatsHasNoEffect) {
  const Array lhs = RandomArray(DType::kBF16, {2, 5, 3}, 1), rhs = RandomArray(DType::kBF16, {2, 3, 4}, 2);
  DotGeneralRawConfig config = ConvGeneralDilatedMake(1, 8, 8);
  config.lhs.quantizer = Quantizer();  // a float now
  config.dg_accumulator_dtype = DType::kS32;
  DotGeneralRawConfig none = config;
  none.dg_accumulator_dtype.reset();
  const absl::StatusOr<Array> out = QuantizedConvGeneral(config, lhs, rhs, {});
  ASSERT_EQ(out.status(), absl::OkStatus());
  EXPECT_TRUE(BitEqual(*out, *QuantizedConvGeneral(none, lhs, rhs, {})));
}

TEST(Conv, AccumulatorDTypeHasNoEffectInTheOriginal) {
  const Array lhs = RandomArray(DType::kF32, {2, 5, 3}, 1), rhs = RandomArray(DType::kF32, {2, 3, 4}, 2);
  DotGeneralRawConfig bf16 = ConvGeneralDilatedMake(1, {}, 8), none = bf16;
  bf16.dg_accumulator_dtype = DType::kBF16;
  none.dg_accumulator_dtype.reset();
  const absl::StatusOr<Array> plain = QuantizedConvGeneral(none, lhs, rhs, {});
  ASSERT_EQ(plain.status(), absl::OkStatus());
  EXPECT_FALSE(BitEqual(*QuantizedConvGeneral(bf16, lhs, rhs, {}), *plain));
  const PlanOptions original{.semantics = {.compat = {.conv_ignores_accumulator_dtype = true}}};
  EXPECT_TRUE(BitEqual(*QuantizedConvGeneral(bf16, lhs, rhs, {}, {}, original), *plain));
}

// In dlhs and drhs any pair of modes that the scale's shape allows is legal, as in AQT: with one scale for the tensor
// the calibration mode makes no difference.
TEST(Modes, OfBackwardPassesDependOnTheScale) {
  const Array lhs = RandomArray(DType::kF32, {4, 8}, 1), rhs = RandomArray(DType::kF32, {8, 5}, 2);
  const Array g = RandomArray(DType::kF32, {4, 5}, 3);
  for (DotGeneralRawConfig DotGeneralConfig::*const raw : {&DotGeneralConfig::dlhs, &DotGeneralConfig::drhs}) {
    for (TensorConfig DotGeneralRawConfig::*const side : {&DotGeneralRawConfig::lhs, &DotGeneralRawConfig::rhs}) {
      for (const DequantMode mode : {DequantMode::kOutput, DequantMode::kOtherInput}) {
        DotGeneralConfig config = DefaultUnquantizedConfig();
        TensorConfig& tensor = (config.*raw).*side;
        tensor.quantizer = QuantizerMake(8);
        tensor.quantizer.calib_shared_axes.per_tensor = true;
        tensor.dequant_mode = mode;
        PlanResults results[2];
        for (const CalibrationMode axes : {CalibrationMode::kContractingAxis, CalibrationMode::kRemainingAxis}) {
          tensor.calibration_mode = axes;
          const absl::StatusOr<DotGeneralPlan> plan =
              DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), MatMulDims());
          ASSERT_EQ(plan.status(), absl::OkStatus());
          results[axes == CalibrationMode::kContractingAxis] = RunPlan(*plan, lhs, rhs, g);
        }
        EXPECT_TRUE(BitEqual(results[0].dlhs, results[1].dlhs) && BitEqual(results[0].drhs, results[1].drhs));
      }
    }
  }
}

// NaN and infinities of one group stay in it, and rows outside all groups are zero. In AQT on XLA's CPU backend they
// reach all other groups, and rows outside all groups are 0 * inf.
TEST(RaggedDot, KeepsNaNInItsGroup) {
  const Array lhs = Array::Of<float>({1, 2, kNaN, 4, 5, 6, kInf, 8}, {4, 2});
  const Array rhs = Array::Of<float>({1, kInf, 1, 1}, {2, 2, 1});
  const int64_t sizes[] = {1, 1};
  const absl::StatusOr<Array> out = QuantizedRaggedDot(DefaultUnquantizedConfig(), lhs, rhs, sizes);
  ASSERT_EQ(out.status(), absl::OkStatus());
  const auto values = out->View<float>();
  EXPECT_EQ(values[0], kInf);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[3], 0);
}

}  // namespace
}  // namespace aqt
