#include "tests/digest/draw.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/config/tiling.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/numerics/numerics.h"

namespace aqt::digest {

// ---- configurations

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

Tensor DrawIntegerTensor(Draw& draw, const Style& style) {
  Tensor tensor;
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

Tensor DrawTensor(Draw& draw, const Style& style) {
  if (style.integers) return DrawIntegerTensor(draw, style);
  Tensor tensor;
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
void Repair(DotGeneralRaw& raw, bool backward) {
  const auto integer = [](const Tensor& t) {
    const auto* n = std::get_if<IntSymmetric>(&t.quantizer.numerics);
    return n != nullptr && n->dtype.has_value() && IsInteger(*n->dtype) && t.dequant_mode != DequantMode::kThisInput;
  };
  for (Tensor* tensor : {&raw.lhs, &raw.rhs}) {
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

DotGeneralRaw DrawRaw(Draw& draw, const Style& style) {
  DotGeneralRaw raw;
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

DotGeneral DrawConfig(Draw& draw, const Style& style, const DotDims& dims, int64_t lhs_rank, int64_t rhs_rank) {
  DotGeneral config{.fwd = DrawRaw(draw, style), .dlhs = DrawRaw(draw, style), .drhs = DrawRaw(draw, style)};
  const int64_t out_rank = lhs_rank + rhs_rank - static_cast<int64_t>(dims.lhs_batch.size()) -
                           2 * static_cast<int64_t>(dims.lhs_contracting.size());
  for (DotGeneralRaw* raw : {&config.fwd, &config.dlhs, &config.drhs}) {
    const bool backward = raw != &config.fwd;
    Repair(*raw, backward);
    MakeConstantArrays(draw, backward ? out_rank : lhs_rank, raw->lhs.quantizer);
    MakeConstantArrays(draw, raw == &config.drhs ? lhs_rank : rhs_rank, raw->rhs.quantizer);
  }
  const auto reusable = [&](const Tensor& forward, std::optional<double> alpha) {
    return IsQuantized(forward.quantizer.numerics) && forward.calibration_mode == CalibrationMode::kContractingAxis &&
           forward.dequant_mode == DequantMode::kOutput && !alpha.has_value();
  };
  const bool mid = config.fwd.lhs_mid_alpha.has_value() || config.fwd.rhs_mid_alpha.has_value();
  if (draw.OneIn(2)) config.dlhs.rhs.use_fwd_quant = !mid && reusable(config.fwd.rhs, config.dlhs.rhs_mid_alpha);
  if (draw.OneIn(2)) config.drhs.rhs.use_fwd_quant = !mid && reusable(config.fwd.lhs, config.drhs.rhs_mid_alpha);
  return config;
}

DotGeneral DrawNamedConfig(Draw& draw) {
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

DotGeneralRaw DrawRaggedRaw(Draw& draw) {
  const aqt::Bits lhs_bits = DrawBits(draw), rhs_bits = DrawBits(draw);
  DotGeneralRaw raw = DotGeneralRawMake(lhs_bits, rhs_bits);
  for (Tensor* t : {&raw.lhs, &raw.rhs}) {
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

DotGeneral DrawRaggedConfig(Draw& draw) {
  DotGeneral config{.fwd = DrawRaggedRaw(draw), .dlhs = DrawRaggedRaw(draw), .drhs = DrawRaggedRaw(draw)};
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

// ---- shapes

namespace {

// Shuffles the axes of one operand and notes where the batch and contracting ones went.
void Place(Draw& draw, const std::vector<int64_t>& batch, const std::vector<int64_t>& free,
           const std::vector<int64_t>& contract, Shape& shape, Axes& batch_axes, Axes& contract_axes) {
  std::vector<int64_t> extents = batch;
  extents.insert(extents.end(), free.begin(), free.end());
  extents.insert(extents.end(), contract.begin(), contract.end());
  std::vector<int64_t> order;
  while (order.size() < extents.size()) order.push_back(static_cast<int64_t>(order.size()));
  if (draw.OneIn(2)) draw.Shuffle(order);
  std::vector<int64_t> where(extents.size());
  for (size_t i = 0; i < order.size(); ++i) {
    shape.push_back(extents[order[i]]);
    where[order[i]] = static_cast<int64_t>(i);
  }
  batch_axes.assign(where.begin(), where.begin() + static_cast<int64_t>(batch.size()));
  contract_axes.assign(where.end() - static_cast<int64_t>(contract.size()), where.end());
}

}  // namespace

DotShapes DrawDotShapes(Draw& draw) {
  const auto extents = [&](std::initializer_list<int64_t> counts) {
    std::vector<int64_t> list(draw.Pick(counts));
    for (int64_t& e : list) e = draw.OneIn(50) ? 0 : draw.Pick<int64_t>({1, 2, 3, 4, 5, 6, 7});
    return list;
  };
  const std::vector<int64_t> batch = extents({0, 0, 1, 2});
  std::vector<int64_t> lhs_free = extents({0, 1, 1, 2}), rhs_free = extents({0, 1, 1, 2}),
                       contract = extents({0, 1, 1, 1, 2});
  if (!contract.empty() && draw.OneIn(3)) contract[0] = draw.Pick<int64_t>({16, 31, 64, 65});
  for (std::vector<int64_t>* free : {&lhs_free, &rhs_free}) {
    if (!free->empty() && draw.OneIn(6)) free->front() = draw.Pick<int64_t>({17, 33, 40});
  }
  DotShapes s;
  Place(draw, batch, lhs_free, contract, s.lhs, s.dims.lhs_batch, s.dims.lhs_contracting);
  Place(draw, batch, rhs_free, contract, s.rhs, s.dims.rhs_batch, s.dims.rhs_contracting);
  return s;
}

DotShapes DrawLargeDotShapes(Draw& draw) {
  int64_t m = draw.Pick<int64_t>({1, 7, 65, 130}), k = draw.Pick<int64_t>({64, 255, 257}),
          n = draw.Pick<int64_t>({1, 17, 33, 130});
  switch (draw.Below(10)) {
    case 0: m = 200, k = 257, n = 130; break;  // enough work for threads
    case 1: m = 1, k = 260, n = 330; break;
    default: break;
  }
  const int64_t batch = m * k * n < 200'000 && draw.OneIn(2) ? 3 : 0;
  DotShapes s;
  std::vector<int64_t> batches;
  if (batch > 0) batches.push_back(batch);
  Place(draw, batches, {m}, {k}, s.lhs, s.dims.lhs_batch, s.dims.lhs_contracting);
  Place(draw, batches, {n}, {k}, s.rhs, s.dims.rhs_batch, s.dims.rhs_contracting);
  return s;
}

DotTiling DrawTiling(Draw& draw, const DotShapes& shapes) {
  const auto tiles_of = [&](int64_t extent) {
    int64_t tiles = 1 + draw.Below(std::clamp<int64_t>(extent, 3, 6));
    while (extent % tiles != 0) --tiles;
    return tiles;
  };
  // By count, by size, or by both; from the front or from the end.
  const auto cut = [&](const Shape& shape, int64_t axis, int64_t tiles) {
    AxisTiling tiling{.axis = draw.OneIn(2) ? axis : axis - shape.rank()};
    const int64_t size = shape[axis] / tiles;
    if (size == 0 || draw.OneIn(2)) tiling.tile_count = tiles;
    if (!tiling.tile_count.has_value() || (size > 0 && draw.OneIn(3))) tiling.tile_size = size;
    return tiling;
  };
  DotTiling tiling;
  for (size_t i = 0; i < shapes.dims.lhs_contracting.size(); ++i) {
    if (draw.OneIn(3)) continue;
    const int64_t lhs_axis = shapes.dims.lhs_contracting[i], rhs_axis = shapes.dims.rhs_contracting[i];
    const int64_t tiles = tiles_of(shapes.lhs[lhs_axis]);
    tiling.lhs.contraction_axes.push_back(cut(shapes.lhs, lhs_axis, tiles));
    tiling.rhs.contraction_axes.push_back(cut(shapes.rhs, rhs_axis, tiles));
  }
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const DotDims own = side == Side::kLhs ? shapes.dims : shapes.dims.Swapped();
    const Shape& shape = side == Side::kLhs ? shapes.lhs : shapes.rhs;
    TensorTiling& tensor = side == Side::kLhs ? tiling.lhs : tiling.rhs;
    for (const int64_t axis : RemainingAxes(shape.rank(), own.lhs_contracting, own.lhs_batch)) {
      if (draw.OneIn(2)) tensor.remaining_axes.push_back(cut(shape, axis, tiles_of(shape[axis])));
    }
    if (draw.OneIn(2)) std::reverse(tensor.remaining_axes.begin(), tensor.remaining_axes.end());
  }
  return tiling;
}

void AddLocalAqt(Draw& draw, const DotShapes& shapes, DotGeneral& config) {
  for (const Side wrt : {Side::kLhs, Side::kRhs}) {
    if (draw.OneIn(4)) continue;
    DotGeneralRaw& raw = wrt == Side::kLhs ? config.dlhs : config.drhs;
    const Shape g = DotOutputShape(shapes.dims, shapes.lhs, shapes.rhs);
    const Axes contracting =
        MakeBackwardDotDims(shapes.dims, shapes.lhs.rank(), shapes.rhs.rank(), wrt).dims.lhs_contracting;
    const auto divisor = [&](int64_t extent) {
      int64_t d = 1 + draw.Below(std::max<int64_t>(extent, 3));
      while (extent % d != 0) --d;
      return d;
    };
    LocalAqt local{.tile_largest_shape = draw.OneIn(2)};
    if (local.tile_largest_shape) {
      int64_t largest = 1;
      for (const int64_t axis : contracting) largest = std::max(largest, g[axis]);
      local.contraction_axis_shard_size = divisor(largest);
    } else {
      local.contraction_axis_shard_count = divisor(contracting.empty() ? 1 : g[contracting[0]]);
    }
    raw.local_aqt = local;
    for (Tensor* tensor : {&raw.lhs, &raw.rhs}) tensor->quantizer.calib_shared_axes = {};
  }
}

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
  for (Tensor* t : {&c.config.lhs, &c.config.rhs}) {
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

Equation DrawEquation(Draw& draw) {
  std::string lhs, rhs, out;
  std::vector<int64_t> extents;
  const int64_t num_letters = 2 + draw.Below(4);
  for (int64_t i = 0; i < num_letters; ++i) {
    const char letter = static_cast<char>('a' + i);
    extents.push_back(draw.OneIn(40) ? 0 : draw.Pick<int64_t>({1, 2, 3, 4, 5, 6, 18}));
    // Remaining of either, contracting, batch, or what is done before the product.
    const int64_t role = draw.Below(12);
    const bool in_lhs = role < 2 || role >= 4, in_rhs = role >= 2 && role != 10;
    if (in_lhs) lhs.append(role == 11 ? 2 : 1, letter);
    if (in_rhs) rhs.push_back(letter);
    if (role < 4 || (role >= 7 && role < 9) || (role == 11 && draw.OneIn(2))) out.push_back(letter);
  }
  for (std::string* term : {&lhs, &rhs}) {
    if (draw.OneIn(2)) draw.Shuffle(*term);
  }
  if (draw.OneIn(2)) draw.Shuffle(out);
  Equation e;
  const auto shape = [&](const std::string& term) {
    Shape s;
    for (const char letter : term) s.push_back(draw.OneIn(20) ? 1 : extents[letter - 'a']);
    return s;
  };
  e.lhs = shape(lhs);
  e.rhs = shape(rhs);
  if (draw.OneIn(5)) {
    // An axis without a letter, which one operand may lack.
    const auto longer = [](int64_t extent, const Shape& s) {
      Shape result = {extent};
      for (const int64_t e : s) result.push_back(e);
      return result;
    };
    e.lhs = longer(3, e.lhs);
    if (draw.OneIn(2)) e.rhs = longer(draw.Pick<int64_t>({1, 3}), e.rhs);
    lhs = "..." + lhs;
    rhs = "..." + rhs;
    out = "..." + out;
  }
  e.text = lhs + "," + rhs + (draw.OneIn(10) ? "" : "->" + out);
  return e;
}

// ---- data

Array DrawData(Draw& draw, DType dtype, const Shape& shape) {
  ArrayBuilder builder(DType::kF32, shape);
  const double scale = draw.Pick({1.0, 1.0, 1.0, 100.0, 1e-3, 1e-37, 1e30});
  for (float& v : builder.Mutable<float>()) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += draw.Uniform(-1, 1);
    v = static_cast<float>(sum * scale);
  }
  const auto sprinkle = [&](float special) {
    for (float& v : builder.Mutable<float>()) v = draw.OneIn(20) ? special : v;
  };
  if (draw.OneIn(4)) sprinkle(0);
  if (draw.OneIn(12)) sprinkle(-0.0f);
  if (draw.OneIn(8)) sprinkle(1e-40f);
  if (draw.OneIn(16)) sprinkle(std::numeric_limits<float>::quiet_NaN());
  if (draw.OneIn(16)) sprinkle(std::numeric_limits<float>::infinity());
  if (draw.OneIn(16)) sprinkle(-3e38f);
  if (draw.OneIn(8)) {
    const absl::Span<float> values = builder.Mutable<float>();
    std::fill(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2, 0.0f);
  }
  return Cast(std::move(builder).Build(), dtype);
}

}  // namespace aqt::digest
