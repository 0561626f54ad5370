#include "tests/digest/draw.h"

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "aqt/core/array_ops.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt::digest {

Numerics DrawNumerics(Draw& draw) {
  if (draw.OneIn(6)) return NoNumerics{};
  if (draw.OneIn(6)) {
    Fp8 fp8{.stochastic_rounding = draw.OneIn(5)};
    if (draw.OneIn(3)) fp8 = {DType::kE5M2, 5, 2, fp8.stochastic_rounding};
    if (draw.OneIn(8)) fp8.dtype = DType::kBF16;
    return fp8;
  }
  if (draw.OneIn(8)) {
    Fp fp{.format = {.nexp = draw.Pick({0, 2, 3})}};
    fp.format.nmant = draw.Pick({1, 2});
    fp.format.has_subnormals = !draw.OneIn(3);
    fp.stochastic_rounding = draw.OneIn(6);
    return fp;
  }
  IntSymmetric n;
  n.bits = draw.Pick({1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 8, 12});
  n.preserve_zero = !draw.OneIn(8);
  n.preserve_max_val = draw.OneIn(4);
  n.clip = !draw.OneIn(8);
  n.round = !draw.OneIn(10);
  n.clip_gradient = draw.OneIn(3);
  if (draw.OneIn(4)) n.noise = Noise{draw.Pick({NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform})};
  if (n.noise.has_value() && draw.OneIn(2)) n.noise->noise_sharing_axes = {draw.Pick<int64_t>({0, -1})};
  n.dtype = n.bits == 4 ? DType::kS4 : DType::kS8;
  if (n.bits > 8 || !n.preserve_zero || draw.OneIn(8)) n.dtype = std::nullopt;
  if (draw.OneIn(6)) {
    n.dtype = draw.Pick({DType::kS2, DType::kS4, DType::kS8, DType::kS32, DType::kF32, DType::kBF16, DType::kF16});
  }
  return n;
}

Calibration DrawCalibration(Draw& draw, const Style& style) {
  const bool po2 = draw.OneIn(5);
  if (style.state && !draw.OneIn(3)) {
    switch (draw.Below(3)) {
      case 0: return MeanOfAbsMax{.po2_scale = po2};
      case 1: return DelayedScaling{.amax_history_length = draw.Pick<int64_t>({1, 2, 5}), .po2_scale = po2};
      default: break;
    }
    WeightedStats stats{.max_dev_coeff = draw.Pick({0.0, 0.5, 1.0}), .po2_scale = po2};
    stats.l1_dev_coeff = draw.Pick({0.0, 0.3, 1.5});
    stats.lp_dev_coeff = draw.Pick({0.0, 0.7});
    stats.const_bound_coeff = draw.Pick({0.0, 0.1});
    if (draw.OneIn(2)) stats.update_count_prior = draw.Pick({0.0, 3.0});
    if (draw.OneIn(2)) stats.max_dev_prior = 0.4;
    if (draw.OneIn(2)) stats.l1_dev_prior = 0.2;
    if (draw.OneIn(2)) stats.lp_dev_prior = 0.3;
    if (draw.OneIn(2)) stats.mean_prior = -0.1;
    stats.lp_order = draw.Pick({1, 2, 2, 3, 7});
    stats.safe_divide = draw.OneIn(2);
    stats.filter_zeros = draw.OneIn(2);
    stats.ema_update_count = draw.Pick({1.0, 3.0, 100.0});
    return stats;
  }
  switch (draw.Below(10)) {
    case 0:
    case 1: {
      Constant constant{.bound = draw.Pick({0.7, 3.0}), .po2_scale = po2};
      if (draw.OneIn(4)) constant.bias = 0.3;
      return constant;
    }
    case 2: {
      const double p = draw.Pick({1.0, 2.0, 3.0, 0.3});
      return AbsMean{.p = p, .clipping_scale = draw.Pick({1.0, 2.0}), .po2_scale = po2};
    }
    case 3: return SnrSearch{.candidates = {1.0, 0.9, 0.7, 0.5}, .po2_scale = po2};
    default: break;
  }
  AbsMax absmax{.po2_scale = po2};
  if (draw.OneIn(5)) absmax.clipping_scale = draw.Pick({0.5, 0.3, 2.0, -0.7});
  return absmax;
}

