// Quantizers and numerics.

#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "tests/golden_check/run_case.h"

namespace aqt::golden {
namespace {

// The draws of a quantizer with stochastic rounding for an array of this shape and dtype: "noise", or "random_bits".
absl::Status AddDraws(const Numerics& numerics, const Aval& scaled, const Context& context, PrngLayout layout,
                      Tensors& out) {
  if (!context.key.has_value()) return absl::OkStatus();
  if (const auto* integer = std::get_if<IntSymmetric>(&numerics); integer != nullptr && integer->noise.has_value()) {
    AQT_ASSIGN_OR_RETURN(Array noise, MakeNoise(*integer->noise, scaled.shape, *context.key, layout));
    out.emplace("noise", std::move(noise));
  }
  if (const auto* fp8 = std::get_if<Fp8>(&numerics); fp8 != nullptr && fp8->stochastic_rounding) {
    AQT_ASSIGN_OR_RETURN(Array bits,
                         RandomWords(scaled.dtype == DType::kF32 ? 32 : 16, *context.key, scaled.shape, layout));
    out.emplace("random_bits", std::move(bits));
  }
  if (const auto* fp = std::get_if<Fp>(&numerics); fp != nullptr && fp->stochastic_rounding) {
    AQT_ASSIGN_OR_RETURN(Array bits, RandomWords(16, *context.key, scaled.shape, layout));
    out.emplace("random_bits_u16", std::move(bits));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensors> Run(const QuantizeConfig& config, const Tensors& inputs, const Semantics& semantics,
                            Given& given) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  std::optional<TilingState> tiling;
  if (!config.tilings.empty()) {
    AQT_ASSIGN_OR_RETURN(tiling, TilingState::Make(x.shape(), config.tilings));
  }
  AQT_ASSIGN_OR_RETURN(QTensor qtensor, Calibrate(config.quantizer, x, config.calibration_axes, semantics,
                                                  tiling.has_value() ? &*tiling : nullptr, context));
  Tensors out;
  if (qtensor.scale.size() == 1) {
    out.emplace("scale", qtensor.scale[0]);
    qtensor.scale[0] = given.Or("scale", qtensor.scale[0]);
  }
  if (inputs.contains("mask")) qtensor.sparsity_mask = inputs.at("mask");
  for (size_t i = 0; i < qtensor.bias.size(); ++i) out.emplace(absl::StrCat("bias", i), qtensor.bias[i]);
  AQT_ASSIGN_OR_RETURN(qtensor, CalculateQvalue(config.quantizer, x, std::move(qtensor), context, semantics));
  out.emplace("qvalue", *qtensor.qvalue);
  AQT_ASSIGN_OR_RETURN(Array dequantized, qtensor.Dequantize());
  out.emplace("dequant", std::move(dequantized));
  if (inputs.contains("g")) {
    AQT_ASSIGN_OR_RETURN(Array gradient, QuantizeGradient(config.quantizer, x, qtensor, inputs.at("g"), semantics));
    out.emplace("grad_x_scaled", std::move(gradient));
  }
  AQT_ASSIGN_OR_RETURN(const Array scaled, qtensor.ScaledValue(x));
  AQT_RETURN_IF_ERROR(AddDraws(config.quantizer.numerics, scaled.aval(), context, semantics.prng_layout, out));
  out.emplace("scaled", scaled);
  return out;
}

absl::StatusOr<Tensors> Run(const NumericsConfig& config, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  AQT_ASSIGN_OR_RETURN(const Context context, MakeContext(inputs));
  Tensors out;
  AQT_ASSIGN_OR_RETURN(Array y, NumericsForward(config.numerics, x, context, semantics.prng_layout));
  out.emplace("y", std::move(y));
  if (inputs.contains("g")) {
    AQT_ASSIGN_OR_RETURN(Array gradient, NumericsBackward(config.numerics, x, inputs.at("g"), semantics.arithmetic));
    out.emplace("grad", std::move(gradient));
  }
  AQT_RETURN_IF_ERROR(AddDraws(config.numerics, x.aval(), context, semantics.prng_layout, out));
  return out;
}

absl::StatusOr<Tensors> Run(const CeilToPo2Config&, const Tensors& inputs, const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const Array scale, Input(inputs, "scale"));
  AQT_ASSIGN_OR_RETURN(Array y, CeilToPo2(scale, semantics.arithmetic));
  return Tensors{{"y", std::move(y)}};
}

absl::StatusOr<Tensors> Run(const RoundToFormatConfig& config, const Tensors& inputs) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  if (x.dtype() != config.container) {
    return absl::InvalidArgumentError(
        absl::StrCat("x is ", x.aval().ToString(), ", but the container ", ToString(config.container)));
  }
  AQT_ASSIGN_OR_RETURN(Array y, RoundToFormat(config.format, x));
  return Tensors{{"y", std::move(y)}};
}

absl::StatusOr<Tensors> Run(const DecodeConfig& config, const Tensors& inputs) {
  AQT_ASSIGN_OR_RETURN(const Array codes, Input(inputs, "codes"));
  if (codes.dtype() != DType::kU8 || !IsFloat(config.dtype) || SizeOf(config.dtype) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("codes ", codes.aval().ToString(), " of ", ToString(config.dtype),
                                                   ", expected u8 codes of an 8-bit float"));
  }
  const Array values({config.dtype, codes.shape()}, codes.buffer());
  return Tensors{
      {"f32", Cast(values, DType::kF32)}, {"bf16", Cast(values, DType::kBF16)}, {"f16", Cast(values, DType::kF16)}};
}

absl::StatusOr<Tensors> Run(const CastConfig& config, const Tensors& inputs) {
  AQT_ASSIGN_OR_RETURN(const Array x, Input(inputs, "x"));
  return Tensors{{"y", Cast(x, config.to)}};
}

}  // namespace aqt::golden
