#ifndef AQT_GRAPH_TRACE_H_
#define AQT_GRAPH_TRACE_H_

// Turns functions into programs. A model is a function of Values; the same function
//   runs at once if no trace is active:
//     std::vector<Value> y = model({Value(x), Value(w)});
//   is recorded inside Trace:
//     StatusOr<Program> p = Trace(model, {{x_slot, x_aval}, {w_slot, w_aval}});

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/graph/context.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"

namespace aqt {

// A named input of a trace.
struct Input {
  Slot slot;
  Aval aval;
};

// A function of Values that Trace records.
using TracedFunction = absl::FunctionRef<std::vector<Value>(absl::Span<const Value>)>;

// Calls `fn` once with one traced Value per input and returns what it did as a program. Arrays that it uses become
// constants. Output i is named output_slots[i]; without output_slots it is data "i". Outputs named by WriteSlot follow.
// C++ loops are unrolled and C++ branches are taken as in this call; a branch on data is an error (see Value::Item).
// Traces nest; each thread has its own.
// The first error of the trace is returned; its message names the operation, scope, operands and the line in `fn`.
// InvalidArgument if two inputs share a name, an input's shape is negative or larger than memory (CheckShape), or
// output_slots do not fit; AlreadyExists if two outputs share a name.
absl::StatusOr<Program> Trace(TracedFunction fn, absl::Span<const Input> inputs,
                              absl::Span<const Slot> output_slots = {});

// Whether a trace is active on this thread.
bool IsTracing();

// The only dispatch point: records `op` if a trace is active, otherwise runs it. Always returns NumOutputs(op) values,
// poisoned if an operand is poisoned or belongs to another trace, or if InferOp refuses the operands.
std::vector<Value> Bind(const Op& op, absl::Span<const Value> operands, const SourceLine& where);

// A poisoned Value, for an operation that refuses its operands before there is an Op. The trace fails with the same
// error.
Value Refuse(const absl::Status& status, absl::string_view op, absl::Span<const Value> operands,
             const SourceLine& where);

// The input of this name in the active trace. The first call adds it: after the inputs given to Trace, by kind, then in
// the order of the calls. Poisoned (and the trace fails) if it exists with another aval (InvalidArgument), or if no
// trace is active (FailedPrecondition).
Value InputSlot(const Slot& slot, const Aval& aval,
                const std::source_location& where = std::source_location::current());

// Makes `value` a named output of the active trace, in addition to what the function returns. This is how a layer
// returns new state. The trace fails if the name is taken (AlreadyExists). Does nothing if no trace is active.
void WriteSlot(const Slot& slot, const Value& value,
               const std::source_location& where = std::source_location::current());

// Reserves a name in the active trace, for operations that derive the names of inputs, outputs or keys from it. False
// if it is already taken. If no trace is active, every name is free.
bool TakeName(absl::string_view name);
bool IsNameTaken(absl::string_view name);  // whether TakeName would fail

}  // namespace aqt

#endif  // AQT_GRAPH_TRACE_H_
