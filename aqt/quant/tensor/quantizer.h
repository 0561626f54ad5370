#ifndef AQT_QUANT_TENSOR_QUANTIZER_H_
#define AQT_QUANT_TENSOR_QUANTIZER_H_

// Quantizes one tensor as a Quantizer (config.h) says. These functions allocate their results; DotGeneralPlan does the
// same arithmetic without allocating.
//
//   Quantizer q{.numerics = IntSymmetric{.bits = 8}, .calibration = AbsMax{}};
//   absl::StatusOr<QTensor> w = Quantize(q, weights, /*calibration_axes=*/{0});
//
// The scale of AbsMax, each operation rounded to the dtype of x (R):
//   m = max|x| over the shared axes; m = 0 becomes 1; m = R(m * clipping_scale)
//   scale = R(m / quant_bound)      see Arithmetic in semantics.h; then po2 and the cast to scale_dtype
// A NaN in a group makes its scale NaN and its integer qvalues 0. An Inf makes the scale Inf and the qvalues 0.
// The qvalue is numerics(x * (1 / scale)), with 1 in place of an infinite reciprocal. Compat has variants of all this.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// InvalidArgument for invalid numerics, calibration or scale dtype.
absl::Status Validate(const Quantizer& quantizer);

// Scale and bias of x (f32, bf16, f16); no qvalue yet, except for NoNumerics: there the qvalue is x and there is no
// scale. Scales are shared along quantizer.calib_shared_axes, or along `calibration_axes` when it names none; an empty
// list gives one scale per element. With a tiling, axes are those of the untiled shape and shrink to the tiles. A key
// is needed only when SnrSearch tries numerics that add noise. FailedPrecondition for a calibration with state: see
// calibration.h.
absl::StatusOr<QTensor> Calibrate(const Quantizer& quantizer, const ArrayRef& x,
                                  absl::Span<const int64_t> calibration_axes, const Semantics& semantics = {},
                                  const TilingState* tiling = nullptr, const Context& context = {});

// `calibrated` with the qvalue of x. A key is needed when the numerics add noise. It is used without splitting
// (DotGeneral splits it into one key per operand). weight_only of the semantics is not read.
absl::StatusOr<QTensor> CalculateQvalue(const Quantizer& quantizer, const ArrayRef& x, QTensor calibrated,
                                        const Context& context = {}, const Semantics& semantics = {});

// Calibrate, then CalculateQvalue.
absl::StatusOr<QTensor> Quantize(const Quantizer& quantizer, const ArrayRef& x,
                                 absl::Span<const int64_t> calibration_axes, const Context& context = {},
                                 const Semantics& semantics = {}, const TilingState* tiling = nullptr);

// Quantize, then Dequantize.
absl::StatusOr<Array> FakeQuant(const Quantizer& quantizer, const ArrayRef& x,
                                absl::Span<const int64_t> calibration_axes, const Context& context = {},
                                const Semantics& semantics = {});

// The straight-through gradient: g, with zeros where x was clipped if the numerics set clip_gradient. `qtensor` is the
// result of Quantize for this x with the same semantics. Has the dtype and shape of g. Unimplemented for clip_gradient
// with Compat::clip_gradient_at_bound, because a QTensor does not have the bound.
absl::StatusOr<Array> QuantizeGradient(const Quantizer& quantizer, const ArrayRef& x, const QTensor& qtensor,
                                       const ArrayRef& g, const Semantics& semantics = {});

// Rounds scales (f32, bf16 or f16) as po2_scale does, AQT's ceil_to_po2: 1 / 2^floor(log2(1 / s)), each operation
// rounded to the dtype of s, with log2(v) = R(ln v) * R(1 / ln 2), or R(ln v) / R(ln 2) with kIeee, and a correctly
// rounded ln. For most s it is the smallest power of two that is not below s; where the rounding of the logarithm
// matters, as for s = 2^-13 in f32, a power of two is doubled. 0, Inf and NaN stay. InvalidArgument for another dtype.
absl::StatusOr<Array> CeilToPo2(const ArrayRef& scale, Arithmetic arithmetic = Arithmetic::kXlaCompatible);

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_QUANTIZER_H_
