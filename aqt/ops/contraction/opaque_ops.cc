#include "aqt/ops/contraction/opaque_ops.h"

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
#include "aqt/ops/contraction/opaque_kinds.h"
#include "aqt/ops/describe.h"
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

std::string NameOf(const OperandKeyOp&) { return "aqt_operand_key"; }
std::string TextOf(const OperandKeyOp& op) {
  return absl::StrCat(kRoleNames[static_cast<int>(op.role)], LayoutText(op.layout));
}
absl::StatusOr<Aval> Infer(const OperandKeyOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOneKey(in));
  return KeyAval();
}
absl::StatusOr<Array> Eval(const OperandKeyOp& op, Arrays in) {
  return ArrayOf(OperandKey(KeyOf(in[0]), op.role, op.layout));
}

std::string NameOf(const FoldInKeyOp&) { return "fold_in_key"; }
std::string TextOf(const FoldInKeyOp& op) { return absl::StrCat(op.data); }
absl::StatusOr<Aval> Infer(const FoldInKeyOp&, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOneKey(in));
  return KeyAval();
}
absl::StatusOr<Array> Eval(const FoldInKeyOp& op, Arrays in) { return ArrayOf(FoldIn(KeyOf(in[0]), op.data)); }

std::string NameOf(const GroupEndsOp&) { return "ragged_group_ends"; }
std::string TextOf(const GroupEndsOp& op) { return absl::StrCat("rows=", op.lhs.shape[0]); }
absl::StatusOr<Aval> Infer(const GroupEndsOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperands(1, in));
  const Aval want{DType::kS32, {op.rhs.shape[0]}};
  if (in[0] == want) return want;
  return absl::InvalidArgumentError(absl::StrCat("group_sizes is ", in[0].ToString(), ", expected ", want.ToString()));
}
absl::StatusOr<Array> Eval(const GroupEndsOp& op, Arrays in) {
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

std::string NameOf(const NoiseOp&) { return "aqt_noise"; }
std::string TextOf(const NoiseOp& op) {
  return absl::StrCat(Describe(op.noise), " for ", op.shape.ToString(), LayoutText(op.layout));
}
absl::StatusOr<Aval> Infer(const NoiseOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOneKey(in));
  AQT_ASSIGN_OR_RETURN(Shape out, NoiseShape(op.noise, op.shape));
  return Aval{DType::kF32, std::move(out)};
}
absl::StatusOr<Array> Eval(const NoiseOp& op, Arrays in) {
  return MakeNoise(op.noise, op.shape, KeyOf(in[0]), op.layout);
}

std::string NameOf(const QvalueOp&) { return "aqt_qvalue"; }
std::string TextOf(const QvalueOp& op) { return absl::StrCat(Describe(op.numerics), LayoutText(op.layout)); }
absl::StatusOr<Aval> Infer(const QvalueOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperandAndKey(NeedsKey(op.numerics), in));
  return Aval{QvalueDType(op.numerics, in[0].dtype), in[0].shape};
}
absl::StatusOr<Array> Eval(const QvalueOp& op, Arrays in) {
  return NumericsForward(op.numerics, in[0], ContextOf(in), op.layout);
}

bool RatesWithNoise(const ScaleOp& op) {
  return NeedsKey(op.quantizer.numerics) && std::holds_alternative<SnrSearch>(*op.quantizer.calibration);
}
std::string NameOf(const ScaleOp&) { return "aqt_scale"; }
std::string TextOf(const ScaleOp& op) {
  return absl::StrCat(CalibrationText(op.quantizer, op.axes, op.semantics),
                      RatesWithNoise(op) ? LayoutText(op.semantics.prng_layout) : "");
}
absl::StatusOr<Aval> Infer(const ScaleOp& op, Avals in) {
  AQT_RETURN_IF_ERROR(ExpectOperandAndKey(RatesWithNoise(op), in));
  return ScaleAval(op.quantizer, in[0], op.axes);
}
absl::StatusOr<Array> Eval(const ScaleOp& op, Arrays in) {
  AQT_ASSIGN_OR_RETURN(const QTensor calibrated,
                       Calibrate(op.quantizer, in[0], op.axes, op.semantics, nullptr, ContextOf(in)));
  return calibrated.scale[0];
}

