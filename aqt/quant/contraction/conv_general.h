#ifndef AQT_QUANT_CONTRACTION_CONV_GENERAL_H_
#define AQT_QUANT_CONTRACTION_CONV_GENERAL_H_

// Quantized convolution, channels last (conv_dims.h), and its gradient.
//
//   DotGeneralRawConfig config = ConvGeneralDilatedMake(/*spatial_dims=*/2, /*lhs_bits=*/8, /*rhs_bits=*/8);
//   absl::StatusOr<ConvGeneralPlan> plan =
//       ConvGeneralPlan::Make(config, x.aval(), kernel.aval(), {.padding = ConvPadding::kSame});
//
// The configuration is for one contraction. T is the dtype of the operands (f32, bf16, f16), R one rounding to it:
//   ql, sl = quantized lhs, one scale per example  [B,1...,1]        (other shared axes: Quantizer::calib_shared_axes)
//   qr, sr = quantized rhs, one scale per output channel  [1,...,1,Co]
//   acc[b,o,c] = sum over k, i of pad(ql)[b, o * stride + k * rhs_dilation, i] * qr[k,i,c]
//   out[b,o,c] = R(R(R(acc) * sl[b]) * sr[c])
// A side without numerics is used unquantized and has no scale; one with DEQUANT_MODE_THIS_INPUT is dequantized first.
// The zeros of the padding take part in the product: multiplied by an infinite kernel value they give NaN.
//
// The sum: AQT converts the qvalues to T and convolves in floating point. When both are integers (containers s2, s4,
// s8) the sum is computed here in s32 by the s8 kernels. It is exact, so it equals AQT's while |acc| < 2^24, where f32
// sums are exact, too; beyond that only AQT's has the error of f32 sums. If s32 could overflow, the sum is in f32.
// Float sums are in f32, in the order of the kernel's elements, rounded to dg_accumulator_dtype (null or s32: T; in AQT
// always T: Compat); operands that T cannot represent are rounded to it first, and subnormal f32 and bf16 operands are
// treated as zero.
//
// The gradient: rounding and clipping pass it straight through (except, with clip_gradient, where the value was
// clipped); there is no gradient through a scale. With dequantized operands L = R(ql * sl), R_ = R(qr * sr), or the
// operand itself if it is not quantized:
//   dlhs[b,x,i] = sum over o, k, c with o * stride + k * rhs_dilation = x * lhs_dilation + low of g[b,o,c] * R_[k,i,c]
//   drhs[k,i,c] = sum over b, o of pad(L)[b, o * stride + k * rhs_dilation, i] * g[b,o,c]
// summed in f32 and rounded to T; zeros between and around the elements of g take part like those of the padding. (In
// AQT the gradient of an integer operand is zero: Compat.)
//
// Windows are packed in blocks, into a buffer of at most 8 MiB, or for one group of one example if that is larger.
// conv_general_reference.h is the slow reference.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/planned_contraction.h"
#include "aqt/quant/contraction/residuals.h"

namespace aqt {

// A planned quantized convolution and its gradient.
class ConvGeneralPlan : public PlannedContraction {
 public:
  // InvalidArgument for shapes and dims that do not fit (MakeConvGeometry); integer or different operand dtypes;
  // invalid numerics; DEQUANT_MODE_OTHER_INPUT, CALIBRATION_MODE_REMAINING_AXIS, mid alphas, local_aqt and
  // use_fwd_quant, which have no meaning for a convolution; a scale with DEQUANT_MODE_OUTPUT that varies along axes
  // other than the example (lhs) or the output channel (rhs); an accumulator dtype other than s32, f32, bf16 and f16; a
  // target that this machine does not run. A plan with kForwardOnly keeps no residuals.
  static absl::StatusOr<ConvGeneralPlan> Make(const DotGeneralRawConfig& config, const Aval& lhs, const Aval& rhs,
                                              const ConvDims& dims, const PlanOptions& options = {});

  const ConvGeometry& geometry() const;
  const DotGeneralRawConfig& config() const;

  // As in DotGeneralPlan. Context::key is split in two, for lhs and rhs. An Observer sees pass fwd. InvalidArgument
  // with a Runtime::product; FailedPrecondition, with kForwardOnly, for Residuals and Backward.
  absl::Status Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context, const MutableArrayRef& out,
                       Residuals* residuals = nullptr, const Runtime& runtime = {},
                       const StateArrays& state = {}) const;
  absl::Status Backward(const ArrayRef& g, const Residuals& residuals, const std::optional<MutableArrayRef>& dlhs,
                        const std::optional<MutableArrayRef>& drhs, const Runtime& runtime = {}) const;

 private:
  using PlannedContraction::PlannedContraction;
};

// One-shot: plans the forward pass, runs it, allocates the result. options.passes is not read.
absl::StatusOr<Array> QuantizedConvGeneral(const DotGeneralRawConfig& config, const ArrayRef& lhs, const ArrayRef& rhs,
                                           const ConvDims& dims, const Context& context = {},
                                           const PlanOptions& options = {}, const Runtime& runtime = {});
// The same with both gradients, given g, the gradient of the output.
absl::StatusOr<DotGeneralGradients> QuantizedConvGeneralWithGradients(
    const DotGeneralRawConfig& config, const ArrayRef& lhs, const ArrayRef& rhs, const ArrayRef& g,
    const ConvDims& dims, const Context& context = {}, const PlanOptions& options = {}, const Runtime& runtime = {});

}  // namespace aqt

#endif  // AQT_QUANT_CONTRACTION_CONV_GENERAL_H_
