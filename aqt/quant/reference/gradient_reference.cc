#include "aqt/quant/reference/gradient_reference.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <variant>

#include "aqt/core/dtype.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/reference/scale_reference.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt::reference {

Index SharedAxes(const Quantizer& quantizer, int64_t rank, const Axes& axes) {
  Index shared;
  if (quantizer.calib_shared_axes.per_tensor) {
    for (int64_t axis = 0; axis < rank; ++axis) shared.push_back(axis);
  } else if (!quantizer.calib_shared_axes.axes.empty()) {
    for (const int64_t axis : quantizer.calib_shared_axes.axes) shared.push_back(axis < 0 ? axis + rank : axis);
  } else {
    shared.assign(axes.begin(), axes.end());
  }
  return shared;
}

absl::StatusOr<Array> StraightThrough(const Quantizer& quantizer, const ArrayRef& x, const Axes& axes,
                                      const QTensor& qtensor, const Array& g, const Semantics& semantics) {
  if (!IsQuantized(quantizer.numerics)) return g;
  const auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
  if (integer == nullptr || !qtensor.bias.empty()) {
    return QuantizeGradient(quantizer, x, qtensor, g, {.arithmetic = semantics.arithmetic});
  }
  if (!integer->clip_gradient) return g;
  const Value value = FromArray(x), scale = FromArray(qtensor.scale[0]);
  if (!semantics.compat.clip_gradient_at_bound) {
    Value y(internal::Promote(value.dtype, scale.dtype), value.shape);
    ForEach(value.shape, [&](const Index& i) {
      y[i] = ScaleOne(semantics, y.dtype, value(i), scale.dtype, scale(i), scale.shape == value.shape);
    });
    return NumericsBackward(quantizer.numerics, ToArray(y), g, semantics.arithmetic);
  }
  const TensorBits bits = MakeTensorBits(quantizer.numerics, value.shape, std::nullopt, semantics.prng_layout);
  const Index shared = SharedAxes(quantizer, x.shape.rank(), axes);
  const Value bounds = MakeBounds(quantizer, value, shared, bits, semantics);
  Value gradient = FromArray(g);
  ForEach(value.shape, [&](const Index& i) {
    const bool passes = std::fabs(Flush(value.dtype, value(i))) <= Flush(value.dtype, bounds(i));
    if (!passes) gradient[i] = 0;
  });
  return ToArray(gradient);
}

}  // namespace aqt::reference
