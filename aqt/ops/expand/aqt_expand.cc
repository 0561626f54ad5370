#include "aqt/ops/expand/aqt_expand.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/ops/quant_math.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/engine/contract.h"
#include "aqt/quant/contraction/engine/dot_tiling.h"
#include "aqt/quant/contraction/engine/packed_side.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/quantize_side.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt::internal {
namespace {

Value Number(float x) { return Value(Array::Scalar(x)); }

// bound / quant_bound. Like XLA on CPU, this divides a single number, and multiplies several by the reciprocal.
Value DivideByQuantBound(DType dtype, const Value& bound, double quant_bound, Arithmetic arithmetic) {
  const float divisor = HostConstant(dtype, quant_bound);
  if (arithmetic == Arithmetic::kIeee || bound.shape().num_elements() == 1) return DivIn(dtype, bound, Number(divisor));
  // An f16 reciprocal is rounded; a bf16 one stays in f32.
  const float reciprocal = dtype == DType::kF16 ? Div<Float16>(1.0f, divisor) : Div<float>(1.0f, divisor);
  return MulIn(dtype, bound, Number(reciprocal));
}

Value AbsMaxScale(const Quantizer& quantizer, const AbsMax& calibration, const Value& x, const Axes& axes,
                  Arithmetic arithmetic) {
  Value bound = ops::ReduceMax(ops::Abs(ToF32(x)), axes, /*keepdims=*/true);
  int64_t reduced = 1;
  for (const int64_t axis : axes) reduced *= x.shape()[axis];
  if (reduced == 0) bound = ops::Max(bound, 0.0);  // an empty maximum is -inf
  bound = FlushTo(x.dtype(), bound);
  bound = ops::Select(ops::Equal(bound, 0.0), 1.0, bound);
  const double clipping_scale = calibration.clipping_scale.value_or(0);
  if (clipping_scale != 0) bound = MulIn(x.dtype(), bound, Number(HostConstant(x.dtype(), clipping_scale)));
  // The bound of an 8-bit float is a bf16 scalar, which promotes f16 data to f32.
  const bool widened = x.dtype() == DType::kF16 && std::holds_alternative<Fp8>(quantizer.numerics);
  const DType dtype = widened ? DType::kF32 : x.dtype();
  const Value scale = DivideByQuantBound(dtype, bound, QuantBound(quantizer.numerics), arithmetic);
  return FromF32(scale, quantizer.scale_dtype.value_or(x.dtype()));
}

Value ScaleOf(const Quantizer& quantizer, const Value& x, const Axes& axes, const Value& key,
              const Semantics& semantics) {
  const AbsMax* abs_max = std::get_if<AbsMax>(&*quantizer.calibration);
  if (abs_max == nullptr || abs_max->po2_scale || semantics.compat.ChangesQuantization())
    return CalibratedScale(quantizer, x, axes, key, semantics);
  return AbsMaxScale(quantizer, *abs_max, x, *SharedAxesOf(quantizer, axes, x.rank()), semantics.arithmetic);
}

// The bias of a Constant calibration, broadcastable to x of `dtype`: a number in the dtype of x, or an array in the
// dtype of the scale.
struct Bias {
  Value held;
  DType dtype;
};
std::optional<Bias> BiasOf(const Quantizer& quantizer, DType dtype) {
  const Constant* constant = std::get_if<Constant>(&*quantizer.calibration);
  if (constant == nullptr || !constant->bias.has_value()) return std::nullopt;
  if (const double* number = std::get_if<double>(&*constant->bias))
    return Bias{Number(HostConstant(dtype, *number)), dtype};
  const Array& array = std::get<ConstantArray>(*constant->bias).array;
  const DType held = array.shape().rank() == 0 ? dtype : quantizer.scale_dtype.value_or(dtype);
  return Bias{ToF32(Value(Cast(array, held))), held};
}

Value IntQvalue(const IntSymmetric& numerics, const ScaledOperand& scaled, const std::optional<Value>& key,
                const Semantics& semantics) {
  DType dtype = scaled.dtype;
  Value y = scaled.held;
  if (numerics.noise.has_value()) {
    const Value noise = NoiseFor(*numerics.noise, y.shape(), key.value_or(Value()), semantics.prng_layout);
    y = ops::Flush(FlushTo(dtype, y) + noise);
    if (semantics.compat.noise_sum_stays_f32) dtype = DType::kF32;
    y = RoundTo(dtype, y);
  }
  if (numerics.clip) {
    const ClipRange range = ClipRangeOf(numerics, semantics.compat, dtype);
    y = ops::Min(ops::Max(FlushTo(dtype, y), range.lo), range.hi);
  }
  if (numerics.round) {
    const Value flushed = FlushTo(dtype, y);
    y = numerics.preserve_zero ? ops::Round(flushed) : AddIn(dtype, ops::Floor(flushed), Number(0.5f));
  }
  return FromF32(y, numerics.dtype.value_or(dtype));
}

// y = cast(q, dtype) * scales..., in the widest dtype so far; held as f32 and rounded to dtype at the end.
Value HeldDequantized(const Value& q, absl::Span<const Value> scales, const std::optional<Bias>& bias, DType dtype) {
  Value y = RoundTo(dtype, ToF32(q));
  DType wide = dtype;
  for (const Value& scale : scales) {
    wide = Promote(wide, scale.dtype());
    y = MulIn(wide, y, ToF32(scale));
  }
  if (bias.has_value()) y = SubIn(Promote(wide, bias->dtype), y, bias->held);
  return RoundTo(dtype, y);
}

// The lowest `bits` bits of an s32, as a signed number.
Value WrapTo(const Value& x, int bits) {
  const double shift = static_cast<double>(int64_t{1} << (32 - bits));
  return x * shift / shift;
}

SumTypes DenseTypes(DType lhs, DType rhs, std::optional<DType> accumulator) {
  const ProductTypes types = ProductTypesOf(lhs, rhs, accumulator);
  return {types.product, types.converts_operands ? std::optional<DType>(types.product) : std::nullopt,
          types.rounds_first_to};
}

// The product of two qvalues, or of dequantized operands.
Value Product(const Value& lhs, const Value& rhs, const ExpandedMeeting& meeting, const SumTypes& types,
              WeightOnly weight_only) {
  if (!IsFloat(types.product)) {
    const Value sums = ExpandSums(meeting, lhs, rhs);
    return types.product == DType::kS32 ? sums : ops::Cast(WrapTo(sums, BitWidth(types.product)), types.product);
  }
  const auto operand_dtype = [&](const Value& x) {
    const bool converted = types.converts_to.has_value() && !HoldsAllOf(*types.converts_to, x.dtype());
    return converted ? *types.converts_to : x.dtype();
  };
  // Operands that fit bf16 are multiplied in bf16, which can change the order of a sum.
  const bool in_bf16 =
      meeting.geometry.groups != Groups::kContracting && MeetInBf16(operand_dtype(lhs), operand_dtype(rhs));
  const auto operand = [&](const Value& x) {
    const DType dtype = operand_dtype(x);
    const Value held = dtype == x.dtype() ? ToF32(x) : ToF32(FromF32(ToF32(x), dtype));
    const Value flushed = dtype == DType::kF32 || dtype == DType::kBF16 ? ops::Flush(held) : held;
    return in_bf16 ? FromF32(flushed, DType::kBF16) : flushed;
  };
  const bool on_digits = weight_only == WeightOnly::kDigits && !meeting.geometry.windows.has_value() &&
                         MeetOnDigits(lhs.dtype(), rhs.dtype(), types.product);
  const Value sums = ops::Flush(ExpandSums(meeting, operand(lhs), on_digits ? rhs : operand(rhs)));
  return FromF32(types.rounds_first_to.has_value() ? RoundTo(*types.rounds_first_to, sums) : sums, types.product);
}

// The `scale` of one side in the layout of the product: batch axes, one axis of extent 1 for each remaining axis of the
// other side, and its own remaining axes.
Value ScaleToOutput(const Value& scale, Side side, const DotDims& dims, int64_t other_rank) {
  const DotDims own = side == Side::kLhs ? dims : dims.Swapped();
  const Axes remaining = RemainingAxes(scale.rank(), own.lhs_contracting, own.lhs_batch);
  Axes permutation(own.lhs_batch.begin(), own.lhs_batch.end());
  permutation.insert(permutation.end(), remaining.begin(), remaining.end());
  permutation.insert(permutation.end(), own.lhs_contracting.begin(), own.lhs_contracting.end());
  Shape shape;
  const int64_t others = other_rank - static_cast<int64_t>(own.rhs_batch.size() + own.rhs_contracting.size());
  const auto append_others = [&] {
    for (int64_t i = 0; i < others; ++i) shape.push_back(1);
  };
  for (const int64_t axis : own.lhs_batch) shape.push_back(scale.shape()[axis]);
  if (side == Side::kRhs) append_others();
  for (const int64_t axis : remaining) shape.push_back(scale.shape()[axis]);
  if (side == Side::kLhs) append_others();
  return ops::Reshape(ops::Transpose(scale, permutation), shape);
}

// A side after quantization.
struct ExpandedSide {
  QuantizedValue quantized;
  Value operand;  // what the product receives
};

// The axes that share a scale, unless the quantizer names others. In a convolution: all except the example (lhs) or the
// output channel (rhs).
Axes SharedBy(const TensorConfig& tensor, const ProductGeometry& geometry, Side side, int64_t rank) {
  if (!geometry.windows.has_value()) {
    return CalibrationAxes(tensor.calibration_mode, OperandAxesOf(geometry.dims, side, rank));
  }
  Axes axes(rank - 1);
  std::iota(axes.begin(), axes.end(), side == Side::kLhs ? 1 : 0);
  return axes;
}

ExpandedSide ExpandSide(const TensorConfig& tensor, const ProductSide& in, const ProductGeometry& geometry, Side side,
                        DType dtype, const Semantics& semantics) {
  ExpandedSide out;
  out.quantized = in.prepared.has_value()
                      ? *in.prepared
                      : QuantizeValue(tensor.quantizer, in, SharedBy(tensor, geometry, side, in.x.rank()), semantics);
  out.operand = out.quantized.qvalue;
  if (out.quantized.scale.has_value() && tensor.dequant_mode == DequantMode::kThisInput) {
    out.operand =
        FromF32(HeldDequantized(out.operand, {*out.quantized.scale}, BiasOf(tensor.quantizer, dtype), dtype), dtype);
  }
  return out;
}

bool Scales(const TensorConfig& tensor, const ExpandedSide& side, DequantMode mode) {
  return side.quantized.scale.has_value() && tensor.dequant_mode == mode;
}

// other.operand times the scale of `own`, in the dtype of the operand.
void MultiplyIntoOther(const ExpandedSide& own, Side side, const DotDims& dims, ExpandedSide& other) {
  const DType dtype = other.operand.dtype();
  const Value scale = ScaleToOther(*own.quantized.scale, side, dims, other.operand.rank());
  other.operand = FromF32(MulIn(dtype, ToF32(other.operand), RoundTo(dtype, ToF32(scale))), dtype);
}

}  // namespace

