#ifndef AQT_GRAPH_EVAL_H_
#define AQT_GRAPH_EVAL_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"

namespace aqt {

struct EvalHooks {
  // Fail with OutOfRange at the first equation that gives a NaN or an infinity from finite operands; the message names
  // it.
  bool stop_at_nonfinite = false;
  // Called after each equation with its outputs (those that nothing uses may be empty); for dumps.
  std::function<void(const Equation& eqn, absl::Span<const Array> outputs)> on_outputs;
};

// Runs a program equation by equation and returns its outputs. `args` are in the order of program.inputs.
// InvalidArgument, naming the slot, when an argument's dtype or shape is not the input's. The meaning of programs:
// whatever else runs them must give the same bits. Contractions use the threads of an enclosing UseExecutor
// (context.h).
absl::StatusOr<std::vector<Array>> Eval(const Program& program, absl::Span<const Array> args,
                                        const EvalHooks& hooks = {});

// Eval with arguments found by name among `values` (which may hold more), and outputs by name. NotFound, naming the
// slot, when an input is missing.
absl::StatusOr<SlotValues> EvalSlots(const Program& program, const SlotValues& values, const EvalHooks& hooks = {});

}  // namespace aqt

#endif  // AQT_GRAPH_EVAL_H_
