#ifndef AQT_TRANSFORMS_PARALLEL_PARTITION_H_
#define AQT_TRANSFORMS_PARALLEL_PARTITION_H_

// How operations run on parts of the batch (data_parallel.h). Internal.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/collective/collective.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"
#include "aqt/transforms/parallel/data_parallel.h"

namespace aqt::internal {

// What a process has of a variable.
struct Part {
  // Makes the process's part of a whole variable along an axis without the whole; and what it has made.
  struct Cutter {
    std::function<Value(int64_t axis)> make;
    std::map<int64_t, Value> made = {};
  };
  Value value;
  Aval whole;                                // of the variable in the whole batch
  std::optional<int64_t> axis = {};          // which the processes divide; nullopt: each has the whole variable
  std::shared_ptr<Cutter> cutter = nullptr;  // only of whole variables; null: a slice is the way
};

// The processes, and what a process does for all operations.
class Partition {
 public:
  Partition(int rank, int processes, FloatSums float_sums)
      : rank_(rank), processes_(processes), float_sums_(float_sums) {}

  int rank() const { return rank_; }
  int processes() const { return processes_; }
  // `whole` with its extent along `axis` divided by the number of processes.
  Aval AvalOfPart(Aval whole, int64_t axis) const;

  // The variable of the whole batch.
  Value Whole(const Part& part) const;
  // The process's part along `axis`, whose extent is a multiple of the number of processes.
  Value Cut(const Part& part, int64_t axis) const;

  // Over the processes; of f16 and bf16, only maxima and minima.
  Value AllReduce(AllReduceKind kind, const Value& x) const;
  // Whether sums of this dtype over the batch may be added per process.
  bool Reduces(DType dtype) const { return dtype == DType::kS32 || float_sums_ == FloatSums::kReduce; }

  // One operation, whose outputs have these avals in the whole batch.
  std::vector<Part> Apply(const Op& op, absl::Span<const Part> in, absl::Span<const Aval> out) const;

 private:
  const int rank_, processes_;
  const FloatSums float_sums_;
};

// The output of an operation with at least one operand that is divided; nullopt where it needs all operands whole.
// partition_rules.cc says how each operation is cut.
std::optional<Part> CutOperation(const Partition& partition, const Op& op, absl::Span<const Part> in, const Aval& out);

// The same for opaque operations of a quantized contraction.
std::optional<Part> CutComposite(const Partition& partition, const CompositeOp& op, absl::Span<const Part> in,
                                 const Aval& out);

// The operands of an operation that needs them whole. Of a calibration with DelayedScaling, which reads of x only the
// largest magnitude, x becomes that of all processes.
std::vector<Part> OperandsOf(const Partition& partition, const Op& op, absl::Span<const Part> in);

// Whether an operation computes each element from the elements of its operands at the same place.
bool WorksByElement(const Op& op);

}  // namespace aqt::internal

#endif  // AQT_TRANSFORMS_PARALLEL_PARTITION_H_
