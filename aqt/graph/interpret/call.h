#ifndef AQT_GRAPH_INTERPRET_CALL_H_
#define AQT_GRAPH_INTERPRET_CALL_H_

// A function of Values as one equation, "call". Transforms that look at operations do not look inside.
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

// The name given to Call; "" if `op` is not a call.
std::string CallName(const Op& op);
// The program that a call computes; null if `op` is not a call. `op` owns it.
const Program* CallBody(const Op& op);
// A call of `body`, whose inputs are the arguments.
CompositeOp MakeCall(std::string name, Program body);

namespace ops {

// The values of fn(args), bit for bit. `fn` is traced separately: it sees only its arguments and arrays, and its
// branches are taken once. The call expands into the equations of `fn`. Its gradient is also a call, named
// "grad(<name>)", which recomputes `fn`. Poisoned with the errors of the trace, or with FailedPrecondition if `fn`
// reads or writes slots of the program.
std::vector<Value> Call(absl::string_view name, TracedFunction fn, absl::Span<const Value> args,
                        const std::source_location& where = std::source_location::current());

}  // namespace ops
}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_CALL_H_
