// Contractions of a float lhs with an integer rhs: on digits, or summed as floats.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/testing/same_bits.h"

namespace aqt {
namespace {

constexpr int64_t kRows = 20, kK = 300, kColumns = 70;

Array Forward(const DotGeneralPlan& plan, const Array& lhs, const Array& rhs) {
  ArrayBuilder out(plan.out_aval());
  EXPECT_EQ(plan.Forward(lhs, rhs, {}, out.ref()), absl::OkStatus());
  return std::move(out).Build();
}

DotGeneralPlan Plan(int bits, const Array& lhs, const Array& rhs, const PlanOptions& options = {}) {
  return *DotGeneralPlan::Make(DotGeneralMake(std::nullopt, bits), lhs.aval(), rhs.aval(), MatMulDims(), options);
}

TEST(WeightOnly, SameBitsOnEveryTarget) {
  for (const int bits : {8, 4}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Array lhs = RandomArray(dtype, {kRows, kK}, 1), rhs = RandomArray(dtype, {kK, kColumns}, 2);
      const Array want = Forward(Plan(bits, lhs, rhs, {.target = kernels::Target::kScalar}), lhs, rhs);
      for (const kernels::Target target : kernels::SupportedTargets()) {
        EXPECT_TRUE(BitEqual(Forward(Plan(bits, lhs, rhs, {.target = target}), lhs, rhs), want))
            << target << ", " << bits << " bits of " << ToString(dtype);
      }
    }
  }
}

TEST(WeightOnly, ARowHasItsBitsOfTheBatch) {
  const Array lhs = RandomArray(DType::kF32, {kRows, kK}, 1), rhs = RandomArray(DType::kF32, {kK, kColumns}, 2);
  const Array all = Forward(Plan(4, lhs, rhs), lhs, rhs);
  for (const int64_t row : {int64_t{0}, kRows - 1}) {
    const Array one = Array::FromSpan<float>(lhs.View<float>().subspan(row * kK, kK), {1, kK});
    const Array want = Array::FromSpan<float>(all.View<float>().subspan(row * kColumns, kColumns), {1, kColumns});
    EXPECT_TRUE(BitEqual(Forward(Plan(4, one, rhs), one, rhs), want));
  }
}

struct TiledProblem {
  const char* name;
  Shape lhs, rhs;
  DotDims dims;
  const char* equation;
  std::vector<std::pair<char, int64_t>> tiles;
};

// The tiles of k become groups of the kernel. With an observer the products of the tiles are stored and then summed.
TEST(WeightOnly, TilesOfKInOneProduct) {
  const DotDims batched{.lhs_contracting = {2}, .rhs_contracting = {1}, .lhs_batch = {0}, .rhs_batch = {0}};
  const DotDims crossed{.lhs_contracting = {2, 3}, .rhs_contracting = {1, 0}};
  const TiledProblem problems[] = {
      {"groups of 128", {5, 384}, {384, 70}, MatMulDims(), "ab,bc->ac", {{'b', 128}}},
      {"longer than a group of digits", {20, 600}, {600, 33}, MatMulDims(), "ab,bc->ac", {{'b', 300}}},
      {"tiles of columns, too", {3, 96}, {96, 64}, MatMulDims(), "ab,bc->ac", {{'b', 32}, {'c', 16}}},
      {"all", {4, 96}, {96, 60}, MatMulDims(), "ab,bc->ac", {{'a', 2}, {'b', 24}, {'c', 20}}},
      {"batch", {2, 4, 60}, {2, 60, 8}, batched, "nab,nbc->nac", {{'b', 20}}},
      {"two axes of k", {2, 3, 4, 6}, {6, 4, 5}, crossed, "xyab,bac->xyc", {{'b', 2}, {'a', 2}}},
      {"one of two axes of k", {2, 3, 4, 6}, {6, 4, 5}, crossed, "xyab,bac->xyc", {{'b', 2}}},
  };
  for (const TiledProblem& problem : problems) {
    for (const int bits : {8, 4, 2}) {
      SCOPED_TRACE(absl::StrCat(problem.name, ", ", bits, " bits"));
      const Array lhs = RandomArray(DType::kF32, problem.lhs, 1), rhs = RandomArray(DType::kF32, problem.rhs, 2);
      DotGeneralConfig config = DotGeneralMake(std::nullopt, bits);
      config.tiling = *DotTilingFromEinsum(problem.equation, problem.tiles);
      for (const kernels::Target target : kernels::SupportedTargets()) {
        const DotGeneralPlan plan =
            *DotGeneralPlan::Make(config, lhs.aval(), rhs.aval(), problem.dims, {.target = target});
        Recorder observer;
        ArrayBuilder want(plan.out_aval());
        ASSERT_EQ(plan.Forward(lhs, rhs, {}, want.ref(), nullptr, {.observer = &observer}), absl::OkStatus());
        const Array sums = std::move(want).Build();
        ASSERT_TRUE(BitEqual(Forward(plan, lhs, rhs), sums)) << target;
        const PreparedOperand weights = *plan.Prepare(Side::kRhs, rhs);
        ASSERT_GT(weights.panel_bytes(), 0);
        ArrayBuilder out(plan.out_aval());
        const PreparedOperand panels = weights.WithoutValues();
        ASSERT_EQ(plan.Forward(lhs, panels, {}, out.ref()), absl::OkStatus());
        ASSERT_TRUE(BitEqual(std::move(out).Build(), sums)) << target << ", prepared";
      }
    }
  }
}

// 127 * (1 + 64 * 2^-22): each step of a loop of f32 rounds 127 * 2^-22 up to 2^-15.
TEST(WeightOnly, FloatSumsOnRequest) {
  ArrayBuilder lhs(Aval{DType::kF32, {1, 65}}), rhs(Aval{DType::kF32, {65, 1}});
  for (int64_t i = 0; i < 65; ++i) {
    lhs.Mutable<float>()[i] = i == 0 ? 1.0f : 0x1p-22f;
    rhs.Mutable<float>()[i] = 127.5f;  // a qvalue of 127 with a scale of 1
  }
  const Array x = std::move(lhs).Build(), w = std::move(rhs).Build();
  const PlanOptions floats{.semantics = {.weight_only = WeightOnly::kFloat}};
  EXPECT_EQ(Forward(Plan(8, x, w), x, w).View<float>()[0], static_cast<float>(127 * (1 + 64 * 0x1p-22)));
  EXPECT_EQ(Forward(Plan(8, x, w, floats), x, w).View<float>()[0], 127 + 64 * 0x1p-15f);
}

TEST(WeightOnly, TheOriginalSumsFloats) {
  const Array x = RandomArray(DType::kF32, {kRows, kK}, 1), w = RandomArray(DType::kF32, {kK, kColumns}, 2);
  const PlanOptions original{.semantics = {.compat = {.weight_only_in_float = true}}};
  const PlanOptions floats{.semantics = {.weight_only = WeightOnly::kFloat}};
  ASSERT_TRUE(Compat::Original().weight_only_in_float);
  EXPECT_TRUE(BitEqual(Forward(Plan(8, x, w, original), x, w), Forward(Plan(8, x, w, floats), x, w)));
  EXPECT_FALSE(BitEqual(Forward(Plan(8, x, w, original), x, w), Forward(Plan(8, x, w), x, w)));
}

// Recorded from aqtp 0.9.0.
TEST(WeightOnly, OneProductOfTheOriginal) {
  const PlanOptions original{.semantics = {.compat = Compat::Original()}};
  const Array x = Array::Of<float>({1, 1, 1e-9f}, {1, 3}), w = Array::Of<float>({0, 0, 1}, {3, 1});
  EXPECT_EQ(Forward(Plan(2, x, w, original), x, w).View<float>()[0], 6.6666667e-10f);
  const Array y = Array::Of<float>({0.1f}, {1, 1}), one = Array::Of<float>({1}, {1, 1});
  EXPECT_EQ(Forward(Plan(8, y, one, original), y, one).View<float>()[0], 0.09960784763f);
}

// In a row of up to 128 elements, each is kept however small it is relative to the others; in a longer row it is not.
TEST(WeightOnly, SmallElementsOfShortRows) {
  for (const int64_t k : {2, 70, 128, 256}) {
    ArrayBuilder lhs(Aval{DType::kF32, {1, k}}), rhs(Aval{DType::kF32, {k, 1}});
    for (int64_t i = 0; i < k; ++i) lhs.Mutable<float>()[i] = i < 128 ? 1.0f : 0.0f;
    lhs.Mutable<float>()[1] = 1e-9f;
    std::fill(rhs.Mutable<float>().begin(), rhs.Mutable<float>().end(), 0.0f);
    rhs.Mutable<float>()[1] = 127.5f;
    const Array x = std::move(lhs).Build(), w = std::move(rhs).Build();
    EXPECT_FLOAT_EQ(Forward(Plan(8, x, w), x, w).View<float>()[0], k <= 128 ? 127e-9f : 0.0f) << k;
  }
}

}  // namespace
}  // namespace aqt
