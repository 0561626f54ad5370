#ifndef AQT_GRAPH_INTERPRET_GRAD_H_
#define AQT_GRAPH_INTERPRET_GRAD_H_

// Reverse-mode gradients, as programs. Equations of the backward pass have the scope "grad(<scope of the forward
// equation>)" and that equation's source line. They are ordinary equations, so a gradient can be transformed or
// differentiated again.

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"

namespace aqt {

// A program with the gradients of a scalar loss, which is output 0 of `program`. The result has the same inputs and
// these outputs: all outputs of `program`, then data "grad(<path>)" = d loss / d input for each position in `wrt`, of
// the input's aval, then what composites' backward rules write.
// Cotangents flow only through float variables, and stop at stop_gradient, round, floor and comparisons. At ties, max
// and min give half to each operand and reduce_max shares equally; abs gives 0 at 0. Cotangents are summed in the order
// of the backward walk (from the last use to the first). An input that the loss does not depend on has a gradient of
// zeros. An operation that no wrt input reaches gets no backward equation. A basic operation computes no product for an
// operand that needs no gradient. A composite with its own gradient appears as its GradForward; any other is replaced
// by its expansion.
// InvalidArgument if there is no output, the loss is not a float scalar, or a position is out of range, repeated or not
// that of a float input.
absl::StatusOr<Program> ValueAndGrad(const Program& program, absl::Span<const int> wrt);

// ValueAndGrad without the outputs of `program` that are of kind data; gradients and states remain.
absl::StatusOr<Program> Grad(const Program& program, absl::Span<const int> wrt);

}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_GRAD_H_
