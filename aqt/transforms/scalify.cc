#include "aqt/transforms/scalify.h"

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
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret.h"
#include "aqt/graph/op.h"
#include "aqt/graph/rewrite.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/contractions.h"
#include "aqt/ops/einsum_values.h"
#include "aqt/ops/scaling.h"
#include "aqt/quant/contraction/einsum_lowering.h"
#include "aqt/transforms/expand.h"

namespace aqt {
namespace {

using kernels::BinaryKind;
using kernels::UnaryKind;

// A variable of the program: plain, or scaled.
struct Lane {
  Value data = {};
  std::optional<Value> scale = std::nullopt;
  bool scalar = false;                          // all elements are one number
  bool zero = false;                            // all elements are zero, which was known before any data
  std::optional<double> number = std::nullopt;  // that number, if it is known

  bool scaled() const { return scale.has_value(); }
  bool is_float() const { return IsFloat(data.dtype()); }
};

Lane Plain(Value data) { return {.data = std::move(data)}; }
Lane Scaled(ScaledValue value) { return {.data = std::move(value.data), .scale = std::move(value.scale)}; }

// A constant: what is known of all of its elements.
Lane Constant(const Array& array) {
  Lane lane{.data = Value(array), .scalar = array.num_elements() == 1};
  if (array.num_elements() == 0 || !(IsFloat(array.dtype()) || IsInteger(array.dtype()))) return lane;
  const Array numbers = Cast(array, DType::kF64);
  const absl::Span<const double> view = numbers.View<double>();
  if (!std::all_of(view.begin(), view.end(), [&](double v) { return v == view[0]; })) return lane;
  lane.number = view[0];
  lane.zero = view[0] == 0;
  lane.scalar |= lane.zero;
  return lane;
}

// Whether an operation makes one number of operands that are one number each, and zeros of zeros.
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

class Transform {
 public:
  explicit Transform(const ScalifyRules& rules) : rules_(rules) {}

  absl::StatusOr<std::vector<Lane>> operator()(const Equation& eqn, absl::Span<const Lane> in) const {
    const std::optional<ScalingStep> step = ScalingStepOf(eqn.op);
    const bool always = step.has_value() && step->kind == ScalingKind::kSetScaling;
    const bool any = std::any_of(in.begin(), in.end(), [](const Lane& lane) { return lane.scaled(); });
    const bool calibrates_itself = IsOpaque(eqn.op) && !step.has_value() && !rules_.compat.missing_rules_are_errors;
    std::vector<Lane> out;
    if (always || (any && !calibrates_itself)) {
      AQT_ASSIGN_OR_RETURN(Lane lane, step.has_value() ? ApplyStep(*step, in) : Apply(eqn, in));
      out.push_back(std::move(lane));
    } else {
      std::vector<Value> values;
      for (const Lane& lane : in) values.push_back(Unscaled(lane));
      for (Value& value : BindAgain(eqn, values)) out.push_back(Plain(std::move(value)));
    }
    SetFlags(eqn, in, out);
    return out;
  }

 private:
  // Quantized contractions and what belongs to them: they calibrate themselves, on values without a scale.
  static bool IsOpaque(const Op& op) {
    return std::holds_alternative<CompositeOp>(op) && !ContractionOf(op).has_value();
  }

  void SetFlags(const Equation& eqn, absl::Span<const Lane> in, std::vector<Lane>& out) const {
    const std::string name = OpName(eqn.op);
    const auto all = [&](bool Lane::*flag) {
      return !in.empty() && std::all_of(in.begin(), in.end(), [&](const Lane& lane) { return lane.*flag; });
    };
    for (Lane& lane : out) {
      lane.zero = all(&Lane::zero) && KeepsZeros(name, rules_.compat);
      lane.scalar = lane.zero || lane.data.shape().num_elements() == 1 || (all(&Lane::scalar) && KeepsScalars(name));
      const bool keeps_number = name == "broadcast" || name == "reshape" || name == "transpose" || name == "slice";
      if (keeps_number && !in.empty()) lane.number = in[0].number;
      if (lane.zero && lane.scaled()) lane.scale = Number(0, lane.scale->dtype());
    }
  }

