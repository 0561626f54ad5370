#ifndef AQT_TRANSFORMS_PRECISION_SCALIFY_RULES_H_
#define AQT_TRANSFORMS_PRECISION_SCALIFY_RULES_H_

// The rules of Scalify (scalify.h) for one equation. Internal.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"
#include "aqt/transforms/precision/scaled.h"

namespace aqt::internal {

// A variable of the program: plain, or scaled.
struct Lane {
  Value data = {};
  std::optional<Value> scale = std::nullopt;
  bool scalar = false;                          // all elements are one number
  bool zero = false;                            // all elements are zero, known without any data
  std::optional<double> number = std::nullopt;  // that number, if it is known

  bool scaled() const { return scale.has_value(); }
  bool is_float() const { return IsFloat(data.dtype()); }
};

// The properties of a constant's elements.
Lane LaneOfConstant(const Array& array);
// The value without a scale, in the dtype of its data.
Value Unscaled(const Lane& lane);
// The results of an equation for these operands, bound in the active trace. InvalidArgument for an operation without a
// rule.
absl::StatusOr<std::vector<Lane>> ScaledEquation(const Equation& eqn, absl::Span<const Lane> in,
                                                 const ScalifyRules& rules);

}  // namespace aqt::internal

#endif  // AQT_TRANSFORMS_PRECISION_SCALIFY_RULES_H_
