#include "aqt/core/eigen_adapter.h"

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>
#include <Eigen/Core>
#include <unsupported/Eigen/CXX11/Tensor>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt {
namespace {

TEST(ViewOf, MatricesOfBothStorageOrders) {
  Eigen::MatrixXf columns(2, 3);
  columns << 1, 2, 3, 4, 5, 6;
  const Eigen::Matrix<float, 2, 3, Eigen::RowMajor> rows = columns;
  const Array want = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(ViewOf(columns).strides, (Strides{1, 2}));
  EXPECT_EQ(ViewOf(rows).strides, (Strides{3, 1}));
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(columns)), want));
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(rows)), want));
}

TEST(ViewOf, VectorsMapsBlocksAndTransposes) {
  Eigen::VectorXf v(3);
  v << 7, 8, 9;
  EXPECT_EQ(ViewOf(v).shape, (Shape{3}));
  const Eigen::RowVector3f r = v;
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(r)), Array::Of<float>({7, 8, 9}, {3})));

  const int8_t data[] = {1, 2, 3, 4, 5, 6, 7, 8};
  using Strided = Eigen::Map<const Eigen::Matrix<int8_t, Eigen::Dynamic, Eigen::Dynamic>, 0, Eigen::Stride<4, 2>>;
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(Strided(data, 2, 2))), Array::Of<int8_t>({1, 5, 3, 7}, {2, 2})));

  Eigen::MatrixXf m(3, 3);
  m << 1, 2, 3, 4, 5, 6, 7, 8, 9;
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(m.block(1, 1, 2, 2))), Array::Of<float>({5, 6, 8, 9}, {2, 2})));
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(m.row(1))), Array::Of<float>({4, 5, 6}, {3})));
}

template <class T>
concept HasView = requires(T&& x) {
  ViewOf(std::forward<T>(x));
};
static_assert(HasView<Eigen::MatrixXf&> && HasView<const Eigen::MatrixXf&> && HasView<Eigen::Map<Eigen::MatrixXf>>);
static_assert(!HasView<Eigen::MatrixXf>);  // it would refer to the memory of a temporary
static_assert(!HasView<decltype(Eigen::MatrixXf() + Eigen::MatrixXf())>);

TEST(ViewOf, SmallFloats) {
  Eigen::Matrix<Eigen::bfloat16, 1, 2> b;
  b << Eigen::bfloat16(1.5f), Eigen::bfloat16(-2.0f);
  EXPECT_EQ(ViewOf(b).dtype, DType::kBF16);
  EXPECT_EQ(ToFloat(static_cast<const BFloat16*>(ViewOf(b).data)[1]), -2.0f);
  Eigen::Matrix<Eigen::half, 1, 2> h;
  h << Eigen::half(0.25f), Eigen::half(3.0f);
  EXPECT_EQ(ToFloat(static_cast<const Float16*>(ViewOf(h).data)[0]), 0.25f);
}

TEST(ViewOf, TensorsOfBothStorageOrders) {
  Eigen::Tensor<float, 3> columns(2, 3, 4);
  Eigen::Tensor<float, 3, Eigen::RowMajor> rows(2, 3, 4);
  ArrayBuilder want(DType::kF32, {2, 3, 4});
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) {
        const float value = static_cast<float>(100 * i + 10 * j + k);
        columns(i, j, k) = rows(i, j, k) = want.Mutable<float>()[(i * 3 + j) * 4 + k] = value;
      }
  const Array dense = std::move(want).Build();
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(columns)), dense));
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(rows)), dense));
  Eigen::TensorMap<Eigen::Tensor<float, 2>> map(columns.data(), 2, 12);
  EXPECT_EQ(ViewOf(map).strides, (Strides{1, 2}));
  MutableViewOf(map).As<float>()[1] = 5;
  EXPECT_EQ(columns(1, 0, 0), 5);
}

// Eigen's memory gives the same bits as dense arrays.
TEST(MutableViewOf, PlanReadsAndWritesEigen) {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(6, 10), w = Eigen::MatrixXf::Random(10, 4);
  Eigen::MatrixXf y(6, 4);
  const absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(FullyQuantized(), ViewOf(x).aval(), ViewOf(w).aval(), MatMulDims());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->Forward(ViewOf(x), ViewOf(w), {}, MutableViewOf(y)).ok());
  const absl::StatusOr<Array> want =
      QuantizedDotGeneral(FullyQuantized(), Array::CopyOf(ViewOf(x)), Array::CopyOf(ViewOf(w)), MatMulDims());
  ASSERT_TRUE(want.ok());
  EXPECT_TRUE(BitEqual(Array::CopyOf(ViewOf(y)), *want));
  // 10 products of numbers below 1, each side wrong by at most half a step of 1 / 127.5.
  EXPECT_LT((y - x * w).cwiseAbs().maxCoeff(), 10 * (1 / 127.5f) * 1.01f);
}

}  // namespace
}  // namespace aqt
