#include "aqt/ops/fp8/fp8_dot.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/fp8/fp8_arrays.h"
#include "aqt/ops/fp8/fp8_dot_fields.h"

namespace aqt {
namespace {

using internal::Fp8BackwardFields;
using internal::Fp8Codes;
using internal::Fp8ForwardDims;
using internal::Fp8ForwardFields;
using internal::Fp8StateArrays;
using internal::Fp8StateAvals;
using internal::MultiplyFp8;
using internal::QuantizeToFp8;
using internal::UpdatedFp8State;

// dy k^T, and x^T dy.
const DotDims& InputGradientDims() {
  static const DotDims& dims = *new DotDims{.lhs_contracting = {1}, .rhs_contracting = {1}};
  return dims;
}
const DotDims& KernelGradientDims() {
  static const DotDims& dims = *new DotDims{.lhs_contracting = {0}, .rhs_contracting = {0}};
  return dims;
}

constexpr Fp8Tensor kTensors[] = {Fp8Tensor::kInput, Fp8Tensor::kKernel, Fp8Tensor::kOutputGrad};

absl::string_view NameOf(Fp8Tensor tensor) {
  switch (tensor) {
    case Fp8Tensor::kInput: return "input";
    case Fp8Tensor::kKernel: return "kernel";
    case Fp8Tensor::kOutputGrad: return "output_grad";
  }
  return "";
}

std::string ToString(const Fp8DotOptions& options) {
  std::string text;
  if (options.compute_dtype.has_value()) text = absl::StrCat(", compute=", ToString(*options.compute_dtype));
  absl::StrAppend(&text, internal::Fp8CompatText(options.compat));
  return text.empty() ? text : text.substr(2);
}

Fp8ScaleRule RuleOf(const Fp8DotOptions& options, Fp8Tensor tensor) {
  return {.dtype = tensor == Fp8Tensor::kOutputGrad ? DType::kE5M2 : DType::kE4M3FN, .compat = options.compat};
}

void WriteState(const Fp8DotOptions& options, Fp8Tensor tensor, const Value& scale, const Value& history) {
  const Fp8Slots slots = Fp8SlotsOf(options.name, tensor);
  WriteSlot(slots.scale, scale);
  WriteSlot(slots.amax_history, history);
}

// The statistics before the first step for an operation with these operands: pairs of a scale and a history, from
// operand `first` on.
std::vector<std::optional<Array>> Initial(size_t operands, size_t first, absl::Span<const Fp8StateAvals> state) {
  std::vector<std::optional<Array>> initial(operands);
  for (const Fp8StateAvals& own : state) {
    initial[first++] = Array::FromSpan<float>({1.0f}, own.scale.shape);
    initial[first++] = Array::Zeros(own.amax_history.dtype, own.amax_history.shape);
  }
  return initial;
}

absl::Status CheckState(Fp8Tensor tensor, const Fp8StateAvals& state) {
  AQT_RETURN_IF_ERROR(internal::CheckFp8Scale(absl::StrCat(NameOf(tensor), "_scale"), state.scale));
  return internal::CheckFp8History(absl::StrCat(NameOf(tensor), "_amax_history"), state.amax_history);
}

// OK if the operands have the avals of the state with which the operation was made.
absl::Status ExpectState(Fp8Tensor tensor, const Fp8StateAvals& made_of, const Aval& scale, const Aval& amax_history) {
  AQT_RETURN_IF_ERROR(CheckState(tensor, {scale, amax_history}));
  if (scale == made_of.scale && amax_history == made_of.amax_history) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(NameOf(tensor), " has the state ", scale.ToString(), " and ",
                                                 amax_history.ToString(), ", expected ", made_of.scale.ToString(),
                                                 " and ", made_of.amax_history.ToString()));
}

// ---- the gradient

// (dy, codes of x, codes of k, scale of x, scale of k, scale of dy, history of dy)
//   -> dx, dk, the new scale of dy, its new history.
class BackwardOp : public CompositeOf<Fp8BackwardFields> {
 public:
  enum Operand { kDy, kX, kK, kXScale, kKScale, kScale, kHistory, kCount };

  using CompositeOf::CompositeOf;

