#include "aqt/quant/contraction/conv_general.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/contraction/engine/contraction_plan.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"
#include "aqt/quant/contraction/one_shot.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/validate.h"

namespace aqt {
namespace {

template <class... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("conv_general: ", parts...));
}

absl::Status CheckConfig(const DotGeneralRawConfig& config) {
  if (config.lhs_mid_alpha.has_value() || config.rhs_mid_alpha.has_value()) {
    return Invalid("mid alphas do not apply to a convolution");
  }
  if (config.hadamard.has_value()) return Invalid("hadamard does not apply to a convolution; leave it out");
  if (config.local_aqt.has_value()) return Invalid("local_aqt does not apply to a convolution");
  for (const Side side : internal::kSides) {
    const TensorConfig& tensor = side == Side::kLhs ? config.lhs : config.rhs;
    if (tensor.use_fwd_quant) return Invalid(internal::Name(side), ": use_fwd_quant does not apply to a convolution");
    if (!IsQuantized(tensor.quantizer.numerics)) continue;
    if (tensor.dequant_mode == DequantMode::kOtherInput || tensor.calibration_mode == CalibrationMode::kRemainingAxis) {
      return Invalid(
          internal::Name(side), ": ", ToString(tensor.dequant_mode), " with ", ToString(tensor.calibration_mode),
          "; expected DEQUANT_MODE_OUTPUT or DEQUANT_MODE_THIS_INPUT, with CALIBRATION_MODE_CONTRACTING_AXIS");
    }
  }
  return absl::OkStatus();
}

// The gradient of the input slides over g, padded.
absl::Status CheckPaddedGradient(const ConvGeometry& geometry) {
  Shape padded{geometry.batch};
  for (const ConvAxis& axis : geometry.axes) {
    padded.push_back(std::max<int64_t>(0, axis.in - 1) * axis.lhs_dilation +
                     std::max<int64_t>(0, axis.kernel - 1) * axis.rhs_dilation + 1);
  }
  padded.push_back(geometry.out_channels);
  return Annotate(CheckShape(padded), "conv_general: padded gradient");
}

}  // namespace

absl::StatusOr<ConvGeneralPlan> ConvGeneralPlan::Make(const DotGeneralRawConfig& config, const Aval& lhs,
                                                      const Aval& rhs, const ConvDims& dims,
                                                      const PlanOptions& options) {
  if (lhs.dtype != rhs.dtype || !internal::IsArithmeticFloat(lhs.dtype)) {
    return Invalid("lhs is ", lhs.ToString(), ", rhs ", rhs.ToString(), "; both must have one dtype, f32, bf16 or f16");
  }
  internal::ContractionShape shape{.name = "conv_general", .lhs = lhs, .rhs = rhs, .out = {}, .dims = {}};
  AQT_ASSIGN_OR_RETURN(shape.conv, MakeConvGeometry(dims, lhs.shape, rhs.shape));
  shape.out = {lhs.dtype, shape.conv->OutShape()};
  AQT_RETURN_IF_ERROR(CheckConfig(config));
  AQT_RETURN_IF_ERROR(CheckPaddedGradient(*shape.conv));
  DotGeneralConfig forward;  // the gradients are not quantized
  forward.fwd = config;
  absl::StatusOr<internal::ContractionPlan> plan = internal::ContractionPlan::Make(forward, std::move(shape), options);
  if (!plan.ok()) return Annotate(plan.status(), "conv_general");
  return ConvGeneralPlan(std::make_shared<const Impl>(*std::move(plan)));
}

const ConvGeometry& ConvGeneralPlan::geometry() const { return *impl().shape().conv; }
const DotGeneralRawConfig& ConvGeneralPlan::config() const { return impl().config().fwd; }

absl::Status ConvGeneralPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context,
                                      const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                      const StateArrays& state) const {
  if (runtime.product != nullptr) return Invalid("Runtime::product contracts; it cannot convolve. Leave it null");
  return impl().Forward(lhs, rhs, /*group_sizes=*/{}, context, out, residuals, runtime, state);
}

absl::Status ConvGeneralPlan::Backward(const ArrayRef& g, const Residuals& residuals,
                                       const std::optional<MutableArrayRef>& dlhs,
                                       const std::optional<MutableArrayRef>& drhs, const Runtime& runtime) const {
  if (runtime.product != nullptr) return Invalid("Runtime::product contracts; it cannot convolve. Leave it null");
  Runtime unobserved = runtime;
  unobserved.observer = nullptr;
  return impl().Backward(g, residuals, /*group_sizes=*/{}, {}, dlhs, drhs, unobserved, {});
}

absl::StatusOr<Array> QuantizedConvGeneral(const DotGeneralRawConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                           const ConvDims& dims, const Context& context, const PlanOptions& options,
                                           const Runtime& runtime) {
  return internal::RunOnce(ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                                                 internal::WithPasses(options, PlanPasses::kForwardOnly)),
                           [&](const ConvGeneralPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
                             return plan.Forward(lhs, rhs, context, out, residuals, runtime);
                           });
}

absl::StatusOr<DotGeneralGradients> QuantizedConvGeneralWithGradients(
    const DotGeneralRawConfig& config, const ArrayRef& lhs, const ArrayRef& rhs, const ArrayRef& g,
    const ConvDims& dims, const Context& context, const PlanOptions& options, const Runtime& runtime) {
  return internal::RunOnceWithGradients(
      ConvGeneralPlan::Make(config, lhs.aval(), rhs.aval(), dims,
                            internal::WithPasses(options, PlanPasses::kForwardAndBackward)),
      [&](const ConvGeneralPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
        return plan.Forward(lhs, rhs, context, out, residuals, runtime);
      },
      [&](const ConvGeneralPlan& plan, const Residuals& residuals, const MutableArrayRef& dlhs,
          const MutableArrayRef& drhs) { return plan.Backward(g, residuals, dlhs, drhs, runtime); });
}

}  // namespace aqt
