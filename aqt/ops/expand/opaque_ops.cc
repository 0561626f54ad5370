#include "aqt/ops/expand/opaque_ops.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/describe.h"
#include "aqt/ops/expand/opaque_fields.h"
#include "aqt/quant/contraction/engine/operand_keys.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/quantize_spec.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace internal {
namespace {

using Avals = absl::Span<const Aval>;
using Arrays = absl::Span<const Array>;

absl::Status ExpectOperands(size_t expected, Avals in) {
  if (in.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands, got ", in.size()));
}

absl::Status ExpectKey(const Aval& key) {
  if (key == KeyAval()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the key is ", key.ToString(), ", expected ", KeyAval().ToString()));
}

absl::Status ExpectOneKey(Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperands(1, in));
  return ExpectKey(in[0]);
}

// (x[, key])
absl::Status ExpectOperandAndKey(bool draws, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperands(draws ? 2 : 1, in));
  return draws ? ExpectKey(in[1]) : absl::OkStatus();
}

Key KeyOf(const Array& array) { return {array.View<uint32_t>()[0], array.View<uint32_t>()[1]}; }

Array ArrayOf(Key key) { return Array::Of<uint32_t>({key.hi, key.lo}, {2}); }

Context ContextOf(Arrays in) { return in.size() > 1 ? Context{.key = KeyOf(in[1])} : Context(); }

absl::string_view LayoutText(PrngLayout layout) {
  return layout == PrngLayout::kPartitionable ? "" : ", original_layout";
}

absl::StatusOr<Aval> ScaleAval(const Quantizer& quantizer, const Aval& x, const Axes& axes) {
  AQT_ASSIGN_OR_RETURN(const QuantizeSpec spec, MakeQuantizeSpec(quantizer, x, axes));
  return Aval{spec.scale_dtype, spec.scale_shape};
}

std::string CalibrationText(const Quantizer& quantizer, const Axes& axes, const Semantics& semantics) {
  return absl::StrCat(DescribeQuantizer(quantizer), " axes=[", absl::StrJoin(axes, ","), "]",
                      ArithmeticText(semantics));
}

CalibrationState StateOf(const Quantizer& quantizer, Arrays statistics) {
  CalibrationState state;
  const std::vector<std::string> names = StatisticNames(quantizer);
  for (size_t i = 0; i < names.size(); ++i) state.emplace(names[i], statistics[i]);
  return state;
}

absl::Status ExpectStatistics(const Quantizer& quantizer, const CalibrationState& initial, Avals in) {
  const std::vector<std::string> names = StatisticNames(quantizer);
  for (size_t i = 0; i < names.size(); ++i) {
    const Aval& want = initial.at(names[i]).aval();
    if (in[i] == want) continue;
    return absl::InvalidArgumentError(absl::StrCat(names[i], " is ", in[i].ToString(), ", expected ", want.ToString()));
  }
  return absl::OkStatus();
}

constexpr const char* kRoleNames[] = {"fwd.lhs",  "fwd.rhs",  "dlhs.lhs", "dlhs.rhs",
                                      "drhs.lhs", "drhs.rhs", "lhs",      "rhs"};

// ---- each operation: its name, its attributes, what it infers and computes

std::string NameOf(const OperandKeyFields&) { return "aqt_operand_key"; }
std::string TextOf(const OperandKeyFields& op) {
  return absl::StrCat(kRoleNames[static_cast<int>(op.role)], LayoutText(op.layout));
}
absl::StatusOr<Aval> Infer(const OperandKeyFields&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOneKey(in));
  return KeyAval();
}
absl::StatusOr<Array> Eval(const OperandKeyFields& op, Arrays in) {
  return ArrayOf(OperandKey(KeyOf(in[0]), op.role, op.layout));
}

std::string NameOf(const FoldInKeyFields&) { return "fold_in_key"; }
std::string TextOf(const FoldInKeyFields& op) { return absl::StrCat(op.data); }
absl::StatusOr<Aval> Infer(const FoldInKeyFields&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOneKey(in));
  return KeyAval();
}
absl::StatusOr<Array> Eval(const FoldInKeyFields& op, Arrays in) { return ArrayOf(FoldIn(KeyOf(in[0]), op.data)); }

