#include "aqt/quant/tensor/qtensor_ops.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {
namespace {

bool Same(const QTensor& a, const QTensor& b) {
  const auto all = [](const std::vector<Array>& x, const std::vector<Array>& y) {
    bool same = x.size() == y.size();
    for (size_t i = 0; same && i < x.size(); ++i) same = BitEqual(x[i], y[i]);
    return same;
  };
  const auto both = [](const std::optional<Array>& x, const std::optional<Array>& y) {
    return x.has_value() == y.has_value() && (!x.has_value() || BitEqual(*x, *y));
  };
  return both(a.qvalue, b.qvalue) && all(a.scale, b.scale) && all(a.bias, b.bias) &&
         both(a.sparsity_mask, b.sparsity_mask) && a.dequant_dtype == b.dequant_dtype &&
         a.tiling_state == b.tiling_state;
}

// (3,4) with a scale for each row.
QTensor Rows() {
  return {.qvalue = Array::Of<int8_t>({0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}, {3, 4}),
          .scale = {Array::Of<float>({0.5f, 1, 2}, {3, 1})}};
}

// Expects an operation to reject its input with this message.
void ExpectRefused(const absl::Status& status, const std::string& message,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(std::string(status.message()), message);
}

TEST(ZeroQTensor, HasNoScale) {
  const absl::StatusOr<QTensor> zeros = ZeroQTensor({2, 3}, DType::kS4);
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_TRUE(Same(*zeros, {.qvalue = Array::Zeros(DType::kS4, {2, 3}), .dequant_dtype = DType::kBF16}));
  ExpectRefused(ZeroQTensor({2}, DType::kS8, DType::kS8).status(),
                "ZeroQTensor: dequant_dtype is s8, expected f32, bf16 or f16");
}

TEST(ZeroQTensorWithScale, SharesTheAxes) {
  const absl::StatusOr<QTensor> zeros = ZeroQTensorWithScale({2, 3}, {-1}, DType::kS8, DType::kF32);
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_TRUE(Same(*zeros, {.qvalue = Array::Zeros(DType::kS8, {2, 3}),
                            .scale = {Array::Of<float>({1, 1}, {2, 1})},
                            .dequant_dtype = DType::kBF16}));
  EXPECT_EQ(ZeroQTensorWithScale({2, 3}, {0, 1}, DType::kS8)->scale[0].aval(), (Aval{DType::kBF16, {1, 1}}));
  ExpectRefused(ZeroQTensorWithScale({2, 3}, {2}, DType::kS8).status(),
                "ZeroQTensorWithScale: shared axes: axis 2 is out of range for rank 2 (-2 to 1 are allowed)");
  ExpectRefused(ZeroQTensorWithScale({2, 3}, {}, DType::kS8, DType::kS8).status(),
                "ZeroQTensorWithScale: scale_dtype is s8, expected f32, bf16 or f16");
}

TEST(ZerosLike, KeepsTheForm) {
  QTensor x = Rows();
  x.bias.push_back(Array::Of<float>({7}, {1, 1}));
  x.sparsity_mask = Array::Zeros(DType::kS8, {1, 4});
  const absl::StatusOr<QTensor> zeros = ZerosLike(x);
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_TRUE(Same(*zeros, {.qvalue = Array::Zeros(DType::kS8, {3, 4}),
                            .scale = {Array::Of<float>({1, 1, 1}, {3, 1})},
                            .bias = {Array::Zeros(DType::kF32, {1, 1})},
                            .sparsity_mask = Array::Of<int8_t>({1, 1, 1, 1}, {1, 4})}));
}

TEST(At, IndexesValuesAndScales) {
  const absl::StatusOr<QTensor> row = At(Rows(), 2);
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_TRUE(Same(*row, {.qvalue = Array::Of<int8_t>({20, 21, 22, 23}, {4}), .scale = {Array::Of<float>({2}, {1})}}));
  // A scale that all rows share is kept by each of them.
  QTensor shared = Rows();
  shared.scale = {Array::Of<float>({1, 2, 3, 4}, {1, 4})};
  EXPECT_TRUE(BitEqual(At(shared, 1)->scale[0], Array::Of<float>({1, 2, 3, 4}, {4})));
  ExpectRefused(At(Rows(), 3).status(), "At: index 3 is out of range for [3,4], expected 0 to 2");
  ExpectRefused(At(Rows(), -1).status(), "At: index -1 is out of range for [3,4], expected 0 to 2");
  ExpectRefused(At({.qvalue = Array::Scalar<float>(1)}, 0).status(), "At: a tensor of rank 0 has no axis to index");
}

TEST(DynamicSlice, KeepsTheRowScale) {
  const absl::StatusOr<QTensor> slice = DynamicSlice(Rows(), {1, 1}, {2, 3});
  ASSERT_TRUE(slice.ok()) << slice.status();
  EXPECT_TRUE(Same(*slice, {.qvalue = Array::Of<int8_t>({11, 12, 13, 21, 22, 23}, {2, 3}),
                            .scale = {Array::Of<float>({1, 2}, {2, 1})}}));
  // Slicing and dequantizing commute.
  const Array all = *Rows().Dequantize(), part = *slice->Dequantize();
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(part.View<float>()[i * 3 + j], all.View<float>()[(i + 1) * 4 + j + 1]);
  }
  EXPECT_EQ(DynamicSlice(Rows(), {3, 0}, {0, 4})->qvalue->shape(), (Shape{0, 4}));
}