  std::string Name() const override { return "fp8_dot_bwd"; }
  std::string Attributes() const override { return ToString(fields_.options); }
  int num_outputs() const override { return 4; }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    return Initial(kCount, kScale, {fields_.output_grad});
  }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != kCount) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", int{kCount}, " operands, got ", in.size()));
    }
    AQT_RETURN_IF_ERROR(
        internal::CheckFp8Computes("the gradient of the output", in[kDy], fields_.options.compute_dtype));
    for (const Operand scale : {kXScale, kKScale}) {
      AQT_RETURN_IF_ERROR(internal::CheckFp8Scale("the scale of an operand", in[scale]));
    }
    AQT_RETURN_IF_ERROR(ExpectState(Fp8Tensor::kOutputGrad, fields_.output_grad, in[kScale], in[kHistory]));
    const Shape &dy = in[kDy].shape, &x = in[kX].shape, &k = in[kK].shape;
    const bool fit = in[kX].dtype == DType::kE4M3FN && in[kK].dtype == DType::kE4M3FN && x.rank() == 2 &&
                     k.rank() == 2 && x[1] == k[0] && dy == Shape({x[0], k[1]});
    if (!fit) {
      return absl::InvalidArgumentError(absl::StrCat("the gradient ", in[kDy].ToString(), " is not that of ",
                                                     in[kX].ToString(), " times ", in[kK].ToString()));
    }
    return std::vector<Aval>{{in[kDy].dtype, x}, {in[kDy].dtype, k}, in[kScale], in[kHistory]};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const DType dtype = in[kDy].dtype();
    const Value codes = ops::Fp8Quantize(in[kDy], in[kScale], DType::kE5M2, fields_.options.compute_dtype);
    const Fp8TensorState next =
        ops::Fp8Update(in[kDy], {in[kScale], in[kHistory]}, RuleOf(fields_.options, Fp8Tensor::kOutputGrad));
    return {MultiplyFp8(codes, in[kScale], in[kK], in[kKScale], InputGradientDims(), dtype),
            MultiplyFp8(in[kX], in[kXScale], codes, in[kScale], KernelGradientDims(), dtype), next.scale,
            next.amax_history};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    const DType dtype = in[kDy].dtype();
    AQT_ASSIGN_OR_RETURN(const Fp8Codes dy,
                         QuantizeToFp8(in[kDy], in[kScale], DType::kE5M2, fields_.options.compute_dtype,
                                       /*with_amax=*/needed[2] || needed[3]));
    std::vector<Array> out(4);
    if (needed[0]) {
      AQT_ASSIGN_OR_RETURN(out[0], MultiplyFp8(dy.codes, in[kScale], in[kK], in[kKScale], InputGradientDims(), dtype));
    }
    if (needed[1]) {
      AQT_ASSIGN_OR_RETURN(out[1], MultiplyFp8(in[kX], in[kXScale], dy.codes, in[kScale], KernelGradientDims(), dtype));
    }
    Fp8StateArrays next =
        UpdatedFp8State(dy.amax, in[kScale], in[kHistory], RuleOf(fields_.options, Fp8Tensor::kOutputGrad));
    out[2] = std::move(next.scale);
    out[3] = std::move(next.amax_history);
    return out;
  }
  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override;
};

// Fewer outputs than the operation has stop the backward walk with this error.
Composite::Forward NoSecondDerivative(const Composite& op, absl::Span<const Value> in) {
  const absl::Status status = absl::UnimplementedError(
      "is part of a gradient, and a product in 8-bit floats has no second derivative; differentiate once");
  return {.outputs = {Refuse(status, op.Name(), in, std::source_location::current())}, .residuals = {}};
}

Composite::Forward BackwardOp::GradForward(absl::Span<const Value> in) const { return NoSecondDerivative(*this, in); }

// ---- the product

// (x, k, scale and history of x, of k and of dy) -> y; when a gradient is taken, fp8_dot_fwd:
// -> y, codes of x, codes of k, the new scale and history of x, those of k.
class ForwardOp : public CompositeOf<Fp8ForwardFields> {
 public:
  enum Operand { kX, kK, kXScale, kXHistory, kKScale, kKHistory, kDyScale, kDyHistory, kCount };

  using CompositeOf::CompositeOf;