std::string NameOf(const GroupEndsFields&) { return "ragged_group_ends"; }
std::string TextOf(const GroupEndsFields& op) { return absl::StrCat("rows=", op.lhs.shape[0]); }
absl::StatusOr<Aval> Infer(const GroupEndsFields& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperands(1, in));
  const Aval want{DType::kS32, {op.rhs.shape[0]}};
  if (in[0] == want) return want;
  return absl::InvalidArgumentError(absl::StrCat("group_sizes is ", in[0].ToString(), ", expected ", want.ToString()));
}
absl::StatusOr<Array> Eval(const GroupEndsFields& op, Arrays in) {
  const std::vector<int64_t> sizes = GroupSizesOf(in[0]);
  AQT_RETURN_IF_ERROR(CheckGroupSizes(op.lhs, op.rhs, sizes));
  ArrayBuilder ends = ArrayBuilder::ForOverwrite(in[0].aval());
  int64_t end = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    end = std::min(end + sizes[i], op.lhs.shape[0]);
    ends.Mutable<int32_t>()[i] = static_cast<int32_t>(end);
  }
  return std::move(ends).Build();
}

std::string NameOf(const NoiseFields&) { return "aqt_noise"; }
std::string TextOf(const NoiseFields& op) {
  return absl::StrCat(Describe(op.noise), " for ", op.shape.ToString(), LayoutText(op.layout));
}
absl::StatusOr<Aval> Infer(const NoiseFields& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOneKey(in));
  AQT_ASSIGN_OR_RETURN(Shape out, NoiseShape(op.noise, op.shape));
  return Aval{DType::kF32, std::move(out)};
}
absl::StatusOr<Array> Eval(const NoiseFields& op, Arrays in) {
  return MakeNoise(op.noise, op.shape, KeyOf(in[0]), op.layout);
}

std::string NameOf(const QvalueFields&) { return "aqt_qvalue"; }
std::string TextOf(const QvalueFields& op) { return absl::StrCat(Describe(op.numerics), LayoutText(op.layout)); }
absl::StatusOr<Aval> Infer(const QvalueFields& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperandAndKey(NeedsKey(op.numerics), in));
  return Aval{QvalueDType(op.numerics, in[0].dtype), in[0].shape};
}
absl::StatusOr<Array> Eval(const QvalueFields& op, Arrays in) {
  return NumericsForward(op.numerics, in[0], ContextOf(in), op.layout);
}

bool RatesWithNoise(const ScaleFields& op) {
  return NeedsKey(op.quantizer.numerics) && std::holds_alternative<SnrSearch>(*op.quantizer.calibration);
}
std::string NameOf(const ScaleFields&) { return "aqt_scale"; }
std::string TextOf(const ScaleFields& op) {
  return absl::StrCat(CalibrationText(op.quantizer, op.axes, op.semantics),
                      RatesWithNoise(op) ? LayoutText(op.semantics.prng_layout) : "");
}
absl::StatusOr<Aval> Infer(const ScaleFields& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperandAndKey(RatesWithNoise(op), in));
  return ScaleAval(op.quantizer, in[0], op.axes);
}
absl::StatusOr<Array> Eval(const ScaleFields& op, Arrays in) {
  AQT_ASSIGN_OR_RETURN(const QTensor calibrated,
                       Calibrate(op.quantizer, in[0], op.axes, op.semantics, nullptr, ContextOf(in)));
  return calibrated.scale[0];
}

bool Updates(const CalibrateFields& op) { return UpdatesState(op.quantizer, op.mode); }
std::string NameOf(const CalibrateFields&) { return "aqt_calibrate"; }
std::string TextOf(const CalibrateFields& op) {
  return absl::StrCat(CalibrationText(op.quantizer, op.axes, op.semantics), op.mode == QuantMode::kTrain ? "" : ", ",
                      op.mode == QuantMode::kTrain ? "" : ToString(op.mode));
}

std::string NameOf(const StaticScaleFields&) { return "aqt_static_scale"; }
std::string TextOf(const StaticScaleFields& op) {
  return absl::StrCat(CalibrationText(op.quantizer, op.axes, op.semantics), " for ", op.x.ToString());
}

// ---- the composites

// An operation without an expansion.
template <class F>
class OpaqueOp : public CompositeOf<F> {
 public:
  using CompositeOf<F>::CompositeOf;

  std::string Name() const override { return NameOf(this->fields_); }
  std::string Attributes() const override { return TextOf(this->fields_); }
  bool has_expansion() const override { return false; }
};

// An opaque operation with one output and no state.
template <class F>
class StatelessOp : public OpaqueOp<F> {
 public:
  using OpaqueOp<F>::OpaqueOp;

