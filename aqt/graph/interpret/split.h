#ifndef AQT_GRAPH_INTERPRET_SPLIT_H_
#define AQT_GRAPH_INTERPRET_SPLIT_H_

// Partial evaluation: what is known of a program is computed now, the rest stays a program.

#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"

namespace aqt {

struct Split {
  // A variable that was computed, and that `rest` reads or returns.
  struct Evaluated {
    VarId var;
    int eqn;              // position in the given program
    bool from_constants;  // from nothing else
    Array value;
  };

  // The equations that depend on something unknown, with the outputs that are not in `results`. Its inputs are those of
  // the program, without the known ones that it does not read. Nothing in it binds the variables of `evaluated`.
  Program rest;
  std::vector<Evaluated> evaluated;  // in the order of the equations
  SlotValues results;
};

struct SplitOptions {
  // Known outputs of kind frozen become results, and are not part of the rest.
  bool frozen_outputs_are_results = false;
};

// Evaluates the equations that depend only on constants and on the inputs in `known`, each of the input's dtype and
// shape. A broadcast that the rest reads stays an equation: its operand takes less memory, and is read faster.
// Equations that nothing reads are not evaluated. Errors: those of an evaluation.
absl::StatusOr<Split> SplitProgram(const Program& program, const SlotValues& known, const SplitOptions& options = {});

}  // namespace aqt

#endif  // AQT_GRAPH_INTERPRET_SPLIT_H_
