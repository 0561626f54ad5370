#ifndef AQT_SERVING_ENGINE_ROW_MODEL_H_
#define AQT_SERVING_ENGINE_ROW_MODEL_H_

// What an engine runs: a function from the named tensors of one row (a text, an example) to others. It has a program
// for each batch and length, which is compiled when it is needed. All programs share the weights and their panels.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/program.h"
#include "aqt/runtime/executable.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::serving {

// An input or output of a row.
struct RowPort {
  Slot slot;
  DType dtype = DType::kF32;
  Shape shape;           // of one row: without the batch axis; 0 at length_axis
  int length_axis = -1;  // the axis of `shape` that is as long as the row; -1: there is none
};

// How an engine may use the programs of a model. Found from the programs themselves.
struct RowFacts {
  std::vector<RowPort> inputs, outputs;
  bool has_batch = true;         // false: a request is a whole call of the program, batch axis included
  int64_t max_length = 0;        // of a row; 0: rows have no length
  std::vector<int64_t> batches;  // the only batches that there are, ascending; empty: all
  // Whether a row has the same bits in every batch. If not, each row is computed alone, and `why_alone` says why
  // (WhyRowsDepend of aqt/transforms/row_dependence.h).
  bool joins = true;
  std::string why_alone;
  // Whether positions after the end of a row cannot change the others. If not, a row is never padded: it has a program
  // of its own length, and `why_exact` says why (WhyPaddingCounts).
  bool pads = true;
  std::string why_exact;

  // The length of the program that computes a row of this length: models::PaddedLength if rows are padded.
  int64_t ProgramLength(int64_t length) const;
};

// Immutable; thread-safe.
class RowModel {
 public:
  virtual ~RowModel() = default;
  const RowFacts& facts() const { return facts_; }
  // The program for `batch` rows of `length` positions (0 if rows have no length), with the model's weights. Its inputs
  // are among those of facts(), in any order. Calls share their arenas. InvalidArgument for a batch or a length that
  // the model does not have; otherwise the errors of the model.
  virtual absl::StatusOr<Executable> Compile(int64_t batch, int64_t length) const = 0;
  // The size of the weights and panels that the programs compiled so far read, each counted once.
  virtual int64_t weight_bytes() const = 0;

 protected:
  RowFacts facts_;
};

// A model that is traced for any batch and length.
struct TracedModel {
  // The program for `batch` rows of `length` positions, without its weights. Thread-safe. Axis 0 of every data input
  // and output is the batch. An axis that changes with `length` is the length.
  std::function<absl::StatusOr<Program>(int64_t batch, int64_t length)> trace;
  SlotValues weights;
  InjectConfig config;     // empty: floating point
  int64_t max_length = 0;  // 0: rows have no length, and `trace` is called with length 0
};

// Quantizes the weights once. InvalidArgument, naming the slot and its shapes, if a shape does not follow the rules of
// TracedModel; otherwise the errors of `trace`, Freeze and nn::Serve.
absl::StatusOr<std::shared_ptr<const RowModel>> MakeRowModel(TracedModel model);

// Programs of fixed shapes, such as those of files: one model for several batches, or a single program. `config` and
// `state` are those of nn::Serve. The batch is axis 0 of every data input and output. A batch that is not full has rows
// of zeros at its end. Of a single program, a request is a whole call. InvalidArgument if shapes do not differ in the
// batch only, and, for several programs, if their rows depend on each other; otherwise the errors of nn::Serve.
absl::StatusOr<std::shared_ptr<const RowModel>> MakeRowModel(std::vector<Program> programs, const InjectConfig& config,
                                                             const SlotValues& state);

}  // namespace aqt::serving

#endif  // AQT_SERVING_ENGINE_ROW_MODEL_H_