namespace {

const Constant* ConstantOf(const Quantizer& quantizer) {
  return quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
}

TensorConfig DrawIntegerTensor(Draw& draw, const Style& style) {
  TensorConfig tensor;
  IntSymmetric n{.bits = draw.Pick({2, 3, 4, 4, 5, 6, 7, 8, 8, 8, 8})};
  n.preserve_max_val = draw.OneIn(4);
  n.clip = !draw.OneIn(8);
  n.clip_gradient = draw.OneIn(3);
  if (draw.OneIn(4)) n.noise = Noise{draw.Pick({NoiseKind::kJaxUniform, NoiseKind::kRandomCenteredUniform})};
  n.dtype = n.bits == 4 ? DType::kS4 : DType::kS8;
  Quantizer& q = tensor.quantizer;
  q.numerics = n;
  q.calibration = DrawCalibration(draw, style);
  if (auto* constant = std::get_if<Constant>(&*q.calibration)) constant->bias.reset();
  q.calib_shared_axes.per_tensor = draw.OneIn(6);
  if (draw.OneIn(6)) q.scale_dtype = draw.Pick({DType::kF32, DType::kBF16, DType::kF16});
  return tensor;
}

}  // namespace

TensorConfig DrawTensor(Draw& draw, const Style& style) {
  if (style.integers) return DrawIntegerTensor(draw, style);
  TensorConfig tensor;
  Quantizer& q = tensor.quantizer;
  q.numerics = DrawNumerics(draw);
  if (IsQuantized(q.numerics)) {
    q.calibration = DrawCalibration(draw, style);
    if (draw.OneIn(6)) q.scale_dtype = draw.Pick({DType::kF32, DType::kBF16, DType::kF16});
    if (draw.OneIn(6)) {
      q.calib_shared_axes.per_tensor = true;
    } else if (draw.OneIn(12)) {
      q.calib_shared_axes.axes = {draw.Pick<int64_t>({0, -1})};
    }
  }
  q.scale_stop_grad = !draw.OneIn(6);
  tensor.dequant_mode = draw.Pick({DequantMode::kOutput, DequantMode::kOutput, DequantMode::kOutput,
                                   DequantMode::kThisInput, DequantMode::kOtherInput});
  tensor.calibration_mode = tensor.dequant_mode == DequantMode::kOtherInput || draw.OneIn(12)
                                ? CalibrationMode::kRemainingAxis
                                : CalibrationMode::kContractingAxis;
  return tensor;
}

namespace {

// Makes arrays of the numbers of a Constant calibration, some of the time: of rank 0, or one element that fits any
// shape of the rank.
void MakeConstantArrays(Draw& draw, int64_t rank, Quantizer& quantizer) {
  auto* constant = quantizer.calibration.has_value() ? std::get_if<Constant>(&*quantizer.calibration) : nullptr;
  if (constant == nullptr) return;
  for (ConstantValue* value : {&constant->bound, constant->bias.has_value() ? &*constant->bias : nullptr}) {
    if (value == nullptr || !draw.OneIn(2)) continue;
    const float number = static_cast<float>(std::get<double>(*value));
    const Shape shape(std::vector<int64_t>(draw.OneIn(2) ? 0 : rank, 1));
    *value = ConstantArray{Cast(ArrayRef(&number, shape), draw.Pick({DType::kF32, DType::kBF16, DType::kF16}))};
  }
}

// Makes most configurations legal.
void Repair(DotGeneralRawConfig& raw, bool backward) {
  const auto integer = [](const TensorConfig& t) {
    const auto* n = std::get_if<IntSymmetric>(&t.quantizer.numerics);
    return n != nullptr && n->dtype.has_value() && IsInteger(*n->dtype) && t.dequant_mode != DequantMode::kThisInput;
  };
  for (TensorConfig* tensor : {&raw.lhs, &raw.rhs}) {
    const Constant* constant = ConstantOf(tensor->quantizer);
    if (constant != nullptr && constant->bias.has_value()) tensor->dequant_mode = DequantMode::kThisInput;
    // Backward, one scale for the tensor goes with any mode.
    const bool any_mode = backward && tensor->quantizer.calib_shared_axes.per_tensor;
    if (tensor->dequant_mode == DequantMode::kOutput && !any_mode) {
      tensor->calibration_mode = CalibrationMode::kContractingAxis;
    }
  }
  if (raw.lhs.calibration_mode == CalibrationMode::kRemainingAxis ||
      raw.rhs.calibration_mode == CalibrationMode::kRemainingAxis) {
    raw.lhs_mid_alpha = raw.rhs_mid_alpha = std::nullopt;
  }
  if (raw.dg_accumulator_dtype == DType::kS32 && !(integer(raw.lhs) && integer(raw.rhs))) {
    raw.dg_accumulator_dtype = std::nullopt;
  }
}

DotGeneralRawConfig DrawRaw(Draw& draw, const Style& style) {
  DotGeneralRawConfig raw;
  raw.lhs = DrawTensor(draw, style);
  raw.rhs = DrawTensor(draw, style);
  raw.allow_dummy_gradient_into_qtensor = draw.OneIn(3);
  if (style.integers) {
    raw.dg_accumulator_dtype = DType::kS32;
    if (draw.OneIn(12)) raw.lhs_mid_alpha = 0.5;
    if (draw.OneIn(12)) raw.rhs_mid_alpha = 0.3;
    return raw;
  }
  if (!draw.OneIn(3)) raw.dg_accumulator_dtype = draw.Pick({DType::kS32, DType::kF32, DType::kBF16, DType::kF16});
  if (draw.OneIn(6)) raw.lhs_mid_alpha = 0.5;
  if (draw.OneIn(6)) raw.rhs_mid_alpha = 0.3;
  return raw;
}

}  // namespace

