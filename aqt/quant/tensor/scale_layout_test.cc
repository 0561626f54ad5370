#include "aqt/quant/tensor/scale_layout.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt {
namespace {

// 'bmnts,bsnh->bnmth': lhs axes b m n t s, rhs axes b s n h.
const DotDims kDims{.lhs_contracting = {4}, .rhs_contracting = {1}, .lhs_batch = {0, 2}, .rhs_batch = {0, 2}};

Array Counting(const Shape& shape) {
  std::vector<float> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 0.0f);
  return Array::FromSpan<float>(values, shape);
}

TEST(ScaleToOutput, RecordedShapes) {
  const absl::StatusOr<ArrayRef> lhs = ScaleToOutput(Counting({2, 1, 4, 7, 1}), Side::kLhs, kDims, 4);
  ASSERT_TRUE(lhs.ok());
  EXPECT_EQ(lhs->shape, (Shape{2, 4, 1, 7, 1}));
  const absl::StatusOr<ArrayRef> rhs = ScaleToOutput(Counting({2, 1, 4, 1}), Side::kRhs, kDims, 5);
  ASSERT_TRUE(rhs.ok());
  EXPECT_EQ(rhs->shape, (Shape{2, 4, 1, 1, 1}));
}

TEST(ScaleToOther, RecordedShapes) {
  const absl::StatusOr<ArrayRef> lhs = ScaleToOther(Counting({2, 1, 4, 1, 3}), Side::kLhs, kDims, 4);
  ASSERT_TRUE(lhs.ok());
  EXPECT_EQ(lhs->shape, (Shape{2, 3, 4, 1}));
  const absl::StatusOr<ArrayRef> rhs = ScaleToOther(Counting({2, 6, 4, 1}), Side::kRhs, kDims, 5);
  ASSERT_TRUE(rhs.ok());
  EXPECT_EQ(rhs->shape, (Shape{2, 1, 4, 1, 6}));
}

// Elements follow their axes: the lhs scale of (b, m, n, t) is at (b, n, m, t) of the product.
TEST(ScaleToOutput, PermutesElements) {
  const Array scale = Counting({2, 3, 4, 7, 1});
  const absl::StatusOr<ArrayRef> view = ScaleToOutput(scale, Side::kLhs, kDims, 4);
  ASSERT_TRUE(view.ok());
  const Array dense = Array::CopyOf(*view);
  ASSERT_EQ(dense.shape(), (Shape{2, 4, 3, 7, 1}));
  for (int b = 0; b < 2; ++b)
    for (int n = 0; n < 4; ++n)
      for (int m = 0; m < 3; ++m)
        for (int t = 0; t < 7; ++t) {
          EXPECT_EQ(dense.View<float>()[((b * 4 + n) * 3 + m) * 7 + t],
                    scale.View<float>()[((b * 3 + m) * 4 + n) * 7 + t]);
        }
}

TEST(ScaleToOther, PermutesElements) {
  // Contracting axes in another order: lhs axis 1 with rhs axis 2, lhs axis 2 with rhs axis 0.
  const DotDims dims{.lhs_contracting = {1, 2}, .rhs_contracting = {2, 0}};
  const Array scale = Counting({1, 3, 5});
  const absl::StatusOr<ArrayRef> view = ScaleToOther(scale, Side::kLhs, dims, 3);
  ASSERT_TRUE(view.ok());
  const Array dense = Array::CopyOf(*view);
  ASSERT_EQ(dense.shape(), (Shape{5, 1, 3}));
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 5; ++j) EXPECT_EQ(dense.View<float>()[j * 3 + i], scale.View<float>()[i * 5 + j]);
}

TEST(ScaleLayout, Errors) {
  const absl::Status output = ScaleToOutput(Counting({2, 1, 4, 7, 3}), Side::kLhs, kDims, 4).status();
  EXPECT_EQ(output.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(output.message(), "scale of lhs has shape [2,1,4,7,3]: it varies along the contracting axis 4");
  const absl::Status other = ScaleToOther(Counting({2, 6, 4, 2}), Side::kRhs, kDims, 5).status();
  EXPECT_EQ(other.message(), "scale of rhs has shape [2,6,4,2]: it varies along the remaining axis 3");
}

// The group axis of 'mk,gkn->mn' is contracted and has no partner.
TEST(ScaleLayout, UnpairedContractingAxis) {
  const DotDims dims{.lhs_contracting = {1}, .rhs_contracting = {1, 0}};
  EXPECT_EQ(ScaleToOutput(Counting({6, 1}), Side::kLhs, dims, 3)->shape, (Shape{6, 1}));
  EXPECT_EQ(ScaleToOutput(Counting({1, 1, 5}), Side::kRhs, dims, 2)->shape, (Shape{1, 5}));
  EXPECT_EQ(ScaleToOther(Counting({1, 8}), Side::kLhs, dims, 3)->shape, (Shape{1, 8, 1}));
  EXPECT_EQ(ScaleToOther(Counting({1, 8, 1}), Side::kRhs, dims, 2)->shape, (Shape{1, 8}));
  EXPECT_EQ(ScaleToOther(Counting({2, 8, 1}), Side::kRhs, dims, 2).status(),
            absl::InvalidArgumentError("scale of rhs has shape [2,8,1]: it varies along the group axis 0"));
}

}  // namespace
}  // namespace aqt
