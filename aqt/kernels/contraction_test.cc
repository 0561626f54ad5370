#include "aqt/kernels/contraction.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "gtest/gtest.h"

namespace aqt::kernels {
namespace {

Array Random(DType dtype, const Shape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> draw(0, 3);
  ArrayBuilder builder(DType::kF64, shape);
  for (double& x : builder.Mutable<double>()) x = draw(random);
  return Cast(std::move(builder).Build(), dtype);
}

// Computes the product by Contract and, for dense operands, also by a plan whose memory starts with arbitrary contents.
Array Product(const DotDims& dims, const ArrayRef& lhs, const ArrayRef& rhs, DType out_dtype) {
  ArrayBuilder out(out_dtype, DotOutputShape(dims, lhs.shape, rhs.shape));
  Contract(dims, lhs, rhs, out.ref());
  Array product = std::move(out).Build();
  if (lhs.IsDense() && rhs.IsDense()) {
    const ContractPlan plan(dims, lhs.aval(), rhs.aval(), product.aval());
    const std::shared_ptr<void> scratch = AllocateUninitialized(plan.scratch_bytes());
    std::memset(scratch.get(), 0x5a, plan.scratch_bytes());
    ArrayBuilder planned(product.aval());
    plan.Run(lhs.data, rhs.data, planned.data(), scratch.get());
    EXPECT_TRUE(BitEqual(std::move(planned).Build(), product));
  }
  return product;
}

// Product compares the plan with Contract. Non-finite numbers and subnormal sums are rounded too.
TEST(ContractionTest, PlansRoundTheSumOnce) {
  Array a = Random(DType::kF32, {20, 70}, 21);
  const Array b = Random(DType::kF32, {70, 33}, 22);
  ArrayBuilder odd = ArrayBuilder::ForOverwrite(a.aval());
  std::memcpy(odd.data(), a.data(), a.aval().num_bytes());
  odd.Mutable<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  odd.Mutable<float>()[75] = -std::numeric_limits<float>::infinity();
  for (int64_t i = 140; i < 210; ++i) odd.Mutable<float>()[i] *= 0x1p-130f;
  a = std::move(odd).Build();
  for (const DType out : {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3FN, DType::kE5M2, DType::kF64}) {
    for (const DType in : {DType::kF32, DType::kBF16}) Product(MatMulDims(), Cast(a, in), Cast(b, in), out);
  }
}

TEST(ContractionTest, MatMul) {
  const Array a = Array::Of<float>({1, 2, 3, 4, 5, 6}, {2, 3}), b = Array::Of<float>({1, 0, 2, 1, 0, 3}, {3, 2});
  EXPECT_TRUE(BitEqual(Product(MatMulDims(), a, b, DType::kF32), Array::Of<float>({5, 11, 14, 23}, {2, 2})));
}

// The order that the header promises for f32 and f64, written with one loop per index.
template <class T>
void ExpectOrder() {
  const DotDims dims = {.lhs_contracting = {3, 1}, .rhs_contracting = {0, 2}, .lhs_batch = {2}, .rhs_batch = {3}};
  const int64_t m = 3, k1 = 5, batch = 2, k0 = 7, n = 4;
  const Array lhs = Random(kDTypeOf<T>, {m, k1, batch, k0}, 1), rhs = Random(kDTypeOf<T>, {k0, n, k1, batch}, 2);
  const Array got = Product(dims, lhs, rhs, kDTypeOf<T>);
  const bool fma = kDTypeOf<T> == DType::kF32 && BestTarget().Has(Capability::kAvx2);
  ASSERT_EQ(got.shape(), (Shape{batch, m, n}));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        volatile T sum = 0;  // volatile: each step is rounded
        for (int64_t x = 0; x < k0; ++x) {
          for (int64_t y = 0; y < k1; ++y) {
            const T p = lhs.View<T>()[((i * k1 + y) * batch + b) * k0 + x],
                    q = rhs.View<T>()[((x * n + j) * k1 + y) * batch + b];
            volatile T product = p * q;
            sum = fma ? std::fma(p, q, sum) : sum + product;
          }
        }
        EXPECT_EQ(got.View<T>()[(b * m + i) * n + j], sum);
      }
    }
  }
}

TEST(ContractionTest, OrderIsThatOfTheContractingAxes) {
  ExpectOrder<float>();
  ExpectOrder<double>();
}

// Uses more axes than the matrix kernels support.
TEST(ContractionTest, NineAxes) {
  const Array a = Random(DType::kF32, {2, 1, 2, 1, 3, 2, 1, 2, 2}, 7), b = Random(DType::kF32, {2, 2, 5}, 8);
  const DotDims dims = {.lhs_contracting = {7, 5}, .rhs_contracting = {1, 0}, .lhs_batch = {}, .rhs_batch = {}};
  // The same product with neighbouring axes merged.
  const DotDims joined = {.lhs_contracting = {3, 1}, .rhs_contracting = {1, 0}, .lhs_batch = {}, .rhs_batch = {}};
  const Array got = Product(dims, a, b, DType::kF32),
              want = Product(joined, *a.Reshaped({12, 2, 1, 2, 2}), b, DType::kF32);
  EXPECT_TRUE(BitEqual(*got.Reshaped(want.shape()), want));
}

