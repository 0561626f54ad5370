#include "aqt/transforms/precision/scalify_rules.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/op.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/aqt_dot_scales.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/scaling/debug_callback.h"
#include "aqt/ops/scaling/scaling.h"

namespace aqt::internal {
namespace {

using kernels::BinaryKind;
using kernels::UnaryKind;

Lane Plain(Value data) { return {.data = std::move(data)}; }
Lane Scaled(ScaledValue value) { return {.data = std::move(value.data), .scale = std::move(value.scale)}; }

// The value of a scaled lane: f64 for f64 data, otherwise f32.
Value WideValue(const Lane& lane) {
  const DType wide = lane.data.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return scaled::ToArray({lane.data, *lane.scale}, wide);
}

// Whether the result of an operation is one number if each operand is one number, and zeros if all operands are zeros.
bool KeepsScalars(const std::string& op) {
  static constexpr const char* kOps[] = {
      "abs",     "add",      "broadcast",   "ceil",        "clamp",      "cast",
      "exp",     "expm1",    "floor",       "integer_pow", "min",        "max",
      "mul",     "neg",      "reduce_prod", "reduce_sum",  "reduce_max", "reduce_precision",
      "reshape", "slice",    "reduce_min",  "sin",         "sub",        "sqrt",
      "tanh",    "transpose"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}
bool KeepsZeros(const std::string& op, const ScalifyCompat& compat) {
  if (op == "integer_pow") return false;
  if (op == "exp") return compat.exp_keeps_zero;
  return KeepsScalars(op);
}

class Rules {
 public:
  explicit Rules(const ScalifyRules& rules) : rules_(rules) {}

  absl::StatusOr<std::vector<Lane>> operator()(const Equation& eqn, absl::Span<const Lane> in) const {
    const std::optional<ScalingStep> step = FieldsOf<ScalingStep>(eqn.op);
    const bool always = step.has_value() && step->kind == ScalingKind::kSetScaling;
    const bool any = std::any_of(in.begin(), in.end(), [](const Lane& lane) { return lane.scaled(); });
    const bool is_opaque = IsOpaque(eqn.op) && !step.has_value() && !rules_.compat.missing_rules_are_errors;
    if (any && in[0].scaled()) {
      std::optional<Value> seen = BindDebugCallback(eqn.op, in[0].data, *in[0].scale, eqn.where);
      if (seen.has_value()) {
        Lane lane = in[0];
        lane.data = *std::move(seen);
        return std::vector<Lane>{std::move(lane)};
      }
    }
    std::vector<Lane> out;
    if (always || (any && !is_opaque)) {
      AQT_ASSIGN_OR_RETURN(Lane lane, step.has_value() ? ApplyStep(*step, in) : Apply(eqn, in));
      out.push_back(std::move(lane));
    } else {
      out = Opaque(eqn, in);
    }
    SetFlags(eqn, in, out);
    return out;
  }

 private:
  // Quantized contractions, gradients of contractions, and their parts.
  static bool IsOpaque(const Op& op) {
    return std::holds_alternative<CompositeOp>(op) && !ContractionOf(op).has_value();
  }
  // How the scales of operands pass through an opaque operation: only contractions pass them.
  ScalePassing PassingOf(const Equation& eqn) const {
    const std::optional<ScalePassing> passing = ScalePassingOf(eqn.op);
    if (passing.has_value() && !(passing->quantizes && rules_.quantized == ScalePolicy::kUnscale)) return *passing;
    return {.keeps = std::vector<bool>(eqn.in.size(), false),
            .outputs = std::vector<ScalePassing::Output>(eqn.out.size())};
  }
  std::vector<Lane> Opaque(const Equation& eqn, absl::Span<const Lane> in) const {
    const ScalePassing passing = PassingOf(eqn);
    const auto has_scale = [&](size_t i) { return passing.keeps[i] && in[i].scaled(); };
    std::vector<Value> values;
    for (size_t i = 0; i < in.size(); ++i) values.push_back(has_scale(i) ? in[i].data : Unscaled(in[i]));
    std::vector<Lane> out;
    for (Value& value : BindAgain(eqn, values)) {
      const auto& [factors, terms] = passing.outputs[out.size()];
      std::vector<Value> scales;
      for (const size_t i : factors) {
        if (has_scale(i)) scales.push_back(*in[i].scale);
      }
      out.push_back(scales.empty() ? Plain(std::move(value))
                                   : Scaled(scaled::SumsOfProducts(value, scales, terms, rules_)));
    }
    return out;
  }

  void SetFlags(const Equation& eqn, absl::Span<const Lane> in, std::vector<Lane>& out) const {
    const std::string name = OpName(eqn.op);
    // A reduction over no elements gives new numbers.
    const bool is_new = std::any_of(in.begin(), in.end(), [](const Lane& lane) { return IsEmpty(lane); });
    const auto all = [&](bool Lane::*flag) {
      return !in.empty() && !is_new && std::all_of(in.begin(), in.end(), [&](const Lane& lane) { return lane.*flag; });
    };
    for (Lane& lane : out) {
      lane.zero = all(&Lane::zero) && KeepsZeros(name, rules_.compat);
      lane.scalar = lane.zero || lane.data.shape().num_elements() == 1 || (all(&Lane::scalar) && KeepsScalars(name));
      const bool keeps_number = name == "broadcast" || name == "reshape" || name == "transpose" || name == "slice";
      if (keeps_number && !in.empty() && !is_new) lane.number = in[0].number;
      if (lane.zero && lane.scaled()) lane.scale = Number(0, lane.scale->dtype());
    }
  }

  static bool IsEmpty(const Lane& lane) { return lane.data.shape().num_elements() == 0; }
  static Value Number(double number, DType dtype) { return ValueOrNumber(number).As(dtype); }
  DType ScaleDType(const Lane& lane) const {
    return rules_.scale_dtype.value_or(lane.is_float() ? lane.data.dtype() : DType::kF32);
  }

  // The role of an operand. Where scales are compared, a zero has the scale 0, so that the other scale wins. Where
  // scales are multiplied, it has the scale 1.
  enum class Role { kTerm, kFactor };

  // An operand as a scaled value; null for one that stays plain. `other`, if any, is the scale of the other operand,
  // which a non-finite number also gets.
  std::optional<ScaledValue> Promoted(const Lane& lane, Role role,
                                      const std::optional<Value>& other = std::nullopt) const {
    if (lane.scaled()) return ScaledValue{lane.data, *lane.scale};
    if (!lane.is_float()) return std::nullopt;
    const bool is_factor = role == Role::kFactor && !rules_.compat.degenerate_scales;
    if (lane.zero) return ScaledValue{lane.data, Number(is_factor ? 1 : 0, ScaleDType(lane))};
    if (!lane.scalar || IsEmpty(lane)) return std::nullopt;
    Value first = lane.data;
    if (lane.number.has_value()) {
      first = Number(*lane.number, lane.data.dtype());
    } else if (lane.data.rank() > 0) {
      const PerAxis zeros(lane.data.rank(), 0), ones(lane.data.rank(), 1);
      first = ops::Reshape(ops::Slice(lane.data, zeros, ones), {});
    }
    ScaledValue split = scaled::MakeScaledScalar(first, ScaleDType(lane), rules_, other);
    if (is_factor) split.scale = NotZero(split.scale);
    return ScaledValue{ops::BroadcastTo(split.data, lane.data.shape()), split.scale};
  }
  static Value NotZero(const Value& scale) { return ops::Select(ops::Equal(scale, 0.0), 1.0, scale); }
  // The same, with the scale 1 for a plain array.
  absl::StatusOr<ScaledValue> AsScaled(const Lane& lane, Role role, const std::optional<Value>& other) const {
    if (std::optional<ScaledValue> value = Promoted(lane, role, other); value.has_value()) return *std::move(value);
    if (rules_.compat.plain_arrays_do_not_mix) {
      return absl::InvalidArgumentError(
          absl::StrCat("scalify: a scaled array meets a plain one, ", lane.data.aval().ToString()));
    }
    return ScaledValue{lane.data, Number(1, ScaleDType(lane))};
  }
  absl::StatusOr<std::vector<ScaledValue>> AllScaled(absl::Span<const Lane> lanes, Role role = Role::kTerm) const {
    std::optional<Value> other;
    const auto scaled = std::find_if(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.scaled(); });
    const bool has_number = std::any_of(lanes.begin(), lanes.end(), [](const Lane& lane) {
      return !lane.scaled() && lane.scalar && !(lane.number.has_value() && std::isfinite(*lane.number));
    });
    if (role == Role::kTerm && has_number && scaled != lanes.end()) other = NotZero(*scaled->scale);
    std::vector<ScaledValue> values;
    for (const Lane& lane : lanes) {
      AQT_ASSIGN_OR_RETURN(values.emplace_back(), AsScaled(lane, role, other));
    }
    return values;
  }

  // ---- the operations of ops/scaling/scaling.h

  absl::StatusOr<Lane> ApplyStep(const ScalingStep& step, absl::Span<const Lane> in) const {
    const Lane& x = in[0];
    if (step.kind == ScalingKind::kSetScaling) {
      const Value scale =
          in[1].scaled() ? scaled::ToArray({in[1].data, *in[1].scale}, std::nullopt, rules_) : in[1].data;
      return Scaled(x.scaled() ? scaled::SetScaling({x.data, *x.scale}, scale, rules_)
                               : scaled::SetScaling(x.data, scale, rules_));
    }
    const ScaledValue value{x.data, *x.scale};
    if (step.backward) return Scaled(value);
    switch (step.kind) {
      case ScalingKind::kSetScaling: break;
      case ScalingKind::kStopScaling: return Plain(scaled::ToArray(value, step.dtype, rules_));
      case ScalingKind::kRescaleMax: return Scaled(scaled::DynamicRescaleMax(value, rules_));
      case ScalingKind::kRescaleL1: return Scaled(scaled::DynamicRescaleL1(value, rules_));
      case ScalingKind::kRescaleL2: return Scaled(scaled::DynamicRescaleL2(value, rules_));
      case ScalingKind::kReducePrecision: {
        const kernels::Precision precision = *SimulatedPrecision(*step.dtype);
        return Scaled({ops::ReducePrecision(x.data, precision.exponent_bits, precision.mantissa_bits), *x.scale});
      }
      case ScalingKind::kCast: return Scaled({ops::Cast(x.data, *step.dtype), *x.scale});
      case ScalingKind::kGetData: return Plain(x.data);
      case ScalingKind::kGetScale: return Plain(ops::Cast(*x.scale, step.dtype.value_or(x.data.dtype())));
    }
    return absl::InternalError("scalify: an unknown step");
  }

  // ---- the operations of the graph

  absl::StatusOr<Lane> Apply(const Equation& eqn, absl::Span<const Lane> in) const {
    return std::visit([&](const auto& op) { return Rule(op, eqn, in); }, eqn.op);
  }

  // The same operation on the data; the scale is kept. For operations that move elements or are linear in them.
  Lane OnData(const Op& op, const Equation& eqn, absl::Span<const Lane> in) const {
    std::vector<Value> values;
    for (const Lane& lane : in) values.push_back(lane.data);
    return {.data = BindOne(op, values, eqn.where), .scale = in[0].scale};
  }
  // The operation on unscaled values; the result gets the scale 1.
  absl::StatusOr<Lane> OnValues(const Equation& eqn, absl::Span<const Lane> in) const {
    if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
    return OnValuesWithRule(eqn, in);
  }
  absl::StatusOr<Lane> OnValuesWithRule(const Equation& eqn, absl::Span<const Lane> in) const {
    std::vector<Value> values;
    DType scale = DType::kF32;
    for (const Lane& lane : in) {
      values.push_back(Unscaled(lane));
      if (lane.scaled()) scale = lane.scale->dtype();
    }
    return Scaled({BindOne(eqn.op, values, eqn.where), Number(1, scale)});
  }
  absl::Status NoRule(const Equation& eqn) const {
    return absl::InvalidArgumentError(absl::StrCat("scalify: no rule for ", OpName(eqn.op), " of scaled operands"));
  }

  absl::StatusOr<Lane> Rule(const UnaryOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    const ScaledValue x{in[0].data, *in[0].scale};
    switch (op.kind) {
      case UnaryKind::kNeg:
      case UnaryKind::kAbs: return OnData(op, eqn, in);
      case UnaryKind::kSign: return Scaled(scaled::Sign(x));
      case UnaryKind::kSqrt: return Scaled(scaled::Sqrt(x));
      case UnaryKind::kExp: return Scaled(scaled::Exp(x));
      case UnaryKind::kLog: return Scaled(scaled::Log(x));
      case UnaryKind::kSin:
      case UnaryKind::kCos: return OnValuesWithRule(eqn, in);
      case UnaryKind::kRsqrt:
        if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
        return Scaled({ops::Rsqrt(x.data), ops::Rsqrt(x.scale)});
      default: return OnValues(eqn, in);
    }
  }

  absl::StatusOr<Lane> Rule(const BinaryOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (op.kind == BinaryKind::kPow) return OnValues(eqn, in);
    if (op.kind == BinaryKind::kMul) return Product(in);
    const Role role = op.kind == BinaryKind::kDiv ? Role::kFactor : Role::kTerm;
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in, role));
    switch (op.kind) {
      case BinaryKind::kAdd: return Scaled(scaled::Add(v[0], v[1], rules_));
      case BinaryKind::kSub: return Scaled(scaled::Sub(v[0], v[1], rules_));
      case BinaryKind::kDiv: {
        const ScaledValue quotient = scaled::Div(v[0], v[1]);
        if (!IsPowerOfTwo(in[1])) return Scaled(quotient);
        return Scaled({ops::Cast(v[0].data, quotient.data.dtype()), quotient.scale});
      }
      case BinaryKind::kMax: return Scaled(scaled::Max(v[0], v[1], rules_, FitsAnyScale(in[0]), FitsAnyScale(in[1])));
      case BinaryKind::kMin: return Scaled(scaled::Min(v[0], v[1], rules_, FitsAnyScale(in[0]), FitsAnyScale(in[1])));
      default: return NoRule(eqn);
    }
  }
  // A plain array does not affect the scale.
  absl::StatusOr<Lane> Product(absl::Span<const Lane> in) const {
    const std::optional<ScaledValue> x = Promoted(in[0], Role::kFactor), y = Promoted(in[1], Role::kFactor);
    if (x.has_value() && y.has_value()) {
      const ScaledValue product = scaled::Mul(*x, *y);
      // A value multiplied by a power of two keeps its data.
      if (IsPowerOfTwo(in[1])) return Scaled({ops::Cast(x->data, product.data.dtype()), product.scale});
      if (IsPowerOfTwo(in[0])) return Scaled({ops::Cast(y->data, product.data.dtype()), product.scale});
      return Scaled(product);
    }
    const ScaledValue& scaled = x.has_value() ? *x : *y;
    return Scaled(
        {scaled::Mul(scaled, {in[x.has_value() ? 1 : 0].data, Number(1, scaled.scale.dtype())}).data, scaled.scale});
  }
  // Whether the lane is a power of two, so that its promoted data are 1.
  static bool IsPowerOfTwo(const Lane& lane) {
    int exponent = 0;
    return !lane.scaled() && lane.number.has_value() && std::frexp(*lane.number, &exponent) == 0.5 && exponent > -126;
  }
  // An infinity may be the maximum, and then its scale must not be 0.
  bool FitsAnyScale(const Lane& lane) const {
    const bool is_infinite = lane.number.has_value() && std::isinf(*lane.number);
    return lane.zero || (lane.number.has_value() && *lane.number == 0) ||
           (is_infinite && rules_.compat.degenerate_scales);
  }