ScaledOperand ScaleValue(const Quantizer& quantizer, const Value& x, const Value& scale, const Semantics& semantics) {
  Value y = ToF32(x);
  DType dtype = x.dtype();
  if (const std::optional<Bias> bias = BiasOf(quantizer, x.dtype())) {
    dtype = Promote(dtype, bias->dtype);
    y = AddIn(dtype, y, bias->held);
  }
  dtype = Promote(dtype, scale.dtype());
  const Value divisor = ToF32(scale);
  ScaleRule rule = ScaleRuleOf(semantics);
  if (rule == ScaleRule::kXlaQuotient && scale.shape() == x.shape()) rule = ScaleRule::kQuotient;
  switch (rule) {
    case ScaleRule::kInverse: return {MulIn(dtype, y, InverseScaleIn(scale.dtype(), divisor)), dtype};
    case ScaleRule::kQuotient: return {DivIn(dtype, y, divisor), dtype};
    case ScaleRule::kXlaQuotient: break;
  }
  const DType reciprocal = dtype == DType::kF16 ? DType::kF16 : DType::kF32;
  return {MulIn(dtype, y, DivIn(reciprocal, Number(1.0f), divisor)), dtype};
}

Value NotClipped(const Numerics& numerics, const ScaledOperand& scaled) {
  return ops::LessEqual(ops::Abs(FlushTo(scaled.dtype, scaled.held)), *GradientBound(numerics, scaled.dtype));
}