  absl::StatusOr<std::vector<Aval>> Infer(Avals in) const override {
    AQT_ASSIGN_OR_RETURN(Aval out, internal::Infer(this->fields_, in));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(Arrays in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Array out, internal::Eval(this->fields_, in));
    return std::vector<Array>{std::move(out)};
  }
};

class CalibrateOp : public OpaqueOp<CalibrateFields> {
 public:
  CalibrateOp(CalibrateFields fields, CalibrationState initial)
      : OpaqueOp(std::move(fields)), initial_(std::move(initial)) {}

  int num_outputs() const override { return 1 + (Updates(fields_) ? static_cast<int>(initial_.size()) : 0); }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial = {std::nullopt};
    for (const std::string& name : StatisticNames(fields_.quantizer)) initial.push_back(initial_.at(name));
    return initial;
  }

  absl::StatusOr<std::vector<Aval>> Infer(Avals in) const override {
    AQT_RETURN_IF_ERROR(ExpectOperands(1 + initial_.size(), in));
    CalibrationState initial = initial_;
    if (in[0] != fields_.x) {
      AQT_ASSIGN_OR_RETURN(initial, InitialCalibrationState(fields_.quantizer, in[0], fields_.axes));
    }
    AQT_RETURN_IF_ERROR(ExpectStatistics(fields_.quantizer, initial, in.subspan(1)));
    AQT_ASSIGN_OR_RETURN(Aval scale, ScaleAval(fields_.quantizer, in[0], fields_.axes));
    std::vector<Aval> out = {std::move(scale)};
    if (Updates(fields_)) out.insert(out.end(), in.begin() + 1, in.end());
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(Arrays in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(const CalibratedTensor result,
                         CalibrateWithState(fields_.quantizer, StateOf(fields_.quantizer, in.subspan(1)), in[0],
                                            fields_.axes, {.quant_mode = fields_.mode}, fields_.semantics));
    std::vector<Array> out = {result.qtensor.scale[0]};
    if (!Updates(fields_)) return out;
    for (const std::string& name : StatisticNames(fields_.quantizer)) out.push_back(result.state.at(name));
    return out;
  }

 private:
  const CalibrationState initial_;
};

class StaticScaleOp : public OpaqueOp<StaticScaleFields> {
 public:
  StaticScaleOp(StaticScaleFields fields, CalibrationState initial)
      : OpaqueOp(std::move(fields)), initial_(std::move(initial)) {}

  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial;
    for (const std::string& name : StatisticNames(fields_.quantizer)) initial.push_back(initial_.at(name));
    return initial;
  }
  absl::StatusOr<std::vector<Aval>> Infer(Avals in) const override {
    AQT_RETURN_IF_ERROR(ExpectOperands(initial_.size(), in));
    AQT_RETURN_IF_ERROR(ExpectStatistics(fields_.quantizer, initial_, in));
    AQT_ASSIGN_OR_RETURN(Aval out, ScaleAval(fields_.quantizer, fields_.x, fields_.axes));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(Arrays in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Array out, StaticScale(fields_.quantizer, StateOf(fields_.quantizer, in), fields_.x,
                                                fields_.axes, fields_.semantics));
    return std::vector<Array>{std::move(out)};
  }

 private:
  const CalibrationState initial_;
};

using Made = absl::StatusOr<std::shared_ptr<const Composite>>;

template <class F>
Made MakeStateless(F fields) {
  return std::make_shared<StatelessOp<F>>(std::move(fields));
}

// The outputs of the operation, or `num_outputs` poisoned values if there is no such operation.
template <class F>
std::vector<Value> Bind(F fields, absl::Span<const Value> operands, size_t num_outputs = 1) {
  const std::string name = NameOf(fields);
  const Made op = MakeComposite(std::move(fields));
  if (op.ok()) return aqt::Bind(CompositeOp{*op}, operands, std::source_location::current());
  return std::vector<Value>(num_outputs, Refuse(op.status(), name, operands, std::source_location::current()));
}

}  // namespace

