#include "aqt/quant/contraction/quant_dot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace {

QTensor MustQuantize(const Array& x, Bits bits, std::optional<absl::Span<const int64_t>> axes = std::nullopt) {
  const absl::StatusOr<QTensor> qtensor = QuantizeToBits(x, bits, axes);
  EXPECT_TRUE(qtensor.ok()) << qtensor.status();
  return *qtensor;
}

TEST(QuantizeToBits, ByHand) {
  const Array x = Cast(Array::Of<float>({1, -2, 4, 8}, {2, 2}), DType::kBF16);
  const QTensor tensor = MustQuantize(x, 8);
  EXPECT_EQ(tensor.dequant_dtype, DType::kF32);
  EXPECT_EQ(tensor.scale[0].aval(), (Aval{DType::kF32, {1, 1}}));
  // 8 / (8 / 127.5) is clipped to 127.
  EXPECT_TRUE(BitEqual(*tensor.qvalue, Array::Of<int8_t>({16, -32, 64, 127}, {2, 2})));
  EXPECT_EQ(MustQuantize(x, 4, {{1}}).scale[0].shape(), (Shape{2, 1}));
  EXPECT_EQ(MustQuantize(x, 4, {{1}}).qvalue->dtype(), DType::kS4);
  EXPECT_EQ(MustQuantize(x, Bits::E4M3()).qvalue->dtype(), DType::kE4M3FN);
  EXPECT_EQ(MustQuantize(x, 8, absl::Span<const int64_t>()).scale[0].shape(), (Shape{2, 2}));
}

TEST(QuantDotGeneral, ByHand) {
  const QTensor w{.qvalue = Array::Of<int8_t>({3, 4, -1, 2}, {2, 2}), .scale = {Array::Of<float>({0.5f, 2}, {1, 2})}};
  const Array x = Cast(Array::Of<float>({1, 2}, {1, 2}), DType::kBF16);
  const absl::StatusOr<Array> weight_only = QuantDotGeneral(x, w, MatMulDims());
  ASSERT_TRUE(weight_only.ok()) << weight_only.status();
  EXPECT_TRUE(BitEqual(*weight_only, Array::Of<float>({0.5f, 16}, {1, 2})));  // [1, 8] * [0.5, 2], in f32
  EXPECT_EQ(QuantDotGeneral(x, w, MatMulDims(), {.out_dtype = DType::kF16})->dtype(), DType::kF16);
  const QTensor q{.qvalue = Array::Of<int8_t>({10, 20}, {1, 2}), .scale = {Array::Of<float>({0.1f}, {1, 1})}};
  const absl::StatusOr<Array> both = QuantDotGeneral(q, w, MatMulDims());
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(BitEqual(*both, Array::Of<float>({10.0f * 0.1f * 0.5f, 80.0f * 0.1f * 2}, {1, 2})));
  // A qvalue in a float container is used as its dequantized values.
  const absl::StatusOr<Array> wide =
      QuantDotGeneral(MustQuantize(Array::Of<float>({127.5f * 8, 8}, {1, 2}), 12), w, MatMulDims());
  ASSERT_TRUE(wide.ok()) << wide.status();
}

// With scales that are powers of two, products and sums are exact wherever the scale is applied.
TEST(QuantDotGeneral, DequantModesAgreeForPowersOfTwo) {
  const Array x = RandomArray(DType::kF32, {9, 300}, 1, 3), y = RandomArray(DType::kF32, {300, 7}, 2, 0.1f);
  const Quantizer quantizer{.numerics = NumericsFromBits(8),
                            .calib_shared_axes = {.per_tensor = true},
                            .calibration = AbsMax{.po2_scale = true}};
  const QTensor lhs = *Quantize(quantizer, x, {}), rhs = *Quantize(quantizer, y, {});
  const absl::StatusOr<Array> want = QuantDotGeneral(lhs, rhs, MatMulDims());
  ASSERT_TRUE(want.ok()) << want.status();
  using enum DequantMode;
  for (const auto& [left, right] : {std::pair{kThisInput, kThisInput},
                                    {kThisInput, kOutput},
                                    {kThisInput, kOtherInput},
                                    {kOutput, kThisInput},
                                    {kOtherInput, kThisInput}}) {
    const absl::StatusOr<Array> got =
        QuantDotGeneral(lhs, rhs, MatMulDims(), {.lhs_dequant_mode = left, .rhs_dequant_mode = right});
    ASSERT_TRUE(got.ok()) << left << right << got.status();
    EXPECT_TRUE(BitEqual(*got, *want)) << left << right;
  }
}