QuantizedValue QuantizeValue(const Quantizer& quantizer, const ProductSide& side, const Axes& axes,
                             const Semantics& semantics) {
  if (!IsQuantized(quantizer.numerics)) return {side.x, std::nullopt};
  QuantizedValue out;
  if (side.scale.has_value()) {
    out.scale = side.scale;
  } else if (HasState(quantizer)) {
    CalibratedValue calibrated = CalibratedWithState(quantizer, side.x, axes, side.statistics, side.mode, semantics);
    out.scale = calibrated.scale;
    out.statistics = std::move(calibrated.statistics);
  } else {
    out.scale = ScaleOf(quantizer, side.x, axes, side.key.value_or(Value()), semantics);
  }
  const ScaledOperand scaled = ScaleValue(quantizer, side.x, *out.scale, semantics);
  if (const IntSymmetric* integer = std::get_if<IntSymmetric>(&quantizer.numerics)) {
    out.qvalue = IntQvalue(*integer, scaled, side.key, semantics);
  } else {
    out.qvalue = NumericsQvalue(quantizer.numerics, FromF32(scaled.held, scaled.dtype), side.key.value_or(Value()),
                                semantics.prng_layout);
  }
  return out;
}

Value SumLeading(const Value& x, int64_t num_axes) {
  const absl::Span<const int64_t> extents = x.shape().extents();
  int64_t parts = 1;
  for (const int64_t extent : extents.first(num_axes)) parts *= extent;
  const Shape rest(extents.subspan(num_axes));
  Shape flat{parts};
  for (const int64_t extent : rest) flat.push_back(extent);
  const Value list = ops::Reshape(x, flat);
  Value sum = ops::BroadcastTo(Number(0), rest);
  for (int64_t i = 0; i < parts; ++i) {
    PerAxis start(flat.rank(), 0), limit(flat.begin(), flat.end());
    start[0] = i;
    limit[0] = i + 1;
    sum = AddIn(DType::kF32, sum, ToF32(ops::Reshape(ops::Slice(list, start, limit), rest)));
  }
  return FromF32(sum, x.dtype());
}

