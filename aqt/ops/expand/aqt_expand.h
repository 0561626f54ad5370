#ifndef AQT_OPS_EXPAND_AQT_EXPAND_H_
#define AQT_OPS_EXPAND_AQT_EXPAND_H_

// The quantized contraction in basic operations: its meaning, written independently of the kernels. AbsMax calibration
// and IntSymmetric numerics become basic operations; other calibrations, other numerics and noise are opaque operations
// (opaque_ops.h).

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/value.h"
#include "aqt/kernels/contraction.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/engine/product_plan.h"
#include "aqt/quant/contraction/engine/windows.h"

namespace aqt::internal {

// A quantized tensor; without a scale it is the tensor itself.
struct QuantizedValue {
  Value qvalue;
  std::optional<Value> scale;          // rank of the tensor, extent 1 along shared axes
  std::vector<Value> statistics = {};  // updated by the call, if the calibration has state and found the scale
};

// The scaled values of x, held as f32, and their dtype.
struct ScaledOperand {
  Value held;
  DType dtype;
};
ScaledOperand ScaleValue(const Quantizer& quantizer, const Value& x, const Value& scale, const Semantics& semantics);
// bool: where the gradient of the scaled values passes. The numerics must have a GradientBound.
Value NotClipped(const Numerics& numerics, const ScaledOperand& scaled);

// One side of a product before quantization: a float operand and the key for its random numbers, or `prepared`, an
// operand that is already quantized.
struct ProductSide {
  Value x;  // the float operand; poisoned if `prepared` is set
  std::optional<Value> key = std::nullopt;
  std::optional<QuantizedValue> prepared = std::nullopt;
  std::optional<Value> scale = std::nullopt;  // instead of calibrating
  // For a calibration with state, unless there is a scale.
  std::vector<Value> statistics = {};
  QuantMode mode = QuantMode::kTrain;
};

// Calibrates side.x over `axes` (unless the quantizer names others) and quantizes it.
QuantizedValue QuantizeValue(const Quantizer& quantizer, const ProductSide& side, const Axes& axes,
                             const Semantics& semantics);

// The dtypes of a product's sums, as in a ProductPlan.
struct SumTypes {
  DType product = DType::kF32;
  std::optional<DType> converts_to = std::nullopt;      // dtype for operands of float sums, unless they already have it
  std::optional<DType> rounds_first_to = std::nullopt;  // for the sums, before `product`
};
SumTypes SumTypesOf(const ProductPlan& plan);

// The layout of a product.
struct ExpandedMeeting {
  ProductGeometry geometry;
  SumTypes window_types;  // for a convolution; otherwise the types follow from the operands
  Value group_ends = {};  // with groups: the end row of each group (exclusive), s32[groups]
};

// The raw sums of two operands of one dtype f32 or bf16, or of integers; f32 or s32. Without windows also of f32 with
// integers of at most a byte; f32.
Value ExpandSums(const ExpandedMeeting& meeting, const Value& lhs, const Value& rhs);
// The raw sums of a convolution and its gradients, and those of groups.
Value ExpandWindowSums(const Windows& windows, const Value& lhs, const Value& rhs);
Value ExpandGroupSums(const ProductGeometry& geometry, const Value& group_ends, const Value& lhs, const Value& rhs);
// The raw sums of a product with these dimension numbers.
Value SumOf(const Value& lhs, const Value& rhs, const DotDims& dims);
// x [rows, columns] with zeros where a row belongs to no group.
Value ZeroOutsideOfGroups(const Value& x, const Value& group_ends);

Value Zeros(const Aval& aval);

// A product in basic operations, and its quantized operands.
struct ExpandedProduct {
  Value out;
  QuantizedValue lhs, rhs;
};
// One product without gradient. Operands and result have `dtype`.
ExpandedProduct ExpandProduct(const DotGeneralRawConfig& config, const ProductSide& lhs, const ProductSide& rhs,
                              const ExpandedMeeting& meeting, DType dtype, const Semantics& semantics);
// The same for a product of a gradient, whose float operands LocalAqt may cut; the quantized operands are then the cut
// ones.
ExpandedProduct ExpandGradientProduct(const DotGeneralRawConfig& config, const ProductSide& lhs, const ProductSide& rhs,
                                      const ExpandedMeeting& meeting, DType dtype, const Semantics& semantics);

// x rotated as DotGeneralRawConfig::hadamard rotates an operand with these axes; x itself without a hadamard.
Value Rotated(const std::optional<Hadamard>& hadamard, const Value& x, const kernels::OperandAxes& axes);

// qvalue * scale - the bias of the quantizer's calibration, if it has one; rounded to `dtype`.
Value Dequantized(const Quantizer& quantizer, const Value& qvalue, const Value& scale, DType dtype);

// The sum of x over its first `num_axes` axes, as SumLeadingInto (quant/numerics/row_ops.h) computes it.
Value SumLeading(const Value& x, int64_t num_axes);

// The scale of one side in the layout of the other operand, of rank other_rank. Axes without a partner have extent 1.
Value ScaleToOther(const Value& scale, Side side, const DotDims& dims, int64_t other_rank);

}  // namespace aqt::internal

#endif  // AQT_OPS_EXPAND_AQT_EXPAND_H_
