#ifndef AQT_RUNTIME_PACKED_WEIGHTS_H_
#define AQT_RUNTIME_PACKED_WEIGHTS_H_

// Packed weights by the names of the inputs that they are packed from. A model whose programs are prepared one after
// the other, as lengths are asked for, then needs no weight any more that its programs only read in packed form:
//
//   PackedWeights packed;
//   for (const Program& program : programs_of_all_kinds) {
//     AQT_RETURN_IF_ERROR(packed.WithPanels(program, weights).status());
//   }
//   packed.Release(weights);
//   ...
//   AQT_ASSIGN_OR_RETURN(const Program program, packed.WithPanels(another, weights));
//   AQT_ASSIGN_OR_RETURN(const PreparedProgram served,
//                        PreparedProgram::Make({program}, weights, {.keep_values = false}));

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/graph/program.h"

namespace aqt {

// Belongs to one set of weights: an input has the same value in all calls. Owns the panels. Thread-safe.
class PackedWeights {
 public:
  // The program with the weights of `values` that it reads packed as constants, without the inputs that it then does
  // not read. The panels are those of such a call before, or are packed now, on the threads of an enclosing UseExecutor
  // (graph/context.h). Errors: those of packing; FailedPrecondition, naming the input, if a value that is needed was
  // released.
  absl::StatusOr<Program> WithPanels(const Program& program, const SlotValues& values);

  // Frees the memory of the values which the programs so far have only read packed: their arrays keep dtype and shape,
  // and have no data. A program that reads them in another way fails.
  void Release(SlotValues& values) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Array> panels_;  // by the inputs and the form; guarded by mutex_
  std::set<Slot> packed_;                // that programs read packed; guarded by mutex_
  std::set<Slot> read_;                  // that programs read as they are; guarded by mutex_
};

namespace internal {

// The program with the fixed operands of contractions packed by their own equations.
absl::StatusOr<Program> WithPackedOperands(const Program& program, const SlotValues& values);

}  // namespace internal
}  // namespace aqt

#endif  // AQT_RUNTIME_PACKED_WEIGHTS_H_
