#ifndef AQT_RUNTIME_PREPARED_PROGRAM_H_
#define AQT_RUNTIME_PREPARED_PROGRAM_H_

// Programs that are evaluated many times with the same weights, to serve a model.
//
//   AQT_ASSIGN_OR_RETURN(PreparedProgram served, PreparedProgram::Make({one_row, many_rows}, frozen));
//   AQT_ASSIGN_OR_RETURN(SlotValues out, served.Eval({{Slot{SlotKind::kData, "x"}, x}}));
//
// Everything that the given values determine is computed once. Broadcasts of the results stay equations: a bias stays a
// row. A weight of a contraction is also packed once, into the layout that the kernels of this machine read: an
// equation aqt_pack has this layout as its value (quant/contraction/dot_operand.h lists the operands that have one, and
// their sizes); so does the rhs of a dot_general of floats. Programs of this process that are prepared with the same
// array share its packed form. Contractions that quantize one array alike quantize it once
// (ops/contraction/packed_contraction.h).
//
// Calls run as an Executable (executable.h), or equation by equation if there are hooks. The bits are those of Eval
// (graph/interpret/eval.h) of the program itself.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/executable.h"

namespace aqt {

// Options of PreparedProgram::Make.
struct PrepareOptions {
  // Keeps the values that the prepared programs do not read, such as qvalues that are packed. They cost memory only if
  // they are not held elsewhere, and are needed when a call replaces another value.
  bool keep_values = true;
  // ExecutableOptions::arenas of all programs.
  std::shared_ptr<ArenaPool> arenas = nullptr;
};

// Programs with fixed weights, ready to serve. Immutable and thread-safe; cheap to copy.
class PreparedProgram {
 public:
  // One function traced for several shapes of its data, or only one program. `values` has arrays for some inputs,
  // usually all that are frozen or parameters; other entries are ignored. InvalidArgument without a program, and if a
  // value's dtype or shape is not the input's; otherwise the errors of equations that are computed here.
  static absl::StatusOr<PreparedProgram> Make(absl::Span<const Program> programs, const SlotValues& values,
                                              const PrepareOptions& options = {});

  // The outputs, by name. `inputs` has the inputs without a value (NotFound, naming the slot, if one that the program
  // reads is missing) and may have more. Their shapes select the program: the first one whose inputs have these dtypes
  // and shapes (InvalidArgument, listing the shapes, if there is none). If `inputs` has another array for an input that
  // got a value in Make, this call is an Eval of that program with the new array (FailedPrecondition if other values
  // are needed and were not kept).
  absl::StatusOr<SlotValues> Eval(const SlotValues& inputs, const EvalHooks& hooks = {}) const;

  int num_programs() const;
  // The program that is evaluated: it holds the results of Make as constants.
  const Program& program(int index) const;
  // The same, ready to run: the inputs without a value, in the order of its program.
  const Executable& executable(int index) const;
  // The size of the arrays that evaluations read, each counted once.
  int64_t num_bytes() const;

 private:
  struct Impl;
  explicit PreparedProgram(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace aqt

#endif  // AQT_RUNTIME_PREPARED_PROGRAM_H_
