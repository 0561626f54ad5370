#include "aqt/graph/interpret/call.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/context.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/interpret/grad.h"
#include "aqt/graph/interpret/interpret.h"
#include "aqt/graph/interpret/rewrite.h"
#include "aqt/graph/program.h"
#include "aqt/graph/source_line.h"

namespace aqt {
namespace {

std::vector<Value> BindCall(std::string name, Program body, absl::Span<const Value> args, const SourceLine& where);

class CallComposite : public Composite {
 public:
  CallComposite(std::string name, Program body) : name_(std::move(name)), body_(std::move(body)) {}

  const std::string& name() const { return name_; }
  const Program& body() const { return body_; }

  std::string Name() const override { return "call"; }
  std::string Attributes() const override { return absl::StrCat("\"", name_, "\" {", ToText(body_), "}"); }
  int num_outputs() const override { return static_cast<int>(body_.outputs.size()); }

  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> operands) const override {
    AQT_RETURN_IF_ERROR(internal::ExpectArgumentCount(body_, operands.size()));
    for (size_t i = 0; i < operands.size(); ++i) {
      const Aval& expected = body_.aval(body_.inputs[i].var);
      if (operands[i] == expected) continue;
      return absl::InvalidArgumentError(absl::StrCat("argument ", i, " of \"", name_, "\" is ", operands[i].ToString(),
                                                     ", but the call was traced with ", expected.ToString()));
    }
    std::vector<Aval> outputs;
    for (const Program::Port& port : body_.outputs) outputs.push_back(body_.aval(port.var));
    return outputs;
  }
  std::vector<Value> Expand(absl::Span<const Value> operands) const override { return Inline(body_, operands); }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> operands, absl::Span<const bool>) const override {
    return aqt::Eval(body_, operands);
  }

  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> operands) const override {
    return {Bind(CompositeOp{shared_from_this()}, operands, SourceLine()), {operands.begin(), operands.end()}};
  }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    std::vector<std::optional<Value>> result(residuals.size());
    const std::vector<int> wrt = FloatInputs();
    if (wrt.empty()) return result;
    absl::StatusOr<Program> backward = Backward(wrt);
    if (!backward.ok()) {
      const Value poisoned = Refuse(backward.status(), absl::StrCat("grad(", name_, ")"), residuals, SourceLine());
      for (const int i : wrt) result[i] = poisoned;
      return result;
    }
    std::vector<Value> args(residuals.begin(), residuals.end());
    args.insert(args.end(), cotangents.begin(), cotangents.end());
    const std::vector<Value> gradients =
        BindCall(absl::StrCat("grad(", name_, ")"), *std::move(backward), args, SourceLine());
    for (size_t i = 0; i < wrt.size(); ++i) result[wrt[i]] = gradients[i];
    return result;
  }

 private:
  std::vector<int> FloatInputs() const {
    std::vector<int> wrt;
    for (size_t i = 0; i < body_.inputs.size(); ++i) {
      if (IsFloat(body_.aval(body_.inputs[i].var).dtype)) wrt.push_back(static_cast<int>(i));
    }
    return wrt;
  }

  // (arguments, cotangents) -> gradients. They are the gradients of the sum over outputs of sum(output * cotangent),
  // whose derivative with respect to an output is exactly its cotangent.
  absl::StatusOr<Program> Backward(absl::Span<const int> wrt) const {
    std::vector<Input> inputs = InputsOf(body_);
    const size_t num_args = inputs.size();
    for (size_t i = 0; i < body_.outputs.size(); ++i) {
      inputs.push_back({{SlotKind::kData, absl::StrCat("cotangent ", i)}, body_.aval(body_.outputs[i].var)});
    }
    AQT_ASSIGN_OR_RETURN(const Program scalar,
                         Trace(
                             [&](absl::Span<const Value> in) {
                               const std::vector<Value> out = Inline(body_, in.subspan(0, num_args));
                               Value sum = ValueOrNumber(0.0).As(DType::kF32);
                               for (size_t i = 0; i < out.size(); ++i) {
                                 if (!IsFloat(out[i].dtype())) continue;
                                 sum = sum + ops::Cast(ops::ReduceSum(out[i] * in[num_args + i]), DType::kF32);
                               }
                               return std::vector<Value>{sum};
                             },
                             inputs));
    return Grad(scalar, wrt);
  }

  const std::string name_;
  const Program body_;
};

std::vector<Value> BindCall(std::string name, Program body, absl::Span<const Value> args, const SourceLine& where) {
  return Bind(MakeCall(std::move(name), std::move(body)), args, where);
}

const CallComposite* CallOf(const Op& op) {
  const CompositeOp* composite = std::get_if<CompositeOp>(&op);
  return composite == nullptr ? nullptr : dynamic_cast<const CallComposite*>(composite->impl.get());
}

}  // namespace

std::string CallName(const Op& op) {
  const CallComposite* call = CallOf(op);
  return call == nullptr ? "" : call->name();
}

const Program* CallBody(const Op& op) {
  const CallComposite* call = CallOf(op);
  return call == nullptr ? nullptr : &call->body();
}

CompositeOp MakeCall(std::string name, Program body) {
  return CompositeOp{std::make_shared<CallComposite>(std::move(name), std::move(body))};
}

namespace ops {

std::vector<Value> Call(absl::string_view name, TracedFunction fn, absl::Span<const Value> args,
                        const std::source_location& where) {
  std::vector<Input> inputs;
  absl::Status poisoned;
  for (const Value& arg : args) {
    if (poisoned.ok()) poisoned = arg.status();
    inputs.push_back({{SlotKind::kData, absl::StrCat(inputs.size())}, arg.aval()});
  }
  size_t num_outputs = 1;
  absl::StatusOr<Program> body = Trace(
      [&](absl::Span<const Value> in) {
        std::vector<Value> out = fn(in);
        num_outputs = out.size();
        return out;
      },
      inputs);
  if (body.ok() && (body->inputs.size() != inputs.size() || body->outputs.size() != num_outputs)) {
    body = absl::FailedPreconditionError(
        "the function reads or writes slots of the program; pass them as arguments and return them");
  }
  if (!poisoned.ok()) return std::vector<Value>(num_outputs, Value::Poisoned(Aval{}, poisoned));
  if (!body.ok()) {
    const Value refused = Refuse(body.status(), absl::StrCat("call \"", name, "\""), args, SourceLine(where));
    return std::vector<Value>(num_outputs, refused);
  }
  return BindCall(std::string(name), *std::move(body), args, SourceLine(where));
}

}  // namespace ops
}  // namespace aqt
