#ifndef AQT_RUNTIME_FUSION_ELEMENTWISE_OP_H_
#define AQT_RUNTIME_FUSION_ELEMENTWISE_OP_H_

// Elementwise operations on parts of their operands: element i of the result depends only on element i of each operand.
// Internal.

#include <cstdint>
#include <functional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"

namespace aqt::internal {

absl::InlinedVector<Aval, 3> OperandAvals(const Program& program, const Equation& eqn);

// Writes n elements; `out` may be an operand whose elements have the same size as the result's.
using ElementwiseFn = std::function<void(const void* const* in, int64_t n, void* out)>;

// Null if the operation is not elementwise or not handled here. New kinds of unary, binary and compare operations need
// no change here, because only the kernels look at the kind.
ElementwiseFn ElementwiseOf(const Op& op, absl::Span<const Aval> in, const Aval& out);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_ELEMENTWISE_OP_H_