// Uniform data in (-a, a): a rounding error of a/127.5/sqrt(12) against a/sqrt(3) is 0.4 % per side, 0.55 % for both.
TEST(QuantDotGeneral, Int8PerAxisIsWithinOnePercent) {
  const Array x = RandomArray(DType::kF32, {64, 512}, 1), y = RandomArray(DType::kF32, {512, 48}, 2);
  const absl::StatusOr<Array> want = QuantDotGeneral(x, y, MatMulDims());
  const absl::StatusOr<Array> got = QuantDotGeneral(MustQuantize(x, 8, {{1}}), MustQuantize(y, 8, {{0}}), MatMulDims());
  ASSERT_TRUE(want.ok() && got.ok()) << got.status();
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want->num_elements(); ++i) {
    const double w = want->View<float>()[i], d = got->View<float>()[i] - w;
    error += d * d;
    norm += w * w;
  }
  EXPECT_LT(std::sqrt(error / norm), 1e-2);
  EXPECT_GT(error, 0);
}

TEST(QuantDotGeneral, Refuses) {
  const Array x = RandomArray(DType::kF32, {2, 4}, 1), y = RandomArray(DType::kF32, {4, 3}, 2);
  const QTensor lhs = MustQuantize(x, 8, {{1}}), rhs = MustQuantize(y, 8, {{0}});
  const auto expect = [](const absl::Status& status, const std::string& message,
                         absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(std::string(status.message()), message);
  };
  QTensor scales = rhs, wide = rhs;
  scales.qvalue.reset();
  wide.qvalue = Cast(*rhs.qvalue, DType::kS32);
  expect(QuantDotGeneral(lhs, scales, MatMulDims()).status(), "QuantDotGeneral: rhs: the tensor has no qvalue",
         absl::StatusCode::kFailedPrecondition);
  expect(QuantDotGeneral(lhs, wide, MatMulDims()).status(),
         "QuantDotGeneral: rhs: a qvalue of s32, expected s4, s8, e4m3fn, e5m2, f32, bf16 or f16");
  expect(QuantDotGeneral(*lhs.qvalue, rhs, MatMulDims()).status(),
         "QuantDotGeneral: lhs: is s8, expected f32, bf16 or f16");
  expect(QuantDotGeneral(lhs, rhs, MatMulDims(), {.out_dtype = DType::kS8}).status(),
         "QuantDotGeneral: out_dtype is s8, expected f32, bf16 or f16");
  expect(
      QuantDotGeneral(lhs, rhs, MatMulDims(), {.lhs_dequant_mode = DequantMode::kOtherInput}).status(),
      "fwd.lhs: DEQUANT_MODE_OTHER_INPUT multiplies the scale into the other operand, which is s8; it must be f32 or "
      "bf16: do not quantize that side, or give it DEQUANT_MODE_THIS_INPUT");
  expect(QuantDotGeneral(MustQuantize(x, 8, {{0}}), rhs, MatMulDims()).status(),
         "DotGeneral: the tensor for fwd.lhs: scale of lhs has shape [1,4]: it varies along the contracting axis 1");
  expect(QuantizeToBits(x, Bits()).status(), "QuantizeToBits: no bits to quantize to, expected 1 to 22, e4m3 or e5m2");
  expect(QuantizeToBits(x, 23).status(), "QuantizeToBits: IntSymmetric: bits = 23, but 1 to 22 can be represented");
}

}  // namespace
}  // namespace aqt
