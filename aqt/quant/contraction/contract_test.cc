// The plain product: dtypes, subnormals and NaN as in lax.dot_general of JAX 0.10.2 on CPU.

#include "aqt/quant/contraction/engine/contract.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/contraction/scratch.h"

namespace aqt::internal {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16, kE4 = DType::kE4M3FN, kE5 = DType::kE5M2,
                kS8 = DType::kS8;
constexpr std::optional<DType> kNone = std::nullopt;
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

void ContractOn(kernels::Target target, const Array& lhs, const Array& rhs, const DotDims& dims,
                const MutableArrayRef& out) {
  const Contraction contraction = MakeContraction(dims, lhs.aval(), rhs.aval(), out.dtype, target);
  SlotSizes sizes;
  AddContractSlots(contraction, lhs.aval(), rhs.aval(), out.shape.num_elements(), sizes);
  Scratch scratch;
  {
    Workspace workspace(scratch);
    Contract(contraction, lhs, rhs, out, workspace, Runtime());
  }
  if (lhs.dtype() == kF32 && rhs.dtype() == kF32) {  // with few rows, the rhs may be read in place
    EXPECT_LE(scratch.num_bytes(), sizes.Total()) << "it took more than was planned";
  } else {
    EXPECT_EQ(scratch.num_bytes(), sizes.Total()) << "it took other memory than was planned";
  }
}

// The dot product of two vectors on every target; all must give the same value.
double Dot(DType a_dtype, const std::vector<double>& a, DType b_dtype, const std::vector<double>& b, DType out_dtype) {
  const int64_t k = static_cast<int64_t>(a.size());
  const Array lhs = Cast(Array::FromSpan<double>(a, {1, k}), a_dtype);
  const Array rhs = Cast(Array::FromSpan<double>(b, {k, 1}), b_dtype);
  std::optional<double> result;
  for (const kernels::Target target : kernels::SupportedTargets()) {
    ArrayBuilder out(out_dtype, {1, 1});
    ContractOn(target, lhs, rhs, MatMulDims(), out.ref());
    const double value = Cast(std::move(out).Build(), DType::kF64).View<double>()[0];
    EXPECT_TRUE(!result.has_value() || value == *result || (std::isnan(value) && std::isnan(*result))) << target;
    result = value;
  }
  return *result;
}

struct Recorded {
  DType a_dtype;
  double a;
  DType b_dtype;
  double b;
  std::optional<DType> accumulator;
  DType dtype;
  double product;
};

// Products that differ from the exact one rounded once to their dtype.
TEST(Contract, DTypesOfProductsAsRecorded) {
  const Recorded cases[] = {
      // clang-format off
      {kF32, -0x1.b502dp0, kBF16, 0x1.94p-55, kBF16, kBF16, -0x1.5ap-54},
      {kF32, 0x1.51e954p-2, kBF16, -0x1.54p0, kF16, kF16, -0x1.c1p-2},
      {kF32, -0x1.733f6ep-2, kF16, 0x1.838p7, kBF16, kBF16, -0x1.1ap6},
      {kF32, 0x1.6a5caap8, kF16, -0x1.754p4, kF16, kF16, -8448},
      {kF32, -0x1.54727ep119, kE4, 0x1.4p0, kBF16, kBF16, -0x1.a8p119},
      {kF32, 0x1.906e5ap-1, kE4, -0x1.8p-1, kF16, kF16, -0x1.2c8p-1},
      {kF32, 0x1.25b4cp57, kE5, 0x1.cp-7, kBF16, kBF16, 0x1.02p51},
      {kF32, 0x1.7e483cp19, kE5, 0, kF16, kF16, kNaN},
      {kF32, 0x1.4b018ep-50, kS8, -104, kBF16, kBF16, -0x1.0ep-43},
      {kF32, -0x1.8d1576p0, kS8, -37, kF16, kF16, 0x1.cbp5},
      {kBF16, -5056, kF32, 0x1.430138p61, kBF16, kBF16, -0x1.9p73},
      {kBF16, -0x1.6p-4, kF32, -0x1.721914p-1, kF16, kF16, 0x1.fccp-5},
      {kBF16, -0x1.4cp0, kBF16, 0x1.74p0, kF16, kF16, -0x1.e2p0},
      {kBF16, 0x1.7ap1, kF16, 0x1.574p-2, kNone, kBF16, 0x1.fcp-1},
      {kBF16, 0x1.9ap-4, kF16, 0x1.93p3, kBF16, kBF16, 0x1.44p0},
      {kBF16, 0x1.c2p36, kF16, 0, kF16, kF16, kNaN},
      {kBF16, -0x1.02p60, kE4, 0, kF16, kF16, kNaN},
      {kBF16, 0x1.3ap89, kE5, 0, kF16, kF16, kNaN},
      {kBF16, -0x1.36p-19, kS8, 42, kF16, kF16, -0x1.998p-14},
      {kF16, 10320, kF32, -0x1.32144ep23, kBF16, kBF16, -0x1.8p36},
      {kF16, 0x1.634p-8, kF32, -0x1.496982p-2, kF16, kF16, -0x1.c94p-10},
      {kF16, -0x1.69p-7, kBF16, 0x1.f8p112, kNone, kBF16, -0x1.62p106},
      {kF16, -0x1.3d8p0, kBF16, -0x1.6ap0, kBF16, kBF16, 0x1.c2p0},
      {kF16, 0, kBF16, -0x1.6p96, kF16, kF16, kNaN},
      {kF16, -0x1.adp-1, kF16, 0x1.e44p0, kBF16, kBF16, -0x1.94p0},
      {kF16, 0x1.2dcp-4, kE4, 0x1.ep-2, kBF16, kBF16, 0x1.1cp-5},
      {kF16, -0x1.018p-3, kE5, 0x1.cp-3, kBF16, kBF16, -0x1.c4p-6},
      {kF16, -0x1.b1cp-8, kS8, -34, kBF16, kBF16, 0x1.cep-3},
      {kE4, -224, kF32, 0x1.459cd2p-4, kBF16, kBF16, -0x1.1ep4},
      {kE4, -0x1p-8, kF32, -0x1.5cdaf4p22, kF16, kF16, kInf},
      {kE4, 0x1.2p-6, kBF16, -0x1.22p17, kF16, kF16, -kInf},
      {kE4, 0x1.ep-1, kF16, 0x1.4b4p-1, kBF16, kBF16, 0x1.38p-1},
      {kE4, 0x1.2p-4, kE5, 0x1.cp-4, kNone, kE5, 0x1.cp-8},
      {kE4, -0x1.8p-7, kS8, -123, kNone, kE4, 0x1.6p0},
      {kE5, 0x1.cp-5, kF32, 0x1.e56b98p-115, kBF16, kBF16, 0x1.aap-119},
      {kE5, -0x1p-16, kF32, 0x1.69dc96p18, kF16, kF16, -kInf},
      {kE5, 0, kBF16, 0x1.a4p92, kF16, kF16, kNaN},
      {kE5, -0x1.8p0, kF16, 0x1.c3p-6, kBF16, kBF16, -0x1.54p-5},
      {kE5, 0x1.4p-2, kE4, -0x1.2p1, kNone, kE5, -0x1.4p-1},
      {kE5, 0x1.4p-6, kS8, -117, kNone, kE5, -2},
      {kS8, -93, kF32, 0x1.accd1p31, kBF16, kBF16, -0x1.36p38},
      {kS8, -61, kF32, -0x1.785d64p-2, kF16, kF16, 0x1.668p4},
      {kS8, 81, kBF16, -0x1.72p-18, kF16, kF16, -0x1.d1cp-12},
      {kS8, -39, kF16, 0x1.048p0, kBF16, kBF16, -0x1.3cp5},
      {kS8, 21, kE4, 0x1.2p-1, kNone, kE4, 11},
      {kS8, -86, kE5, -0x1.4p1, kNone, kE5, 192},
      // clang-format on
  };
  for (const Recorded& c : cases) {
    EXPECT_EQ(ProductTypesOf(c.a_dtype, c.b_dtype, c.accumulator).product, c.dtype) << c.a_dtype << c.b_dtype;
    const double got = Dot(c.a_dtype, {c.a}, c.b_dtype, {c.b}, c.dtype);
    EXPECT_TRUE(got == c.product || (std::isnan(got) && std::isnan(c.product)))
        << c.a_dtype << " " << c.a << " x " << c.b_dtype << " " << c.b << " in " << c.dtype << ": got " << got
        << ", expected " << c.product;
  }
}

TEST(Contract, SumsAreInF32) {
  EXPECT_EQ(Dot(kF16, {2048, 1, 1}, kF16, {1, 1, 1}, kF16), 2050);
  EXPECT_EQ(Dot(kF16, {60000, 60000, -60000}, kF16, {1, 1, 1}, kF16), 60000);
  EXPECT_EQ(Dot(kBF16, {1, 0x1p-8, 0x1p-11}, kBF16, {1, 1, 1}, kF16), 1.0078125);  // to bf16 first
  EXPECT_EQ(Dot(kBF16, {1, 0x1p-8, 0x1p-11}, kBF16, {1, 1, 1}, kF32), 1 + 0x1p-8 + 0x1p-11);
  // To f16 first, where 17 + 2^-8 is 17, a tie (JAX 0.10.2 and 0.12 on CPU).
  EXPECT_EQ(Dot(kE4, {16, 1, 0x1p-8}, kE4, {1, 1, 1}, kE4), 16);
  EXPECT_EQ(Dot(kE4, {16, 1, 0x1p-8}, kS8, {1, 1, 1}, kE4), 16);
  EXPECT_EQ(Dot(kE5, {8, 1, 0x1p-9}, kE4, {1, 1, 1}, kE5), 8);
  EXPECT_EQ(Dot(kE4, {16, 1, 0x1p-8}, kE4, {1, 1, 1}, kF32), 17 + 0x1p-8);
}

TEST(Contract, SubnormalOperandsAreZero) {
  const std::vector<double> tiny(1000, 1e-39), large(1000, 1e3);
  EXPECT_EQ(Dot(kF32, tiny, kF32, large, kF32), 0);
  EXPECT_EQ(Dot(kF32, large, kF32, tiny, kF32), 0);
  EXPECT_EQ(Dot(kBF16, tiny, kBF16, large, kBF16), 0);
  EXPECT_EQ(Dot(kF32, tiny, kBF16, large, kF32), 0);
  EXPECT_EQ(Dot(kF32, {0x1p-126}, kF32, {1}, kF32), 0x1p-126);
  // Subnormals of f16 and of the 8-bit floats are normal numbers in f32.
  EXPECT_EQ(Dot(kF16, std::vector<double>(1000, 0x1p-24), kF16, std::vector<double>(1000, 1), kF16), 1000 * 0x1p-24);
  EXPECT_EQ(Dot(kE4, {0x1p-9}, kE4, {1}, kF32), 0x1p-9);
  // A subnormal that a conversion rounds up to a normal number does not become zero.
  EXPECT_EQ(Dot(kF32, {0x1p-126 * (1 - 0x1p-20)}, kBF16, {1024}, kBF16), 0x1p-116);
}

// Operands with more axes than the kernels take are gathered first.
TEST(Contract, ManyAxes) {
  const Shape shape{1, 1, 1, 2, 1, 1, 1, 1, 2};
  const Array lhs = Cast(Array::Of<float>({1.00390625f, 1e-39f, 3, 4}, shape), kF32);
  const Array rhs = Cast(Array::Of<float>({2, 1}, {2}), kBF16);
  ArrayBuilder out(kBF16, {1, 1, 1, 2, 1, 1, 1, 1});
  ContractOn(kernels::BestTarget(), lhs, rhs, {.lhs_contracting = {8}, .rhs_contracting = {0}}, out.ref());
  const Array result = Cast(std::move(out).Build(), DType::kF32);
  EXPECT_EQ(result.View<float>()[0], 2);  // 1.00390625 is 1 in bf16
  EXPECT_EQ(result.View<float>()[1], 10);
}

// Against the plain loop, for every length of the remainder and every position of the smallest value.
TEST(SmallestMagnitude, IsThatOfTheNonzeroNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(SmallestMagnitude(nullptr, 0), inf);
  for (int64_t n = 1; n < 40; ++n) {
    std::vector<float> zeros(n, -0.0f);
    EXPECT_EQ(SmallestMagnitude(zeros.data(), n), inf);
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x(n, at % 2 == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN());
      x[(at + 1) % n] = 3;
      x[at] = -1e-39f;
      EXPECT_EQ(SmallestMagnitude(x.data(), n), 1e-39f) << n << " " << at;
    }
  }
}

