#include "aqt/quant/contraction/ragged_dot.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"
#include "aqt/quant/contraction/one_shot.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt {
namespace {

absl::Status CheckConfig(const DotGeneralConfig& config, PlanPasses passes) {
  const std::pair<const char*, const DotGeneralRawConfig*> raws[] = {
      {"fwd", &config.fwd}, {"dlhs", &config.dlhs}, {"drhs", &config.drhs}};
  for (const auto& [name, raw] : raws) {
    if (passes == PlanPasses::kForwardOnly && raw != &config.fwd) continue;
    if (raw->lhs_mid_alpha.has_value() || raw->rhs_mid_alpha.has_value() || raw->local_aqt.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": mid alphas and local_aqt are not supported with groups"));
    }
    if (raw->hadamard.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": hadamard is not supported with groups; leave it out"));
    }
    const bool has_groups = raw != &config.drhs && IsQuantized(raw->rhs.quantizer.numerics);
    if (has_groups && raw->rhs.dequant_mode == DequantMode::kOtherInput) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ".rhs: DEQUANT_MODE_OTHER_INPUT would multiply a scale per group into an operand without groups"));
    }
  }
  if (config.tiling.has_value()) return absl::InvalidArgumentError("tiling is not supported with groups");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RaggedDotPlan> RaggedDotPlan::Make(const DotGeneralConfig& config, const Aval& lhs, const Aval& rhs,
                                                  const PlanOptions& options) {
  if (lhs.shape.rank() != 2 || rhs.shape.rank() != 3 || lhs.shape[1] != rhs.shape[1]) {
    return absl::InvalidArgumentError(absl::StrCat("ragged_dot: lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(),
                                                   "; expected lhs [m,k], rhs [groups,k,n]"));
  }
  if (lhs.dtype != rhs.dtype || !internal::IsArithmeticFloat(lhs.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("ragged_dot: lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(),
                                                   "; both must have one dtype, f32, bf16 or f16"));
  }
  AQT_RETURN_IF_ERROR(Annotate(CheckConfig(config, options.passes), "ragged_dot"));
  // All groups share a scale, as if the group axis were contracted, too.
  internal::ContractionShape shape{.name = "ragged_dot",
                                   .lhs = lhs,
                                   .rhs = rhs,
                                   .out = {lhs.dtype, {lhs.shape[0], rhs.shape[2]}},
                                   .dims = {.lhs_contracting = {1}, .rhs_contracting = {1, 0}},
                                   .grouped = true};
  absl::StatusOr<internal::ContractionPlan> plan = internal::ContractionPlan::Make(config, std::move(shape), options);
  if (!plan.ok()) return Annotate(plan.status(), "ragged_dot");
  return RaggedDotPlan(std::make_shared<const Impl>(*std::move(plan)));
}

const DotGeneralConfig& RaggedDotPlan::config() const { return impl().config(); }

absl::Status CheckGroupSizes(const Aval& lhs, const Aval& rhs, absl::Span<const int64_t> group_sizes) {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("ragged_dot: group_sizes = [", absl::StrJoin(group_sizes, ","), "]: ", parts...));
  };
  if (static_cast<int64_t>(group_sizes.size()) != rhs.shape[0]) {
    return error(group_sizes.size(), " sizes, but rhs ", rhs.ToString(), " has ", rhs.shape[0], " groups");
  }
  for (const int64_t size : group_sizes) {
    if (size < 0) return error("a negative size; expected how many rows of lhs ", lhs.ToString(), " each group has");
  }
  return absl::OkStatus();
}

namespace {

// The sizes without the rows beyond lhs; in `buffer` unless they equal `group_sizes`.
absl::Span<const int64_t> WithinRows(int64_t rows, absl::Span<const int64_t> group_sizes,
                                     std::vector<int64_t>& buffer) {
  int64_t left = rows, beyond = 0;
  for (const int64_t size : group_sizes) {
    const int64_t within = std::min(size, left);
    left -= within;
    beyond = std::max(beyond, size - within);
  }
  if (beyond == 0) return group_sizes;
  for (const int64_t size : group_sizes) {
    buffer.push_back(std::min(size, rows));
    rows -= buffer.back();
  }
  return buffer;
}

}  // namespace

absl::Status RaggedDotPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, absl::Span<const int64_t> group_sizes,
                                    const Context& context, const MutableArrayRef& out, Residuals* residuals,
                                    const Runtime& runtime, const StateArrays& state) const {
  AQT_RETURN_IF_ERROR(CheckGroupSizes(group_sizes));
  std::vector<int64_t> buffer;
  return impl().Forward(lhs, rhs, WithinRows(lhs_aval().shape[0], group_sizes, buffer), context, out, residuals,
                        runtime, state);
}

absl::Status RaggedDotPlan::Backward(const ArrayRef& g, const Residuals& residuals,
                                     absl::Span<const int64_t> group_sizes, const Context& context,
                                     const std::optional<MutableArrayRef>& dlhs,
                                     const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                     const StateArrays& state) const {
  AQT_RETURN_IF_ERROR(CheckGroupSizes(group_sizes));
  std::vector<int64_t> buffer;
  return impl().Backward(g, residuals, WithinRows(lhs_aval().shape[0], group_sizes, buffer), context, dlhs, drhs,
                         runtime, state);
}

absl::StatusOr<Array> QuantizedRaggedDot(const DotGeneralConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                         absl::Span<const int64_t> group_sizes, const Context& context,
                                         const PlanOptions& options, const Runtime& runtime) {
  return internal::RunOnce(
      RaggedDotPlan::Make(config, lhs.aval(), rhs.aval(), internal::WithPasses(options, PlanPasses::kForwardOnly)),
      [&](const RaggedDotPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
        return plan.Forward(lhs, rhs, group_sizes, context, out, residuals, runtime);
      });
}

absl::StatusOr<DotGeneralGradients> QuantizedRaggedDotWithGradients(const DotGeneralConfig& config, const ArrayRef& lhs,
                                                                    const ArrayRef& rhs, const ArrayRef& g,
                                                                    absl::Span<const int64_t> group_sizes,
                                                                    const Context& context, const PlanOptions& options,
                                                                    const Runtime& runtime) {
  return internal::RunOnceWithGradients(
      RaggedDotPlan::Make(config, lhs.aval(), rhs.aval(),
                          internal::WithPasses(options, PlanPasses::kForwardAndBackward)),
      [&](const RaggedDotPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
        return plan.Forward(lhs, rhs, group_sizes, context, out, residuals, runtime);
      },
      [&](const RaggedDotPlan& plan, const Residuals& residuals, const MutableArrayRef& dlhs,
          const MutableArrayRef& drhs) {
        return plan.Backward(g, residuals, group_sizes, context, dlhs, drhs, runtime);
      });
}

}  // namespace aqt
