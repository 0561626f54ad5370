#ifndef AQT_QUANT_CONTRACTION_DOT_GENERAL_H_
#define AQT_QUANT_CONTRACTION_DOT_GENERAL_H_

// The quantized contraction and its two gradients, on arrays.
//
//   AQT_ASSIGN_OR_RETURN(auto plan, DotGeneralPlan::Make(FullyQuantized(), lhs.aval(), rhs.aval(), MatMulDims()));
//   Residuals residuals;
//   AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, {.key = MakeKey(0)}, out, &residuals));
//   AQT_RETURN_IF_ERROR(plan.Backward(g, residuals, {.key = MakeKey(0)}, dlhs, drhs));
//
// One contraction, with the default dequantization, both sides quantized:
//   out = R(R(R(sum_k qlhs * qrhs) * scale_lhs) * scale_rhs)          R: to the dtype of the operands
// The integer sum is exact, so its bits are the same everywhere. A floating point product is summed in f32 in ascending
// order of k and rounded once; targets with FMA round once per step of the sum (kernels/gemm_f32.h). Without an
// accumulator dtype the product of two integers wraps in the wider of their dtypes, as in JAX.
//
// Backward, for dlhs (drhs likewise): g is quantized by dlhs.lhs, the saved rhs by dlhs.rhs, each along the axes that
// this product contracts; with use_fwd_quant, g is first multiplied by the forward scale of rhs, and the forward qvalue
// of rhs is quantized again. The gradient passes the forward quantization unchanged, except that clip_gradient of
// fwd.lhs zeroes it where lhs was clipped. There is no gradient through a scale.
//
// Mid alphas (SmoothQuant-like): with m = (absmax over the remaining axes)^alpha per side, both quantized operands are
// first divided by c = m / (m of the other side), which cancels in the product.
//
// LocalAqt cuts a contracting axis of a backward product into (count, size): each part has its own scales, and the
// dequantized parts are summed in f32 from +0 in ascending order, then rounded once.
//
// A tiled contraction (config.tiling): a tiled axis of an operand is replaced by (count, size). lhs also gets leading
// axes for the tiles of the remaining axes of rhs, and rhs for those of lhs; an operand is repeated, and quantized,
// along these axes. The product has the batch axes [tiles of contracting axes] + batch + [tiles of remaining axes of
// lhs] + [those of rhs]. Its dequantized result is summed over the tiles of contracting axes, gradients over the
// repetitions, both in f32 from +0 in row-major order, rounded once. Prepared operands, qvalues and scales (also in
// residuals and observers) have the tiled shapes:
//   [3136, 256] with axis 0 in 2 tiles: qvalue [2, 1568, 256], scale [2, 1, 256]
// Bits: those sums have the same bits everywhere (docs/bits.md), like everything after the product.
//
// Calibrations with state (calibration.h): Forward and Backward take the statistics of their operands and return the
// updated ones; see StateArrays.
//
// dot_general_reference.h computes the same bits with plain loops.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {
namespace internal {
struct Panels;
}  // namespace internal

// The keys of the six operands: split(key, 3) gives fwd, dlhs, drhs; each split(., 2) gives lhs, rhs.
struct OperandKeys {
  Key fwd_lhs, fwd_rhs, dlhs_lhs, dlhs_rhs, drhs_lhs, drhs_rhs;
  bool operator==(const OperandKeys&) const = default;
};
OperandKeys SplitContextKey(Key key, PrngLayout layout = PrngLayout::kPartitionable);

// What one forward call keeps for the backward ones. Memory is allocated by the first Forward and reused by later ones.
//
// Per operand x of n elements (qvalues and masks: of the tiled operand, with its repetitions), in bytes:
//   with use_fwd_quant (dlhs.rhs for rhs, drhs.rhs for lhs):
//     n * (size of the container + (clip_gradient ? 1 : 0)) + scales
//   otherwise (with mid alphas: n instead of scales):
//     n * size of x (0 when borrowed) + (clip_gradient ? scales : 0)
// f32 training keeps n * 4. So int8 training never needs more, except for the scales; with use_fwd_quant it needs a
// quarter (half with clip_gradient).
class Residuals {
 public:
  enum class Operands {
    kCopy,
    // Operands (float, or prepared qvalues) that the backward products need are not copied: the caller keeps lhs and
    // rhs alive and unchanged until the last Backward.
    kBorrow,
  };
  explicit Residuals(Operands operands = Operands::kCopy) : operands_(operands) {}
  Residuals(Residuals&&) = default;
  Residuals& operator=(Residuals&&) = default;