// Only scales in the form that GatherScales writes: dense, f32, none subnormal.
TEST(ScalesInPlace, AreThoseThatGatheringWouldCopy) {
  const Shape operand{2, 5, 3};
  const OperandAxes axes{.batch = {0}, .rows = {2}, .k = {1}};
  std::vector<float> values = {1, 2, 3, 4, 5, 0};
  ArrayRef scale(kF32, {2, 1, 3}, values.data());
  EXPECT_EQ(ScalesInPlace(scale, operand, axes).values, values.data());
  EXPECT_EQ(ScalesInPlace(scale, operand, axes).smallest, 1);
  std::vector<float> gathered(6);
  GatherScales(scale, operand, axes, gathered.data());
  EXPECT_EQ(gathered, values);

  EXPECT_EQ(ScalesInPlace(scale, operand, {.batch = {2}, .rows = {0}, .k = {1}}).values, nullptr) << "another order";
  EXPECT_EQ(ScalesInPlace(ArrayRef(kF32, {1, 1, 3}, values.data()), operand, axes).values, nullptr) << "broadcast";
  EXPECT_EQ(ScalesInPlace(ArrayRef(kBF16, {2, 1, 3}, values.data()), operand, axes).values, nullptr) << "another dtype";
  values[4] = -1e-39f;
  EXPECT_EQ(ScalesInPlace(scale, operand, axes).values, nullptr) << "a subnormal";
}

}  // namespace
}  // namespace aqt::internal