TEST(DynamicUpdateSlice, WritesWholeSlices) {
  const QTensor update{.qvalue = Array::Of<int8_t>({-1, -2, -3, -4}, {1, 4}), .scale = {Array::Of<float>({8}, {1, 1})}};
  const absl::StatusOr<QTensor> updated = DynamicUpdateSlice(Rows(), update, {1, 0});
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_TRUE(Same(*updated, {.qvalue = Array::Of<int8_t>({0, 1, 2, 3, -1, -2, -3, -4, 20, 21, 22, 23}, {3, 4}),
                              .scale = {Array::Of<float>({0.5f, 8, 2}, {3, 1})}}));
  // Writing a slice back restores the tensor.
  EXPECT_TRUE(Same(*DynamicUpdateSlice(*updated, *DynamicSlice(Rows(), {1, 0}, {1, 4}), {1, 0}), Rows()));
}

TEST(UpdateFrame, WritesOneRow) {
  const QTensor frame{.qvalue = Array::Of<int8_t>({4, 3, 2, 1}, {4}), .scale = {Array::Of<float>({16}, {1})}};
  const absl::StatusOr<QTensor> updated = UpdateFrame(Rows(), 0, frame);
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_TRUE(Same(*updated, {.qvalue = Array::Of<int8_t>({4, 3, 2, 1, 10, 11, 12, 13, 20, 21, 22, 23}, {3, 4}),
                              .scale = {Array::Of<float>({16, 1, 2}, {3, 1})}}));
  EXPECT_TRUE(Same(*At(*updated, 0), frame));
}

TEST(Updates, Refuse) {
  const QTensor row{.qvalue = Array::Of<int8_t>({1, 2, 3, 4}, {1, 4}), .scale = {Array::Of<float>({8}, {1, 1})}};
  const QTensor frame{.qvalue = Array::Of<int8_t>({1, 2, 3, 4}, {4}), .scale = {Array::Of<float>({8}, {1})}};
  const auto with = [](QTensor x, const std::function<void(QTensor&)>& change) {
    change(x);
    return x;
  };
  const auto update = [&](const QTensor& x, const QTensor& u, std::vector<int64_t> start) {
    return DynamicUpdateSlice(x, u, start).status();
  };
  ExpectRefused(update(Rows(), row, {3, 0}),
                "DynamicUpdateSlice: the window at [3,0] of sizes [1,4] does not lie inside [3,4] along axis 0");
  ExpectRefused(update(Rows(), row, {0}),
                "DynamicUpdateSlice: start [0] and sizes [1,4] do not have one number for each axis of [3,4]");
  ExpectRefused(
      update(Rows(), *DynamicSlice(Rows(), {0, 0}, {1, 2}), {0, 0}),
      "DynamicUpdateSlice: scales of f32[3,1] are shared along axis 1, so an update must span it: [1,2] in [3,4]");
  ExpectRefused(
      update(Rows(),
             with(row,
                  [](QTensor& x) {
                    x.scale = {Array::Zeros(DType::kF32, {1, 4})};
                  }),
             {0, 0}),
      "DynamicUpdateSlice: the update's scale f32[1,4] is not shared along the same axes as f32[3,1] (axis 1)");
  ExpectRefused(update(Rows(), with(row, [](QTensor& x) { x.scale.clear(); }), {0, 0}),
                "DynamicUpdateSlice: the update has 0 scales, the tensor 1");
  ExpectRefused(update(Rows(), with(row, [](QTensor& x) { x.dequant_dtype = DType::kBF16; }), {0, 0}),
                "DynamicUpdateSlice: the update is s8 for bf16, but the tensor s8 for f32");
  ExpectRefused(update(Rows(), with(row, [](QTensor& x) { x.scale = {Cast(x.scale[0], DType::kBF16)}; }), {0, 0}),
                "DynamicUpdateSlice: the update has a scale of bf16, the tensor one of f32");
  ExpectRefused(update(Rows(), with(row, [](QTensor& x) { x.sparsity_mask = *x.qvalue; }), {0, 0}),
                "DynamicUpdateSlice: a tensor with a sparsity mask cannot be updated");
  ExpectRefused(update(Rows(), with(row, [](QTensor& x) { x.bias = {x.scale[0]}; }), {0, 0}),
                "DynamicUpdateSlice: a tensor with a bias has no slices; dequantize it");
  ExpectRefused(update(with(Rows(), [](QTensor& x) { x.tiling_state.emplace(); }), row, {0, 0}),
                "DynamicUpdateSlice: the tensor is tiled as [3,4]; drop its tiling_state to work on the tiled axes");
  ExpectRefused(update(WithoutQvalue(Rows()), row, {0, 0}), "DynamicUpdateSlice: the tensor has no qvalue",
                absl::StatusCode::kFailedPrecondition);
  ExpectRefused(DynamicSlice(Rows(), {0, 2}, {1, 3}).status(),
                "DynamicSlice: the window at [0,2] of sizes [1,3] does not lie inside [3,4] along axis 1");
  ExpectRefused(DynamicSlice(with(Rows(), [](QTensor& x) { x.bias = {x.scale[0]}; }), {0, 0}, {1, 1}).status(),
                "DynamicSlice: a tensor with a bias has no slices; dequantize it");

  ExpectRefused(UpdateFrame(Rows(), 0, with(frame, [](QTensor& x) { x.sparsity_mask = *x.qvalue; })).status(),
                "UpdateFrame: a tensor with a sparsity mask cannot be updated");
  ExpectRefused(UpdateFrame(Rows(), 0, with(frame, [](QTensor& x) { x.dequant_dtype = DType::kBF16; })).status(),
                "UpdateFrame: the frame is for bf16, the tensor for f32");
  ExpectRefused(UpdateFrame(Rows(), 0, with(frame, [](QTensor& x) { x.bias = {x.scale[0]}; })).status(),
                "UpdateFrame: the frame has 1 scales and 1 biases, the tensor 1 and 0");
  ExpectRefused(UpdateFrame(Rows(), 3, frame).status(),
                "UpdateFrame: index 3 is out of range for [3,4], expected 0 to 2");
  ExpectRefused(UpdateFrame(with(Rows(),
                                 [](QTensor& x) {
                                   x.scale = {Array::Zeros(DType::kF32, {1, 4})};
                                 }),
                            0, with(frame, [](QTensor& x) { x.scale = {Array::Zeros(DType::kF32, {4})}; }))
                    .status(),
                "UpdateFrame: the scale f32[1,4] is shared along axis 0, so no frame has its own");
  ExpectRefused(
      UpdateFrame(Rows(), 0, with(frame, [](QTensor& x) { x.qvalue = Array::Zeros(DType::kS8, {1}); })).status(),
      "UpdateFrame: the frame's qvalue is s8[1], but the tensor's is s8[3,4]");
}

