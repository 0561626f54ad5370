#ifndef AQT_GRAPH_INTERPRET_REWRITE_H_
#define AQT_GRAPH_INTERPRET_REWRITE_H_

// Rewrites programs. A program is interpreted with Values as lanes while a trace records what a rule does with each
// equation.

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"

namespace aqt {

// Replaces an equation: maps values for its operands to values for its outputs. Operations that the rule binds get the
// equation's scope and source line. Operations bound inside, InputSlot and WriteSlot become part of the new program.
using RewriteRule = absl::FunctionRef<absl::StatusOr<std::vector<Value>>(const Equation&, absl::Span<const Value>)>;

// The rule that changes nothing: binds the equation's operation again.
std::vector<Value> BindAgain(const Equation& eqn, absl::Span<const Value> operands);

// A new program with the input and output slots of `program`, followed by those that the rule adds.
absl::StatusOr<Program> Rewrite(const Program& program, RewriteRule rule);

// Walks `program` with values for its inputs: inside a trace its equations become part of the trace (with scopes below
// the current one), otherwise they run.
absl::StatusOr<std::vector<Value>> RewriteValues(const Program& program, absl::Span<const Value> args,
                                                 RewriteRule rule);

// RewriteValues with BindAgain: calls a program like a function. Outputs are poisoned on errors.
std::vector<Value> Inline(const Program& program, absl::Span<const Value> args);

// The inputs of `program`, for tracing again.
std::vector<Input> InputsOf(const Program& program);
// The output slots of `program`.
std::vector<Slot> OutputSlotsOf(const Program& program);

}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_REWRITE_H_