  static Value Number(double number, DType dtype) { return Operand(number).As(dtype); }
  DType ScaleDType(const Lane& lane) const {
    return rules_.scale_dtype.value_or(lane.is_float() ? lane.data.dtype() : DType::kF32);
  }

  // An operand as a scaled value; null for one that stays plain.
  std::optional<ScaledValue> Promoted(const Lane& lane) const {
    if (lane.scaled()) return ScaledValue{lane.data, *lane.scale};
    if (!lane.is_float()) return std::nullopt;
    if (lane.zero) return ScaledValue{lane.data, Number(0, ScaleDType(lane))};
    if (!lane.scalar) return std::nullopt;
    Value first = lane.data;
    if (lane.number.has_value()) {
      first = Number(*lane.number, lane.data.dtype());
    } else if (lane.data.rank() > 0) {
      const PerAxis zeros(lane.data.rank(), 0), ones(lane.data.rank(), 1);
      first = ops::Reshape(ops::Slice(lane.data, zeros, ones), {});
    }
    const ScaledValue split = scaled::MakeScaledScalar(first, ScaleDType(lane));
    return ScaledValue{ops::BroadcastTo(split.data, lane.data.shape()), split.scale};
  }
  // The same, with the scale 1 for a plain array.
  absl::StatusOr<ScaledValue> AsScaled(const Lane& lane) const {
    if (std::optional<ScaledValue> value = Promoted(lane); value.has_value()) return *std::move(value);
    if (rules_.compat.plain_arrays_do_not_mix) {
      return absl::InvalidArgumentError(
          absl::StrCat("scalify: a scaled array meets a plain one, ", lane.data.aval().ToString()));
    }
    return ScaledValue{lane.data, Number(1, ScaleDType(lane))};
  }
  absl::StatusOr<std::vector<ScaledValue>> AllScaled(absl::Span<const Lane> lanes) const {
    std::vector<ScaledValue> values;
    for (const Lane& lane : lanes) {
      AQT_ASSIGN_OR_RETURN(values.emplace_back(), AsScaled(lane));
    }
    return values;
  }

  // The value without a scale, in the dtype of its data.
  static Value Unscaled(const Lane& lane) {
    if (!lane.scaled()) return lane.data;
    return ops::Cast(scaled::ToArray({lane.data, *lane.scale}, DType::kF32), lane.data.dtype());
  }

  // ---- the operations of ops/scaling.h

  absl::StatusOr<Lane> ApplyStep(const ScalingStep& step, absl::Span<const Lane> in) const {
    const Lane& x = in[0];
    if (step.kind == ScalingKind::kSetScaling) {
      const Value scale = in[1].scaled() ? scaled::ToArray({in[1].data, *in[1].scale}) : in[1].data;
      return Scaled(x.scaled() ? scaled::SetScaling({x.data, *x.scale}, scale) : scaled::SetScaling(x.data, scale));
    }
    const ScaledValue value{x.data, *x.scale};
    if (step.backward) return Scaled(value);
    switch (step.kind) {
      case ScalingKind::kSetScaling: break;
      case ScalingKind::kStopScaling: return Plain(scaled::ToArray(value, step.dtype));
      case ScalingKind::kRescaleMax: return Scaled(scaled::DynamicRescaleMax(value));
      case ScalingKind::kRescaleL1: return Scaled(scaled::DynamicRescaleL1(value));
      case ScalingKind::kRescaleL2: return Scaled(scaled::DynamicRescaleL2(value));
      case ScalingKind::kReducePrecision: {
        const kernels::Precision precision = *SimulatedPrecision(*step.dtype);
        return Scaled({ops::ReducePrecision(x.data, precision.exponent_bits, precision.mantissa_bits), *x.scale});
      }
      case ScalingKind::kCast: return Scaled({ops::Cast(x.data, *step.dtype), *x.scale});
    }
    return absl::InternalError("scalify: an unknown step");
  }

  // ---- the operations of the graph

  absl::StatusOr<Lane> Apply(const Equation& eqn, absl::Span<const Lane> in) const {
    return std::visit([&](const auto& op) { return Rule(op, eqn, in); }, eqn.op);
  }

