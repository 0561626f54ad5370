#ifndef AQT_TRANSFORMS_QUANTIZE_FOLD_H_
#define AQT_TRANSFORMS_QUANTIZE_FOLD_H_

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"

namespace aqt {

// The result of Fold.
struct Folded {
  Program program;
  // Values of the known inputs of `program` (parameters, frozen tensors, statistics that are still read), and of the
  // removed frozen outputs.
  SlotValues values;
};

// Computes everything that depends only on known inputs and constants: the freezer. `known` gives values for inputs:
// parameters, and the statistics after CALIBRATE. It must not contain keys. In the result
//   - each frozen output (WriteSlot) that is known, whether computed, an input or a constant, is removed, and its value
//     is in `values`. If several outputs are the same value, each has it there;
//   - a value that was computed from known inputs and that the rest uses is an input of kind frozen, with its value in
//     `values`. Its path is that of the first frozen output with this value, otherwise "<scope>/folded_<number>";
//   - known inputs that the rest does not use are removed, such as a weight whose quantized form is used instead;
//   - a value computed only from constants is a constant;
//   - known inputs that the rest uses directly stay, with their values;
//   - a broadcast of a known value stays a broadcast: only its operand is stored.
// Evaluating the folded program with `values` gives the same bits as the original. Errors: those of an evaluation;
// InvalidArgument if a known value does not have its input's dtype and shape, or if a frozen output has the name of a
// remaining input and a different value; NotFound, naming them, if a frozen output is computed from parameters or
// statistics that `known` lacks. A frozen output that depends on data or keys stays an output.
absl::StatusOr<Folded> Fold(const Program& program, const SlotValues& known);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_QUANTIZE_FOLD_H_
