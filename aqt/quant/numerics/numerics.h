#ifndef AQT_QUANT_NUMERICS_NUMERICS_H_
#define AQT_QUANT_NUMERICS_NUMERICS_H_

// The grids of config.h: bounds, rounding of scaled values, gradients, noise.
//
// IntSymmetric, with edge = 2^(bits-1) - (preserve_zero ? 0.5 : 0):
//   quant_bound = preserve_max_val ? edge - 0.5 : edge          the scaled value of the calibration's bound
//   clip_bound  = round ? edge - 0.5 : edge
//   forward:  y = R(y + noise)                                  noise in f32, the sum rounded to the dtype of y
//             y = clamp(y, -clip_bound, clip_bound)             if clip; NaN stays NaN
//             y = rint(y) (ties to even), or floor(y) + 0.5 when preserve_zero is false      if round
//             q = y in the container: saturating, NaN becomes 0 in an integer container
//   backward: dy = dq, or 0 unless |y| <= clip_bound if clip_gradient; y before noise. kIeee multiplies by 0: NaN for
//             an infinite or NaN dq
// The bounds are rounded to the dtype of y before use (in bf16, 10 bits clip at 512).
//
// Fp8: q = clamp(y, -max, max), rounded once to the 8-bit float; NaN stays NaN. With stochastic rounding random bits
// are first added below the kept mantissa bits, and the mantissa is truncated there. quant_bound = max. The gradient
// passes unchanged.
// Fp: q = y rounded to bf16, then to the format. quant_bound = its largest value. The gradient passes unchanged.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt {

// InvalidArgument when a field is out of range or the container does not fit; Unimplemented for Fp formats that AQT
// describes but does not round to.
absl::Status Validate(const Numerics& numerics);

bool IsQuantized(const Numerics& numerics);  // not NoNumerics

// The scaled value that the calibration's bound is mapped to. `numerics` is quantized and valid.
double QuantBound(const Numerics& numerics);
// Largest magnitude of a qvalue when clip is set.
double ClipBound(const IntSymmetric& numerics);
// The dtype of the qvalue of a scaled value of dtype `scaled`.
DType QvalueDType(const Numerics& numerics, DType scaled);

// Whether a call needs Context::key.
bool NeedsKey(const Numerics& numerics);

// The shape of the draws: 1 along the sharing axes. InvalidArgument when an axis is out of range.
absl::StatusOr<Shape> NoiseShape(const Noise& noise, const Shape& shape);
// The noise itself: f32, of shape NoiseShape.
absl::StatusOr<Array> MakeNoise(const Noise& noise, const Shape& shape, const Key& key,
                                PrngLayout layout = PrngLayout::kPartitionable);

// The qvalue of scaled values y (f32, bf16 or f16). FailedPrecondition when a key is needed and the context has none.
absl::StatusOr<Array> NumericsForward(const Numerics& numerics, const ArrayRef& y, const Context& context,
                                      PrngLayout layout = PrngLayout::kPartitionable);
// The gradient with respect to y, given the gradient g with respect to the qvalue. Has the dtype and shape of g.
absl::StatusOr<Array> NumericsBackward(const Numerics& numerics, const ArrayRef& y, const ArrayRef& g,
                                       Arithmetic arithmetic = Arithmetic::kXlaCompatible);

// x, f32 or bf16, rounded to nearest in a small float format (fp_rows.h has the rule), without scaling.
absl::StatusOr<Array> RoundToFormat(const FpFormat& format, const ArrayRef& x);

}  // namespace aqt

#endif  // AQT_QUANT_NUMERICS_NUMERICS_H_