Made MakeComposite(OperandKeyFields fields) { return MakeStateless(fields); }
Made MakeComposite(FoldInKeyFields fields) { return MakeStateless(fields); }
Made MakeComposite(GroupEndsFields fields) {
  if (fields.lhs.shape.rank() == 2 && fields.rhs.shape.rank() == 3) return MakeStateless(std::move(fields));
  return absl::InvalidArgumentError(absl::StrCat(fields.lhs.ToString(), " and ", fields.rhs.ToString(),
                                                 " are not the operands of a ragged contraction"));
}
Made MakeComposite(NoiseFields fields) { return MakeStateless(std::move(fields)); }
Made MakeComposite(QvalueFields fields) { return MakeStateless(std::move(fields)); }
Made MakeComposite(ScaleFields fields) { return MakeStateless(std::move(fields)); }
Made MakeComposite(CalibrateFields fields) {
  AQT_ASSIGN_OR_RETURN(CalibrationState initial, InitialCalibrationState(fields.quantizer, fields.x, fields.axes));
  return std::make_shared<CalibrateOp>(std::move(fields), std::move(initial));
}
Made MakeComposite(StaticScaleFields fields) {
  AQT_ASSIGN_OR_RETURN(CalibrationState initial, InitialCalibrationState(fields.quantizer, fields.x, fields.axes));
  return std::make_shared<StaticScaleOp>(std::move(fields), std::move(initial));
}

std::string ArithmeticText(const Semantics& semantics) {
  std::string text = semantics.arithmetic == Arithmetic::kIeee ? ", ieee" : "";
  const char* separator = ", compat=";
  for (const CompatField& field : CompatFields()) {
    if (!(semantics.compat.*field.member)) continue;
    absl::StrAppend(&text, separator, field.name);
    separator = "+";
  }
  return text;
}

Value OperandKey(const Value& key, KeyRole role, PrngLayout layout) {
  return Bind(OperandKeyFields{role, layout}, {key})[0];
}

// Roles are ordered by pass, then by side. In a convolution only one pass draws random numbers.
Key OperandKey(Key key, KeyRole role, PrngLayout layout) {
  const int pass = static_cast<int>(role) / 2, side = static_cast<int>(role) % 2;
  if (pass == kNumPasses) return SplitKey(key, 2, side, layout);
  return SplitOperandKey(key, pass, side == 0 ? Side::kLhs : Side::kRhs, layout);
}

std::vector<int64_t> GroupSizesOf(const Array& group_sizes) {
  const absl::Span<const int32_t> sizes = group_sizes.View<int32_t>();
  return {sizes.begin(), sizes.end()};
}

Value GroupEnds(const RaggedDotPlan& plan, const Value& group_sizes) {
  return Bind(GroupEndsFields{plan.lhs_aval(), plan.rhs_aval()}, {group_sizes})[0];
}

Value NoiseFor(const Noise& noise, const Shape& shape, const Value& key, PrngLayout layout) {
  return Bind(NoiseFields{noise, shape, layout}, {key})[0];
}

Value CalibratedScale(const Quantizer& quantizer, const Value& x, const Axes& axes, const Value& key,
                      const Semantics& semantics) {
  ScaleFields op{quantizer, axes, semantics};
  std::vector<Value> operands = {x};
  if (RatesWithNoise(op)) operands.push_back(key);
  return Bind(std::move(op), operands)[0];
}

CalibratedValue CalibratedWithState(const Quantizer& quantizer, const Value& x, const Axes& axes,
                                    absl::Span<const Value> statistics, QuantMode mode, const Semantics& semantics) {
  const bool updates = UpdatesState(quantizer, mode);
  std::vector<Value> operands = {x};
  operands.insert(operands.end(), statistics.begin(), statistics.end());
  const std::vector<Value> out =
      Bind(CalibrateFields{quantizer, axes, mode, semantics, x.aval()}, operands, updates ? operands.size() : 1);
  CalibratedValue result{out[0], {out.begin() + 1, out.end()}};
  if (!updates) result.statistics.assign(statistics.begin(), statistics.end());
  return result;
}

Value StaticScaleOf(const Quantizer& quantizer, const Aval& x, const Axes& axes, absl::Span<const Value> statistics,
                    const Semantics& semantics) {
  return Bind(StaticScaleFields{quantizer, x, axes, semantics}, statistics)[0];
}

Value NumericsQvalue(const Numerics& numerics, const Value& scaled, const Value& key, PrngLayout layout) {
  std::vector<Value> operands = {scaled};
  if (NeedsKey(numerics)) operands.push_back(key);
  return Bind(QvalueFields{numerics, layout}, operands)[0];
}

}  // namespace internal

namespace ops {

Value FoldInKey(const Value& key, uint32_t data) { return internal::Bind(internal::FoldInKeyFields{data}, {key})[0]; }

}  // namespace ops
}  // namespace aqt
