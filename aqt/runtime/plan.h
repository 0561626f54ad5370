#ifndef AQT_RUNTIME_PLAN_H_
#define AQT_RUNTIME_PLAN_H_

// The decisions that an Executable makes ahead of time. Internal.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/fusion/fused_program.h"

namespace aqt::internal {

// Where the elements of a variable are stored.
enum class Place : uint8_t {
  kNone,      // nowhere: they are unused, or exist only inside a step
  kArgument,  // in an argument of the call
  kConstant,  // in a constant of the program
  kArena,     // in the call's arena
  kOutput,    // in the memory of an output
};

struct Variable {
  VarId root = -1;  // the variable whose memory this one shares; itself if it has its own
  // For roots:
  Place place = Place::kNone;
  int64_t index = 0;              // of the argument or output
  int64_t offset = 0, bytes = 0;  // in the arena
  int first = -1, last = -1;      // the steps that write it, and that read it last; -1: before the first
  bool in_place = false;          // takes over the memory of an operand
};

// The epilogue of a product, run block by block.
struct StepEpilogue {
  std::shared_ptr<const FusedProgram> fused;
  absl::InlinedVector<VarId, 4> in, out;  // its operands and results, roots; one of `in` is the product
  VarId product = -1;
  VarId memory = -1;       // the product, or the result in whose memory it is computed
  int64_t scratch_at = 0;  // in the scratch memory of the step
};

// One or more equations that run together.
struct PlannedStep {
  OpKernel kernel;                        // of all equations; with an epilogue, of the first one
  std::optional<StepEpilogue> epilogue;   // of the others
  std::vector<int> eqns;                  // positions in program.eqns
  absl::InlinedVector<VarId, 3> in, out;  // roots; `out` has -1 for outputs that nobody needs
  // Pairs (position in `in`, position in `out`) that may share memory if they have the same size.
  std::vector<std::pair<int, int>> may_share;
  int64_t scratch_bytes = 0, scratch_offset = 0;
};

struct Plan {
  Program program;
  std::vector<Variable> variables;  // by VarId
  std::vector<PlannedStep> steps;
  std::vector<int> primary;  // for each output of the program, the output in whose memory it is; -1 if in none
  int64_t arena_bytes = 0;
  int64_t array_bytes = 0;  // OpKernel::array_bytes, at the worst step
  int64_t output_bytes = 0;

  // Whether an output of the program may be in the memory of an argument: the argument is not read after the output is
  // written.
  bool MayUpdate(size_t argument, size_t output) const;
  const Variable& at(VarId var) const { return variables[variables[var].root]; }
  std::string ToString() const;
};

// `fuse`: several equations may run as one step. `epilogues`: also a product and what follows it. Errors: those of
// Composite::MakeKernel, with a description of the equation.
absl::StatusOr<Plan> MakePlan(const Program& program, bool fuse, bool epilogues);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_PLAN_H_