  std::string Name() const override { return fields_.with_gradient ? "fp8_dot_fwd" : "fp8_dot"; }
  std::string Attributes() const override { return ToString(fields_.options); }
  std::optional<std::string> instance_name() const override { return fields_.options.name; }
  int num_outputs() const override { return fields_.with_gradient ? 7 : 1; }
  std::vector<std::optional<Array>> InitialStatistics() const override {
    return Initial(kCount, kXScale, fields_.state);
  }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != kCount) {
      return absl::InvalidArgumentError(absl::StrCat("takes ", int{kCount}, " operands, got ", in.size()));
    }
    const Aval &x = in[kX], &k = in[kK];
    AQT_RETURN_IF_ERROR(internal::CheckFp8Computes("the input", x, fields_.options.compute_dtype));
    if (x.shape.rank() != 2 || k.shape.rank() != 2 || x.shape[1] != k.shape[0]) {
      return absl::InvalidArgumentError(absl::StrCat("the input is ", x.ToString(), " and the kernel ", k.ToString(),
                                                     ", expected [m, k] and [k, n]; reshape them first"));
    }
    if (x.dtype != k.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("the input is ", x.ToString(), " and the kernel ", k.ToString(),
                                                     ", expected one dtype; cast one of them"));
    }
    for (int i = 0; i < 3; ++i) {
      AQT_RETURN_IF_ERROR(ExpectState(kTensors[i], fields_.state[i], in[kXScale + 2 * i], in[kXScale + 2 * i + 1]));
    }
    std::vector<Aval> out = {{x.dtype, {x.shape[0], k.shape[1]}}};
    if (!fields_.with_gradient) return out;
    out.insert(out.end(), {{DType::kE4M3FN, x.shape}, {DType::kE4M3FN, k.shape}});
    out.insert(out.end(), in.begin() + kXScale, in.begin() + kDyScale);
    return out;
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    const Value x = ops::Fp8Quantize(in[kX], in[kXScale], DType::kE4M3FN, fields_.options.compute_dtype);
    const Value k = ops::Fp8Quantize(in[kK], in[kKScale], DType::kE4M3FN, fields_.options.compute_dtype);
    std::vector<Value> out = {MultiplyFp8(x, in[kXScale], k, in[kKScale], Fp8ForwardDims(), in[kX].dtype())};
    if (!fields_.with_gradient) return out;
    out.insert(out.end(), {x, k});
    for (const Operand tensor : {kX, kK}) {
      const size_t at = tensor == kX ? kXScale : kKScale;
      const Fp8TensorState next =
          ops::Fp8Update(in[tensor], {in[at], in[at + 1]}, RuleOf(fields_.options, Fp8Tensor::kInput));
      out.insert(out.end(), {next.scale, next.amax_history});
    }
    return out;
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    AQT_ASSIGN_OR_RETURN(const Fp8Codes x, QuantizeToFp8(in[kX], in[kXScale], DType::kE4M3FN,
                                                         fields_.options.compute_dtype, fields_.with_gradient));
    AQT_ASSIGN_OR_RETURN(const Fp8Codes k, QuantizeToFp8(in[kK], in[kKScale], DType::kE4M3FN,
                                                         fields_.options.compute_dtype, fields_.with_gradient));
    std::vector<Array> out(1);
    AQT_ASSIGN_OR_RETURN(out[0],
                         MultiplyFp8(x.codes, in[kXScale], k.codes, in[kKScale], Fp8ForwardDims(), in[kX].dtype()));
    if (!fields_.with_gradient) return out;
    out.insert(out.end(), {x.codes, k.codes});
    for (const Operand tensor : {kX, kK}) {
      const size_t at = tensor == kX ? kXScale : kKScale;
      Fp8StateArrays next =
          UpdatedFp8State((tensor == kX ? x : k).amax, in[at], in[at + 1], RuleOf(fields_.options, Fp8Tensor::kInput));
      out.insert(out.end(), {std::move(next.scale), std::move(next.amax_history)});
    }
    return out;
  }

  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override {
    if (fields_.with_gradient) return NoSecondDerivative(*this, in);
    Fp8ForwardFields fields = fields_;
    fields.with_gradient = true;
    const auto op = std::make_shared<ForwardOp>(std::move(fields));
    const std::vector<Value> out = Bind(CompositeOp{op}, in, std::source_location::current());
    // First the values for the backward operation, then the state to write.
    std::vector<Value> residuals = {out[1], out[2], in[kXScale], in[kKScale], in[kDyScale], in[kDyHistory]};
    residuals.insert(residuals.end(), out.begin() + 3, out.end());
    return {.outputs = {out[0]}, .residuals = std::move(residuals)};
  }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    const auto op = std::make_shared<BackwardOp>(Fp8BackwardFields{fields_.options, fields_.state[2]});
    std::vector<Value> operands = {cotangents[0]};
    operands.insert(operands.end(), residuals.begin(), residuals.begin() + 6);
    const std::vector<Value> out = Bind(CompositeOp{op}, operands, std::source_location::current());
    WriteState(fields_.options, Fp8Tensor::kInput, residuals[6], residuals[7]);
    WriteState(fields_.options, Fp8Tensor::kKernel, residuals[8], residuals[9]);
    WriteState(fields_.options, Fp8Tensor::kOutputGrad, out[2], out[3]);
    std::vector<std::optional<Value>> result(kCount);
    result[kX] = out[0];
    result[kK] = out[1];
    return result;
  }
};

}  // namespace

