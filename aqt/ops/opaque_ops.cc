#include "aqt/ops/opaque_ops.h"

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <source_location>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/describe.h"
#include "aqt/quant/contraction/operand_keys.h"
#include "aqt/quant/contraction/pass.h"
#include "aqt/quant/numerics/numerics.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/quantize_spec.h"
#include "aqt/quant/tensor/quantizer.h"

namespace aqt {
namespace internal {
namespace {

// An operation with one output, a function on arrays; `infer` gives the output's aval.
class OpaqueOp : public CompositeBase {
 public:
  using InferFn = std::function<absl::StatusOr<Aval>(absl::Span<const Aval>)>;
  using EvalFn = std::function<absl::StatusOr<Array>(absl::Span<const Array>)>;

  OpaqueOp(std::string name, std::string attributes, InferFn infer, EvalFn eval)
      : name_(std::move(name)), attributes_(std::move(attributes)), infer_(std::move(infer)), eval_(std::move(eval)) {}

  std::string Name() const override { return name_; }
  std::string Attributes() const override { return attributes_; }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> operands) const override {
    AQT_ASSIGN_OR_RETURN(Aval out, infer_(operands));
    return std::vector<Aval>{std::move(out)};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> operands, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(Array out, eval_(operands));
    return std::vector<Array>{std::move(out)};
  }

 private:
  const std::string name_, attributes_;
  const InferFn infer_;
  const EvalFn eval_;
};

Value BindOpaque(std::string name, std::string attributes, absl::Span<const Value> operands, OpaqueOp::InferFn infer,
                 OpaqueOp::EvalFn eval) {
  const CompositeOp op{
      std::make_shared<OpaqueOp>(std::move(name), std::move(attributes), std::move(infer), std::move(eval))};
  return Bind(op, operands, std::source_location::current())[0];
}

absl::Status ExpectKey(const Aval& key) {
  if (key == KeyAval()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the key is ", key.ToString(), ", expected ", KeyAval().ToString()));
}

absl::StatusOr<Aval> InferKey(absl::Span<const Aval> operands) {
  AQT_RETURN_IF_ERROR(ExpectKey(operands[0]));
  return KeyAval();
}

Key KeyOf(const Array& array) { return {array.View<uint32_t>()[0], array.View<uint32_t>()[1]}; }

Array ArrayOf(Key key) { return Array::Of<uint32_t>({key.hi, key.lo}, {2}); }

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

// (x, statistics) -> scale, updated statistics where the mode updates them.
class CalibrateOp : public CompositeBase {
 public:
  CalibrateOp(Quantizer quantizer, Axes axes, QuantMode mode, const Semantics& semantics, const Aval& x)
      : quantizer_(std::move(quantizer)),
        axes_(std::move(axes)),
        mode_(mode),
        semantics_(semantics),
        names_(StatisticNames(quantizer_)),
        initial_(InitialCalibrationState(quantizer_, x, axes_).value_or(CalibrationState())) {}  // Infer refuses that

  std::string Name() const override { return "aqt_calibrate"; }
  std::string Attributes() const override {
    return absl::StrCat(CalibrationText(quantizer_, axes_, semantics_), mode_ == QuantMode::kTrain ? "" : ", ",
                        mode_ == QuantMode::kTrain ? "" : ToString(mode_));
  }
  int num_outputs() const override { return 1 + (Updates() ? static_cast<int>(names_.size()) : 0); }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    std::vector<std::optional<Array>> initial = {std::nullopt};
    for (const std::string& name : names_) initial.push_back(initial_.at(name));
    return initial;
  }
  bool has_expansion() const override { return false; }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    AQT_ASSIGN_OR_RETURN(const CalibrationState state, InitialCalibrationState(quantizer_, in[0], axes_));
    AQT_ASSIGN_OR_RETURN(Aval scale, ScaleAval(quantizer_, in[0], axes_));
    std::vector<Aval> out = {std::move(scale)};
    for (size_t i = 0; i < names_.size(); ++i) {
      const Aval& want = state.at(names_[i]).aval();
      if (in[1 + i] != want) {
        return absl::InvalidArgumentError(
            absl::StrCat(names_[i], " is ", in[1 + i].ToString(), ", expected ", want.ToString()));
      }
      if (Updates()) out.push_back(want);
    }
    return out;
  }

  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    CalibrationState state;
    for (size_t i = 0; i < names_.size(); ++i) state.emplace(names_[i], in[1 + i]);
    AQT_ASSIGN_OR_RETURN(const CalibratedTensor result,
                         CalibrateWithState(quantizer_, state, in[0], axes_, {.quant_mode = mode_}, semantics_));
    std::vector<Array> out = {result.qtensor.scale[0]};
    for (size_t i = 0; Updates() && i < names_.size(); ++i) out.push_back(result.state.at(names_[i]));
    return out;
  }

