#ifndef AQT_OPS_SCALING_DEBUG_CALLBACK_H_
#define AQT_OPS_SCALING_DEBUG_CALLBACK_H_

// User functions that see values of a program each time it runs, under Eval and under an Executable. In scaled
// arithmetic (transforms/precision/scalify.h) they see data and scale, and on request the gradient of a value (after
// jax-scalify's debug callbacks).
//
//   h = ops::DebugCallback(h, [](const ScaledArray& seen) { LOG(INFO) << ...; });
//   h = ops::DebugPrintGrad(h, "gradient of h");

#include <functional>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/op.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"

namespace aqt {

// Plain data, or data * scale with a scale of rank 0.
struct ScaledArray {
  Array data;
  std::optional<Array> scale = std::nullopt;
};

// A user function. The thread that runs the program calls it, in the order of the equations. It may keep the arrays.
using DebugFunction = std::function<void(const ScaledArray&)>;

// For transforms: the result of a callback's operation on an operand with a scale. Null for any other operation.
std::optional<Value> BindDebugCallback(const Op& op, const Value& data, const Value& scale, const SourceLine& where);

namespace ops {

// x, with the same bits. It is one equation: use the result in place of x, because an equation with an unused result is
// dropped. The gradient passes. A program with callbacks cannot be saved. If Fold or PreparedProgram
// computes their operands ahead of time, it calls them then. `label` appears in the text of the program.
[[nodiscard]] Value DebugCallback(const ValueOrNumber& x, DebugFunction callback, absl::string_view label = "");
// The same for the gradient of the loss with respect to x. It is called in the backward pass, and never without one.
[[nodiscard]] Value DebugCallbackGrad(const ValueOrNumber& x, DebugFunction callback, absl::string_view label = "");

// Writes a line to the standard error: `label: f32[2] {0.5, 1} * 8`.
[[nodiscard]] Value DebugPrint(const ValueOrNumber& x, absl::string_view label);
// The same for the gradient of the loss with respect to x.
[[nodiscard]] Value DebugPrintGrad(const ValueOrNumber& x, absl::string_view label);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_SCALING_DEBUG_CALLBACK_H_
