#ifndef AQT_TESTING_PROGRAMS_H_
#define AQT_TESTING_PROGRAMS_H_

// Ways to run and compare traced functions in tests.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"

namespace aqt::testing {

// Inputs data "0", "1", ... with the avals of `args`.
std::vector<Input> DataInputs(absl::Span<const Array> args);
// Trace with DataInputs(args).
absl::StatusOr<Program> TraceWith(TracedFunction fn, absl::Span<const Array> args);

// Runs fn at once, without a trace, and returns its outputs.
absl::StatusOr<std::vector<Array>> RunEagerly(TracedFunction fn, absl::Span<const Array> args);
// Runs fn both at once and as a traced program, and returns the outputs. Internal if any bit differs.
absl::StatusOr<std::vector<Array>> RunBothWays(TracedFunction fn, absl::Span<const Array> args);

// Compares the gradients of sum(weights * fn(args)), for random weights and f64 args, with central differences.
// InvalidArgument, naming the element and both numbers, if they differ by more than `tolerance` (relative to 1 + the
// larger magnitude). The step is 1e-5: for functions with moderate third derivatives the difference quotient is off by
// about 1e-10.
absl::Status CheckGradients(TracedFunction fn, absl::Span<const Array> args, double tolerance = 1e-7);

// The number of equations of `program` with the operation `name`.
int CountOps(const Program& program, absl::string_view name);

}  // namespace aqt::testing

#endif  // AQT_TESTING_PROGRAMS_H_