 private:
  bool Updates() const { return UpdatesState(quantizer_, mode_); }

  const Quantizer quantizer_;
  const Axes axes_;
  const QuantMode mode_;
  const Semantics semantics_;
  const std::vector<std::string> names_;
  const CalibrationState initial_;
};

// (statistics) -> the scale that they hold for tensors like x.
class StaticScaleOp : public OpaqueOp {
 public:
  StaticScaleOp(const Quantizer& quantizer, const Aval& x, const Axes& axes, const Semantics& semantics)
      : OpaqueOp(
            "aqt_static_scale", absl::StrCat(CalibrationText(quantizer, axes, semantics), " for ", x.ToString()),
            [quantizer, x, axes](absl::Span<const Aval>) { return ScaleAval(quantizer, x, axes); },
            [quantizer, x, axes, semantics](absl::Span<const Array> in) {
              CalibrationState state;
              const std::vector<std::string> names = StatisticNames(quantizer);
              for (size_t i = 0; i < names.size(); ++i) state.emplace(names[i], in[i]);
              return StaticScale(quantizer, state, x, axes, semantics);
            }) {
    const CalibrationState initial = InitialCalibrationState(quantizer, x, axes).value_or(CalibrationState());
    for (const std::string& name : StatisticNames(quantizer))
      initial_.push_back(initial.at(name));  // the plan has checked
  }

  std::vector<std::optional<Array>> InitialStatistics() const override { return initial_; }

 private:
  std::vector<std::optional<Array>> initial_;
};

constexpr const char* kRoleNames[] = {"fwd.lhs",  "fwd.rhs",  "dlhs.lhs", "dlhs.rhs",
                                      "drhs.lhs", "drhs.rhs", "lhs",      "rhs"};

}  // namespace

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
  return BindOpaque("aqt_operand_key", absl::StrCat(kRoleNames[static_cast<int>(role)], LayoutText(layout)), {key},
                    InferKey, [role, layout](absl::Span<const Array> in) -> absl::StatusOr<Array> {
                      return ArrayOf(OperandKey(KeyOf(in[0]), role, layout));
                    });
}

// Roles are in the order of passes, and of sides in each; a convolution has one pass that draws.
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
  return BindOpaque(
      "ragged_group_ends", absl::StrCat("rows=", plan.lhs_aval().shape[0]), {group_sizes},
      [](absl::Span<const Aval> in) -> absl::StatusOr<Aval> { return in[0]; },
      [plan](absl::Span<const Array> in) -> absl::StatusOr<Array> {
        const std::vector<int64_t> sizes = GroupSizesOf(in[0]);
        AQT_RETURN_IF_ERROR(plan.CheckGroupSizes(sizes));
        ArrayBuilder ends = ArrayBuilder::ForOverwrite(in[0].aval());
        std::partial_sum(sizes.begin(), sizes.end(), ends.Mutable<int32_t>().begin());
        return std::move(ends).Build();
      });
}

