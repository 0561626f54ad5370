#include "aqt/quant/tensor/quantizer.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/tensor/qtensor_internal.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt {
namespace {

absl::StatusOr<internal::TensorDraws> MakeDraws(const char* call, const Numerics& numerics, const Shape& shape,
                                                const Context& context, PrngLayout layout) {
  if (!context.key.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(call, ": ", Describe(numerics), " draws random numbers: set Context::key"));
  }
  return internal::TensorDraws{*context.key, layout, shape};
}

}  // namespace

absl::Status Validate(const Quantizer& quantizer) { return internal::ValidateQuantizer(quantizer); }

absl::StatusOr<QTensor> Calibrate(const Quantizer& quantizer, const ArrayRef& x,
                                  absl::Span<const int64_t> calibration_axes, const Semantics& semantics,
                                  const TilingState* tiling, const Context& context) {
  AQT_RETURN_IF_ERROR(Validate(quantizer));
  QTensor qtensor;
  qtensor.dequant_dtype = x.dtype;
  if (!IsQuantized(quantizer.numerics)) {
    qtensor.qvalue = Array::CopyOf(x);
    return qtensor;
  }
  Axes axes(calibration_axes.begin(), calibration_axes.end());
  if (tiling != nullptr) {
    AQT_ASSIGN_OR_RETURN(axes, NormalizeAxes(calibration_axes, x.shape.rank()));
    axes = tiling->CalibrationAxes(axes);
    qtensor.tiling_state = *tiling;
  }
  AQT_ASSIGN_OR_RETURN(const ArrayRef tiled, internal::TiledView(qtensor, x));
  AQT_ASSIGN_OR_RETURN(const internal::QuantizeSpec spec, internal::MakeQuantizeSpec(quantizer, tiled.aval(), axes));
  if (spec.has_state()) {
    return absl::FailedPreconditionError(
        absl::StrCat("Calibrate: ", NameOf(spec.calibration), " has state; use CalibrateWithState (calibration.h)"));
  }
  AQT_RETURN_IF_ERROR(internal::ValidateCompat(spec, semantics.compat));
  std::optional<internal::TensorDraws> draws;
  if (spec.draws_shape.has_value() && std::holds_alternative<SnrSearch>(spec.calibration)) {
    AQT_ASSIGN_OR_RETURN(draws,
                         MakeDraws("Calibrate", quantizer.numerics, *spec.draws_shape, context, semantics.prng_layout));
  }
  std::vector<double> work(spec.num_work_doubles());
  ArrayBuilder scale(spec.scale_dtype, spec.scale_shape);
  internal::ComputeScale(spec, tiled, semantics, draws, work.data(), scale.data());
  qtensor.scale.push_back(std::move(scale).Build());
  if (spec.bias.has_value()) qtensor.bias.push_back(Array::CopyOf(internal::BroadcastTo(*spec.bias, spec.bias_shape)));
  return qtensor;
}

absl::StatusOr<QTensor> CalculateQvalue(const Quantizer& quantizer, const ArrayRef& x, QTensor calibrated,
                                        const Context& context, const Semantics& semantics) {
  AQT_RETURN_IF_ERROR(Validate(quantizer));
  if (!IsQuantized(quantizer.numerics)) return calibrated;
  if (calibrated.IsFull()) return absl::InvalidArgumentError("CalculateQvalue: the tensor already has a qvalue");
  if (!internal::IsArithmeticFloat(x.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CalculateQvalue: the tensor has dtype ", ToString(x.dtype), ", expected f32, bf16 or f16"));
  }
  AQT_ASSIGN_OR_RETURN(const ArrayRef tiled, internal::TiledView(calibrated, x));
  AQT_RETURN_IF_ERROR(internal::CheckAffine(calibrated, tiled.shape));
  const internal::AffineOf affine(calibrated);
  const DType scaled = internal::ScaledDType(x.dtype, affine.get());
  AQT_ASSIGN_OR_RETURN(const std::optional<Shape> draws_shape,
                       internal::DrawsShape(quantizer.numerics, tiled.shape, scaled));
  std::optional<internal::TensorDraws> draws;
  if (draws_shape.has_value()) {
    AQT_ASSIGN_OR_RETURN(
        draws, MakeDraws("CalculateQvalue", quantizer.numerics, *draws_shape, context, semantics.prng_layout));
  }
  ArrayBuilder q = ArrayBuilder::ForOverwrite({QvalueDType(quantizer.numerics, scaled), tiled.shape});
  internal::Affine scaling = affine.get();
  scaling.rule = internal::ScaleRuleOf(semantics);
  internal::QuantizeInto(quantizer.numerics, semantics.compat, tiled, scaling, draws, q.ref(), nullptr);
  calibrated.qvalue = std::move(q).Build();
  return calibrated;
}

absl::StatusOr<QTensor> Quantize(const Quantizer& quantizer, const ArrayRef& x,
                                 absl::Span<const int64_t> calibration_axes, const Context& context,
                                 const Semantics& semantics, const TilingState* tiling) {
  AQT_ASSIGN_OR_RETURN(QTensor calibrated, Calibrate(quantizer, x, calibration_axes, semantics, tiling, context));
  return CalculateQvalue(quantizer, x, std::move(calibrated), context, semantics);
}

absl::StatusOr<Array> FakeQuant(const Quantizer& quantizer, const ArrayRef& x,
                                absl::Span<const int64_t> calibration_axes, const Context& context,
                                const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const QTensor qtensor, Quantize(quantizer, x, calibration_axes, context, semantics));
  return qtensor.Dequantize();
}

absl::StatusOr<Array> QuantizeGradient(const Quantizer& quantizer, const ArrayRef& x, const QTensor& qtensor,
                                       const ArrayRef& g, const Semantics& semantics) {
  AQT_RETURN_IF_ERROR(Validate(quantizer));
  const auto* integer = std::get_if<IntSymmetric>(&quantizer.numerics);
  if (integer != nullptr && integer->clip_gradient && semantics.compat.clip_gradient_at_bound) {
    return absl::UnimplementedError(
        "QuantizeGradient: Compat::clip_gradient_at_bound needs the bound of the calibration, which a QTensor does not "
        "have; leave it out, or clip_gradient, or quantize in a contraction");
  }
  AQT_ASSIGN_OR_RETURN(const Array scaled, internal::ScaledValue(qtensor, x, internal::ScaleRuleOf(semantics)));
  AQT_ASSIGN_OR_RETURN(const ArrayRef tiled, internal::TiledView(qtensor, g));
  AQT_ASSIGN_OR_RETURN(const Array gradient, NumericsBackward(quantizer.numerics, scaled, tiled, semantics.arithmetic));
  return gradient.Reshaped(g.shape);
}

absl::StatusOr<Array> CeilToPo2(const ArrayRef& scale, Arithmetic arithmetic) {
  if (!internal::IsArithmeticFloat(scale.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CeilToPo2: scales have dtype ", ToString(scale.dtype), ", expected f32, bf16 or f16"));
  }
  ArrayBuilder builder(scale.aval());
  internal::ForEachScaledPiece(scale, {}, scale.strides, [&](float* s, int64_t n, int64_t linear, int64_t) {
    for (int64_t i = 0; i < n; ++i) s[i] = internal::CeilToPo2(scale.dtype, s[i], arithmetic == Arithmetic::kIeee);
    internal::StoreRow(scale.dtype, s, n, builder.data(), linear, 1);
  });
  return std::move(builder).Build();
}

}  // namespace aqt
