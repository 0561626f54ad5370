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

// QuantizeGradient of g, the gradient of x, whose scales are shared along `axes`. With Compat::clip_gradient_at_bound
// it is instead g where |x| is at most the bound that the calibration finds, and 0 elsewhere.
absl::StatusOr<Array> StraightThrough(const Quantizer& quantizer, const ArrayRef& x, const Axes& axes,
                                      const QTensor& qtensor, const Array& g, const Semantics& semantics);

}  // namespace aqt::reference

#endif  // AQT_QUANT_REFERENCE_GRADIENT_REFERENCE_H_
