#ifndef AQT_TESTS_GOLDEN_CHECK_PROGRAM_RUN_H_
#define AQT_TESTS_GOLDEN_CHECK_PROGRAM_RUN_H_

// How cases evaluate their programs.

#include <optional>

#include "absl/status/statusor.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/prepared_program.h"
#include "tests/golden_check/way.h"

namespace aqt::golden {

// A program that is evaluated several times.
class ProgramRun {
 public:
  // `fixed` are the values that are the same each time; a prepared program has them from the start.
  static absl::StatusOr<ProgramRun> Make(Way way, const Program& program, const SlotValues& fixed);
  // Another array for a fixed value replaces it in this call.
  absl::StatusOr<SlotValues> Eval(const SlotValues& inputs) const;

 private:
  ProgramRun(Program program, SlotValues fixed, std::optional<PreparedProgram> prepared);
  Program program_;
  SlotValues fixed_;
  std::optional<PreparedProgram> prepared_;
};

// Make and Eval.
absl::StatusOr<SlotValues> Evaluate(Way way, const Program& program, const SlotValues& fixed, const SlotValues& inputs);

// The values of both; those of `a` where both have one.
SlotValues Union(SlotValues a, const SlotValues& b);

// What a program in mode CONVERT freezes: what Fold computes from `known`, and what depends on a key in `data`, too.
// The results of that program go to `out` if it is not null.
absl::StatusOr<SlotValues> Frozen(Way way, const Program& convert, const SlotValues& known, const SlotValues& data,
                                  SlotValues* out = nullptr);

}  // namespace aqt::golden

#endif  // AQT_TESTS_GOLDEN_CHECK_PROGRAM_RUN_H_
