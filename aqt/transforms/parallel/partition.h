#ifndef AQT_TRANSFORMS_PARALLEL_PARTITION_H_
#define AQT_TRANSFORMS_PARALLEL_PARTITION_H_

// Runs operations on parts of the batch (data_parallel.h). Internal.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "aqt/collective/collective.h"
#include "aqt/core/aval.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"
#include "aqt/transforms/parallel/data_parallel.h"

namespace aqt::internal {

// A process's shard of a variable.
struct Part {
  // Makes the process's shard of a replicated variable along an axis without computing the full variable; caches the
  // results.
  struct Cutter {
    std::function<Value(int64_t axis)> make;
    std::map<int64_t, Value> made = {};
  };
  Value value;
  Aval whole;                                // of the variable in the full batch
  std::optional<int64_t> axis = {};          // divided among the processes; nullopt: the variable is replicated
  std::shared_ptr<Cutter> cutter = nullptr;  // only for replicated variables; null: slice
};

// The processes, and the primitives that all operations share.
class Partition {
 public:
  Partition(int rank, int processes, FloatSums float_sums)
      : rank_(rank), processes_(processes), float_sums_(float_sums) {}

  int rank() const { return rank_; }
  int processes() const { return processes_; }
  // `whole` with its extent along `axis` divided by the number of processes.
  Aval AvalOfPart(Aval whole, int64_t axis) const;

  // The variable of the full batch.
  Value Whole(const Part& part) const;
  // The process's shard along `axis`, whose extent is a multiple of the number of processes.
  Value Cut(const Part& part, int64_t axis) const;

  // Reduces over the processes; for f16 and bf16, only maxima and minima.
  Value AllReduce(AllReduceKind kind, const Value& x) const;
  // Whether sums of this dtype over the batch may be added per process.
  bool Reduces(DType dtype) const { return dtype == DType::kS32 || float_sums_ == FloatSums::kReduce; }

  // Runs one operation whose outputs have these avals in the full batch.
  std::vector<Part> Apply(const Op& op, absl::Span<const Part> in, absl::Span<const Aval> out) const;

 private:
  const int rank_, processes_;
  const FloatSums float_sums_;
};

// The output of an operation with at least one divided operand; nullopt if it needs all operands replicated.
// partition_rules.cc says how each operation is cut.
std::optional<Part> CutOperation(const Partition& partition, const Op& op, absl::Span<const Part> in, const Aval& out);

// The same for opaque operations of a quantized contraction, and for attention.
std::optional<Part> CutComposite(const Partition& partition, const CompositeOp& op, absl::Span<const Part> in,
                                 const Aval& out);

// The operands of an operation that needs them replicated. A calibration with DelayedScaling reads only the largest
// magnitude of x, so there x becomes the maximum over all processes.
std::vector<Part> OperandsOf(const Partition& partition, const Op& op, absl::Span<const Part> in);

// Whether an operation computes each element from the elements of its operands at the same place.
bool WorksByElement(const Op& op);

}  // namespace aqt::internal

#endif  // AQT_TRANSFORMS_PARALLEL_PARTITION_H_