DotGeneralConfig DrawConfig(Draw& draw, const Style& style, const DotDims& dims, int64_t lhs_rank, int64_t rhs_rank) {
  DotGeneralConfig config{.fwd = DrawRaw(draw, style), .dlhs = DrawRaw(draw, style), .drhs = DrawRaw(draw, style)};
  const int64_t out_rank = lhs_rank + rhs_rank - static_cast<int64_t>(dims.lhs_batch.size()) -
                           2 * static_cast<int64_t>(dims.lhs_contracting.size());
  for (DotGeneralRawConfig* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    const bool backward = raw != &config.fwd;
    Repair(*raw, backward);
    MakeConstantArrays(draw, backward ? out_rank : lhs_rank, raw->lhs.quantizer);
    MakeConstantArrays(draw, raw == &config.drhs ? lhs_rank : rhs_rank, raw->rhs.quantizer);
  }
  const auto reusable = [&](const TensorConfig& forward, std::optional<double> alpha) {
    return IsQuantized(forward.quantizer.numerics) && forward.calibration_mode == CalibrationMode::kContractingAxis &&
           forward.dequant_mode == DequantMode::kOutput && !alpha.has_value();
  };
  const bool mid = config.fwd.lhs_mid_alpha.has_value() || config.fwd.rhs_mid_alpha.has_value();
  if (draw.OneIn(2)) config.dlhs.rhs.use_fwd_quant = !mid && reusable(config.fwd.rhs, config.dlhs.rhs_mid_alpha);
  if (draw.OneIn(2)) config.drhs.rhs.use_fwd_quant = !mid && reusable(config.fwd.lhs, config.drhs.rhs_mid_alpha);
  return config;
}

DotGeneralConfig DrawNamedConfig(Draw& draw) {
  switch (draw.Below(8)) {
    case 0: return FullyQuantized();
    case 1: return ConfigV3();
    case 2: return ConfigV4({.drhs_bits = 8, .dlhs_use_fwd_quant = true, .drhs_use_fwd_quant = true});
    case 3: return ConfigV4({.fwd_bits = 4, .dlhs_bits = 4, .rng_type = NoiseKind::kRandomCenteredUniform});
    case 4: return DotGeneralMake(4, 8, {.bwd_bits = 8});
    case 5: return DotGeneralMake(std::nullopt, 8);
    case 6: return ConfigFwdFp8();
    default: return DotGeneralMake(8, 8);
  }
}

namespace {

aqt::Bits DrawBits(Draw& draw) {
  if (draw.OneIn(6)) return std::nullopt;
  if (draw.OneIn(8)) return aqt::Bits::E4M3();
  return draw.Pick({8, 8, 8, 4, 3, 2, 1, 12});
}

DotGeneralRawConfig DrawRaggedRaw(Draw& draw) {
  const aqt::Bits lhs_bits = DrawBits(draw), rhs_bits = DrawBits(draw);
  DotGeneralRawConfig raw = DotGeneralRawMake(lhs_bits, rhs_bits);
  for (TensorConfig* t : {&raw.lhs, &raw.rhs}) {
    Quantizer& q = t->quantizer;
    if (!IsQuantized(q.numerics)) continue;
    if (draw.OneIn(8)) {
      t->dequant_mode = DequantMode::kThisInput;
      raw.dg_accumulator_dtype = std::nullopt;
    }
    if (draw.OneIn(5)) q.scale_dtype = draw.Pick({DType::kF32, DType::kBF16});
    if (draw.OneIn(3)) q.calibration = DrawCalibration(draw, {.state = draw.OneIn(2)});
    if (draw.OneIn(6)) q.calib_shared_axes.per_tensor = true;
    if (auto* n = std::get_if<IntSymmetric>(&q.numerics)) {
      n->clip_gradient = draw.OneIn(2);
      if (draw.OneIn(4)) n->noise = Noise{};
    }
    if (auto* constant = std::get_if<Constant>(&*q.calibration)) {
      if (t->dequant_mode != DequantMode::kThisInput) constant->bias.reset();
    }
  }
  if (!raw.dg_accumulator_dtype.has_value()) raw.dg_accumulator_dtype = draw.Pick({DType::kF32, DType::kBF16});
  return raw;
}

}  // namespace

