#ifndef AQT_SERVING_ENGINE_BATCH_RUNNER_H_
#define AQT_SERVING_ENGINE_BATCH_RUNNER_H_

// Rows into the arrays of a program, and its outputs back into rows. Internal.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ref.h"
#include "aqt/runtime/executable.h"
#include "serving/engine/row_model.h"

namespace aqt::serving {

// A compiled program, and where its inputs and outputs are among those of a row.
struct RowProgram {
  RowProgram(Executable executable, const RowFacts& facts, int64_t batch, int64_t length);

  Executable executable;
  int64_t batch, length;
  std::vector<size_t> input_ports, output_ports;  // of facts, by the program's inputs and outputs
};

// The memory of one row, by RowFacts::inputs and outputs.
struct RowMemory {
  absl::Span<const Array> inputs;
  absl::Span<void* const> outputs;
  int64_t length = 0;  // of this row, up to that of the program
};

// Not thread-safe. Has the memory of its largest call so far, so that later calls allocate nothing.
class BatchRunner {
 public:
  // `facts` must outlive it.
  explicit BatchRunner(const RowFacts& facts) : facts_(facts) {}

  // Computes up to program.batch rows. Positions after a row's end, and missing rows, are zeros; what is computed for
  // them is dropped. The errors of Executable::RunInto.
  absl::Status Run(const RowProgram& program, absl::Span<const RowMemory> rows);

 private:
  void* Reserve(const Program& program);

  const RowFacts& facts_;
  std::shared_ptr<void> memory_;
  int64_t bytes_ = 0;
  std::vector<Array> args_;
  std::vector<MutableArrayRef> outputs_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_BATCH_RUNNER_H_
