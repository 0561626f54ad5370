#include "aqt/quant/weights/microscaled.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "aqt/quant/weights/compressed_tensors.h"
#include "gtest/gtest.h"

namespace aqt::compressed_tensors {
namespace {

// Several calls in reverse order.
class Backwards final : public Executor {
 public:
  int NumThreads() const override { return 3; }
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) override {
    for (int64_t i = n; i-- > 0;) body(i);
  }
};

WeightScheme Mx(int num_bits) {
  WeightScheme scheme;
  scheme.type = ValueType::kFloat;
  scheme.num_bits = num_bits;
  scheme.strategy = Strategy::kGroup;
  scheme.group_size = 32;
  scheme.scale_type = ScaleType::kE8M0;
  return scheme;
}
WeightScheme NvFp4() {
  WeightScheme scheme = Mx(4);
  scheme.group_size = 16;
  scheme.scale_type = ScaleType::kE4M3;
  return scheme;
}
std::vector<WeightScheme> AllSchemes() { return {Mx(4), Mx(6), Mx(8), NvFp4()}; }

Array Weight(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  return Cast(
      Array::FromSpan<float>(kernels::TestFloats<float>(rows * cols, kernels::Values::kUsual, seed), {rows, cols}),
      dtype);
}

void ExpectEqual(const QuantizedWeight& got, const QuantizedWeight& want) {
  EXPECT_TRUE(BitEqual(got.q, want.q));
  EXPECT_TRUE(BitEqual(got.scale, want.scale));
  EXPECT_EQ(got.global_scale, want.global_scale);
}

TEST(Microscaled, AsReferenceOnAllTargetsPackedOrNot) {
  Backwards backwards;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Array w = Weight(dtype, 37, 96, 1);
    for (const WeightScheme& scheme : AllSchemes()) {
      Options options;
      options.global_scale = 531.25f;
      options.reference = true;
      const QuantizedWeight want = *QuantizeWeight(w, scheme, options);
      EXPECT_EQ(want.q.aval(), (Aval{DType::kE4M3FN, {37, 96}}));
      options.reference = false;
      for (const kernels::Target target : kernels::SupportedTargets()) {
        options.target = target;
        ExpectEqual(*QuantizeWeight(w, scheme, options), want);
      }
      options.executor = &backwards;
      ExpectEqual(*QuantizeWeight(w, scheme, options), want);
      if (scheme.num_bits == 8) continue;
      options.packed = true;
      const QuantizedWeight packed = *QuantizeWeight(w, scheme, options);
      EXPECT_TRUE(BitEqual(packed.q, *PackSmallFloats(want.q, scheme.num_bits)));
      EXPECT_TRUE(BitEqual(*UnpackSmallFloats(packed.q, scheme.num_bits), want.q));
      EXPECT_TRUE(BitEqual(packed.scale, want.scale));
    }
  }
}

TEST(Microscaled, AnyStrides) {
  const Array w = Weight(DType::kBF16, 64, 32, 2);
  const ArrayRef transposed(w.dtype(), {32, 64}, {1, 32}, w.data());
  for (const WeightScheme& scheme : AllSchemes()) {
    ExpectEqual(*QuantizeWeight(transposed, scheme), *QuantizeWeight(Array::CopyOf(transposed), scheme));
  }
}

TEST(Microscaled, DequantizedByHand) {
  std::vector<float> values(32);
  values[0] = 7;  // 4 bits: 1.75 * 4, whose power of two is 8: scale 2
  values[1] = -1.1f;
  const Array w = Array::FromSpan<float>(values, {1, 32});
  const QuantizedWeight four = *QuantizeWeight(w, Mx(4));
  EXPECT_EQ(four.scale.View<uint8_t>()[0], 128);
  const Array x = *DequantizeWeight(four, Mx(4));
  EXPECT_EQ(x.dtype(), DType::kF32);
  EXPECT_EQ(x.View<float>()[0], 8);  // 3.5 is a tie between 3 and 4
  EXPECT_EQ(x.View<float>()[1], -1);
  const QuantizedWeight eight = *QuantizeWeight(w, Mx(8));
  EXPECT_EQ(eight.scale.View<uint8_t>()[0], 127 + 3 - 8);
  EXPECT_EQ(DequantizeWeight(eight, Mx(8))->View<float>()[1], -1.125f);

  Options options;
  options.global_scale = GlobalScaleOf(7, DType::kF32);
  EXPECT_NEAR(options.global_scale, 384, 1e-3);
  const QuantizedWeight nv = *QuantizeWeight(w, NvFp4(), options);
  EXPECT_EQ(ToFloat(nv.scale.View<Float8E4M3FN>()[0]), 448);
  EXPECT_EQ(ToFloat(nv.scale.View<Float8E4M3FN>()[1]), 0.125f);  // zeros
  EXPECT_NEAR(DequantizeWeight(nv, NvFp4())->View<float>()[0], 7, 1e-5);
}

TEST(Microscaled, GroupsWithoutAScale) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {kInfinity, kNaN, 3.4e38f}) {
    std::vector<float> values(32, 1);
    values[3] = value;
    const QuantizedWeight weight = *QuantizeWeight(Array::FromSpan<float>(values, {1, 32}), Mx(4));
    EXPECT_EQ(weight.scale.View<uint8_t>()[0], 255);
    EXPECT_TRUE(std::isnan(DequantizeWeight(weight, Mx(4))->View<float>()[0]));
  }
}

TEST(Microscaled, GlobalScales) {
  EXPECT_EQ(GlobalScaleOf(0, DType::kF32), 1);
  EXPECT_EQ(GlobalScaleOf(2, DType::kF32), 1344);
  EXPECT_EQ(GlobalScaleOf(2, DType::kBF16), 1344);
  EXPECT_EQ(GlobalScaleOf(0.04f, DType::kF16), 1);  // 67200 overflows f16
  EXPECT_EQ(GlobalScaleOf(5, DType::kBF16), 540);   // 2688 / 5 rounds to 536; the reciprocal is rounded first
}

TEST(Microscaled, WrongArguments) {
  WeightScheme scheme = Mx(4);
  scheme.group_size = 16;
  EXPECT_EQ(Validate(scheme).code(), absl::StatusCode::kUnimplemented);
  scheme = NvFp4();
  scheme.num_bits = 8;
  EXPECT_EQ(Validate(scheme).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(QuantizeWeight(Weight(DType::kF32, 2, 48, 3), Mx(4)).status().code(), absl::StatusCode::kInvalidArgument);
  Options options;
  options.global_scale = 0;
  EXPECT_EQ(QuantizeWeight(Weight(DType::kF32, 2, 32, 3), NvFp4(), options).status().message(),
            "QuantizeWeight: global_scale is 0; expected a positive finite number");
  const Array third = Array::FromSpan<Float8E4M3FN>(std::vector<Float8E4M3FN>(2, {0x2b}), {1, 2});
  EXPECT_EQ(PackSmallFloats(third, 4).status().message(),
            "PackSmallFloats: value 0.34375 at [0,0] is not a 4-bit float");
}

}  // namespace
}  // namespace aqt::compressed_tensors