TEST(ContractionTest, SmallFloatsSumInF32AndRoundOnce) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Array a = Random(dtype, {3, 300}, 3), b = Random(dtype, {300, 5}, 4);
    const Array sums = Product(MatMulDims(), a, b, DType::kF32);
    EXPECT_TRUE(BitEqual(Product(MatMulDims(), a, b, dtype), Cast(sums, dtype)));
    const Array exact = Product(MatMulDims(), Cast(a, DType::kF64), Cast(b, DType::kF64), DType::kF64);
    for (int64_t i = 0; i < 15; ++i) {
      double magnitude = 0;
      for (int64_t k = 0; k < 300; ++k) {
        magnitude += std::fabs(Cast(a, DType::kF64).View<double>()[i / 5 * 300 + k] *
                               Cast(b, DType::kF64).View<double>()[k * 5 + i % 5]);
      }
      // At most 302 roundings, by kernels/gemm/table.h.
      EXPECT_LE(std::fabs(sums.View<float>()[i] - exact.View<double>()[i]), 303 * 0x1p-24 * magnitude);
    }
  }
  const Array a = Random(DType::kF16, {3, 300}, 3), b = Random(DType::kF16, {300, 5}, 4);
  EXPECT_TRUE(BitEqual(Product(MatMulDims(), a, b, DType::kF32),
                       Product(MatMulDims(), Cast(a, DType::kF32), Cast(b, DType::kF32), DType::kF32)));
}

TEST(ContractionTest, IntegersAreExactAndMayDiffer) {
  const Array a = Array::Of<int8_t>({-128, 127, -128, 127}, {2, 2});
  const Array b = Array::Of<Int4>({{-8}, {7}}, {2, 1});
  EXPECT_TRUE(BitEqual(Product(MatMulDims(), a, b, DType::kS32), Array::Of<int32_t>({1913, 1913}, {2, 1})));
  const Array bytes = Random(DType::kS8, {5, 70}, 9), more = Random(DType::kS8, {70, 3}, 10);
  EXPECT_TRUE(BitEqual(Product(MatMulDims(), bytes, more, DType::kS32),
                       Product(MatMulDims(), Cast(bytes, DType::kS32), Cast(more, DType::kS32), DType::kS32)));
  const Array big = Array::Of<int32_t>({1 << 30, 1 << 30}, {1, 2}), two = Array::Of<int32_t>({2, 2}, {2, 1});
  EXPECT_TRUE(BitEqual(Product(MatMulDims(), big, two, DType::kS32), Array::Of<int32_t>({0}, {1, 1})));
}

TEST(ContractionTest, EmptyExtents) {
  for (const auto& [m, k, n] : {std::tuple<int64_t, int64_t, int64_t>{0, 3, 2}, {2, 0, 3}, {2, 3, 0}}) {
    const Array got =
        Product(MatMulDims(), Array::Zeros(DType::kF32, {m, k}), Array::Zeros(DType::kF32, {k, n}), DType::kF32);
    EXPECT_TRUE(BitEqual(got, Array::Zeros(DType::kF32, {m, n})));
  }
  // The operands are empty, however many rows they have, so nothing is packed for those rows.
  const int64_t many = int64_t{1} << 40;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kS8, DType::kS32, DType::kF64}) {
    const Array none = Array::Zeros(dtype, {0, 0}), rows = Array::Zeros(dtype, {0, many});
    const DType out = IsFloat(dtype) ? dtype : DType::kS32;
    EXPECT_EQ(Product(MatMulDims(), none, rows, out).aval(), (Aval{out, {0, many}}));
    EXPECT_EQ(Product({.lhs_contracting = {0}, .rhs_contracting = {1}}, rows, none, out).aval(),
              (Aval{out, {many, 0}}));
  }
}

TEST(ContractionTest, ARowDoesNotDependOnItsNeighbours) {
  const Array a = Random(DType::kF32, {7, 33}, 5), b = Random(DType::kF32, {33, 9}, 6);
  const Array all = Product(MatMulDims(), a, b, DType::kF32);
  for (int64_t i = 0; i < 7; ++i) {
    const Array row = Product(MatMulDims(), ArrayRef(a.View<float>().data() + i * 33, {1, 33}), b, DType::kF32);
    EXPECT_TRUE(BitEqual(row, Array::CopyOf(ArrayRef(all.View<float>().data() + i * 9, {1, 9}))));
  }
}

}  // namespace
}  // namespace aqt::kernels
