#include "aqt/kernels/elementwise/convert.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/array_ops.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/machine/target.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/simd/target_highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aqt/kernels/elementwise/convert.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "aqt/kernels/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors that contain a NaN are converted element by element, which keeps its sign and, where there is room, its other
// bits.
template <class From, class To>
void ConvertOf(const From* x, int64_t n, To* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one_by_one = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = ConvertElement<To>(x[i]);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = LoadFloat(d, x + i);
    if (HWY_LIKELY(hn::AllTrue(d, hn::Eq(v, v)))) {
      StoreFloat(d, RoundLanes<To>::Apply(d, v), out + i);
    } else {
      one_by_one(i, i + lanes);
    }
  }
  one_by_one(i, n);
}

template <class F>
void VisitFloat(DType dtype, F f) {
  switch (dtype) {
    case DType::kF32: return f(float{});
    case DType::kBF16: return f(BFloat16{});
    case DType::kF16: return f(Float16{});
    default: AQT_CHECK(!"f32, bf16 or f16");
  }
}

void ConvertFloats(DType from, const void* x, DType to, int64_t n, void* out) {
  VisitFloat(from, [&]<class From>(From) {
    VisitFloat(to, [&]<class To>(To) { ConvertOf(static_cast<const From*>(x), n, static_cast<To*>(out)); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aqt::kernels {

void Convert(DType from, const void* x, DType to, int64_t n, void* out, Target target) {
  const auto is_vector_code = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
  };
  if (from != to && is_vector_code(from) && is_vector_code(to)) {
    return AQT_HWY_DISPATCH(target, ConvertFloats)(from, x, to, n, out);
  }
  AQT_CHECK(CastArray(ArrayRef(from, Shape{n}, x), MutableArrayRef(to, Shape{n}, out)).ok());
}

}  // namespace aqt::kernels
#endif  // HWY_ONCE
