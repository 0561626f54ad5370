#ifndef AQT_QUANT_CONTRACTION_EINSUM_H_
#define AQT_QUANT_CONTRACTION_EINSUM_H_

// Quantized einsum of two operands: a DotGeneral with its dimension numbers and transpositions taken from an equation.
//
//   absl::StatusOr<EinsumPlan> plan = EinsumPlan::Make("bqhd,bkhd->bhqk", config, q.aval(), k.aval());
//
// The steps, in order (AQT's AqtEinsum on jax.numpy.einsum):
//   1. Operands of different dtypes are converted to a common one (EinsumDType).
//   2. An axis of extent 1 whose letter has another extent in the other operand is dropped: it is broadcast.
//   3. A letter that one operand repeats selects the diagonal.
//   4. A letter that only one operand has and the result lacks is summed over, before anything is quantized
//      (kernels::Reduce; f16 and bf16 in f32, rounded once; Compat::einsum_sums_in_dtype: kernels::SumAsXla).
//   5. DotGeneral: batch axes are the result letters that both operands have, contracting axes are the letters of both
//      that the result lacks, in alphabetical order. If the result is batch, lhs, rhs in this order, the product is lhs
//      x rhs; else it is rhs x lhs, and everything in the configuration is exchanged with it (fwd.lhs and fwd.rhs, dlhs
//      and drhs), so that "lhs" always means the first operand of the equation.
//   6. The product is written directly in the axis order of the result; nothing is transposed afterwards.
// The gradient reverses these steps: zeros off a diagonal, the same for all elements of a sum, rounded to the dtype of
// the operand. Steps 2, 3, 6 and the axes of 5 cost no copy; 1 and 4 write the operand once.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/einsum_equation.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// The dtype in which operands of two dtypes are multiplied. With another dtype, 4-bit integers are treated as f32 and
// 8-bit floats as bf16; then an integer with a float takes the float's dtype, two integers f32, and two floats the
// wider dtype (bf16 with f16: f32). InvalidArgument for bool and f64, and for two operands of the same 8-bit float or
// 4-bit type, which is not converted and cannot be quantized again.
absl::StatusOr<DType> EinsumDType(DType lhs, DType rhs);

// The configuration for a product with exchanged operands: fwd.lhs <-> fwd.rhs, dlhs <-> drhs. The backward
// contractions do not change internally: their lhs is the incoming gradient. The mid alphas of fwd are exchanged, too,
// unless `keeps_mid_alphas` (Compat::einsum_keeps_mid_alphas).
DotGeneralConfig SwapOperands(DotGeneralConfig config, bool keeps_mid_alphas = false);

// A planned quantized einsum and its two gradients. Immutable and thread-safe; cheap to copy. Calls do not allocate
// after the first one with the same Scratch, except for sums of Compat::einsum_sums_in_dtype.
class EinsumPlan {
 public:
  // InvalidArgument for an equation that does not parse (ParseEinsum) or does not fit the shapes, dtypes without a
  // common one, and as DotGeneralPlan::Make. Axes in `config` (tiling, shared axes) refer to that side's operand after
  // diagonals and sums are taken.
  static absl::StatusOr<EinsumPlan> Make(absl::string_view equation, const DotGeneralConfig& config, const Aval& lhs,
                                         const Aval& rhs, const PlanOptions& options = {});

  const Aval& lhs_aval() const;
  const Aval& rhs_aval() const;
  const Aval& out_aval() const;
  const EinsumEquation& equation() const;
  // The product, and whether its lhs is the second operand of the equation. An Observer sees the product's names.
  const DotGeneralPlan& dot_general() const;
  bool swapped() const;
  const PlanOptions& options() const { return dot_general().options(); }
  bool ForwardNeedsKey() const { return dot_general().ForwardNeedsKey(); }
  bool BackwardNeedsKey() const { return dot_general().BackwardNeedsKey(); }
  int64_t scratch_bytes() const;

  // As in DotGeneralPlan, with the lhs and rhs of the equation. Context::key is split for the product's lhs and rhs.
  // Statistics of calibrations with state are those of dot_general(), whose lhs and rhs are the product's.
  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context, const MutableArrayRef& out,
                       Residuals* residuals = nullptr, const Runtime& runtime = {},
                       const StateArrays& state = {}) const;
  // InvalidArgument also for the gradient of an integer operand.
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                        const std::optional<MutableArrayRef>& dlhs, const std::optional<MutableArrayRef>& drhs,
                        const Runtime& runtime = {}, const StateArrays& state = {}) const;

  absl::StatusOr<PreparedOperand> Prepare(Side side, const ArrayRef& value, const Context& context = {},
                                          const Runtime& runtime = {}) const;
  // InvalidArgument also when the equation does more with this operand than permute its axes (steps 2, 3, 4).
  absl::StatusOr<PreparedOperand> Prepare(Side side, QTensor qtensor, const Runtime& runtime = {}) const;

 private:
  struct Impl;
  explicit EinsumPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// One-shot: plans the forward pass, runs it, allocates the result. options.passes is not read.
absl::StatusOr<Array> QuantizedEinsum(absl::string_view equation, const DotGeneralConfig& config, const ArrayRef& lhs,
                                      const ArrayRef& rhs, const Context& context = {}, const PlanOptions& options = {},
                                      const Runtime& runtime = {});
// The same with both gradients, given g, the gradient of the output.
absl::StatusOr<DotGeneralGradients> QuantizedEinsumWithGradients(
    absl::string_view equation, const DotGeneralConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
    const ArrayRef& g, const Context& context = {}, const PlanOptions& options = {}, const Runtime& runtime = {});

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_EINSUM_H_
