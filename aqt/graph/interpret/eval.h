#ifndef AQT_GRAPH_INTERPRET_EVAL_H_
#define AQT_GRAPH_INTERPRET_EVAL_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"

namespace aqt {

// Checks and a callback for the equations that Eval runs.
struct EvalHooks {
  // Fail with OutOfRange at the first equation that gives a NaN or an infinity from finite operands. The message says
  // operation, scope, shapes and source line, how many elements of which output, and the first with its index.
  bool stop_at_nonfinite = false;
  // The same for a NaN from operands without NaN; infinities pass.
  bool stop_at_nan = false;
  // Called after each equation with its outputs (unused ones may be empty); for dumps.
  std::function<void(const Equation& eqn, absl::Span<const Array> outputs)> on_outputs = nullptr;

  // Whether any hook is set.
  bool any() const { return stop_at_nonfinite || stop_at_nan || on_outputs != nullptr; }
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

#endif  // AQT_GRAPH_INTERPRET_EVAL_H_