Value NoiseFor(const Noise& noise, const Shape& shape, const Value& key, PrngLayout layout) {
  return BindOpaque(
      "aqt_noise", absl::StrCat(Describe(noise), " for ", shape.ToString(), LayoutText(layout)), {key},
      [noise, shape](absl::Span<const Aval> in) -> absl::StatusOr<Aval> {
        AQT_RETURN_IF_ERROR(ExpectKey(in[0]));
        AQT_ASSIGN_OR_RETURN(Shape out, NoiseShape(noise, shape));
        return Aval{DType::kF32, std::move(out)};
      },
      [noise, shape, layout](absl::Span<const Array> in) { return MakeNoise(noise, shape, KeyOf(in[0]), layout); });
}

Value CalibratedScale(const Quantizer& quantizer, const Value& x, const Axes& axes, const Value& key,
                      const Semantics& semantics) {
  const bool draws = NeedsKey(quantizer.numerics) && std::holds_alternative<SnrSearch>(*quantizer.calibration);
  std::vector<Value> operands = {x};
  if (draws) operands.push_back(key);
  return BindOpaque(
      "aqt_scale",
      absl::StrCat(CalibrationText(quantizer, axes, semantics), draws ? LayoutText(semantics.prng_layout) : ""),
      operands,
      [quantizer, axes](absl::Span<const Aval> in) -> absl::StatusOr<Aval> {
        if (in.size() > 1) AQT_RETURN_IF_ERROR(ExpectKey(in[1]));
        return ScaleAval(quantizer, in[0], axes);
      },
      [quantizer, axes, semantics](absl::Span<const Array> in) -> absl::StatusOr<Array> {
        Context context;
        if (in.size() > 1) context.key = KeyOf(in[1]);
        AQT_ASSIGN_OR_RETURN(const QTensor calibrated, Calibrate(quantizer, in[0], axes, semantics, nullptr, context));
        return calibrated.scale[0];
      });
}

CalibratedValue CalibratedWithState(const Quantizer& quantizer, const Value& x, const Axes& axes,
                                    absl::Span<const Value> statistics, QuantMode mode, const Semantics& semantics) {
  const auto op = std::make_shared<CalibrateOp>(quantizer, axes, mode, semantics, x.aval());
  std::vector<Value> operands = {x};
  operands.insert(operands.end(), statistics.begin(), statistics.end());
  const std::vector<Value> out = Bind(CompositeOp{op}, operands, std::source_location::current());
  CalibratedValue result{out[0], {out.begin() + 1, out.end()}};
  if (result.statistics.empty()) result.statistics.assign(statistics.begin(), statistics.end());
  return result;
}

Value StaticScaleOf(const Quantizer& quantizer, const Aval& x, const Axes& axes, absl::Span<const Value> statistics,
                    const Semantics& semantics) {
  const auto op = std::make_shared<StaticScaleOp>(quantizer, x, axes, semantics);
  return Bind(CompositeOp{op}, statistics, std::source_location::current())[0];
}

Value NumericsQvalue(const Numerics& numerics, const Value& scaled, const Value& key, PrngLayout layout) {
  const bool draws = NeedsKey(numerics);
  std::vector<Value> operands = {scaled};
  if (draws) operands.push_back(key);
  return BindOpaque(
      "aqt_qvalue", absl::StrCat(Describe(numerics), LayoutText(layout)), operands,
      [numerics](absl::Span<const Aval> in) -> absl::StatusOr<Aval> {
        if (in.size() > 1) AQT_RETURN_IF_ERROR(ExpectKey(in[1]));
        return Aval{QvalueDType(numerics, in[0].dtype), in[0].shape};
      },
      [numerics, layout](absl::Span<const Array> in) {
        Context context;
        if (in.size() > 1) context.key = KeyOf(in[1]);
        return NumericsForward(numerics, in[0], context, layout);
      });
}

}  // namespace internal

namespace ops {

Value FoldInKey(const Value& key, uint32_t data) {
  return internal::BindOpaque("fold_in_key", absl::StrCat(data), {key}, internal::InferKey,
                              [data](absl::Span<const Array> in) -> absl::StatusOr<Array> {
                                return internal::ArrayOf(FoldIn(internal::KeyOf(in[0]), data));
                              });
}

}  // namespace ops
}  // namespace aqt