SumTypes SumTypesOf(const ProductPlan& plan) {
  const Contraction& contraction = plan.contraction;
  return {contraction.product, contraction.converts_to, contraction.rounds_first_to};
}

Value SumOf(const Value& lhs, const Value& rhs, const DotDims& dims) {
  return ops::DotGeneral(lhs, rhs, dims, IsInteger(lhs.dtype()) ? DType::kS32 : DType::kF32);
}

Value ExpandSums(const ExpandedMeeting& meeting, const Value& lhs, const Value& rhs) {
  const ProductGeometry& geometry = meeting.geometry;
  if (geometry.windows.has_value()) return ExpandWindowSums(*geometry.windows, lhs, rhs);
  if (geometry.groups != Groups::kNone) return ExpandGroupSums(geometry, meeting.group_ends, lhs, rhs);
  return SumOf(lhs, rhs, geometry.dims);
}

Value Zeros(const Aval& aval) { return ops::BroadcastTo(ValueOrNumber(0.0).As(aval.dtype), aval.shape); }

Value Dequantized(const Quantizer& quantizer, const Value& qvalue, const Value& scale, DType dtype) {
  return FromF32(HeldDequantized(qvalue, {scale}, BiasOf(quantizer, dtype), dtype), dtype);
}

ExpandedProduct ExpandGradientProduct(const DotGeneralRawConfig& config, const ProductSide& lhs, const ProductSide& rhs,
                                      const ExpandedMeeting& meeting, DType dtype, const Semantics& semantics_in) {
  Semantics semantics = semantics_in;
  semantics.weight_only = WeightOnly::kFloat;
  std::optional<TiledDot> tiled;
  if (config.local_aqt.has_value()) {
    // The plan has validated it.
    tiled = *MakeLocalTiling(*config.local_aqt, meeting.geometry.dims, lhs.x.shape(), rhs.x.shape());
  }
  if (!tiled.has_value()) return ExpandProduct(config, lhs, rhs, meeting, dtype, semantics);
  ProductSide lhs_cut = lhs, rhs_cut = rhs;
  lhs_cut.x = ops::Reshape(lhs.x, tiled->lhs.shape);
  rhs_cut.x = ops::Reshape(rhs.x, tiled->rhs.shape);
  ExpandedMeeting cut = meeting;
  cut.geometry.dims = tiled->dims;
  ExpandedProduct result = ExpandProduct(config, lhs_cut, rhs_cut, cut, dtype, semantics);
  result.out = SumLeading(result.out, 1);
  return result;
}

