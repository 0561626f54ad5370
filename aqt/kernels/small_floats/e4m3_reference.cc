#include "aqt/kernels/small_floats/e4m3_reference.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/kernels/quantize/absmax_reference.h"
#include "aqt/kernels/quantize/quantize_reference.h"

namespace aqt::kernels::reference {
namespace {

constexpr float kMax = 448;  // the largest finite value
constexpr Float8E4M3FN kNaN = {0x7f};

float ScaleAt(const ScaleGrid& grid, int64_t r, int64_t c) { return grid.scale[GridIndex(grid, r, c)]; }

}  // namespace

void QuantizeE4M3(const QuantizeE4M3Args& args) {
  for (int64_t r = 0; r < args.x.rows; ++r) {
    for (int64_t c = 0; c < args.x.cols; ++c) {
      const float y = RoundToDType(ElementOf(args.x, r, c) / ScaleAt(args.grid, r, c), args.x.dtype) + 0.0f;
      args.q[r * args.q_row_stride + c * args.q_col_stride] = std::isnan(y) ? kNaN
                                                                            : RoundTo<Float8E4M3FN>(y < -kMax  ? -kMax
                                                                                                    : y > kMax ? kMax
                                                                                                               : y);
    }
  }
}

void DequantizeE4M3(const DequantizeE4M3Args& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    for (int64_t c = 0; c < args.cols; ++c) {
      const float q = ToFloat(args.q[r * args.q_row_stride + c * args.q_col_stride]);
      float x = RoundToDType(q * ScaleAt(args.grid, r, c), args.dtype);
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
