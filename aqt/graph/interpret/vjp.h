#ifndef AQT_GRAPH_INTERPRET_VJP_H_
#define AQT_GRAPH_INTERPRET_VJP_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"

namespace aqt::internal {

// The vector-Jacobian product of a basic operation (not of a composite): the cotangents of its operands, given that of
// its output; nullopt where `wanted` is false or no gradient flows.
std::vector<std::optional<Value>> Vjp(const Op& op, absl::Span<const Value> operands, const Value& output,
                                      const Value& cotangent, absl::Span<const bool> wanted);

// The sum of two cotangents of one value. 8-bit floats, which have no sums, are added in f32 and rounded.
Value AddCotangents(const Value& a, const Value& b);

}  // namespace aqt::internal

#endif  // AQT_GRAPH_INTERPRET_VJP_H_