  // Bytes that this object keeps allocated.
  int64_t num_bytes() const;

  // For callers with storage of their own (a graph): the arrays in the order of DotGeneralPlan::residuals(), leaving
  // this object empty, and back. Borrowed operands are copied.
  std::vector<Array> Release() &&;
  static Residuals FromArrays(absl::Span<const Array> arrays);

 private:
  friend class ConvGeneralPlan;
  friend class DotGeneralPlan;
  struct Slot {
    Aval aval;
    std::shared_ptr<void> owned;         // memory of this object
    std::shared_ptr<const void> shared;  // memory of an Array
    ArrayRef view;
  };
  // Memory for a slot, dense; allocated if there is none yet.
  void* Reserve(size_t index, const Aval& aval);
  // Copies or borrows what the caller owns: a float operand, or the qvalue of a prepared one. Transient memory is
  // always copied.
  void Keep(size_t index, const ArrayRef& operand, bool transient = false);

  Operands operands_ = Operands::kCopy;
  std::vector<Slot> slots_;
};

// What an array of Residuals holds, of one operand.
enum class ResidualKind {
  kValue,     // the float operand itself
  kQvalue,    // its forward qvalue; with mid alphas times the mid ratio, in the operand's dtype
  kScale,     // its forward scale
  kClipMask,  // s8: 1 where the forward quantization did not clip, 0 where it did
};

// One array of Residuals.
struct ResidualSlot {
  Side side;
  ResidualKind kind;
  Aval aval;
};

// An operand fixed ahead of time (a weight), or only its scales (a static activation range). Immutable; cheap to copy.
// For a product of integers it also holds the qvalues as the kernels of one target read them: the qvalues' size again,
// rounded up to whole panels. On other targets it works, too, but is packed in each call. Plans that differ only in the
// other operand's shape (the batch) can share it.
class PreparedOperand {
 public:
  const QTensor& qtensor() const { return *qtensor_; }

 private:
  friend class ConvGeneralPlan;
  friend class DotGeneralPlan;
  std::shared_ptr<const QTensor> qtensor_;
  std::shared_ptr<const internal::Panels> panels_;
};

// What Forward takes on a side: a float operand; one with prepared scales, which replace the calibration; or a prepared
// qvalue, which replaces the operand. With Residuals:
//   scales only   gradients are those of the operand quantized with these scales
//   qvalue        no gradient flows into it: refused, unless fwd.allow_dummy_gradient_into_qtensor asks to pass it on
//                 as if the operand had been quantized here. The other side's gradient is the product with the float
//                 operand `value`, which is then needed, too, or with the prepared qvalue if use_fwd_quant is set.
struct DotOperand {
  ArrayRef value;  // when `prepared` has a qvalue: read only for gradients
  const PreparedOperand* prepared = nullptr;
  // The memory of `value` changes after Forward: Residuals copy it even if they would borrow.
  bool transient = false;

  DotOperand(const ArrayRef& value_in) : value(value_in) {}
  DotOperand(const MutableArrayRef& value_in) : value(value_in) {}
  DotOperand(const Array& value_in) : value(value_in.ref()) {}
  DotOperand(const PreparedOperand& prepared_in) : prepared(&prepared_in) {}
  DotOperand(const ArrayRef& value_in, const PreparedOperand& prepared_in) : value(value_in), prepared(&prepared_in) {}
};

