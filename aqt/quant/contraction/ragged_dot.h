#ifndef AQT_QUANT_CONTRACTION_RAGGED_DOT_H_
#define AQT_QUANT_CONTRACTION_RAGGED_DOT_H_

// Quantized ragged (grouped) contraction: each group of rows has its own matrix, as in a mixture of experts.
//
//   absl::StatusOr<RaggedDotPlan> plan = RaggedDotPlan::Make(config, x.aval(), experts.aval());
//   plan->Forward(x, experts, /*group_sizes=*/{2, 0, 4}, {}, out);
//
// lhs [m,k], rhs [g,k,n], out [m,n]; group i is the next group_sizes[i] rows, and r in group i:
//   out[r,c] = sum over k of lhs[r,k] * rhs[i,k,c]
// Rows beyond the last group belong to no group: their results and gradients are zero. Groups are cut off at the end of
// lhs, so sizes may add up to more than m.
//
// Scales are those of a DotGeneral that also contracts the group axis, so all groups share them:
//   fwd    lhs along k: [m,1]    rhs along g, k: [1,1,n]
//   dlhs   g along n:   [m,1]    rhs along g, n: [1,k,1]    dlhs[r,k] = sum over c: g[r,c] * rhs[i,k,c]
//   drhs   g along m:   [1,n]    lhs along m:    [1,k]      drhs[i,k,c] = sum over r in i: g[r,c] * lhs[r,k]
// each quantized, multiplied and scaled as DotGeneral does with the raw of that pass (AQT defines only the forward
// pass). With use_fwd_quant the forward scale of the saved operand, rhs [1,1,n] or lhs [m,1], is multiplied into g, and
// its qvalues are used unchanged. Rows beyond the last group take part in the scales along m: keep them zero.
//
// One matrix product per group, with the kernels of DotGeneral and the same bits. ragged_dot_reference.h is the slow
// reference.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/planned_contraction.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt {

// InvalidArgument unless there are as many sizes as rhs [g,k,n] has groups, none negative.
absl::Status CheckGroupSizes(const Aval& lhs, const Aval& rhs, absl::Span<const int64_t> group_sizes);

// A planned quantized ragged contraction and its two gradients.
class RaggedDotPlan : public PlannedContraction {
 public:
  // InvalidArgument for shapes other than [m,k] and [g,k,n], and as DotGeneralPlan::Make; for mid alphas and local_aqt;
  // and for DEQUANT_MODE_OTHER_INPUT of a quantized rhs, whose scale would differ between groups.
  static absl::StatusOr<RaggedDotPlan> Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                            const PlanOptions& options = {});

  int64_t num_groups() const { return rhs_aval().shape[0]; }
  const DotGeneralConfig& config() const;

  absl::Status CheckGroupSizes(absl::Span<const int64_t> group_sizes) const {
    return aqt::CheckGroupSizes(lhs_aval(), rhs_aval(), group_sizes);
  }

  // As in DotGeneralPlan, with the errors of CheckGroupSizes. Backward takes the same sizes as Forward.
  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, absl::Span<const int64_t> group_sizes,
                       const Context& context, const MutableArrayRef& out, Residuals* residuals = nullptr,
                       const Runtime& runtime = {}, const StateArrays& state = {}) const;
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, absl::Span<const int64_t> group_sizes,
                        const Context& context, const std::optional<MutableArrayRef>& dlhs,
                        const std::optional<MutableArrayRef>& drhs, const Runtime& runtime = {},
                        const StateArrays& state = {}) const;

 private:
  using PlannedContraction::PlannedContraction;
};

// One-shot: plans the forward pass, runs it, allocates the result. options.passes is not read.
absl::StatusOr<Array> QuantizedRaggedDot(const DotGeneralConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                         absl::Span<const int64_t> group_sizes, const Context& context = {},
                                         const PlanOptions& options = {}, const Runtime& runtime = {});
// The same with both gradients, given g, the gradient of the output.
absl::StatusOr<DotGeneralGradients> QuantizedRaggedDotWithGradients(const DotGeneralConfig& config, const ArrayRef& lhs,
                                                                    const ArrayRef& rhs, const ArrayRef& g,
                                                                    absl::Span<const int64_t> group_sizes,
                                                                    const Context& context = {},
                                                                    const PlanOptions& options = {},
                                                                    const Runtime& runtime = {});

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_RAGGED_DOT_H_