TEST(AsType, ChangesOneDTypeAlone) {
  EXPECT_EQ(AsType(Rows(), DType::kBF16)->dequant_dtype, DType::kBF16);
  EXPECT_EQ(AsType(Rows(), DType::kBF16)->qvalue->dtype(), DType::kS8);
  const absl::StatusOr<QTensor> wide = QvalueAsType(Rows(), DType::kF32);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->qvalue->dtype(), DType::kF32);
  EXPECT_TRUE(BitEqual(*wide->Dequantize(), *Rows().Dequantize()));
  EXPECT_EQ(Cast(*QvalueAsType(Rows(), DType::kS4)->qvalue, DType::kF32).View<float>()[4], 7);  // 10 saturates
  ExpectRefused(AsType(Rows(), DType::kS8).status(), "AsType: dequant_dtype is s8, expected f32, bf16 or f16");
  EXPECT_FALSE(WithoutQvalue(Rows()).IsFull());
  EXPECT_EQ(WithoutQvalue(Rows()).scale.size(), 1u);
}

TEST(ShapeOf, IsUntiled) {
  EXPECT_EQ(*ShapeOf(Rows()), (Shape{3, 4}));
  QTensor tiled{.qvalue = Array::Zeros(DType::kS8, {3, 2, 2}),
                .tiling_state = *TilingState::Make({3, 4}, {{.axis = 1, .tile_count = 2}})};
  EXPECT_EQ(*ShapeOf(tiled), (Shape{3, 4}));
  ExpectRefused(ShapeOf(WithoutQvalue(Rows())).status(), "ShapeOf: the tensor has no qvalue",
                absl::StatusCode::kFailedPrecondition);
}

TEST(AxisNamesOf, SharedAxesHaveNone) {
  QTensor x = Rows();
  x.bias.push_back(Array::Of<float>({1, 2, 3, 4}, {1, 4}));
  const absl::StatusOr<QTensorAxisNames> names = AxisNamesOf(x, {"embed", "heads"});
  ASSERT_TRUE(names.ok()) << names.status();
  EXPECT_TRUE(*names == (QTensorAxisNames{.qvalue = {"embed", "heads"},
                                          .scale = {{"embed", std::nullopt}},
                                          .bias = {{std::nullopt, "heads"}}}));
  ExpectRefused(AxisNamesOf(x, {"embed"}).status(), "AxisNamesOf: 1 names for the axes of [3,4], expected 2");
}

}  // namespace
}  // namespace aqt
