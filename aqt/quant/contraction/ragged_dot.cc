#include "aqt/quant/contraction/ragged_dot.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"

namespace aqt {

absl::StatusOr<RaggedDotPlan> RaggedDotPlan::Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs,
                                                  const PlanOptions& options) {
  if (lhs.shape.rank() != 2 || rhs.shape.rank() != 3 || lhs.shape[1] != rhs.shape[1]) {
    return absl::InvalidArgumentError(absl::StrCat("ragged_dot: lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(),
                                                   "; expected lhs [m,k], rhs [groups,k,n]"));
  }
  absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::MakeRagged(config, lhs, rhs, options);
  if (!plan.ok()) return Annotate(plan.status(), "ragged_dot");
  return RaggedDotPlan(*std::move(plan));
}

absl::Status RaggedDotPlan::CheckGroups(absl::Span<const int64_t> group_sizes) const {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("ragged_dot: group_sizes = [", absl::StrJoin(group_sizes, ","), "]: ", parts...));
  };
  if (static_cast<int64_t>(group_sizes.size()) != num_groups()) {
    return error(group_sizes.size(), " sizes, but rhs ", rhs_aval().ToString(), " has ", num_groups(), " groups");
  }
  int64_t rows = lhs_aval().shape[0];
  for (const int64_t size : group_sizes) {
    if (size < 0) return error("a negative size");
    if (size > rows) return error("more rows than lhs ", lhs_aval().ToString(), " has");
    rows -= size;
  }
  return absl::OkStatus();
}

absl::Status RaggedDotPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, absl::Span<const int64_t> group_sizes,
                                    const Context& context, const MutableArrayRef& out, Residuals* residuals,
                                    const Runtime& runtime, const StateArrays& state) const {
  AQT_RETURN_IF_ERROR(CheckGroups(group_sizes));
  return plan_.ForwardGroups(lhs, rhs, group_sizes, context, out, residuals, runtime, state);
}

absl::Status RaggedDotPlan::Backward(const ArrayRef& g, const Residuals& residuals,
                                     absl::Span<const int64_t> group_sizes, const Context& context,
                                     const std::optional<MutableArrayRef>& dlhs,
                                     const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                     const StateArrays& state) const {
  AQT_RETURN_IF_ERROR(CheckGroups(group_sizes));
  return plan_.BackwardGroups(g, residuals, group_sizes, context, dlhs, drhs, runtime, state);
}

absl::StatusOr<Array> QuantizedRaggedDot(const DotGeneral& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                         absl::Span<const int64_t> group_sizes, const Context& context,
                                         const PlanOptions& options, const Runtime& runtime) {
  AQT_ASSIGN_OR_RETURN(const RaggedDotPlan plan,
                       RaggedDotPlan::Make(config, lhs.aval(), rhs.aval(),
                                           {PlanPasses::kForwardOnly, options.semantics, options.target}));
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval());
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, group_sizes, context, out.ref(), nullptr, runtime));
  return std::move(out).Build();
}

absl::StatusOr<DotGeneralGradients> QuantizedRaggedDotWithGradients(const DotGeneral& config, const ArrayRef& lhs,
                                                                    const ArrayRef& rhs, const ArrayRef& g,
                                                                    absl::Span<const int64_t> group_sizes,
                                                                    const Context& context, const PlanOptions& options,
                                                                    const Runtime& runtime) {
  AQT_ASSIGN_OR_RETURN(const RaggedDotPlan plan,
                       RaggedDotPlan::Make(config, lhs.aval(), rhs.aval(),
                                           {PlanPasses::kForwardAndBackward, options.semantics, options.target}));
  ArrayBuilder out = ArrayBuilder::ForOverwrite(plan.out_aval()), dlhs = ArrayBuilder::ForOverwrite(plan.lhs_aval()),
               drhs = ArrayBuilder::ForOverwrite(plan.rhs_aval());
  Residuals residuals(Residuals::Operands::kBorrow);
  AQT_RETURN_IF_ERROR(plan.Forward(lhs, rhs, group_sizes, context, out.ref(), &residuals, runtime));
  AQT_RETURN_IF_ERROR(plan.Backward(g, residuals, group_sizes, context, dlhs.ref(), drhs.ref(), runtime));
  return DotGeneralGradients{std::move(out).Build(), std::move(dlhs).Build(), std::move(drhs).Build()};
}

}  // namespace aqt