// Immutable and thread-safe; cheap to copy. Calls do not allocate after the first (per number of concurrent calls).
class DotGeneralPlan {
 public:
  // Everything about the configuration and the shapes is checked here. Operands have one dtype: f32, bf16 or f16.
  //   InvalidArgument   shapes and dims that do not fit; integer or different operand dtypes; illegal numerics; OUTPUT
  //                     with REMAINING_AXIS or OTHER_INPUT with CONTRACTING_AXIS on a forward side, and elsewhere a
  //                     scale that varies along an axis along which it cannot be applied; use_fwd_quant of an
  //                     operand that the forward pass does not quantize, or quantizes along its remaining axes; an s32
  //                     accumulator with an operand that is not an integer; a bias without THIS_INPUT; a contraction so
  //                     long that an s32 accumulator could overflow; a LocalAqt or a tiling that does not fit the
  //                     shapes; a target that this machine does not run
  static absl::StatusOr<DotGeneralPlan> Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                             const DotDims& dims, const PlanOptions& options = {});

  const Aval& lhs_aval() const;
  const Aval& rhs_aval() const;
  const Aval& out_aval() const;  // the dtype of the operands
  // What Prepare makes of an operand: dtypes and shapes, tiled if there is a tiling. InvalidArgument when fwd does not
  // quantize it.
  struct QuantizedAvals {
    Aval qvalue, scale;
  };
  absl::StatusOr<QuantizedAvals> quantized_avals(Side side) const;
  const DotDims& dims() const;
  const DotGeneral& config() const;
  const PlanOptions& options() const;
  // What Forward writes into Residuals, in order.
  absl::Span<const ResidualSlot> residuals() const;
  // The statistics that Forward and Backward take, in order; empty when no calibration has state.
  absl::Span<const StateSlot> forward_state() const;
  absl::Span<const StateSlot> backward_state() const;
  // Whether a call needs Context::key.
  bool ForwardNeedsKey() const;
  bool BackwardNeedsKey() const;

  // out = lhs x rhs. Views may have any strides; `out` must not overlap the operands. InvalidArgument when an array
  // does not have the planned dtype and shape; FailedPrecondition when a key or statistics are needed but missing, when
  // a calibration that is not updated has seen no batch (Compat::read_unseen_calibration), and for residuals of a plan
  // without backward passes.
  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context, const MutableArrayRef& out,
                       Residuals* residuals = nullptr, const Runtime& runtime = {},
                       const StateArrays& state = {}) const;

  // The requested gradients, given g, the gradient of the output. `residuals` come from a Forward of this plan. The
  // statistics of both contractions are updated in any case: they do not depend on which gradients are requested.
  // FailedPrecondition for a plan without backward passes.
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                        const std::optional<MutableArrayRef>& dlhs, const std::optional<MutableArrayRef>& drhs,
                        const Runtime& runtime = {}, const StateArrays& state = {}) const;

  // Quantizes an operand once, as Forward would each time. The plan must quantize that side (InvalidArgument
  // otherwise), by a calibration without state (FailedPrecondition otherwise: find its StaticScale, and prepare a
  // QTensor).
  absl::StatusOr<PreparedOperand> Prepare(Side side, const ArrayRef& value, const Context& context = {},
                                          const Runtime& runtime = {}) const;
  // Takes a stored tensor: with a qvalue it replaces the operand, with only scales it replaces the calibration. A
  // sparsity mask of zeros and ones is multiplied into the qvalue, for the gradients, too. InvalidArgument unless
  // dtypes and shapes are those that this plan would compute.
  absl::StatusOr<PreparedOperand> Prepare(Side side, QTensor qtensor, const Runtime& runtime = {}) const;

 private:
  friend class RaggedDotPlan;
  struct Impl;

  // For RaggedDotPlan. Preconditions: its shapes and group sizes.
  static absl::StatusOr<DotGeneralPlan> MakeRagged(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                                   const PlanOptions& options);
  absl::Status ForwardGroups(const DotOperand& lhs, const DotOperand& rhs, absl::Span<const int64_t> group_sizes,
                             const Context& context, const MutableArrayRef& out, Residuals* residuals,
                             const Runtime& runtime, const StateArrays& state = {}) const;
  absl::Status BackwardGroups(const ArrayRef& g, const Residuals& residuals, absl::Span<const int64_t> group_sizes,
                              const Context& context, const std::optional<MutableArrayRef>& dlhs,
                              const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                              const StateArrays& state = {}) const;

  explicit DotGeneralPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// One-shot: plans, runs, allocates the results. options.passes is not read: without gradients only the forward pass is
// planned.
absl::StatusOr<Array> QuantizedDotGeneral(const DotGeneral& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                          const DotDims& dims, const Context& context = {},
                                          const PlanOptions& options = {}, const Runtime& runtime = {});

struct DotGeneralGradients {
  Array out, dlhs, drhs;
};
absl::StatusOr<DotGeneralGradients> QuantizedDotGeneralWithGradients(const DotGeneral& config, const ArrayRef& lhs,
                                                                     const ArrayRef& rhs, const ArrayRef& g,
                                                                     const DotDims& dims, const Context& context = {},
                                                                     const PlanOptions& options = {},
                                                                     const Runtime& runtime = {});

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_DOT_GENERAL_H_
