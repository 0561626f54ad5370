#include "aqt/ops/fp8/fp8_dot.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/fp8/fp8_arrays.h"
#include "aqt/ops/fp8/fp8_dot_fields.h"
#include "aqt/ops/output_places.h"

namespace aqt {
namespace {

using internal::Fp8BackwardFields;
using internal::Fp8ForwardDims;
using internal::Fp8ForwardFields;
using internal::Fp8Product;
using internal::Fp8StateAvals;
using internal::MultiplyFp8;
using internal::OutputPlaces;
using internal::QuantizeToFp8;
using internal::UpdateFp8State;

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
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override;
  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override;
};

class BackwardKernel {
 public:
  using Op = BackwardOp;

  // `outputs` are those of the operation.
  BackwardKernel(const Fp8BackwardFields& fields, absl::Span<const Aval> in, std::vector<Aval> outputs,
                 absl::Span<const bool> needed)
      : options_(fields.options),
        dy_(in[Op::kDy].dtype, in[Op::kDy].shape, nullptr),
        history_length_(in[Op::kHistory].shape[0]),
        needed_(needed.begin(), needed.end()),
        dx_(CodesOfDy(), in[Op::kK], InputGradientDims(), dy_.dtype),
        dk_(in[Op::kX], CodesOfDy(), KernelGradientDims(), dy_.dtype),
        places_(WithCodes(std::move(outputs)), WithCodes(needed), std::max(dx_.scratch_bytes(), dk_.scratch_bytes())) {}

  int64_t scratch_bytes() const { return places_.scratch_bytes(); }

