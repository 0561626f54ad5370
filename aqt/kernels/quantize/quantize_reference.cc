#include "aqt/kernels/quantize/quantize_reference.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/absmax_reference.h"

namespace aqt::kernels::reference {
namespace {

float ZeroPoint(const ScaleGrid& grid, int64_t index) {
  return grid.zero_point == nullptr ? 0.0f : static_cast<float>(grid.zero_point[index]);
}

// Rounds to nearest, ties to even, in any rounding mode of the processor; |v| is at most 128.
float RoundHalfEven(float v) {
  const float below = std::floor(v), part = v - below;
  if (part != 0.5f) return part < 0.5f ? below : below + 1.0f;
  return std::fmod(below, 2.0f) == 0.0f ? below : below + 1.0f;
}

}  // namespace

int64_t GridIndex(const ScaleGrid& grid, int64_t r, int64_t c) {
  return r / grid.row_group * grid.row_stride + c / grid.col_group * grid.col_stride;
}

float RoundToDType(float v, DType dtype) {
  switch (dtype) {
    case DType::kF32: return v;
    case DType::kBF16: return ToFloat(RoundTo<BFloat16>(v));
    case DType::kF16: return ToFloat(RoundTo<Float16>(v));
    default: AQT_CHECK(!"dtype is f32, bf16 or f16");
  }
}

float FlushToZero(float v, DType dtype) {
  const bool subnormal = v != 0 && std::fabs(v) < std::numeric_limits<float>::min();
  return subnormal && dtype != DType::kF16 ? std::copysign(0.0f, v) : v;
}

void QuantizeMatrix(const QuantizeMatrixArgs& args) {
  const DType dtype = args.x.dtype;
  for (int64_t r = 0; r < args.x.rows; ++r) {
    for (int64_t c = 0; c < args.x.cols; ++c) {
      const int64_t g = GridIndex(args.grid, r, c);
      float x = ElementOf(args.x, r, c), scale = args.grid.scale[g], y = 0;
      if (args.rule == QuantizeRule::kDivideByScale) {
        y = RoundToDType(x / scale, dtype);
        y = RoundToDType(y + ZeroPoint(args.grid, g), dtype);
      } else {
        if (args.subnormals_are_zero) {
          x = FlushToZero(x, dtype);
          scale = FlushToZero(scale, dtype);
        }
        y = RoundToDType(x * scale, dtype);
      }
      float q = 0;
      if (!std::isnan(y)) q = RoundHalfEven(y < args.lo ? args.lo : y > args.hi ? args.hi : y);
      args.q[r * args.q_row_stride + c * args.q_col_stride] = static_cast<int8_t>(q);
    }
  }
}

void DequantizeMatrix(const DequantizeMatrixArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.cols; ++c) {
      const int64_t g = GridIndex(args.grid, r, c);
      float scale = args.grid.scale[g];
      if (args.subnormals_are_zero) scale = FlushToZero(scale, args.dtype);
      const float q = static_cast<float>(args.q[r * args.q_row_stride + c * args.q_col_stride]);
      float x = RoundToDType(q - ZeroPoint(args.grid, g), args.dtype);
      x = RoundToDType(x * scale, args.dtype);
      if (std::isnan(x)) x = std::numeric_limits<float>::quiet_NaN();
      const int64_t at = r * args.row_stride + c * args.col_stride;
      switch (args.dtype) {
        case DType::kF32: static_cast<float*>(args.x)[at] = x; break;
        case DType::kBF16: static_cast<BFloat16*>(args.x)[at] = RoundTo<BFloat16>(x); break;
        case DType::kF16: static_cast<Float16*>(args.x)[at] = RoundTo<Float16>(x); break;
        default: AQT_CHECK(!"dtype is f32, bf16 or f16");
      }
    }
  }
}

}  // namespace aqt::kernels::reference
