#ifndef AQT_QUANT_CONTRACTION_PLANNED_CONTRACTION_H_
#define AQT_QUANT_CONTRACTION_PLANNED_CONTRACTION_H_

// The common part of contraction plans (dot_general.h, conv_general.h, ragged_dot.h).

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/contraction/scratch.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

class PlannedContraction;
namespace internal {
class ContractionPlan;
// The implementation of a plan (planned_contraction_impl.h).
const ContractionPlan& EngineOf(const PlannedContraction& plan);
}  // namespace internal

// A planned contraction of two operands. Immutable and thread-safe; cheap to copy. All decisions are made when it is
// built; calls do not allocate after the first one with the same Scratch.
class PlannedContraction {
 public:
  const Aval& lhs_aval() const;
  const Aval& rhs_aval() const;
  const Aval& out_aval() const;  // the dtype of the operands
  const PlanOptions& options() const;
  // The arrays that Forward writes into Residuals, in order.
  absl::Span<const ResidualSlot> residuals() const;
  // The statistics that Forward and Backward take, in order; empty when no calibration has state.
  absl::Span<const StateSlot> forward_state() const;
  absl::Span<const StateSlot> backward_state() const;
  // Whether a call needs Context::key.
  bool ForwardNeedsKey() const;
  bool BackwardNeedsKey() const;
  // Upper bound on the scratch memory of a call without an observer, a user's product or a prepared operand with
  // several scales, which may need more.
  int64_t scratch_bytes() const;

  // Dtypes and shapes of an operand after Prepare, tiled if there is a tiling. InvalidArgument when fwd does not
  // quantize it.
  struct QuantizedAvals {
    Aval qvalue, scale;
  };
  absl::StatusOr<QuantizedAvals> quantized_avals(Side side) const;

  // Quantizes and packs an operand once, as Forward would each time; a float operand that the plan does not quantize is
  // only packed. FailedPrecondition for a calibration with state: find its StaticScale, and prepare a QTensor.
  absl::StatusOr<PreparedOperand> Prepare(Side side, const ArrayRef& value, const Context& context = {},
                                          const Runtime& runtime = {}) const;
  // Takes a stored tensor: with a qvalue it replaces the operand, with only scales it replaces the calibration; for a
  // side that is not quantized, the qvalue is the float operand, and there are no scales. A sparsity mask of zeros and
  // ones is multiplied into the qvalue, for the gradients, too. InvalidArgument unless it has the dtypes and shapes
  // that this plan would compute.
  absl::StatusOr<PreparedOperand> Prepare(Side side, QTensor qtensor, const Runtime& runtime = {}) const;

 protected:
  struct Impl;
  explicit PlannedContraction(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  friend const internal::ContractionPlan& internal::EngineOf(const PlannedContraction& plan);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_PLANNED_CONTRACTION_H_
