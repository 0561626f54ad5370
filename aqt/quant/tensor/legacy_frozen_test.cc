#include "aqt/quant/tensor/legacy_frozen.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/testing/status_matchers.h"

namespace aqt {
namespace {

using ::aqt::testing::FailsWith;
using ::aqt::testing::IsOk;

// 'ijkh,mkh->ijm'
const DotDims kDims{.lhs_contracting = {2, 3}, .rhs_contracting = {1, 2}};

TEST(LegacyFrozen, RecordedShapeAndElements) {
  const absl::StatusOr<QTensor> weight = Quantize(QuantizerMake(8), RandomArray(DType::kF32, {2, 5, 6}, 1), {1, 2});
  ASSERT_THAT(weight, IsOk());
  const absl::StatusOr<LegacyFrozen> frozen = ToLegacyFrozen(*weight, Side::kRhs, kDims, 4);
  ASSERT_THAT(frozen, IsOk());
  EXPECT_TRUE(BitEqual(frozen->value, *weight->qvalue));
  ASSERT_EQ(frozen->scale.aval(), (Aval{DType::kF32, {1, 1, 2}}));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(frozen->scale.View<float>()[i], weight->scale[0].View<float>()[i]);
}

TEST(LegacyFrozen, ComesBack) {
  // 'bmnts,bsnh->bnmth', and the weight of RecordedShapeAndElements.
  const DotDims batched{.lhs_contracting = {4}, .rhs_contracting = {1}, .lhs_batch = {0, 2}, .rhs_batch = {0, 2}};
  const struct {
    Shape shape;
    Side side;
    DotDims dims;
    int64_t other_rank;
  } cases[] = {{{2, 5, 6}, Side::kRhs, kDims, 4},
               {{2, 3, 5, 6}, Side::kLhs, kDims, 3},
               {{2, 3, 4, 7, 5}, Side::kLhs, batched, 4},
               {{2, 5, 4, 6}, Side::kRhs, batched, 5}};
  for (const auto& c : cases) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Axes axes = c.side == Side::kLhs ? c.dims.lhs_contracting : c.dims.rhs_contracting;
      const absl::StatusOr<QTensor> tensor = Quantize(QuantizerMake(4), RandomArray(dtype, c.shape, 2), axes);
      ASSERT_THAT(tensor, IsOk());
      const absl::StatusOr<LegacyFrozen> frozen = ToLegacyFrozen(*tensor, c.side, c.dims, c.other_rank);
      ASSERT_THAT(frozen, IsOk());
      const absl::StatusOr<QTensor> back = FromLegacyFrozen(*frozen, c.side, c.dims, c.other_rank);
      ASSERT_THAT(back, IsOk());
      EXPECT_TRUE(BitEqual(*back->qvalue, *tensor->qvalue));
      ASSERT_EQ(back->scale.size(), 1u);
      EXPECT_TRUE(BitEqual(back->scale[0], tensor->scale[0])) << c.shape.ToString();
      EXPECT_EQ(back->dequant_dtype, dtype);
    }
  }
}

TEST(LegacyFrozen, Refuses) {
  const QTensor good = *Quantize(QuantizerMake(8), RandomArray(DType::kF32, {2, 5, 6}, 1), {1, 2});
  const auto refuses = [&](QTensor tensor, const char* what) {
    EXPECT_THAT(ToLegacyFrozen(tensor, Side::kRhs, kDims, 4),
                FailsWith(absl::StatusCode::kInvalidArgument, {"ToLegacyFrozen", what}));
  };
  QTensor tensor = good;
  tensor.qvalue.reset();
  refuses(tensor, "no qvalue");
  tensor = good;
  tensor.scale.push_back(good.scale[0]);
  refuses(tensor, "2 scales");
  tensor = good;
  tensor.bias.push_back(good.scale[0]);
  refuses(tensor, "a bias");
  tensor = *Quantize(QuantizerMake(8), RandomArray(DType::kF32, {2, 5, 6}, 1), {0});
  refuses(tensor, "it varies along the contracting axis 1");

  LegacyFrozen frozen = *ToLegacyFrozen(good, Side::kRhs, kDims, 4);
  frozen.scale = Array::Zeros(DType::kF32, {2, 1, 1});  // the layout of the operand
  EXPECT_THAT(FromLegacyFrozen(frozen, Side::kRhs, kDims, 4),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        {"FromLegacyFrozen: the scale f32[2,1,1] of the value s8[2,5,6] does not fit rhs", "rank 3"}));
  frozen.scale = Array::Zeros(DType::kS32, {1, 1, 2});
  EXPECT_THAT(FromLegacyFrozen(frozen, Side::kRhs, kDims, 4),
              FailsWith(absl::StatusCode::kInvalidArgument, {"s32[1,1,2]"}));
  frozen.scale = Array::Zeros(DType::kF32, {1, 2});
  EXPECT_THAT(FromLegacyFrozen(frozen, Side::kRhs, kDims, 4),
              FailsWith(absl::StatusCode::kInvalidArgument, {"f32[1,2]", "expected rank 3"}));
}

TEST(LegacyFrozen, RefusesDimsOfOtherTensors) {
  const QTensor good = *Quantize(QuantizerMake(8), RandomArray(DType::kF32, {2, 5, 6}, 1), {1, 2});
  const LegacyFrozen frozen = *ToLegacyFrozen(good, Side::kRhs, kDims, 4);
  const auto refuses = [&](const DotDims& dims, int64_t other_rank, const char* what) {
    EXPECT_THAT(ToLegacyFrozen(good, Side::kRhs, dims, other_rank),
                FailsWith(absl::StatusCode::kInvalidArgument, {"ToLegacyFrozen: ", what}));
    EXPECT_THAT(FromLegacyFrozen(frozen, Side::kRhs, dims, other_rank),
                FailsWith(absl::StatusCode::kInvalidArgument, {"FromLegacyFrozen: ", what}));
  };
  refuses({}, -1, "the other operand has rank -1, expected at least 0");
  refuses(kDims, 1, "dot dims: lhs [1] has rank 1, but axis 2 is named");
  refuses({.lhs_contracting = {2, 3}, .rhs_contracting = {1, 3}}, 4,
          "dot dims: rhs [2,5,6] has rank 3, but axis 3 is named");
  refuses({.lhs_contracting = {0}, .rhs_contracting = {1}, .lhs_batch = {1}, .rhs_batch = {-1}}, 4,
          "dot dims: rhs [2,5,6] has rank 3, but axis -1 is named");
  refuses({.lhs_contracting = {2}, .rhs_contracting = {1, 2}}, 4, "the lists must be of equal length");

  QTensor tensor = good;
  tensor.scale = {Array::Zeros(DType::kF32, {2})};
  EXPECT_THAT(ToLegacyFrozen(tensor, Side::kRhs, kDims, 4),
              FailsWith(absl::StatusCode::kInvalidArgument, {"ToLegacyFrozen", "f32[2]", "[2,5,6]"}));
}

}  // namespace
}  // namespace aqt