DotGeneralConfig DrawRaggedConfig(Draw& draw) {
  DotGeneralConfig config{.fwd = DrawRaggedRaw(draw), .dlhs = DrawRaggedRaw(draw), .drhs = DrawRaggedRaw(draw)};
  config.dlhs.rhs.use_fwd_quant = draw.OneIn(2) && IsQuantized(config.fwd.rhs.quantizer.numerics);
  config.drhs.rhs.use_fwd_quant = draw.OneIn(2) && IsQuantized(config.fwd.lhs.quantizer.numerics);
  return config;
}

Semantics DrawSemantics(Draw& draw) {
  Semantics semantics{.arithmetic = draw.Pick({Arithmetic::kXlaCompatible, Arithmetic::kIeee})};
  if (draw.OneIn(3)) semantics.compat = Compat::Original();
  return semantics;
}

DType DrawDType(Draw& draw) { return draw.Pick({DType::kF32, DType::kF32, DType::kBF16, DType::kF16}); }

Convolution DrawConvolution(Draw& draw) {
  Convolution c;
  const int64_t spatial = 1 + draw.Below(3);
  c.dims.feature_group_count = draw.Pick<int64_t>({1, 1, 1, 2, 3});
  c.dims.padding = draw.Pick({ConvPadding::kValid, ConvPadding::kSame, ConvPadding::kExplicit, ConvPadding::kExplicit});
  const int64_t group_in = draw.OneIn(30) ? 0 : draw.Pick<int64_t>({1, 1, 2, 3, 5, 16}),
                group_out = draw.OneIn(30) ? 0 : draw.Pick<int64_t>({1, 2, 3, 17, 33});
  c.lhs.push_back(draw.OneIn(30) ? 0 : 1 + draw.Below(3));
  for (int64_t i = 0; i < spatial; ++i) {
    c.lhs.push_back(draw.OneIn(30) ? 0 : 1 + draw.Below(spatial == 1 ? 12 : 5));
    c.rhs.push_back(draw.OneIn(40) ? 0 : 1 + draw.Below(3));
    if (c.dims.padding == ConvPadding::kExplicit) {
      const int64_t low = draw.Below(5) - 1, high = draw.Below(5) - 1;
      c.dims.explicit_padding.push_back({low, high});
      c.dims.lhs_dilation.push_back(1 + draw.Below(3));
    }
    c.dims.window_strides.push_back(1 + draw.Below(3));
    c.dims.rhs_dilation.push_back(1 + draw.Below(2));
  }
  if (draw.OneIn(3)) c.dims.window_strides.clear();
  if (draw.OneIn(3)) c.dims.rhs_dilation.clear();
  if (draw.OneIn(2)) c.dims.lhs_dilation.clear();
  c.lhs.push_back(group_in * c.dims.feature_group_count);
  c.rhs.push_back(group_in);
  c.rhs.push_back(group_out * c.dims.feature_group_count);

  const aqt::Bits lhs_bits = DrawBits(draw), rhs_bits = DrawBits(draw);
  c.config = ConvGeneralDilatedMake(static_cast<int>(spatial), lhs_bits, rhs_bits);
  for (TensorConfig* t : {&c.config.lhs, &c.config.rhs}) {
    Quantizer& q = t->quantizer;
    if (draw.OneIn(8)) t->dequant_mode = DequantMode::kThisInput;
    if (draw.OneIn(3)) q.calib_shared_axes = {};
    if (draw.OneIn(6)) q.calib_shared_axes = {.per_tensor = true};
    if (draw.OneIn(8)) q.numerics = DrawNumerics(draw);
    if (!IsQuantized(q.numerics)) continue;
    if (draw.OneIn(6)) q.scale_dtype = draw.Pick({DType::kF32, DType::kBF16});
    if (!q.calibration.has_value() || draw.OneIn(2)) q.calibration = DrawCalibration(draw, {.state = draw.OneIn(3)});
    if (auto* n = std::get_if<IntSymmetric>(&q.numerics)) {
      n->clip_gradient = draw.OneIn(2);
      if (draw.OneIn(4)) n->noise = Noise{};
    }
  }
  Repair(c.config, false);
  if (draw.OneIn(6)) c.config.dg_accumulator_dtype = draw.Pick({DType::kF32, DType::kBF16, DType::kF16});
  return c;
}

}  // namespace aqt::digest