ExpandedProduct ExpandProduct(const DotGeneralRawConfig& config, const ProductSide& lhs_in, const ProductSide& rhs_in,
                              const ExpandedMeeting& meeting, DType dtype, const Semantics& semantics) {
  const ProductGeometry& geometry = meeting.geometry;
  const DotDims& dims = geometry.dims;
  const auto rotated = [&](const ProductSide& in, Side side) {
    ProductSide own = in;
    if (config.hadamard.has_value() && !in.prepared.has_value()) {
      own.x = Rotated(config.hadamard, in.x, OperandAxesOf(dims, side, in.x.rank()));
    }
    return own;
  };
  const ProductSide lhs_rotated = rotated(lhs_in, Side::kLhs), rhs_rotated = rotated(rhs_in, Side::kRhs);
  ExpandedSide lhs = ExpandSide(config.lhs, lhs_rotated, geometry, Side::kLhs, dtype, semantics);
  ExpandedSide rhs = ExpandSide(config.rhs, rhs_rotated, geometry, Side::kRhs, dtype, semantics);
  if (Scales(config.lhs, lhs, DequantMode::kOtherInput)) MultiplyIntoOther(lhs, Side::kLhs, dims, rhs);
  if (Scales(config.rhs, rhs, DequantMode::kOtherInput)) MultiplyIntoOther(rhs, Side::kRhs, dims, lhs);
  // AQT on CPU widens two 4-bit operands.
  const bool widened = lhs.operand.dtype() == DType::kS4 && rhs.operand.dtype() == DType::kS4;
  const DType lhs_dtype = widened ? DType::kS8 : lhs.operand.dtype();
  const DType rhs_dtype = widened ? DType::kS8 : rhs.operand.dtype();
  const SumTypes types = geometry.windows.has_value() ? meeting.window_types
                                                      : DenseTypes(lhs_dtype, rhs_dtype, config.dg_accumulator_dtype);
  const Value product = Product(lhs.operand, rhs.operand, meeting, types, semantics.WeightOnlySums());
  std::vector<Value> scales;
  for (const Side side : kSides) {
    const ExpandedSide& own = side == Side::kLhs ? lhs : rhs;
    if (!Scales(side == Side::kLhs ? config.lhs : config.rhs, own, DequantMode::kOutput)) continue;
    const Value& scale = *own.quantized.scale;
    // The scale of a convolution has the axes of the product.
    scales.push_back(geometry.windows.has_value()
                         ? scale
                         : ScaleToOutput(scale, side, dims, (side == Side::kLhs ? rhs : lhs).operand.rank()));
  }
  Value out = FromF32(HeldDequantized(product, scales, std::nullopt, dtype), dtype);
  // Needed even for a NaN scale.
  if (geometry.groups == Groups::kRows) out = ZeroOutsideOfGroups(out, meeting.group_ends);
  return {out, lhs.quantized, rhs.quantized};
}

Value ScaleToOther(const Value& scale, Side side, const DotDims& dims, int64_t other_rank) {
  const DotDims own = side == Side::kLhs ? dims : dims.Swapped();
  const size_t pairs = std::min(own.lhs_contracting.size(), own.rhs_contracting.size());
  // (axis of the other operand, own axis)
  std::vector<std::pair<int64_t, int64_t>> places;
  for (size_t i = 0; i < pairs; ++i) places.emplace_back(own.rhs_contracting[i], own.lhs_contracting[i]);
  for (size_t i = 0; i < own.lhs_batch.size(); ++i) places.emplace_back(own.rhs_batch[i], own.lhs_batch[i]);
  std::sort(places.begin(), places.end());
  Axes permutation;
  Shape shape;
  for (int64_t axis = 0; axis < other_rank; ++axis) shape.push_back(1);
  for (const auto& [other_axis, axis] : places) {
    permutation.push_back(axis);
    shape[other_axis] = scale.shape()[axis];
  }
  // The other axes have extent 1.
  const Axes remaining = RemainingAxes(scale.rank(), own.lhs_contracting, own.lhs_batch);
  permutation.insert(permutation.end(), own.lhs_contracting.begin() + pairs, own.lhs_contracting.end());
  permutation.insert(permutation.end(), remaining.begin(), remaining.end());
  return ops::Reshape(ops::Transpose(scale, permutation), shape);
}

}  // namespace aqt::internal
