#include "aqt/quant/tensor/qtensor.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/tensor/quantizer_testing.h"

namespace aqt {
namespace {

TEST(QTensor, ScaleBiasAndMask) {
  // scale .5, bias 1, mask 1 0 1 on [1,2,3].
  QTensor qt;
  qt.scale.push_back(Array::Of<float>({0.5f}, {1}));
  qt.bias.push_back(Array::Of<float>({1}, {1}));
  qt.sparsity_mask = Array::Of<float>({1, 0, 1}, {3});
  const Array x = Array::Of<float>({1, 2, 3}, {3});
  const absl::StatusOr<QTensor> full = CalculateQvalue({.numerics = IntSymmetric{}, .calibration = AbsMax{}}, x, qt);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(Floats(*full->qvalue), (std::vector<float>{4, 0, 8}));
  EXPECT_EQ(Floats(*full->Dequantize()), (std::vector<float>{1, -1, 3}));
}

// As in AQT, a mask is an operand like the others: a wider float widens the product, an integer or bool does not.
TEST(QTensor, MaskTakesPartInTheDType) {
  const Array x = Cast(Array::Of<float>({1.0f / 3, 1}, {2}), DType::kF16);
  const float third = Floats(x)[0];
  const std::vector<float> exact = {third * third, 0};  // exact in f32: products of two f16
  const std::vector<float> rounded = Floats(Cast(Array::FromSpan<float>(exact, {2}), DType::kF16));
  EXPECT_NE(exact, rounded);
  const std::pair<DType, DType> cases[] = {{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32},
                                           {DType::kF16, DType::kF16}, {DType::kS8, DType::kF16},
                                           {DType::kS32, DType::kF16}, {DType::kBool, DType::kF16}};
  for (const auto& [mask, want] : cases) {
    QTensor qt{.sparsity_mask = Cast(Array::Of<float>({1, 0}, {2}), mask)};
    qt.scale.push_back(Cast(Array::Of<float>({3}, {1}), DType::kF16));
    const Array y = *qt.ScaledValue(x);
    EXPECT_EQ(y.dtype(), want) << ToString(mask);
    EXPECT_EQ(Floats(y), want == DType::kF32 ? exact : rounded) << ToString(mask);
  }
}

TEST(QTensor, ScalesMultiplyOneByOne) {
  // (q * s0) * s1, each product rounded.
  QTensor qt;
  qt.qvalue = Array::Of<int8_t>({97}, {1});
  const float s0 = 0.0123456f, s1 = 7.654321f;
  qt.scale = {Array::Of<float>({s0}, {1}), Array::Of<float>({s1}, {1})};
  EXPECT_EQ(qt.Dequantize()->View<float>()[0], (97.0f * s0) * s1);
}

TEST(QTensor, Errors) {
  QTensor qt;
  EXPECT_EQ(qt.Dequantize().status().code(), absl::StatusCode::kFailedPrecondition);
  qt.scale.push_back(Array::Of<float>({1, 2}, {2}));
  EXPECT_EQ(qt.ScaledValue(Array::Of<float>({1, 2, 3}, {3})).status().message(),
            "QTensor: scale f32[2] does not broadcast to the values' shape [3]");
  EXPECT_EQ(qt.ScaledValue(Array::Of<int8_t>({1, 2}, {2})).status().message(),
            "QTensor: values have dtype s8, expected f32, bf16 or f16");
  qt.scale[0] = Array::Of<int8_t>({1, 2}, {2});
  EXPECT_EQ(qt.ScaledValue(Array::Of<float>({1, 2}, {2})).status().message(),
            "QTensor: a scale has dtype s8, expected f32, bf16 or f16");
  qt.scale[0] = Array::Of<float>({1, 2}, {2});
  qt.sparsity_mask = Array::Of<double>({1, 0}, {2});
  EXPECT_EQ(qt.ScaledValue(Array::Of<float>({1, 2}, {2})).status().message(),
            "QTensor: the mask has dtype f64, expected one of at most 32 bits");
}

TEST(QTensor, TilingsThatDoNotFit) {
  const TilingState tiling = *TilingState::Make({4, 6}, std::vector<AxisTiling>{{.axis = 1, .tile_size = 2}});
  const QTensor calibrated{.scale = {Array::Of<float>({1}, {1, 1, 1})}, .tiling_state = tiling};
  absl::Status status = calibrated.ScaledValue(Array::Zeros(DType::kF32, {4, 5})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "QTensor: the tensor has shape [4,5], its tiling is for [4,6]");
  QTensor full = calibrated;
  full.qvalue = Array::Zeros(DType::kS8, {4, 6});
  status = full.Dequantize().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "QTensor: the qvalue has shape [4,6], its tiling gives [4,3,2]");
}

}  // namespace
}  // namespace aqt