  // The same operation on the data; the scale stays. For operations that move elements, or are linear in them.
  Lane OnData(const Op& op, const Equation& eqn, absl::Span<const Lane> in) const {
    std::vector<Value> values;
    for (const Lane& lane : in) values.push_back(lane.data);
    return {.data = Bind(op, values, eqn.where)[0], .scale = in[0].scale};
  }
  // The operation on values without scales; the result gets the scale 1.
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
    return Scaled({Bind(eqn.op, values, eqn.where)[0], Number(1, scale)});
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
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in));
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
  // A plain array has no influence on the scale.
  absl::StatusOr<Lane> Product(absl::Span<const Lane> in) const {
    const std::optional<ScaledValue> x = Promoted(in[0]), y = Promoted(in[1]);
    if (x.has_value() && y.has_value()) {
      const ScaledValue product = scaled::Mul(*x, *y);
      // What is multiplied by a power of two keeps its data.
      if (IsPowerOfTwo(in[1])) return Scaled({ops::Cast(x->data, product.data.dtype()), product.scale});
      if (IsPowerOfTwo(in[0])) return Scaled({ops::Cast(y->data, product.data.dtype()), product.scale});
      return Scaled(product);
    }
    const ScaledValue& scaled = x.has_value() ? *x : *y;
    return Scaled(
        {scaled::Mul(scaled, {in[x.has_value() ? 1 : 0].data, Number(1, scaled.scale.dtype())}).data, scaled.scale});
  }
  // Of which the data, by promotion, are 1.
  static bool IsPowerOfTwo(const Lane& lane) {
    int exponent = 0;
    return !lane.scaled() && lane.number.has_value() && std::frexp(*lane.number, &exponent) == 0.5 && exponent > -126;
  }
  static bool FitsAnyScale(const Lane& lane) {
    return lane.zero || (lane.number.has_value() && (*lane.number == 0 || std::isinf(*lane.number)));
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
    return Plain(ops::Cast(scaled::ToArray({in[0].data, *in[0].scale}, DType::kF32), op.dtype));
  }
  // Bits are of values: what they mean with a scale is not defined.
  absl::StatusOr<Lane> Rule(const BitcastOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
    return Plain(Bind(op, {Unscaled(in[0])}, eqn.where)[0]);
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
    return Scaled(scaled::IntegerPow({in[0].data, *in[0].scale}, op.exponent));
  }
  absl::StatusOr<Lane> Rule(const ReduceOp& op, const Equation& eqn, absl::Span<const Lane> in) const {
    const ScaledValue x{in[0].data, *in[0].scale};
    switch (op.kind) {
      case kernels::ReduceKind::kSum: return Scaled(scaled::ReduceSum(x, op.axes, op.keepdims, rules_));
      case kernels::ReduceKind::kProd: return Scaled(scaled::ReduceProd(x, op.axes, op.keepdims));
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
    return Scaled(scaled::Concatenate(v, op.axis));
  }
  absl::StatusOr<Lane> Rule(const DotGeneralOp& op, const Equation&, absl::Span<const Lane> in) const {
    return Dot(op.dims, op.out, in);
  }
  absl::StatusOr<Lane> Dot(const DotDims& dims, DType out, absl::Span<const Lane> in) const {
    if (rules_.compat.dot_has_one_contracting_axis && (dims.lhs_contracting.size() != 1 || !dims.lhs_batch.empty())) {
      return absl::InvalidArgumentError(absl::StrCat("scalify: dot_general with dims ", dims.ToString(),
                                                     "; the original takes one contracting axis and no batch axes"));
    }
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in));
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
    AQT_ASSIGN_OR_RETURN(const std::vector<ScaledValue> v, AllScaled(in.subspan(0, 2)));
    const CallSite site(eqn.where);
    if (const ConvDims* conv = std::get_if<ConvDims>(&*dims)) {
      return Scaled({ops::Conv(v[0].data, v[1].data, *conv), v[0].scale * v[1].scale});
    }
    if (std::holds_alternative<RaggedDims>(*dims)) {
      if (rules_.compat.missing_rules_are_errors) return NoRule(eqn);
      return Scaled({ops::RaggedDot(v[0].data, v[1].data, in[2].data), v[0].scale * v[1].scale});
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

absl::Status CheckInputs(const Program& program, const ScalifyOptions& options) {
  for (const auto& [slot, dtype] : options.scaled_inputs) {
    const auto is_it = [&, &own = slot](const Program::Port& port) { return port.slot == own; };
    const auto port = std::find_if(program.inputs.begin(), program.inputs.end(), is_it);
    if (port == program.inputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("scalify: the program has no input ", slot.ToString()));
    }
    const DType own = program.aval(port->var).dtype;
    if (!IsFloat(own) || !IsFloat(dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("scalify: ", slot.ToString(), " is ", ToString(own),
                                                     " with a scale of ", ToString(dtype), "; expected floats"));
    }
  }
  return absl::OkStatus();
}

// The program with each einsum of floats as a dot_general and what is around it.
absl::StatusOr<Program> WithoutEinsums(const Program& program) {
  return Rewrite(program, [](const Equation& eqn, absl::Span<const Value> in) {
    const std::optional<ContractionDims> dims = ContractionOf(eqn.op);
    const EinsumDims* einsum = dims.has_value() ? std::get_if<EinsumDims>(&*dims) : nullptr;
    if (einsum == nullptr || !IsFloat(in[0].dtype()) || in[0].dtype() != in[1].dtype()) return BindAgain(eqn, in);
    const absl::StatusOr<internal::EinsumLowering> lowering =
        internal::LowerEinsum(einsum->equation, in[0].aval(), in[1].aval());
    if (!lowering.ok()) return BindAgain(eqn, in);
    return std::vector<Value>{internal::EinsumValue(
        *lowering, in[0], in[1],
        [](const Value& lhs, const Value& rhs, const DotDims& own) { return ops::DotGeneral(lhs, rhs, own); })};
  });
}

}  // namespace

