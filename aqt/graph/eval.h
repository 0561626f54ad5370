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
  // Fail with OutOfRange, naming the equation, at the first one that gives a NaN or an infinity from finite operands.
  bool stop_at_nonfinite = false;
  // Called after each equation with its outputs (unused ones may be empty); for dumps.
  std::function<void(const Equation& eqn, absl::Span<const Array> outputs)> on_outputs;
};

// Runs a program equation by equation and returns its outputs. `args` are in the order of program.inputs.
// InvalidArgument, naming the slot, if an argument's dtype or shape is not the input's. This defines the meaning of
// programs: anything else that runs them must give the same bits. Contractions use the threads of an enclosing
// UseExecutor (context.h).
absl::StatusOr<std::vector<Array>> Eval(const Program& program, absl::Span<const Array> args,
                                        const EvalHooks& hooks = {});

// Eval with arguments taken by name from `values` (which may hold more) and outputs by name. NotFound, naming the slot,
// if an input is missing.
absl::StatusOr<SlotValues> EvalSlots(const Program& program, const SlotValues& values, const EvalHooks& hooks = {});

}  // namespace aqt

#endif  // AQT_GRAPH_EVAL_H_
