#include "aqt/core/dot_dims.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "aqt/core/shape.h"

namespace aqt {
namespace {

TEST(ValidateDotDims, NamesShapesAndAxes) {
  struct Case {
    DotDims dims;
    Shape lhs, rhs;
    std::string message;
  };
  // clang-format off
  const Case cases[] = {
      {{.lhs_contracting = {1}, .rhs_contracting = {0}}, {8, 64}, {32, 16},
       "dot dims: contracting sizes differ: lhs [8,64] axis 1 = 64, rhs [32,16] axis 0 = 32"},
      {{.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}}, {2, 3, 4}, {5, 4, 6},
       "dot dims: batch sizes differ: lhs [2,3,4] axis 0 = 2, rhs [5,4,6] axis 0 = 5"},
      {{.lhs_contracting = {2}, .rhs_contracting = {0}}, {8, 64}, {64, 16},
       "dot dims: lhs [8,64] has rank 2, but axis 2 is named"},
      {{.lhs_contracting = {1}, .rhs_contracting = {-1}}, {8, 64}, {64, 16},
       "dot dims: rhs [64,16] has rank 2, but axis -1 is named"},
      {{.lhs_contracting = {1, 1}, .rhs_contracting = {0, 1}}, {8, 64}, {64, 16},
       "dot dims: lhs axis 1 is named twice (contracting [1,1], batch [])"},
      {{.lhs_contracting = {1}, .rhs_contracting = {0}, .lhs_batch = {1}, .rhs_batch = {1}}, {8, 4}, {4, 4},
       "dot dims: lhs axis 1 is named twice (contracting [1], batch [1])"},
      {{.lhs_contracting = {1}, .rhs_contracting = {}}, {8, 64}, {64, 16},
       "dot dims: lhs contracts the axes [1], rhs []; the lists must be of equal length"},
      {{.lhs_contracting = {1}, .rhs_contracting = {0}, .lhs_batch = {0}}, {8, 64}, {64, 16},
       "dot dims: lhs has the batch axes [0], rhs []; the lists must be of equal length"},
  };
  // clang-format on
  for (const Case& c : cases) {
    const absl::Status status = ValidateDotDims(c.dims, c.lhs, c.rhs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), c.message);
  }
  EXPECT_TRUE(ValidateDotDims(MatMulDims(), {8, 64}, {64, 16}).ok());
  EXPECT_TRUE(ValidateDotDims({}, {}, {}).ok());
}

TEST(DotDims, TextAndSwap) {
  const DotDims dims{.lhs_contracting = {1, 2}, .rhs_contracting = {0, 3}, .lhs_batch = {0}, .rhs_batch = {1}};
  EXPECT_EQ(dims.ToString(), "(([1,2],[0,3]),([0],[1]))");
  EXPECT_EQ(dims.Swapped().ToString(), "(([0,3],[1,2]),([1],[0]))");
}

TEST(DotOutputShape, BatchThenFree) {
  EXPECT_EQ(DotOutputShape(MatMulDims(), {8, 64}, {64, 16}), (Shape{8, 16}));
  EXPECT_EQ(DotOutputShape({.lhs_contracting = {3, 1}, .rhs_contracting = {0, 4}, .lhs_batch = {2}, .rhs_batch = {2}},
                           {2, 3, 5, 4}, {4, 6, 5, 7, 3}),
            (Shape{5, 2, 6, 7}));
  EXPECT_EQ(DotOutputShape({.lhs_contracting = {0}, .rhs_contracting = {0}}, {8}, {8}), (Shape{}));
  EXPECT_EQ(DotOutputShape({}, {3}, {4}), (Shape{3, 4}));
}

TEST(MakeBackwardDotDims, MatMul) {
  const BackwardDotDims dlhs = MakeBackwardDotDims(MatMulDims(), 2, 2, Side::kLhs);
  EXPECT_EQ(dlhs.dims.ToString(), "(([1],[1]),([],[]))");
  EXPECT_EQ(dlhs.to_operand, (Axes{0, 1}));
  const BackwardDotDims drhs = MakeBackwardDotDims(MatMulDims(), 2, 2, Side::kRhs);
  EXPECT_EQ(drhs.dims.ToString(), "(([0],[0]),([],[]))");
  EXPECT_EQ(drhs.to_operand, (Axes{1, 0}));  // the product is [N,K]
}

// The extents of the product, moved to the axes in to_operand, are the extents of the operand.
TEST(MakeBackwardDotDims, ProductHasTheOperandsShape) {
  struct Case {
    DotDims dims;
    Shape lhs, rhs;
  };
  const Case cases[] = {
      {MatMulDims(), {4, 8}, {8, 5}},
      {{.lhs_contracting = {2}, .rhs_contracting = {0}, .lhs_batch = {1}, .rhs_batch = {1}}, {3, 2, 8}, {8, 2, 5}},
      {{.lhs_contracting = {3, 2}, .rhs_contracting = {0, 1}}, {2, 3, 4, 5}, {5, 4, 6}},
      {{.lhs_contracting = {3}, .rhs_contracting = {1}, .lhs_batch = {0, 1}, .rhs_batch = {2, 0}},
       {2, 3, 4, 6},
       {3, 6, 2, 5}},
      {{.lhs_contracting = {1, 2}, .rhs_contracting = {2, 0}}, {3, 4, 5}, {5, 7, 4}},
      {{}, {3}, {4}},
      {{.lhs_contracting = {0}, .rhs_contracting = {0}}, {8}, {8}},
  };
  for (const Case& c : cases) {
    ASSERT_TRUE(ValidateDotDims(c.dims, c.lhs, c.rhs).ok());
    const Shape g = DotOutputShape(c.dims, c.lhs, c.rhs);
    for (const Side wrt : {Side::kLhs, Side::kRhs}) {
      const Shape& x = wrt == Side::kLhs ? c.lhs : c.rhs;
      const Shape& y = wrt == Side::kLhs ? c.rhs : c.lhs;
      const BackwardDotDims backward = MakeBackwardDotDims(c.dims, c.lhs.rank(), c.rhs.rank(), wrt);
      ASSERT_TRUE(ValidateDotDims(backward.dims, g, y).ok()) << c.dims << wrt;
      const Shape product = DotOutputShape(backward.dims, g, y);
      ASSERT_EQ(product.rank(), x.rank());
      for (int64_t i = 0; i < x.rank(); ++i) EXPECT_EQ(product[i], x[backward.to_operand[i]]) << c.dims << wrt;
    }
  }
}

}  // namespace
}  // namespace aqt