bool Updates(const CalibrateOp& op) { return UpdatesState(op.quantizer, op.mode); }
std::string NameOf(const CalibrateOp&) { return "aqt_calibrate"; }
std::string TextOf(const CalibrateOp& op) {
  return absl::StrCat(CalibrationText(op.quantizer, op.axes, op.semantics), op.mode == QuantMode::kTrain ? "" : ", ",
                      op.mode == QuantMode::kTrain ? "" : ToString(op.mode));
}

std::string NameOf(const StaticScaleOp&) { return "aqt_static_scale"; }
std::string TextOf(const StaticScaleOp& op) {
  return absl::StrCat(CalibrationText(op.quantizer, op.axes, op.semantics), " for ", op.x.ToString());
}

// ---- the composites

// An operation without an expansion.
class OpaqueOp : public CompositeBase {
 public:
  explicit OpaqueOp(OpaqueKind kind) : kind_(std::move(kind)) {}

  const OpaqueKind& kind() const { return kind_; }

  std::string Name() const override {
    return std::visit([](const auto& op) { return NameOf(op); }, kind_);
  }
  std::string Attributes() const override {
    return std::visit([](const auto& op) { return TextOf(op); }, kind_);
  }
  bool has_expansion() const override { return false; }

 private:
  const OpaqueKind kind_;
};

// An opaque operation with one output and no state.
template <class Kind>
class StatelessOp : public OpaqueOp {
 public:
  explicit StatelessOp(Kind op) : OpaqueOp(std::move(op)) {}

  absl::StatusOr<std::vector<Aval>> Infer(Avals in) const override {
    AQT_ASSIGN_OR_RETURN(Aval out, internal::Infer(std::get<Kind>(kind()), in));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(Arrays in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Array out, internal::Eval(std::get<Kind>(kind()), in));
    return std::vector<Array>{std::move(out)};
  }
};

class CalibrateComposite : public OpaqueOp {
 public:
  CalibrateComposite(CalibrateOp op, CalibrationState initial)
      : OpaqueOp(std::move(op)), initial_(std::move(initial)) {}

  int num_outputs() const override { return 1 + (Updates(op()) ? static_cast<int>(initial_.size()) : 0); }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial = {std::nullopt};
    for (const std::string& name : StatisticNames(op().quantizer)) initial.push_back(initial_.at(name));
    return initial;
  }

  absl::StatusOr<std::vector<Aval>> Infer(Avals in) const override {
    AQT_RETURN_IF_ERROR(ExpectOperands(1 + initial_.size(), in));
    CalibrationState initial = initial_;
    if (in[0] != op().x) {
      AQT_ASSIGN_OR_RETURN(initial, InitialCalibrationState(op().quantizer, in[0], op().axes));
    }
    AQT_RETURN_IF_ERROR(ExpectStatistics(op().quantizer, initial, in.subspan(1)));
    AQT_ASSIGN_OR_RETURN(Aval scale, ScaleAval(op().quantizer, in[0], op().axes));
    std::vector<Aval> out = {std::move(scale)};
    if (Updates(op())) out.insert(out.end(), in.begin() + 1, in.end());
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(Arrays in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(const CalibratedTensor result,
                         CalibrateWithState(op().quantizer, StateOf(op().quantizer, in.subspan(1)), in[0], op().axes,
                                            {.quant_mode = op().mode}, op().semantics));
    std::vector<Array> out = {result.qtensor.scale[0]};
    if (!Updates(op())) return out;
    for (const std::string& name : StatisticNames(op().quantizer)) out.push_back(result.state.at(name));
    return out;
  }

 private:
  const CalibrateOp& op() const { return std::get<CalibrateOp>(kind()); }

  const CalibrationState initial_;
};

