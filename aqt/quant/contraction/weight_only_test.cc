// Contractions of a float lhs with an integer rhs: on digits, or summed as floats.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/target.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_general_test_util.h"
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

}  // namespace
}  // namespace aqt