  absl::StatusOr<Lane> Rule(const CompareOp& op, const Equation&, absl::Span<const Lane> in) const {
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in));
    return Plain(scaled::Compare(op.kind, v[0], v[1]));
  }
  absl::StatusOr<Lane> Rule(const SelectOp&, const Equation&, absl::Span<const Lane> in) const {
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in.subspan(1)));
    return Scaled(scaled::Select(in[0].data, v[0], v[1], rules_));
  }
  absl::StatusOr<Lane> Rule(const CastOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (IsFloat(op.dtype)) return OnData(op, eqn, in);
    return Plain(ops::Cast(WideValue(in[0]), op.dtype));
  }
  // The bits are those of values: they have no defined meaning with a scale.
  absl::StatusOr<Lane> Rule(const BitcastOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
    return Plain(BindOne(op, {Unscaled(in[0])}, eqn.where));
  }
  absl::StatusOr<Lane> Rule(const ClampOp&, const Equation& eqn, absl::Span<const Lane> in) const {
    if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in));
    const ScaledValue above = scaled::Max(v[1], v[0], rules_, FitsAnyScale(in[1]), FitsAnyScale(in[0]));
    return Scaled(scaled::Min(above, v[2], rules_, false, FitsAnyScale(in[2])));
  }
  absl::StatusOr<Lane> Rule(const IsFiniteOp&, const Equation&, absl::Span<const Lane> in) const {
    return Plain(scaled::IsFinite({in[0].data, *in[0].scale}));
  }
  absl::StatusOr<Lane> Rule(const IntegerPowOp& op, const Equation&, absl::Span<const Lane> in) const {
    return Scaled(scaled::IntegerPow({in[0].data, *in[0].scale}, op.exponent, rules_));
  }
  absl::StatusOr<Lane> Rule(const ReduceOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    const ScaledValue x{in[0].data, *in[0].scale};
    switch (op.kind) {
      case kernels::ReduceKind::kSum: return Scaled(scaled::ReduceSum(x, op.axes, op.keepdims, rules_));
      case kernels::ReduceKind::kProd: return Scaled(scaled::ReduceProd(x, op.axes, op.keepdims, rules_));
      case kernels::ReduceKind::kMax:
      case kernels::ReduceKind::kMin: return OnData(op, eqn, in);
    }
    return NoRule(eqn);
  }
  absl::StatusOr<Lane> Rule(const PadOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (op.value == 0) return OnData(op, eqn, in);
    return OnValues(eqn, in);
  }
  absl::StatusOr<Lane> Rule(const ConcatenateOp& op, const Equation&, absl::Span<const Lane> in) const {
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in));
    return Scaled(scaled::Concatenate(v, op.axis, rules_));
  }
  absl::StatusOr<Lane> Rule(const DotGeneralOp& op, const Equation&, absl::Span<const Lane> in) const {
    return Dot(op.dims, op.out, in);
  }
  absl::StatusOr<Lane> Dot(const DotDims& dims, DType out, absl::Span<const Lane> in) const {
    if (rules_.compat.dot_has_one_contracting_axis && (dims.lhs_contracting.size() != 1 || !dims.lhs_batch.empty())) {
      return absl::InvalidArgumentError(absl::StrCat("scalify: dot_general with dims ", dims.ToString(),
                                                     "; the original takes one contracting axis and no batch axes"));
    }
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in, Role::kFactor));
    return Scaled(scaled::DotGeneral(v[0], v[1], dims, out, rules_));
  }
  absl::StatusOr<Lane> Rule(const ArgReduceOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    return Plain(OnData(op, eqn, in).data);
  }
  absl::StatusOr<Lane> Rule(const ArgReduceWindowOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    return Plain(OnData(op, eqn, in).data);
  }
  absl::StatusOr<Lane> Rule(const CumulativeSumOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    return Added(op, eqn, in);
  }
  absl::StatusOr<Lane> Rule(const TakeOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    return Added(op, eqn, in);
  }
  // Linear operations that the original lacks.
  absl::StatusOr<Lane> Added(const Op& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
    return OnData(op, eqn, in);
  }
  absl::StatusOr<Lane> Rule(const ScatterAddOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
    Lane lane = OnData(op, eqn, in);
    lane.scale = in[1].scale;
    return lane;
  }
  // Operations without operands are never scaled.
  absl::StatusOr<Lane> Rule(const IotaOp&, const Equation& eqn, absl::Span<const Lane>) const { return NoRule(eqn); }
  absl::StatusOr<Lane> Rule(const RandomBitsOp&, const Equation& eqn, absl::Span<const Lane>) const {
    return NoRule(eqn);
  }
  absl::StatusOr<Lane> Rule(const CompositeOp&, const Equation& eqn, absl::Span<const Lane> in) const {
    const std::optional<ContractionDims> dims = ContractionOf(eqn.op);
    if (!dims.has_value()) return NoRule(eqn);
    if (const DotDims* dot = std::get_if<DotDims>(&*dims)) return Dot(*dot, in[0].data.dtype(), in);
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in.subspan(0, 2), Role::kFactor));
    const Value scales[] = {v[0].scale, v[1].scale};
    const CallSite site(eqn.where);
    if (const ConvDims* conv = std::get_if<ConvDims>(&*dims)) {
      return Scaled(scaled::SumsOfProducts(ops::Conv(v[0].data, v[1].data, *conv), scales, std::nullopt));
    }
    if (std::holds_alternative<RaggedDims>(*dims)) {
      if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
      return Scaled(scaled::SumsOfProducts(ops::RaggedDot(v[0].data, v[1].data, in[2].data), scales, std::nullopt));
    }
    return NoRule(eqn);
  }
  // Reshape, broadcast, transpose, slice, reverse, reduce_precision, stop_gradient, windows.
  template <class O>
  absl::StatusOr<Lane> Rule(const O& op, const Equation& eqn, absl::Span<const Lane> in) const {
    static_assert(std::is_same_v<O, ReshapeOp> || std::is_same_v<O, BroadcastOp> || std::is_same_v<O, TransposeOp> ||
                      std::is_same_v<O, SliceOp> || std::is_same_v<O, ReverseOp> ||
                      std::is_same_v<O, ReducePrecisionOp> || std::is_same_v<O, StopGradientOp> ||
                      std::is_same_v<O, ReduceWindowOp>,
                  "a new operation needs a rule");
    return OnData(op, eqn, in);
  }

  const ScalifyRules& rules_;
};

}  // namespace

Lane LaneOfConstant(const Array& array) {
  Lane lane{.data = Value(array), .scalar = array.num_elements() == 1};
  if (array.num_elements() == 0 || !(IsFloat(array.dtype()) || IsInteger(array.dtype()))) return lane;
  const Array numbers = Cast(array, DType::kF64);
  const absl::Span<const double> view = numbers.View<double>();
  const auto is_first = [&](double v) { return v == view[0] || (std::isnan(v) && std::isnan(view[0])); };
  if (!std::all_of(view.begin(), view.end(), is_first)) return lane;
  lane.number = view[0];
  lane.zero = view[0] == 0;
  lane.scalar |= lane.zero;
  return lane;
}

Value Unscaled(const Lane& lane) { return lane.scaled() ? ops::Cast(WideValue(lane), lane.data.dtype()) : lane.data; }

absl::StatusOr<std::vector<Lane>> ScaledEquation(const Equation& eqn, absl::Span<const Lane> in,
                                                 const ScalifyRules& rules) {
  return Rules(rules)(eqn, in);
}

}  // namespace aqt::internal
