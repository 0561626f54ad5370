#include "aqt/ops/scaling/debug_callback.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

// (x) or (data, scale) -> x. The backward kind calls nothing; its gradient is one of the forward kind.
class CallbackOp : public CompositeBase {
 public:
  CallbackOp(DebugFunction callback, std::string label, bool backward)
      : callback_(std::move(callback)), label_(std::move(label)), backward_(backward) {}

  std::string Name() const override { return backward_ ? "debug_callback_grad" : "debug_callback"; }
  std::string Attributes() const override { return label_.empty() ? "" : absl::StrCat("\"", label_, "\""); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.empty() || in.size() > 2) {
      return absl::InvalidArgumentError(absl::StrCat("takes a value, or data and scale; got ", in.size(), " operands"));
    }
    if (in.size() == 2 && (in[1].shape.rank() != 0 || !IsFloat(in[1].dtype))) {
      return absl::InvalidArgumentError(absl::StrCat("the scale is ", in[1].ToString(), ", expected a float scalar"));
    }
    return std::vector<Aval>{in[0]};
  }
  bool has_expansion() const override { return false; }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool>) const override {
    Call(in);
    return std::vector<Array>{in[0]};
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool>) const override {
    const auto run = [own = shared_from_this(), avals = AvalsOf(in)](const KernelCall& call) {
      std::vector<Array> operands;
      for (size_t i = 0; i < avals.size(); ++i) operands.push_back(Array::Unowned(avals[i], call.in[i]));
      static_cast<const CallbackOp&>(*own).Call(operands);
      const size_t bytes = avals[0].num_bytes();
      if (bytes > 0 && call.out[0] != call.in[0]) std::memcpy(call.out[0], call.in[0], bytes);
      return absl::OkStatus();
    };
    return OpKernel{.run = run, .may_share = {{0, 0}}};
  }

  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override {
    if (backward_) return {{in[0]}, {in.begin(), in.end()}};
    return CompositeBase::GradForward(in);
  }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    std::vector<std::optional<Value>> result(residuals.size());
    result[0] = cotangents[0];
    if (backward_) {
      const auto op = std::make_shared<CallbackOp>(callback_, label_, /*backward=*/false);
      result[0] = BindOne(CompositeOp{op}, {cotangents[0]}, SourceLine());
    }
    return result;
  }

 private:
  void Call(absl::Span<const Array> in) const {
    if (backward_) return;
    // Copies, because the callback may keep them: the memory of an operand is reused.
    ScaledArray seen{Array::CopyOf(in[0])};
    if (in.size() > 1) seen.scale = Array::CopyOf(in[1]);
    callback_(seen);
  }

  const DebugFunction callback_;
  const std::string label_;
  const bool backward_;
};

Value BindCallback(const ValueOrNumber& x, DebugFunction callback, absl::string_view label, bool backward) {
  const auto op = std::make_shared<CallbackOp>(std::move(callback), std::string(label), backward);
  return BindOne(CompositeOp{op}, {x.As(DType::kF32)}, x.where());
}

DebugFunction Printer(absl::string_view label) {
  return [label = std::string(label)](const ScaledArray& seen) {
    const std::string scale = seen.scale.has_value() ? absl::StrCat(" * ", ContentsText(*seen.scale)) : "";
    const std::string line =
        absl::StrCat(label, ": ", seen.data.aval().ToString(), " ", ContentsText(seen.data), scale, "\n");
    std::fputs(line.c_str(), stderr);
  };
}

}  // namespace

std::optional<Value> BindDebugCallback(const Op& op, const Value& data, const Value& scale, const SourceLine& where) {
  const CompositeOp* composite = std::get_if<CompositeOp>(&op);
  if (composite == nullptr || dynamic_cast<const CallbackOp*>(composite->impl.get()) == nullptr) return std::nullopt;
  return BindOne(op, {data, scale}, where);
}

namespace ops {

Value DebugCallback(const ValueOrNumber& x, DebugFunction callback, absl::string_view label) {
  return BindCallback(x, std::move(callback), label, /*backward=*/false);
}
Value DebugCallbackGrad(const ValueOrNumber& x, DebugFunction callback, absl::string_view label) {
  return BindCallback(x, std::move(callback), label, /*backward=*/true);
}
Value DebugPrint(const ValueOrNumber& x, absl::string_view label) { return DebugCallback(x, Printer(label), label); }
Value DebugPrintGrad(const ValueOrNumber& x, absl::string_view label) {
  return DebugCallbackGrad(x, Printer(label), label);
}

}  // namespace ops
}  // namespace aqt