class StaticScaleComposite : public OpaqueOp {
 public:
  StaticScaleComposite(StaticScaleOp op, CalibrationState initial)
      : OpaqueOp(std::move(op)), initial_(std::move(initial)) {}

  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial;
    for (const std::string& name : StatisticNames(op().quantizer)) initial.push_back(initial_.at(name));
    return initial;
  }
  absl::StatusOr<std::vector<Aval>> Infer(Avals in) const override {
    AQT_RETURN_IF_ERROR(ExpectOperands(initial_.size(), in));
    AQT_RETURN_IF_ERROR(ExpectStatistics(op().quantizer, initial_, in));
    AQT_ASSIGN_OR_RETURN(Aval out, ScaleAval(op().quantizer, op().x, op().axes));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(Arrays in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Array out,
                         StaticScale(op().quantizer, StateOf(op().quantizer, in), op().x, op().axes, op().semantics));
    return std::vector<Array>{std::move(out)};
  }

 private:
  const StaticScaleOp& op() const { return std::get<StaticScaleOp>(kind()); }

  const CalibrationState initial_;
};

using Made = absl::StatusOr<std::shared_ptr<const Composite>>;

template <class Kind>
Made Make(Kind op) {
  return std::make_shared<StatelessOp<Kind>>(std::move(op));
}
Made Make(CalibrateOp op) {
  AQT_ASSIGN_OR_RETURN(CalibrationState initial, InitialCalibrationState(op.quantizer, op.x, op.axes));
  return std::make_shared<CalibrateComposite>(std::move(op), std::move(initial));
}
Made Make(StaticScaleOp op) {
  AQT_ASSIGN_OR_RETURN(CalibrationState initial, InitialCalibrationState(op.quantizer, op.x, op.axes));
  return std::make_shared<StaticScaleComposite>(std::move(op), std::move(initial));
}

// The outputs of the operation, or `num_outputs` poisoned values if there is no such operation.
std::vector<Value> Bind(OpaqueKind kind, absl::Span<const Value> operands, size_t num_outputs = 1) {
  const std::string name = std::visit([](const auto& op) { return NameOf(op); }, kind);
  const Made op = MakeOpaqueOp(std::move(kind));
  if (op.ok()) return aqt::Bind(CompositeOp{*op}, operands, std::source_location::current());
  return std::vector<Value>(num_outputs, Refuse(op.status(), name, operands, std::source_location::current()));
}

}  // namespace

Made MakeOpaqueOp(OpaqueKind kind) {
  return std::visit([](auto& op) { return Make(std::move(op)); }, kind);
}

const OpaqueKind* OpaqueKindOf(const Composite& op) {
  const auto* opaque = dynamic_cast<const OpaqueOp*>(&op);
  return opaque == nullptr ? nullptr : &opaque->kind();
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
  return Bind(OperandKeyOp{role, layout}, {key})[0];
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
  return Bind(GroupEndsOp{plan.lhs_aval(), plan.rhs_aval()}, {group_sizes})[0];
}

Value NoiseFor(const Noise& noise, const Shape& shape, const Value& key, PrngLayout layout) {
  return Bind(NoiseOp{noise, shape, layout}, {key})[0];
}

Value CalibratedScale(const Quantizer& quantizer, const Value& x, const Axes& axes, const Value& key,
                      const Semantics& semantics) {
  ScaleOp op{quantizer, axes, semantics};
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
      Bind(CalibrateOp{quantizer, axes, mode, semantics, x.aval()}, operands, updates ? operands.size() : 1);
  CalibratedValue result{out[0], {out.begin() + 1, out.end()}};
  if (!updates) result.statistics.assign(statistics.begin(), statistics.end());
  return result;
}

Value StaticScaleOf(const Quantizer& quantizer, const Aval& x, const Axes& axes, absl::Span<const Value> statistics,
                    const Semantics& semantics) {
  return Bind(StaticScaleOp{quantizer, x, axes, semantics}, statistics)[0];
}

Value NumericsQvalue(const Numerics& numerics, const Value& scaled, const Value& key, PrngLayout layout) {
  std::vector<Value> operands = {scaled};
  if (NeedsKey(numerics)) operands.push_back(key);
  return Bind(QvalueOp{numerics, layout}, operands)[0];
}

}  // namespace internal

namespace ops {

Value FoldInKey(const Value& key, uint32_t data) { return internal::Bind(internal::FoldInKeyOp{data}, {key})[0]; }

}  // namespace ops
}  // namespace aqt
