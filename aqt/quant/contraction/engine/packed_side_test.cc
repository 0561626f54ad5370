#include "aqt/quant/contraction/engine/packed_side.h"

#include <optional>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt::internal {
namespace {

std::optional<kernels::QuantizeStep> StepOf(const IntSymmetric& numerics, const Semantics& semantics) {
  const absl::StatusOr<QuantizeSpec> spec =
      MakeQuantizeSpec({.numerics = numerics, .calibration = AbsMax{}}, {DType::kF32, {4, 8}}, {1});
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? FusedStep(*spec, semantics) : std::nullopt;
}

// dot_general_property_test compares the bits of fused and separate quantization for all fields of Compat.
TEST(FusedStep, ClipsAsCompatAsks) {
  for (const int bits : {2, 4, 8}) {
    const float hi = static_cast<float>((1 << (bits - 1)) - 1);
    const IntSymmetric numerics{.bits = bits};
    const std::optional<kernels::QuantizeStep> symmetric = StepOf(numerics, {});
    ASSERT_TRUE(symmetric.has_value());
    EXPECT_EQ(symmetric->lo, -hi);
    EXPECT_EQ(symmetric->hi, hi);
    for (const Compat& compat : {Compat{.integers_reach_lowest = true}, Compat::Qwix()}) {
      const std::optional<kernels::QuantizeStep> lowest = StepOf(numerics, {.compat = compat});
      ASSERT_TRUE(lowest.has_value());
      EXPECT_EQ(lowest->lo, -hi - 1);
      EXPECT_EQ(lowest->hi, hi);
    }
  }
}

TEST(FusedStep, IsForIntegersThatAreClippedAndRounded) {
  EXPECT_FALSE(StepOf({.clip = false}, {}).has_value());
  EXPECT_FALSE(StepOf({.round = false}, {}).has_value());
  EXPECT_FALSE(StepOf({.preserve_zero = false, .dtype = std::nullopt}, {}).has_value());
  // A quotient is no product with the reciprocal.
  EXPECT_FALSE(StepOf({}, {.arithmetic = Arithmetic::kIeee, .compat = Compat::Qwix()}).has_value());
}

}  // namespace
}  // namespace aqt::internal
