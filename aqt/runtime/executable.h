#ifndef AQT_RUNTIME_EXECUTABLE_H_
#define AQT_RUNTIME_EXECUTABLE_H_

// A program that is ready to run many times. Everything that does not depend on data is decided once.
//
//   AQT_ASSIGN_OR_RETURN(const Executable step, Executable::Make(program));
//   AQT_ASSIGN_OR_RETURN(std::vector<Array> outputs, step.Run(args));
//
// docs/runtime.md describes these decisions, fusion and the memory of a call. The bits are those of Eval
// (graph/interpret/eval.h), which defines the meaning of programs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/program.h"

namespace aqt {

class ArenaPool;
class Profile;

// Options of Executable::Make.
struct ExecutableOptions {
  bool fuse = true;       // off: a step for each equation, to measure fusion
  bool epilogues = true;  // off: a product and its epilogue are two steps, to measure epilogues
  // With any hook, calls run by Eval, equation by equation: slowly, with the same bits, and with memory for every
  // result.
  EvalHooks hooks = {};
  // Where calls get their arenas (arena_pool.h). If null, the executable keeps its own.
  std::shared_ptr<ArenaPool> arenas = nullptr;
};

// A program that is ready to run. Immutable and thread-safe; cheap to copy. Concurrent calls each have their own arena,
// which is kept for later calls.
class Executable {
 public:
  // The program may hold any operation. Errors: those of Composite::MakeKernel, naming the equation.
  static absl::StatusOr<Executable> Make(const Program& program, const ExecutableOptions& options = {});

  // Like Eval: `args` are in the order of program.inputs, the result in that of program.outputs. Equations that no
  // output needs do not run. Contractions use the threads of an enclosing UseExecutor (graph/context.h). Memory of
  // released outputs is reused. InvalidArgument, naming the slot, if an argument's dtype or shape is not the input's;
  // otherwise the errors of composites. The call's times are added to `profile`, or else to the process's profile
  // (profile.h).
  absl::StatusOr<std::vector<Array>> Run(absl::Span<const Array> args, Profile* profile = nullptr) const;

  // The same with the outputs in given memory: dense, of the outputs' dtypes and shapes, overlapping neither each other
  // nor the arguments, except that an output may be updated in place (MayUpdate). InvalidArgument otherwise. Does not
  // allocate after the first call, except in composites without a kernel of their own. After an error the outputs hold
  // anything.
  absl::Status RunInto(absl::Span<const Array> args, absl::Span<const MutableArrayRef> outputs,
                       Profile* profile = nullptr) const;

  // Whether RunInto may compute the output in the memory of the argument, which must be Array::Unowned. True if both
  // have the same number of bytes and no element of the argument is read after the output's is written. An optimizer's
  // state then needs no second copy.
  bool MayUpdate(size_t argument, size_t output) const;

  // Run with arguments and outputs by name, as EvalSlots.
  absl::StatusOr<SlotValues> RunSlots(const SlotValues& values) const;

  const Program& program() const;
  // What a call needs at its peak, besides its arguments: the arena, the outputs, and the results of composites without
  // a kernel of their own, before they are copied. What those allocate besides is not counted.
  int64_t peak_bytes() const;
  int64_t arena_bytes() const;
  // Each step with its equations, and the place and lifetime of their results.
  std::string ToString() const;

 private:
  struct Impl;
  explicit Executable(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace aqt

#endif  // AQT_RUNTIME_EXECUTABLE_H_
