#ifndef AQT_GRAPH_INTERPRET_VJP_H_
#define AQT_GRAPH_INTERPRET_VJP_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"

namespace aqt::internal {

// The vector-Jacobian product of a basic operation (not of a composite): the cotangents of its operands, from that of
// its output; nullopt where `wanted` is false or no gradient flows.
std::vector<std::optional<Value>> Vjp(const Op& op, absl::Span<const Value> operands, const Value& output,
                                      const Value& cotangent, absl::Span<const bool> wanted);

// The sum of two cotangents of one value; of 8-bit floats, which have no sums, that in f32, rounded.
Value AddCotangents(const Value& a, const Value& b);

}  // namespace aqt::internal

#endif  // AQT_GRAPH_INTERPRET_VJP_H_
