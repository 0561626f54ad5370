#ifndef AQT_TRANSFORMS_FOLD_H_
#define AQT_TRANSFORMS_FOLD_H_

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

struct Folded {
  Program program;
  // Values for the inputs of `program` that are known: parameters, frozen tensors, statistics that are still read.
  SlotValues values;
};

// Computes whatever depends on known inputs and constants alone: the freezer. `known` names values for inputs:
// parameters, and the statistics that CALIBRATE has left; keys never belong here. In the result:
//   - each frozen output (WriteSlot) of something known is gone and has its value in `values`: something computed, a
//     known input, a constant. If several outputs are one value, each has it;
//   - what was computed from known inputs and is used by the rest is an input of kind frozen, with its value in
//     `values`. Its path is that of the first frozen output that it is, else "<scope>/folded_<number>";
//   - known inputs that the rest does not use are gone: a weight of which only the quantized form is used;
//   - what was computed from constants alone is a constant;
//   - known inputs that the rest uses as they are stay, with their values;
//   - a broadcast of something known stays a broadcast: only its operand is stored.
// Evaluating the folded program with `values` gives the bits of the program. Errors: those of an evaluation;
// InvalidArgument when a known value does not have its input's dtype and shape, and when a frozen output has the
// name of an input that stays and has another value; NotFound, naming them, when a frozen output is computed from
// parameters or statistics that `known` lacks. A frozen output of data or keys stays an output.
absl::StatusOr<Folded> Fold(const Program& program, const SlotValues& known);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_FOLD_H_
