#ifndef AQT_TESTING_RANDOM_PROGRAMS_H_
#define AQT_TESTING_RANDOM_PROGRAMS_H_

// Random programs of all basic operations.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/value.h"

namespace aqt::testing {

// One operation of every kind: each alternative of Op except CompositeOp, and each unary, binary, ... kind of it. Their
// attributes are placeholders.
std::vector<Op> AllBasicOps();

// The arguments of random programs: inputs data "0", "1", ... of several dtypes and shapes.
std::vector<Array> RandomProgramArgs(uint64_t seed);

// `steps` operations drawn from AllBasicOps(), with attributes and operands redrawn until they fit, on the inputs above
// and on earlier results. A function to trace. Outputs: the sum of all float results in f32, to be differentiated with
// respect to the first inputs (which are floats), then every result that no later step used. The same seed gives the
// same program; with fewer steps it gives a prefix of it.
std::vector<Value> RandomFunction(uint64_t seed, int steps, absl::Span<const Value> args);
absl::StatusOr<Program> RandomProgram(uint64_t seed, int steps);

// The smallest number of steps, at most `steps`, for which `fails`; `steps` if there is no smaller one.
int Shrink(int steps, const std::function<bool(int)>& fails);

}  // namespace aqt::testing

#endif  // AQT_TESTING_RANDOM_PROGRAMS_H_
