#include "aqt/quant/numerics/numerics_rows.h"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/testing/random.h"
#include "aqt/testing/same_bits.h"
#include "gtest/gtest.h"

namespace aqt::internal {
namespace {

using ::aqt::testing::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Numbers around `size`, with occasional special values.
Array Numbers(DType dtype, const Shape& shape, float size, Random& random) {
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 0x1p-140f, -0.0f, 3e38f};
  std::vector<float> values(shape.num_elements());
  for (float& v : values) {
    v = static_cast<float>(random.Uniform(-size, size));
    if (random.Below(40) == 0) v = specials[random.Below(6)];
  }
  return Cast(Array::FromSpan<float>(values, shape), dtype);
}

// Without a mask the matrix kernel quantizes; with one the rows are computed step by step.
TEST(QuantizeIntoTest, TheKernelHasTheBitsOfTheSteps) {
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    const DType dtype = std::array{DType::kF32, DType::kBF16, DType::kF16}[random.Below(3)];
    const int bits = static_cast<int>(1 + random.Below(8));
    const DType container = bits <= 4 && random.Below(2) == 0 ? DType::kS4 : DType::kS8;
    const IntSymmetric numerics = {.bits = bits, .clip_gradient = true};
    Shape shape, scale_shape;
    for (int64_t axis = random.Below(4); axis > 0; --axis) {
      shape.push_back(random.Below(3) == 0 ? random.Below(600) : random.Below(7));
      scale_shape.push_back(random.Below(2) == 0 ? 1 : shape[shape.rank() - 1]);
    }
    const float size = std::array{1.0f, 0x1p-126f, 0x1p-20f, 1000.0f}[random.Below(4)];
    const Array x = Numbers(dtype, shape, size, random), scale = Numbers(dtype, scale_shape, size / 50, random);
    // Half of the arrays are read along different axes than they are stored.
    Strides strides = DenseStrides(shape);
    Shape read = shape, read_scale = scale_shape;
    Strides scale_strides = DenseStrides(scale_shape);
    if (shape.rank() > 1 && random.Below(2) == 0) {
      std::swap(read[0], read[1]);
      std::swap(strides[0], strides[1]);
      std::swap(read_scale[0], read_scale[1]);
      std::swap(scale_strides[0], scale_strides[1]);
    }
    const ArrayRef view(dtype, read, strides, x.data());
    const std::array scales = {ArrayRef(dtype, read_scale, scale_strides, scale.data())};
    const Affine affine = {.scale = scales};
    std::vector<int8_t> mask(read.num_elements());
    ArrayBuilder steps(container, read);
    QuantizeInto(numerics, Compat(), view, affine, std::nullopt, steps.ref(), mask.data());
    const Array want = std::move(steps).Build();
    for (const kernels::Target target : kernels::SupportedTargets()) {
      ArrayBuilder q(container, read);
      QuantizeInto(numerics, Compat(), view, affine, std::nullopt, q.ref(), nullptr, {.target = target});
      ASSERT_TRUE(SameBits(std::move(q).Build(), want)) << view.aval() << ", " << bits << " bits";
    }
  }
}

}  // namespace
}  // namespace aqt::internal
