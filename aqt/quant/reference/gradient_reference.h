#ifndef AQT_QUANT_REFERENCE_GRADIENT_REFERENCE_H_
#define AQT_QUANT_REFERENCE_GRADIENT_REFERENCE_H_

// The straight-through gradient of a quantized operand.

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/reference/reference_value.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::reference {

// The axes along which scales are shared: `axes`, unless the configuration names others.
Index SharedAxes(const Quantizer& quantizer, int64_t rank, const Axes& axes);

// The gradient of x, whose scales are shared along `axes`, given that of its quantized values, g: QuantizeGradient with
// all fields of Compat. IntSymmetric with clip_gradient: g where the scaled value was not clipped, or with
// clip_gradient_at_bound where |x| is at most the bound that the calibration finds, and 0 elsewhere.
absl::StatusOr<Array> StraightThrough(const Quantizer& quantizer, const ArrayRef& x, const Axes& axes,
                                      const QTensor& qtensor, const Array& g, const Semantics& semantics);

}  // namespace aqt::reference

#endif  // AQT_QUANT_REFERENCE_GRADIENT_REFERENCE_H_
