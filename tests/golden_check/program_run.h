#ifndef AQT_TESTS_GOLDEN_CHECK_PROGRAM_RUN_H_
#define AQT_TESTS_GOLDEN_CHECK_PROGRAM_RUN_H_

// Evaluation of the cases' programs.

#include <optional>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/prepared_program.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {

// A program that is evaluated several times.
class ProgramRun {
 public:
  // `fixed` has the values that do not change between calls; a prepared program has them from the start.
  static absl::StatusOr<ProgramRun> Make(Way way, const Program& program, const SlotValues& fixed);
  // A different array for a fixed value replaces it in this call.
  absl::StatusOr<SlotValues> Eval(const SlotValues& inputs) const;

 private:
  ProgramRun(Program program, SlotValues fixed, std::optional<PreparedProgram> prepared);
  Program program_;
  SlotValues fixed_;
  std::optional<PreparedProgram> prepared_;
};

// Make and Eval.
absl::StatusOr<SlotValues> Evaluate(Way way, const Program& program, const SlotValues& fixed, const SlotValues& inputs);

// The union; if both have a value, that of `a`.
SlotValues Union(SlotValues a, const SlotValues& b);

// The tensors that a program in mode CONVERT freezes: those that Fold computes from `known`, and those that also depend
// on a key in `data`. The results of that program are written to `out` if it is not null.
absl::StatusOr<SlotValues> Frozen(Way way, const Program& convert, const SlotValues& known, const SlotValues& data,
                                  SlotValues* out = nullptr);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_PROGRAM_RUN_H_
