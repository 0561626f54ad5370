#include "aqt/kernels/small_floats/quantize_fp8.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/quantize_testing.h"
#include "aqt/kernels/quantize/scale_grid.h"

namespace aqt::kernels {
namespace {

float Round(float v, DType dtype) {
  switch (dtype) {
    case DType::kBF16: return ToFloat(RoundToBFloat16(v));
    case DType::kF16: return ToFloat(RoundToFloat16(v));
    default: return v;
  }
}

// The definition for one element.
uint8_t Expected(float x, float inverse, const QuantizeFp8Args& args) {
  const bool flushes = args.subnormals_are_zero && args.x.dtype != DType::kF16;
  if (flushes && std::fpclassify(x) == FP_SUBNORMAL) x = std::copysign(0.0f, x);
  const float y = Round(x * inverse, args.product_dtype);
  const bool e5m2 = args.q_dtype == DType::kE5M2;
  if (std::isnan(y)) return e5m2 ? 0x7e : 0x7f;
  return e5m2 ? ConvertElement<Float8E5M2>(y, Overflow::kSaturate).bits
              : ConvertElement<Float8E4M3FN>(y, Overflow::kSaturate).bits;
}

// Quantizes x on all targets and compares with the definition. Bytes between the results must not change.
template <class T>
void ExpectQuantized(QuantizeFp8Args args, MatrixLayout q_layout) {
  const Placement p = PlacementOf(q_layout, args.x.rows, args.x.cols);
  args.q_row_stride = p.row_stride;
  args.q_col_stride = p.col_stride;
  for (const DType product : {args.x.dtype, DType::kF32}) {
    for (const DType q_dtype : {DType::kE4M3FN, DType::kE5M2}) {
      args.product_dtype = product;
      args.q_dtype = q_dtype;
      constexpr uint8_t kUntouched = 99;
      std::vector<uint8_t> want(p.size + 1, kUntouched), got(p.size + 1);
      const T* x = static_cast<const T*>(args.x.data);
      for (int64_t r = 0; r < args.x.rows; ++r) {
        for (int64_t c = 0; c < args.x.cols; ++c) {
          const float inverse = args.grid.scale[r / args.grid.row_group * args.grid.row_stride +
                                                c / args.grid.col_group * args.grid.col_stride];
          want[p.offset + r * p.row_stride + c * p.col_stride] =
              Expected(ToFloat(x[r * args.x.row_stride + c * args.x.col_stride]), inverse, args);
        }
      }
      for (const Target target : SupportedTargets()) {
        std::fill(got.begin(), got.end(), kUntouched);
        args.q = got.data() + p.offset;
        QuantizeFp8(args, target);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i], want[i]) << target << ", " << args.x.dtype << " to " << product << " to " << q_dtype
                                     << ", element " << i;
        }
      }
    }
  }
}

template <class T>
class QuantizeFp8Test : public testing::Test {};
using FloatTypes = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(QuantizeFp8Test, FloatTypes);

TYPED_TEST(QuantizeFp8Test, RowsOfAllLengthsAndStarts) {
  const auto inverse = ScalesOf<TypeParam>(2, Values::kUsual, 1);
  for (int64_t cols = 0; cols <= 70; ++cols) {
    const auto data = TestFloats<TypeParam>(2 * cols + 3, Values::kUsual, static_cast<uint32_t>(cols));
    for (const int64_t offset : {0, 1, 3}) {
      QuantizeFp8Args args;
      args.x = {data.data() + offset, kDTypeOf<TypeParam>, 2, cols, cols, 1};
      args.grid = {inverse.data(), nullptr, 1, 0};
      ExpectQuantized<TypeParam>(args, MatrixLayout::kPaddedRows);
    }
  }
}

TYPED_TEST(QuantizeFp8Test, GridsAndLayouts) {
  const int64_t rows = 19, cols = 575;  // longer than the buffers of the strided paths
  const auto inverse = ScalesOf<TypeParam>(rows * cols, Values::kUsual, 2);
  for (const MatrixLayout x_layout : kMatrixLayouts) {
    const auto data = TestFloats<TypeParam>(PlacementOf(x_layout, rows, cols).size, Values::kUsual, 4);
    for (const ScaleGrid& grid : {ScaleGrid{inverse.data(), nullptr, 0, 0}, ScaleGrid{inverse.data(), nullptr, 1, 0},
                                  ScaleGrid{inverse.data(), nullptr, 0, 1}}) {
      QuantizeFp8Args args;
      args.x = MatrixOf(data, x_layout, rows, cols);
      args.grid = grid;
      for (const MatrixLayout q_layout : kMatrixLayouts) ExpectQuantized<TypeParam>(args, q_layout);
    }
  }
}

// NaN, infinities, subnormals and all exponents, times scales of all kinds.
TYPED_TEST(QuantizeFp8Test, AnyBits) {
  const int64_t rows = 64, cols = 333;
  const auto data = TestFloats<TypeParam>(rows * cols, Values::kAnyBits, 5);
  for (const Values kind : {Values::kUsual, Values::kAnyBits}) {
    const auto inverse = ScalesOf<TypeParam>(rows, kind, 6);
    for (const bool flush : {false, true}) {
      QuantizeFp8Args args;
      args.x = MatrixOf(data, MatrixLayout::kRowMajor, rows, cols);
      args.grid = {inverse.data(), nullptr, 1, 0};
      args.subnormals_are_zero = flush;
      ExpectQuantized<TypeParam>(args, MatrixLayout::kRowMajor);
    }
  }
}

// Every 16-bit value; for f32 every 8-bit float, the midpoints between neighbours, and their neighbours.
TYPED_TEST(QuantizeFp8Test, CodesAndMiddles) {
  std::vector<TypeParam> data;
  if constexpr (std::is_same_v<TypeParam, float>) {
    for (const bool e5m2 : {false, true}) {
      for (int i = 0; i < 256; ++i) {
        const auto value = [&](int code) {
          const auto bits = static_cast<uint8_t>(code);
          return e5m2 ? ToFloat(Float8E5M2{bits}) : ToFloat(Float8E4M3FN{bits});
        };
        const float middle = (value(i) + value(i ^ 1)) / 2, other = (value(i) + value((i + 1) & 0xff)) / 2;
        for (const float v : {value(i), middle, other}) {
          data.push_back(v);
          data.push_back(std::nextafter(v, 1e9f));
          data.push_back(std::nextafter(v, -1e9f));
        }
      }
    }
    constexpr float kMax = std::numeric_limits<float>::max();
    for (const float v : {448.0f, 463.99f, 464.0f, 480.0f, 57344.0f, 61439.0f, 61440.0f, 65536.0f, kMax}) {
      data.push_back(v);
      data.push_back(-v);
    }
  } else {
    data = AllCodes<TypeParam>();
  }
  const float one = 1;
  QuantizeFp8Args args;
  args.x = {data.data(), kDTypeOf<TypeParam>, 1, static_cast<int64_t>(data.size()), 0, 1};
  args.grid = {&one, nullptr, 0, 0};
  ExpectQuantized<TypeParam>(args, MatrixLayout::kRowMajor);
}

}  // namespace
}  // namespace aqt::kernels
