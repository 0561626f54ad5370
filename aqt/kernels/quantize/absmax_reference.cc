#include "aqt/kernels/quantize/absmax_reference.h"

#include <cmath>
#include <limits>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"

namespace aqt::kernels::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Whether a precedes b, with -0 before +0.
bool Less(float a, float b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }

}  // namespace

float ElementOf(const FloatMatrix& x, int64_t r, int64_t c) {
  const int64_t at = r * x.row_stride + c * x.col_stride;
  switch (x.dtype) {
    case DType::kF32: return static_cast<const float*>(x.data)[at];
    case DType::kBF16: return ToFloat(static_cast<const BFloat16*>(x.data)[at]);
    case DType::kF16: return ToFloat(static_cast<const Float16*>(x.data)[at]);
    default: AQT_CHECK(!"dtype is f32, bf16 or f16");
  }
}

void AbsMaxGroups(const FloatMatrix& x, int64_t group, float* absmax) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t begin = 0; begin < x.cols; begin += group) {
      float max = 0;
      for (int64_t c = begin; c < x.cols && c < begin + group; ++c) {
        const float v = std::fabs(ElementOf(x, r, c));
        if (std::isnan(v) || std::isnan(max)) max = kNaN;
        else if (v > max) max = v;
      }
      *absmax++ = max;
    }
  }
}

void MinMaxGroups(const FloatMatrix& x, int64_t group, float* min, float* max) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t begin = 0; begin < x.cols; begin += group) {
      float lo = kInfinity, hi = -kInfinity;
      for (int64_t c = begin; c < x.cols && c < begin + group; ++c) {
        const float v = ElementOf(x, r, c);
        if (std::isnan(v) || std::isnan(lo)) {
          lo = hi = kNaN;
        } else {
          if (Less(v, lo)) lo = v;
          if (Less(hi, v)) hi = v;
        }
      }
      *min++ = lo;
      *max++ = hi;
    }
  }
}

}  // namespace aqt::kernels::reference
