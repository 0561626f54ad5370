#ifndef AQT_GRAPH_INTERPRET_CALL_H_
#define AQT_GRAPH_INTERPRET_CALL_H_

// A function of Values as one equation, "call": transforms that look at operations do not look inside.
//
//   std::vector<Value> y = ops::Call("relu", [](absl::Span<const Value> in) { return {ops::Max(in[0], 0.0)}; }, {x});

#include <source_location>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"

namespace aqt {

// The name that was given to Call; "" if `op` is not a call.
std::string CallName(const Op& op);
// What a call computes; null if `op` is not one. `op` owns it.
const Program* CallBody(const Op& op);
// A call of `body`, whose inputs are the arguments.
CompositeOp MakeCall(std::string name, Program body);

namespace ops {

// The values of fn(args), with the same bits. `fn` is traced by itself: it sees only its arguments and arrays, and
// takes its branches once. It expands into the equations of `fn`. Its gradient is a call, too, named "grad(<name>)",
// which computes `fn` again. Poisoned: the errors of the trace, and FailedPrecondition if `fn` reads or writes slots of
// the program.
std::vector<Value> Call(absl::string_view name, TracedFunction fn, absl::Span<const Value> args,
                        const std::source_location& where = std::source_location::current());

}  // namespace ops
}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_CALL_H_
