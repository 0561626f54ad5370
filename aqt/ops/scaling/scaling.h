#ifndef AQT_OPS_SCALING_SCALING_H_
#define AQT_OPS_SCALING_SCALING_H_

// Operations that say how numbers are scaled (after jax-scalify). On plain values most of them are the identity; the
// transform Scalify (transforms/scalify.h) gives them their meaning for scaled ones. Each is one equation.

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"
#include "aqt/kernels/elementwise/elementwise.h"

namespace aqt {

// What an operation of this file does. "Forward" and "backward" say whether it acts on the value or on its cotangent;
// the other one passes unchanged.
enum class ScalingKind {
  kSetScaling,       // (x, scale): x with this scale
  kStopScaling,      // x without a scale
  kRescaleMax,       // x with its scale times the power of two at or below max |data|; plain x stays
  kRescaleL1,        // the mean of |data|
  kRescaleL2,        // the root of the mean square of data
  kReducePrecision,  // the data rounded to the bits of an 8-bit float, in its own dtype
  kCast,             // the data converted
  kGetData,          // the data, as a value without a scale; plain x stays
  kGetScale,         // the scale, as a value; 1 of plain x
};

struct ScalingOptions {
  // The forward step disappears where the value is differentiated: jax-scalify's behaviour, Compat
  // forward_cast_dropped_under_grad.
  bool dropped_under_grad = false;
};

// An operation of this file, with the dtype that it names; null for another operation.
struct ScalingStep {
  ScalingKind kind;
  std::optional<DType> dtype;
  bool backward = false;  // it acts on the cotangent, and the value passes
};
std::optional<ScalingStep> ScalingStepOf(const Op& op);

// The same with its options, and the operation again: InvalidArgument for a step that the functions below do not make.
// For whoever saves programs.
struct ScalingParts {
  ScalingStep step;
  ScalingOptions options = {};
};
std::optional<ScalingParts> ScalingPartsOf(const Composite& op);
absl::StatusOr<std::shared_ptr<const Composite>> MakeScalingOp(const ScalingParts& parts);

// The bits to which kReducePrecision rounds; null for a dtype that is not e4m3fn or e5m2.
std::optional<kernels::Precision> SimulatedPrecision(DType dtype);

namespace ops {

Value SetScaling(const Operand& x, const Operand& scale);
// Converted to `dtype` if given.
Value StopScaling(const Operand& x, std::optional<DType> dtype = std::nullopt);

// Data and scale as values of their own: x and 1 for an x without a scale. The scale is converted to `dtype` (null:
// that of x). The gradient passes to the data.
struct DataAndScale {
  Value data, scale;
};
DataAndScale GetDataScale(const Operand& x, std::optional<DType> dtype = std::nullopt);

Value DynamicRescaleMax(const Operand& x, const ScalingOptions& options = {});
Value DynamicRescaleL1(const Operand& x, const ScalingOptions& options = {});
Value DynamicRescaleL2(const Operand& x, const ScalingOptions& options = {});
// The same for the cotangent.
Value DynamicRescaleMaxGrad(const Operand& x);
Value DynamicRescaleL1Grad(const Operand& x);
Value DynamicRescaleL2Grad(const Operand& x);

// Rounds to the exponent and mantissa bits of e4m3fn or e5m2, by ReducePrecision: 240 is the largest number of 4 and 3.
Value ReducePrecisionOnForward(const Operand& x, DType dtype, const ScalingOptions& options = {});
Value ReducePrecisionOnBackward(const Operand& x, DType dtype);

// A conversion of the value only, or of the cotangent only.
Value CastOnForward(const Operand& x, DType dtype);
Value CastOnBackward(const Operand& x, DType dtype);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_SCALING_SCALING_H_