namespace internal {

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8ForwardFields& fields) {
  AQT_RETURN_IF_ERROR(CheckFp8ComputeDType(fields.options.compute_dtype));
  for (int i = 0; i < 3; ++i) AQT_RETURN_IF_ERROR(CheckState(kTensors[i], fields.state[i]));
  return std::make_shared<ForwardOp>(fields);
}

absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const Fp8BackwardFields& fields) {
  AQT_RETURN_IF_ERROR(CheckFp8ComputeDType(fields.options.compute_dtype));
  AQT_RETURN_IF_ERROR(CheckState(Fp8Tensor::kOutputGrad, fields.output_grad));
  return std::make_shared<BackwardOp>(fields);
}

absl::Status Fp8NameIsTaken(absl::string_view name) {
  return absl::AlreadyExistsError(absl::StrCat("the name \"", name,
                                               "\" already exists, and the two would share their scales and histories; "
                                               "NextContractionName() gives each its own"));
}

}  // namespace internal

Fp8Slots Fp8SlotsOf(absl::string_view name, Fp8Tensor tensor) {
  const std::string path = absl::StrCat(name, name.empty() ? "" : "/", NameOf(tensor));
  return {{SlotKind::kStat, absl::StrCat(path, "_scale")}, {SlotKind::kStat, absl::StrCat(path, "_amax_history")}};
}

Fp8DotState Fp8StateInputs(absl::string_view name, int64_t amax_history_length, const Shape& scale_shape,
                           const std::source_location& where) {
  if (amax_history_length < 1) {
    const Value refused = Refuse(absl::InvalidArgumentError(absl::StrCat("amax_history_length = ", amax_history_length,
                                                                         ", expected at least 1")),
                                 "fp8_dot", {}, where);
    const Fp8TensorState state{refused, refused};
    return {state, state, state};
  }
  const auto inputs = [&](Fp8Tensor tensor) -> Fp8TensorState {
    const Fp8Slots slots = Fp8SlotsOf(name, tensor);
    return {InputSlot(slots.scale, {DType::kF32, scale_shape}, where),
            InputSlot(slots.amax_history, {DType::kF32, {amax_history_length}}, where)};
  };
  return {inputs(Fp8Tensor::kInput), inputs(Fp8Tensor::kKernel), inputs(Fp8Tensor::kOutputGrad)};
}

namespace ops {

Value Fp8Dot(const Value& x, const Value& kernel, const Fp8DotState& state, const Fp8DotOptions& options,
             const std::source_location& where) {
  const Fp8TensorState states[] = {state.input, state.kernel, state.output_grad};
  std::vector<Value> operands = {x, kernel};
  Fp8ForwardFields fields{.options = options, .state = {}};
  for (int i = 0; i < 3; ++i) {
    operands.insert(operands.end(), {states[i].scale, states[i].amax_history});
    fields.state[i] = {states[i].scale.aval(), states[i].amax_history.aval()};
  }
  if (!TakeName(options.name)) {
    return Refuse(internal::Fp8NameIsTaken(options.name), "fp8_dot", operands, where);
  }
  return BindOne(CompositeOp{std::make_shared<ForwardOp>(std::move(fields))}, operands, where);
}

}  // namespace ops
}  // namespace aqt
