#include "aqt/quant/tensor/quantizer.h"

#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer_testing.h"

namespace aqt {
namespace {

// 511 values up to 0.5 and one of 0.8: with 4 bits it pays to clip the large one.
TEST(Quantize, SnrSearchClipsAnOutlier) {
  std::vector<float> x(1024, 0.0f);
  const RandomBits bits(MakeKey(4), 512);
  for (int i = 0; i < 512; ++i) x[i] = UniformF32(bits.Bits32(i)) - 0.5f;
  x[31] = 0.8f;
  Quantizer quantizer = AbsMaxInt(4, DType::kS4);
  const ArrayRef rows(x.data(), {2, 512});
  const std::vector<float> absmax = Floats(Quantize(quantizer, rows, {1})->scale[0]);
  quantizer.calibration = SnrSearch{.candidates = {1.0, 0.75, 0.1}};
  const absl::StatusOr<QTensor> qt = Quantize(quantizer, rows, {1});
  ASSERT_TRUE(qt.ok()) << qt.status();
  EXPECT_FLOAT_EQ(qt->scale[0].View<float>()[0], 0.75f * absmax[0]);
  EXPECT_EQ(qt->scale[0].View<float>()[1], absmax[1]);  // all zero: no ratio, so the bound stays
  quantizer.calibration = SnrSearch{};
  EXPECT_EQ(Floats(Quantize(quantizer, rows, {1})->scale[0]), absmax);
}

float SnrScale(const Array& x, std::vector<double> candidates, bool po2, const Compat& compat, int bits = 4,
               std::optional<DType> scale_dtype = std::nullopt) {
  Quantizer quantizer = AbsMaxInt(bits, std::nullopt);
  quantizer.calibration = SnrSearch{.candidates = std::move(candidates), .po2_scale = po2};
  quantizer.scale_dtype = scale_dtype;
  const absl::StatusOr<QTensor> qt = Quantize(quantizer, x, {1}, {}, {.compat = compat});
  return qt.ok() ? Floats(qt->scale[0])[0] : -1;
}

// AQT 0.9.0 on CPU gives 4. With 2 the squared errors sum to 8, with 4 to 12.
TEST(SnrSearch, RatesThePowerOfTwoThatIsUsed) {
  const Array x = Array::Of<float>({1, -3, 5, 7, -2, 4, 6, 8}, {1, 8});
  EXPECT_EQ(SnrScale(x, {1.0, 0.75, 0.5}, /*po2=*/true, Compat(), 3), 2);
  EXPECT_EQ(SnrScale(x, {1.0, 0.75, 0.5}, /*po2=*/true, Compat::Original(), 3), 4);
}

TEST(SnrSearch, RatesTinyAndLargeDataAsAnyOther) {
  // 511 values up to 0.5 and one of 0.75: with 4 bits it pays to clip the large one.
  std::vector<float> x(512);
  const RandomBits bits(MakeKey(4), 512);
  for (int i = 0; i < 512; ++i) x[i] = std::round(256 * (UniformF32(bits.Bits32(i)) - 0.5f)) / 256;
  x[31] = 0.75f;
  struct Case {
    DType dtype;
    float magnitude;
    bool original_finds_it;
  };
  // As in AQT 0.9.0 on CPU: the squares of 2^-76 vanish in f32, and the sum of the squares of 512 overflows in f16.
  const Case cases[] = {{DType::kF32, 1, true},
                        {DType::kF32, 0x1p-76f, false},
                        {DType::kBF16, 1, true},
                        {DType::kF16, 1, true},
                        {DType::kF16, 512, false}};
  for (const Case& c : cases) {
    std::vector<float> scaled = x;
    for (float& v : scaled) v *= c.magnitude;
    const Array row = Cast(ArrayRef(scaled.data(), {1, 512}), c.dtype);
    const float absmax = SnrScale(row, {}, false, Compat()), clipped = SnrScale(row, {0.75}, false, Compat());
    EXPECT_LT(clipped, absmax) << ToString(c.dtype) << c.magnitude;
    EXPECT_EQ(SnrScale(row, {1.0, 0.75}, false, Compat()), clipped) << ToString(c.dtype) << c.magnitude;
    EXPECT_EQ(SnrScale(row, {1.0, 0.75}, false, Compat::Original()), c.original_finds_it ? clipped : absmax)
        << ToString(c.dtype) << c.magnitude;
  }
}

// absmax * factor and its quotient stay f32 for bf16 data; the scale is rounded once.
TEST(SnrSearch, RoundsTheScaleOnce) {
  const Array x = Cast(Array::Of<float>({0.5f, 3.046875f}, {1, 2}), DType::kBF16);
  EXPECT_EQ(SnrScale(x, {0.7}, false, Compat()), 0x1.24p-2f);  // as in AQT 0.9.0; with three roundings 0x1.22p-2
}

}  // namespace
}  // namespace aqt
