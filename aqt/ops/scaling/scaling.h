#ifndef AQT_OPS_SCALING_SCALING_H_
#define AQT_OPS_SCALING_SCALING_H_

// Operations that control how numbers are scaled (after jax-scalify). On plain values most of them are the identity;
// the transform Scalify (transforms/precision/scalify.h) defines their meaning for scaled ones. Each is one equation.

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

// The effect of an operation of this file. "Forward" and "backward" say whether it acts on the value or on its
// cotangent; the other one passes unchanged.
enum class ScalingKind {
  kSetScaling,       // (x, scale): x with this scale
  kStopScaling,      // x without a scale
  kRescaleMax,       // x with its scale times the power of two at or below max |data|; plain x stays
  kRescaleL1,        // the mean of |data|
  kRescaleL2,        // the root of the mean square of data
  kReducePrecision,  // the data rounded to the bits of an 8-bit float, in its own dtype
  kCast,             // the data converted
  kGetData,          // the data, as a value without a scale; plain x stays
  kGetScale,         // the scale, as a value; 1 for plain x
};

// Options of the forward operations.
struct ScalingOptions {
  // The forward step is dropped when the value is differentiated: jax-scalify's behaviour, Compat
  // forward_cast_dropped_under_grad.
  bool dropped_under_grad = false;
};

// The fields of an operation of this file: FieldsOf<ScalingStep>(op) (graph/composite_fields.h).
struct ScalingStep {
  ScalingKind kind = ScalingKind::kSetScaling;
  std::optional<DType> dtype = std::nullopt;  // the dtype that it names
  bool backward = false;                      // acts on the cotangent; the value passes
  bool dropped_under_grad = false;            // ScalingOptions
  static constexpr const char* kFieldNames[] = {"kind", "dtype", "backward", "dropped_under_grad"};
  bool operator==(const ScalingStep&) const = default;
};

namespace internal {

// The operation. InvalidArgument for a step that the functions below do not make.
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const ScalingStep& step);

}  // namespace internal

// The bits that kReducePrecision keeps; null for a dtype other than e4m3fn and e5m2.
std::optional<kernels::Precision> SimulatedPrecision(DType dtype);

namespace ops {

// x with this scale.
Value SetScaling(const ValueOrNumber& x, const ValueOrNumber& scale);
// x without a scale, converted to `dtype` if given.
Value StopScaling(const ValueOrNumber& x, std::optional<DType> dtype = std::nullopt);

// Data and scale as separate values: x and 1 for an x without a scale. The scale is converted to `dtype` (null: that of
// x). The gradient passes to the data.
struct DataAndScale {
  Value data, scale;
};
DataAndScale GetDataScale(const ValueOrNumber& x, std::optional<DType> dtype = std::nullopt);  // see DataAndScale

// x with its scale multiplied by the power of two at or below max |data|; plain x stays.
Value DynamicRescaleMax(const ValueOrNumber& x, const ScalingOptions& options = {});
Value DynamicRescaleL1(const ValueOrNumber& x, const ScalingOptions& options = {});  // the same by the mean of |data|
Value DynamicRescaleL2(const ValueOrNumber& x, const ScalingOptions& options = {});  // the same by the root mean square
// The same for the cotangent.
Value DynamicRescaleMaxGrad(const ValueOrNumber& x);
Value DynamicRescaleL1Grad(const ValueOrNumber& x);  // the same by the mean of |data|
Value DynamicRescaleL2Grad(const ValueOrNumber& x);  // the same by the root mean square

// Rounds to the exponent and mantissa bits of e4m3fn or e5m2, by ReducePrecision: 240 is the largest number of 4 and 3.
Value ReducePrecisionOnForward(const ValueOrNumber& x, DType dtype, const ScalingOptions& options = {});
// The same for the cotangent.
Value ReducePrecisionOnBackward(const ValueOrNumber& x, DType dtype);

// Converts the value; the cotangent passes.
Value CastOnForward(const ValueOrNumber& x, DType dtype);
// Converts the cotangent; the value passes.
Value CastOnBackward(const ValueOrNumber& x, DType dtype);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_SCALING_SCALING_H_
