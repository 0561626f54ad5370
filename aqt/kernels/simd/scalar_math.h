#ifndef AQT_KERNELS_SIMD_SCALAR_MATH_H_
#define AQT_KERNELS_SIMD_SCALAR_MATH_H_

// exp and log built only from additions, multiplications and divisions of doubles, so their bits are the same on every
// machine (the C library differs between versions). The rounding mode must be to nearest even.

namespace aqt::kernels {

// e^x; relative error at most 1 ulp of double (2 ulp where the result is subnormal).
// NaN -> NaN, +Inf -> +Inf, -Inf -> 0; above 709.79 +Inf, below -745.14 0.
double Exp(double x);

// Natural logarithm; error at most 1 ulp of double. NaN and x < 0 -> NaN, +-0 -> -Inf, +Inf -> +Inf.
double Log(double x);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_SIMD_SCALAR_MATH_H_