Slot ScaleSlot(const Slot& slot) { return {slot.kind, absl::StrCat(slot.path, ":scale")}; }

absl::StatusOr<Program> Scalify(const Program& original, const ScalifyOptions& options) {
  AQT_RETURN_IF_ERROR(CheckInputs(original, options));
  AQT_ASSIGN_OR_RETURN(const Program called, Expand(original, {"call"}));
  AQT_ASSIGN_OR_RETURN(const Program program, WithoutEinsums(called));
  std::vector<Input> inputs = InputsOf(program);
  std::vector<std::pair<size_t, size_t>> scales;  // position of the data, of the scale
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const auto it = options.scaled_inputs.find(program.inputs[i].slot);
    if (it == options.scaled_inputs.end()) continue;
    scales.emplace_back(i, inputs.size());
    inputs.push_back({ScaleSlot(program.inputs[i].slot), Aval{it->second, {}}});
  }
  const Transform transform(options.rules);
  std::vector<Lane> outputs;
  const auto run = [&](absl::Span<const Value> args) -> absl::Status {
    std::vector<Lane> lanes;
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      lanes.push_back(Plain(args[i]));
      lanes.back().scalar = args[i].shape().num_elements() == 1;
    }
    for (const auto& [data, scale] : scales) lanes[data].scale = args[scale];
    AQT_ASSIGN_OR_RETURN(outputs,
                         Interpret<Lane>(program, lanes, Constant, [&](const Equation& eqn, absl::Span<const Lane> in) {
                           const Provenance provenance(program.scope(eqn), eqn.where);
                           return transform(eqn, in);
                         }));
    return absl::OkStatus();
  };
  return Trace(
      [&](absl::Span<const Value> args) {
        std::vector<Value> values;
        if (const absl::Status status = run(args); !status.ok()) {
          internal::ReportError(status);  // kept only if nothing has failed before
          return values;
        }
        for (size_t i = 0; i < outputs.size(); ++i) {
          WriteSlot(program.outputs[i].slot, outputs[i].data);
        }
        for (size_t i = 0; i < outputs.size(); ++i) {
          if (outputs[i].scaled()) WriteSlot(ScaleSlot(program.outputs[i].slot), *outputs[i].scale);
        }
        return values;
      },
      inputs);
}

}  // namespace aqt
