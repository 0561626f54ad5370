#ifndef AQT_KERNELS_SIMD_TARGET_HIGHWAY_H_
#define AQT_KERNELS_SIMD_TARGET_HIGHWAY_H_

// Files that are compiled once per Highway target include this before any Highway header. It also maps a Target to the
// compiled versions. Such a file looks like this:
//
//   #include "aqt/kernels/simd/target_highway.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "aqt/kernels/x.cc"
//   #include "hwy/foreach_target.h"  // IWYU pragma: keep
//   #include "hwy/highway.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace aqt::kernels::HWY_NAMESPACE { void X(...) { ... } }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace aqt::kernels { ... AQT_HWY_DISPATCH(target, X)(...) ... }
//   #endif
//
// With g++ 12.2 the lowest target is HWY_SCALAR: one lane, and no conversions between vectors of equal size.

#ifdef AQT_SCALAR_ONLY
#define HWY_COMPILE_ONLY_SCALAR
#else
// No Target maps to SSSE3, so its versions would be dead code. Only files that define AQT_COMPILES_SSE4 first have SSE4
// kernels.
#ifdef AQT_COMPILES_SSE4
#define HWY_DISABLED_TARGETS HWY_SSSE3
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
#endif

#include "hwy/detect_targets.h"

#include "aqt/core/machine/target.h"

// The version of f for the compile-time baseline. If the baseline of a build is above a target, there is no separate
// version for that target.
#define AQT_HWY_BASELINE(f) (&HWY_STATIC_DISPATCH(f))

#if HWY_TARGETS & HWY_AVX2
#define AQT_HWY_AVX2(f) (&N_AVX2::f)
#else
#define AQT_HWY_AVX2(f) AQT_HWY_BASELINE(f)
#endif

#if HWY_TARGETS & HWY_AVX3
#define AQT_HWY_AVX512(f) (&N_AVX3::f)
#else
#define AQT_HWY_AVX512(f) AQT_HWY_BASELINE(f)
#endif

// A pointer to the version of function f for a Target. Use it inside aqt::kernels after all targets are compiled
// (HWY_ONCE).
#define AQT_HWY_DISPATCH(target, f)                                      \
  ((target).Has(::aqt::kernels::Capability::kAvx512) ? AQT_HWY_AVX512(f) \
   : (target).Has(::aqt::kernels::Capability::kAvx2) ? AQT_HWY_AVX2(f)   \
                                                     : AQT_HWY_BASELINE(f))

#endif  // AQT_KERNELS_SIMD_TARGET_HIGHWAY_H_
