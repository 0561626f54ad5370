#ifndef AQT_CORE_SUBNORMALS_H_
#define AQT_CORE_SUBNORMALS_H_

// Subnormal numbers of f32, which XLA on CPU takes for zeros. (Those of f16 are normal numbers of f32.)

namespace aqt {

// x, or a zero with its sign if x is subnormal.
inline float FlushSubnormal(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }

// The same if `flush`.
inline float FlushSubnormalIf(bool flush, float x) { return flush ? FlushSubnormal(x) : x; }

}  // namespace aqt

#endif  // AQT_CORE_SUBNORMALS_H_
