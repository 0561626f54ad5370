#ifndef AQT_QUANT_REFERENCE_PRODUCT_REFERENCE_H_
#define AQT_QUANT_REFERENCE_PRODUCT_REFERENCE_H_

// One quantized product, element by element: the forward product of dot_general_reference.h or the product of a
// gradient.

#include <cstdint>
#include <optional>
#include <vector>

#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/reference/reference_value.h"

namespace aqt::reference {

// One side after quantization. The product reads `operand`.
struct Quantized {
  Value q, scale, bias, operand;
  std::vector<int8_t> mask;  // 1 where not clipped; empty without clip_gradient
  bool has_scale = false;
};

// Maps the axes of the operands to those of the product and of the sum.
struct ProductAxes {
  Index product_shape, sum_shape;
  // For each operand axis: its position in the product, or rank of the product + its position in the sum.
  Index lhs_source, rhs_source;

  ProductAxes(const DotDims& dims, const Index& lhs, const Index& rhs);
  // The index in an operand, whose axes map to `source`, for an index in the product and one in the sum.
  static Index Gather(const Index& source, const Index& product, const Index& sum);
};

// Applies a scale of one operand to the other, axis by axis of the latter.
void MultiplyOther(const Value& scale, const Axes& own_contracting, const Axes& own_batch,
                   const Axes& other_contracting, const Axes& other_batch, Value& other);

// x rotated by DotGeneralRawConfig::hadamard, if that is set, along its contracting axes.
Value Rotated(const std::optional<Hadamard>& hadamard, const Value& x, const Axes& contracting);

// A product and its quantized sides.
struct QuantizedProduct {
  Value out;
  Quantized lhs, rhs;
  std::optional<Value> lhs_ratio, rhs_ratio;  // divisors of the operands before quantization
};

// Includes mid scales. The keys are those of the operands.
QuantizedProduct Multiply(const DotGeneralRawConfig& config, const Value& lhs, const Value& rhs, const DotDims& dims,
                          const std::optional<Key>& lhs_key, const std::optional<Key>& rhs_key,
                          const Semantics& semantics);

// The same for the product of a gradient, split by its LocalAqt.
Value MultiplyLocally(const DotGeneralRawConfig& config, const Value& lhs, const Value& rhs, const DotDims& dims,
                      const std::optional<Key>& lhs_key, const std::optional<Key>& rhs_key, const Semantics& semantics);

}  // namespace aqt::reference

#endif  // AQT_QUANT_REFERENCE_PRODUCT_REFERENCE_H_