  absl::Status Run(const KernelCall& call) const {
    const auto number = [&](int operand) { return *static_cast<const float*>(call.in[operand]); };
    ArrayRef dy = dy_;
    dy.data = call.in[Op::kDy];
    void* const codes = places_.memory(kCodes, call);
    const float scale = number(Op::kScale);
    AQT_ASSIGN_OR_RETURN(const float amax, QuantizeToFp8(dy, scale, DType::kE5M2, options_.compute_dtype,
                                                         needed_[2] || needed_[3], codes, call.executor));
    const Fp8Product::Operand own{codes, scale};
    if (needed_[0]) {
      AQT_RETURN_IF_ERROR(
          dx_.Run(own, {call.in[Op::kK], number(Op::kKScale)}, call.out[0], call.scratch, call.executor));
    }
    if (needed_[1]) {
      AQT_RETURN_IF_ERROR(
          dk_.Run({call.in[Op::kX], number(Op::kXScale)}, own, call.out[1], call.scratch, call.executor));
    }
    if (needed_[2] || needed_[3]) {
      const absl::Span<const float> history(static_cast<const float*>(call.in[Op::kHistory]), history_length_);
      UpdateFp8State(amax, {scale, history}, RuleOf(options_, Fp8Tensor::kOutputGrad),
                     static_cast<float*>(places_.memory(2, call)), static_cast<float*>(places_.memory(3, call)));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kCodes = 4;  // after the outputs

  Aval CodesOfDy() const { return {DType::kE5M2, dy_.shape}; }
  std::vector<Aval> WithCodes(std::vector<Aval> outputs) const {
    outputs.push_back(CodesOfDy());
    return outputs;
  }
  static absl::InlinedVector<bool, 8> WithCodes(absl::Span<const bool> needed) {
    // A gradient that is not needed is not computed, and takes no memory.
    absl::InlinedVector<bool, 8> all = {true, true, needed[2], needed[3], false};
    return all;
  }

  const Fp8DotOptions options_;
  const ArrayRef dy_;  // without data
  const int64_t history_length_;
  const absl::InlinedVector<bool, 4> needed_;
  const Fp8Product dx_, dk_;
  const OutputPlaces places_;
};

absl::StatusOr<OpKernel> BackwardOp::MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const {
  const std::vector<Aval> avals = AvalsOf(in);
  AQT_ASSIGN_OR_RETURN(std::vector<Aval> outputs, Infer(avals));
  const auto kernel = std::make_shared<const BackwardKernel>(fields_, avals, std::move(outputs), needed);
  return OpKernel{.run = [kernel](const KernelCall& call) { return kernel->Run(call); },
                  .scratch_bytes = kernel->scratch_bytes()};
}

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
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override;

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

class ForwardKernel {
 public:
  using Op = ForwardOp;

  // `outputs` are those of the operation.
  ForwardKernel(const Fp8ForwardFields& fields, absl::Span<const Aval> in, std::vector<Aval> outputs,
                absl::Span<const bool> needed)
      : options_(fields.options),
        with_gradient_(fields.with_gradient),
        x_(in[Op::kX].dtype, in[Op::kX].shape, nullptr),
        k_(in[Op::kK].dtype, in[Op::kK].shape, nullptr),
        history_length_{in[Op::kXHistory].shape[0], in[Op::kKHistory].shape[0]},
        product_({DType::kE4M3FN, x_.shape}, {DType::kE4M3FN, k_.shape}, Fp8ForwardDims(), x_.dtype),
        places_(WithCodes(std::move(outputs)), WithCodes(needed), product_.scratch_bytes()) {}

  int64_t scratch_bytes() const { return places_.scratch_bytes(); }

  absl::Status Run(const KernelCall& call) const {
    void* const codes[] = {places_.memory(1, call), places_.memory(2, call)};
    float scales[2], amax[2];
    for (const int i : {0, 1}) {
      ArrayRef tensor = i == 0 ? x_ : k_;
      tensor.data = call.in[i == 0 ? Op::kX : Op::kK];
      scales[i] = *static_cast<const float*>(call.in[ScaleAt(i)]);
      AQT_ASSIGN_OR_RETURN(amax[i], QuantizeToFp8(tensor, scales[i], DType::kE4M3FN, options_.compute_dtype,
                                                  with_gradient_, codes[i], call.executor));
    }
    AQT_RETURN_IF_ERROR(product_.Run({codes[0], scales[0]}, {codes[1], scales[1]}, places_.memory(0, call),
                                     call.scratch, call.executor));
    for (const int i : {0, 1}) {
      if (!with_gradient_) break;
      const absl::Span<const float> history(static_cast<const float*>(call.in[ScaleAt(i) + 1]), history_length_[i]);
      UpdateFp8State(amax[i], {scales[i], history}, RuleOf(options_, Fp8Tensor::kInput),
                     static_cast<float*>(places_.memory(3 + 2 * i, call)),
                     static_cast<float*>(places_.memory(4 + 2 * i, call)));
    }
    return absl::OkStatus();
  }

 private:
  static int ScaleAt(int tensor) { return tensor == 0 ? Op::kXScale : Op::kKScale; }
  // Without a gradient, codes are no outputs.
  std::vector<Aval> WithCodes(std::vector<Aval> outputs) const {
    if (!with_gradient_) outputs.insert(outputs.end(), {{DType::kE4M3FN, x_.shape}, {DType::kE4M3FN, k_.shape}});
    return outputs;
  }
  absl::InlinedVector<bool, 8> WithCodes(absl::Span<const bool> needed) const {
    absl::InlinedVector<bool, 8> all(needed.begin(), needed.end());
    if (!with_gradient_) all.insert(all.end(), {false, false});
    return all;
  }

  const Fp8DotOptions options_;
  const bool with_gradient_;
  const ArrayRef x_, k_;  // without data
  const int64_t history_length_[2];
  const Fp8Product product_;
  const OutputPlaces places_;  // y, codes of x, codes of k, and the new state
};

absl::StatusOr<OpKernel> ForwardOp::MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const {
  const std::vector<Aval> avals = AvalsOf(in);
  AQT_ASSIGN_OR_RETURN(std::vector<Aval> outputs, Infer(avals));
  const auto kernel = std::make_shared<const ForwardKernel>(fields_, avals, std::move(outputs), needed);
  return OpKernel{.run = [kernel](const KernelCall& call) { return kernel->Run(call); },
                  .scratch_bytes = kernel->scratch_bytes()};
}

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
