#ifndef AQT_GRAPH_EVAL_OP_H_
#define AQT_GRAPH_EVAL_OP_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/executor.h"
#include "aqt/graph/op.h"

namespace aqt {

// Runs one operation, outside of any trace. `needed` has one entry per output, or is empty if all are needed. An output
// that is not needed may be Array(). Errors: InferOp's if it refuses the operands, otherwise the composite's.
absl::StatusOr<std::vector<Array>> EvalOp(const Op& op, absl::Span<const Array> operands,
                                          absl::Span<const bool> needed = {});

// Runs a basic operation on dense arrays, in the memory of `out`, which overlaps no operand. The operands are as
// InferOp accepts them, and `out` as it infers. `executor`: for contractions; null means only the calling thread.
void EvalOpInto(const Op& op, absl::Span<const ArrayRef> operands, const MutableArrayRef& out, Executor* executor);

}  // namespace aqt

#endif  // AQT_GRAPH_EVAL_OP_H_
