#ifndef AQT_KERNELS_GEMM_REFERENCE_H_
#define AQT_KERNELS_GEMM_REFERENCE_H_

// Slow and obvious versions of packing and of the matrix kernels, the oracles of their tests: dense row-major results,
// one element at a time, no blocking, no threads.

#include <cstdint>

#include "aqt/core/dtype.h"
#include "aqt/kernels/gemm/gemm.h"
#include "aqt/kernels/panels/operand.h"
#include "aqt/kernels/panels/pack.h"
#include "aqt/kernels/panels/panel_format.h"

namespace aqt::kernels {

// The scale of AQT's AbsMax calibration without clipping_scale and po2, as a ScaleRule for tests and benchmarks. (The
// library's own version is ScalesFromAbsMax in quant/tensor.)
//   bound = absmax, or 1 if that is 0;  scale = R(bound * R(1 / quant_bound)), or, with `divide`,
//   R(bound / quant_bound),
// where R rounds to `dtype` (f32, bf16 or f16; the reciprocal is rounded to f16 for f16, otherwise to f32). With
// subnormals_are_zero, a subnormal f32 scale becomes 0. NaN and infinity are unchanged.
struct AbsMaxScale {
  float quant_bound = 127.5f;
  DType dtype = DType::kF32;
  bool divide = false;
  bool subnormals_are_zero = true;

  void operator()(float* absmax_to_scale, int64_t count) const;
};

// Element (b, r, i) of an operand; exact for every dtype that Pack accepts.
float ReferenceLoad(const Operand& src, int64_t b, int64_t r, int64_t i);

// The noise of element (b, r, i), computed individually.
float ReferenceNoise(const NoiseOperand& noise, int64_t b, int64_t r, int64_t i);

// Computes what QuantizePack does: args.scale as described there, and the bytes of the qvalues in q[B, rows, k].
// args.panels and args.qvalues are ignored.
void ReferenceQuantize(const QuantizeArgs& args, ScaleRule rule, int8_t* q);

// Element (r, i) of one packed matrix [rows, k] of any format, without the offset of kU8Offset.
float ReferenceUnpack(const PanelFormat& format, const void* panels, int64_t k, int64_t r, int64_t i);

// sums[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, n, k] modulo 2^32.
void ReferenceGemmS8(int64_t batch, int64_t m, int64_t n, int64_t k, const int8_t* lhs, const int8_t* rhs,
                     int32_t* sums);

// The same sums of f32 values, in f64, and the sums of the products' absolute values (for error bounds).
void ReferenceGemmF32(int64_t batch, int64_t m, int64_t n, int64_t k, const float* lhs, const float* rhs, double* sums,
                      double* magnitudes);

// The epilogue for product element (b, m, n), as an f32 that the output's dtype can represent.
float ReferenceEpilogue(const GemmProblem& problem, int64_t b, int64_t m, int64_t n, float sum);

}  // namespace aqt::kernels

#endif  // AQT_KERNELS_GEMM_REFERENCE_H_
