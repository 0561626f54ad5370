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
// order of k and rounded once; the steps of a sum are those of kernels/gemm/table.h. Without an accumulator dtype the
// product of two integers wraps in the wider of their dtypes, as in JAX.
//
// Backward, for dlhs (drhs likewise): g is quantized by dlhs.lhs and the saved rhs by dlhs.rhs, each along the axes
// that this product contracts. With use_fwd_quant, g is first multiplied by the forward scale of rhs, and the forward
// qvalue of rhs is quantized again. The gradient passes the forward quantization unchanged, except that clip_gradient
// of fwd.lhs zeroes it where lhs was clipped. There is no gradient through a scale.
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
// These sums have the same bits everywhere (docs/bits.md), like everything after the product.
//
// Calibrations with state (calibration.h): Forward and Backward take the statistics of their operands and return the
// updated ones; see StateArrays.
//
// dot_general_reference.h computes the same bits with plain loops.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/engine/operand_keys.h"
#include "aqt/quant/contraction/planned_contraction.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt {

// A planned quantized contraction and its two gradients.
class DotGeneralPlan : public PlannedContraction {
 public:
  // Checks everything about the configuration and the shapes. Operands have one dtype: f32, bf16 or f16.
  //   InvalidArgument   shapes and dims that do not fit; integer or different operand dtypes; illegal numerics; OUTPUT
  //                     with REMAINING_AXIS or OTHER_INPUT with CONTRACTING_AXIS on a forward side, and elsewhere a
  //                     scale that varies along an axis along which it cannot be applied; use_fwd_quant of an operand
  //                     that the forward pass does not quantize, or quantizes along its remaining axes; an s32
  //                     accumulator with an operand that is not an integer; a bias without THIS_INPUT; a contraction
  //                     long enough that an s32 accumulator could overflow; a LocalAqt or a tiling that does not fit
  //                     the shapes; a target that this machine does not run
  static absl::StatusOr<DotGeneralPlan> Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                             const DotDims& dims, const PlanOptions& options = {});

  const DotDims& dims() const;
  const DotGeneralConfig& config() const;

  // out = lhs x rhs. Arrays may have any strides; `out` must not overlap the operands. InvalidArgument when an array
  // does not have the planned dtype and shape; FailedPrecondition when a key or statistics are needed but missing, when
  // a calibration that is not updated has seen no batch (Compat::read_unseen_calibration), and for residuals of a plan
  // without backward passes.
  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context, const MutableArrayRef& out,
                       Residuals* residuals = nullptr, const Runtime& runtime = {},
                       const StateArrays& state = {}) const;

  // The requested gradients, given g, the gradient of the output. `residuals` come from a Forward of this plan. The
  // statistics of both contractions are always updated, whichever gradients are requested. FailedPrecondition for a
  // plan without backward passes.
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                        const std::optional<MutableArrayRef>& dlhs, const std::optional<MutableArrayRef>& drhs,
                        const Runtime& runtime = {}, const StateArrays& state = {}) const;

 private:
  using PlannedContraction::PlannedContraction;
};

// One-shot: plans the forward pass, runs it and allocates the result. `options.passes` is not read.
absl::StatusOr<Array> QuantizedDotGeneral(const DotGeneralConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                          const DotDims& dims, const Context& context = {},
                                          const PlanOptions& options = {}, const Runtime& runtime = {});

// The same with both gradients, given g, the gradient of the output.
absl::StatusOr<DotGeneralGradients> QuantizedDotGeneralWithGradients(
    const DotGeneralConfig& config, const ArrayRef& lhs, const ArrayRef& rhs, const ArrayRef& g, const DotDims& dims,
    const Context& context = {}, const PlanOptions& options = {}, const Runtime& runtime = {});

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_DOT_GENERAL_H_
