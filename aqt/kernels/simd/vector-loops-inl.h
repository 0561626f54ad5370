// Loops over arrays that the compiler vectorizes. Included once per Highway target, after hwy/highway.h, by files of
// libraries that are `vectorized`.

#if defined(AQT_KERNELS_SIMD_VECTOR_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef AQT_KERNELS_SIMD_VECTOR_LOOPS_INL_H_
#undef AQT_KERNELS_SIMD_VECTOR_LOOPS_INL_H_
#else
#define AQT_KERNELS_SIMD_VECTOR_LOOPS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

// The iterations of the next loop are independent even if its arrays are the same. (For clang the pragma would be a
// request to vectorize, with a warning wherever it fails.)
#undef AQT_INDEPENDENT
#ifdef __clang__
#define AQT_INDEPENDENT
#else
#define AQT_INDEPENDENT _Pragma("GCC ivdep")
#endif

HWY_BEFORE_NAMESPACE();
namespace aqt::kernels {
namespace HWY_NAMESPACE {

// out[i] = f(x[i], ...). `out` may alias one of the inputs.
template <class Out, class F, class... In>
HWY_INLINE void ForEach(int64_t n, Out* out, F f, const In*... x) {
  AQT_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]...);
}

}  // namespace HWY_NAMESPACE
}  // namespace aqt::kernels
HWY_AFTER_NAMESPACE();

#endif  // AQT_KERNELS_SIMD_VECTOR_LOOPS_INL_H_
