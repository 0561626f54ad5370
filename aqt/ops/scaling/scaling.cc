#include "aqt/ops/scaling/scaling.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"

namespace aqt {
namespace {

std::string NameOf(const ScalingStep& step) {
  const char* const suffix = step.backward ? "_grad" : "";
  const char* const direction = step.backward ? "on_backward" : "on_forward";
  switch (step.kind) {
    case ScalingKind::kSetScaling: return "set_scaling";
    case ScalingKind::kStopScaling: return "stop_scaling";
    case ScalingKind::kRescaleMax: return absl::StrCat("dynamic_rescale_max", suffix);
    case ScalingKind::kRescaleL1: return absl::StrCat("dynamic_rescale_l1", suffix);
    case ScalingKind::kRescaleL2: return absl::StrCat("dynamic_rescale_l2", suffix);
    case ScalingKind::kReducePrecision: return absl::StrCat("reduce_precision_", direction);
    case ScalingKind::kCast: return absl::StrCat("cast_", direction);
    case ScalingKind::kGetData: return "get_data";
    case ScalingKind::kGetScale: return "get_scale";
  }
  return "";
}

// A step on values, whose cotangents pass unchanged; or (the backward kind) on cotangents, whose values pass unchanged.
class ScalingOp : public CompositeOf<ScalingStep> {
 public:
  using CompositeOf::CompositeOf;

  std::string Name() const override { return NameOf(fields_); }
  std::string Attributes() const override {
    return absl::StrCat(fields_.dtype.has_value() ? ToString(*fields_.dtype) : "",
                        fields_.dropped_under_grad ? ", dropped under grad" : "");
  }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    const size_t expected = fields_.kind == ScalingKind::kSetScaling ? 2 : 1;
    if (in.size() != expected) return absl::InvalidArgumentError(absl::StrCat("takes ", expected, " operands"));
    if (!IsFloat(in[0].dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("the operand is ", in[0].ToString(), ", expected a float"));
    }
    if (expected == 2 && (in[1].shape.rank() != 0 || !IsFloat(in[1].dtype))) {
      return absl::InvalidArgumentError(absl::StrCat("the scale is ", in[1].ToString(), ", expected a float scalar"));
    }
    if (fields_.kind == ScalingKind::kReducePrecision && !SimulatedPrecision(*fields_.dtype).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rounds to ", ToString(*fields_.dtype), ", expected e4m3fn or e5m2"));
    }
    if (fields_.kind == ScalingKind::kGetScale) return std::vector<Aval>{{fields_.dtype.value_or(in[0].dtype), {}}};
    Aval out = in[0];
    if (!fields_.backward && fields_.dtype.has_value() && fields_.kind != ScalingKind::kReducePrecision)
      out.dtype = *fields_.dtype;
    return std::vector<Aval>{out};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    if (fields_.backward) return {ops::Reshape(in[0], in[0].shape())};
    return {Plain(in[0])};
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput> in, absl::Span<const bool> needed) const override {
    const bool computes = fields_.kind == ScalingKind::kGetScale || fields_.dtype.has_value();
    if (computes && !fields_.backward) return CompositeBase::MakeKernel(in, needed);
    return OpKernel{.run = [](const KernelCall&) { return absl::OkStatus(); }, .same = {{0, 0}}};
  }

  bool has_gradient() const override { return true; }
  Forward GradForward(absl::Span<const Value> in) const override {
    const bool dropped = fields_.backward || fields_.dropped_under_grad;
    return {dropped ? std::vector<Value>{in[0]} : Bind(CompositeOp{shared_from_this()}, in, SourceLine()),
            {in.begin(), in.end()}};
  }
  std::vector<std::optional<Value>> GradBackward(absl::Span<const Value> residuals,
                                                 absl::Span<const Value> cotangents) const override {
    std::vector<std::optional<Value>> result(residuals.size());
    Value cotangent = cotangents[0];
    if (fields_.backward) {
      const auto op = std::make_shared<ScalingOp>(ScalingStep{fields_.kind, fields_.dtype});
      cotangent = BindOne(CompositeOp{op}, {cotangent}, SourceLine());
    }
    // A cotangent has the dtype of its value.
    if (fields_.kind != ScalingKind::kGetScale) result[0] = ops::Cast(cotangent, residuals[0].dtype());
    return result;
  }

 private:
  // The result for a value without a scale.
  Value Plain(const Value& x) const {
    if (fields_.kind == ScalingKind::kGetScale) return ValueOrNumber(1.0).As(fields_.dtype.value_or(x.dtype()));
    if (fields_.kind == ScalingKind::kReducePrecision) {
      const kernels::Precision precision = *SimulatedPrecision(*fields_.dtype);
      return ops::ReducePrecision(x, precision.exponent_bits, precision.mantissa_bits);
    }
    if (fields_.dtype.has_value()) return ops::Cast(x, *fields_.dtype);
    return ops::Reshape(x, x.shape());
  }
};

Value BindStep(const ScalingStep& step, const std::vector<Value>& in, const SourceLine& where) {
  return BindOne(CompositeOp{std::make_shared<ScalingOp>(step)}, in, where);
}

Value Step(ScalingKind kind, const ValueOrNumber& x, std::optional<DType> dtype, bool backward,
           const ScalingOptions& options = {}) {
  return BindStep({kind, dtype, backward, options.dropped_under_grad}, {x.As(DType::kF32)}, x.where());
}

}  // namespace

std::optional<kernels::Precision> SimulatedPrecision(DType dtype) {
  if (dtype == DType::kE4M3FN) return kernels::Precision{4, 3};
  if (dtype == DType::kE5M2) return kernels::Precision{5, 2};
  return std::nullopt;
}

absl::StatusOr<std::shared_ptr<const Composite>> internal::MakeComposite(const ScalingStep& step) {
  const auto error = [&](const auto&... text) {
    return absl::InvalidArgumentError(absl::StrCat(NameOf(step), text...));
  };
  bool needs_dtype = false, may_have_dtype = false, has_backward = true;
  switch (step.kind) {
    case ScalingKind::kSetScaling: has_backward = false; break;
    case ScalingKind::kGetData: has_backward = false; break;
    case ScalingKind::kGetScale:
    case ScalingKind::kStopScaling:
      may_have_dtype = true;
      has_backward = false;
      break;
    case ScalingKind::kRescaleMax:
    case ScalingKind::kRescaleL1:
    case ScalingKind::kRescaleL2: break;
    case ScalingKind::kReducePrecision:
    case ScalingKind::kCast: needs_dtype = may_have_dtype = true; break;
  }
  if (needs_dtype && !step.dtype.has_value()) return error(" needs a dtype");
  if (!may_have_dtype && step.dtype.has_value()) return error(" has no dtype");
  if (!has_backward && step.backward) return error(" has no backward kind");
  return std::make_shared<ScalingOp>(step);
}

namespace ops {

Value SetScaling(const ValueOrNumber& x, const ValueOrNumber& scale) {
  const Value value = x.As(DType::kF32);
  return BindStep({ScalingKind::kSetScaling}, {value, scale.As(DType::kF32)}, x.where());
}
Value StopScaling(const ValueOrNumber& x, std::optional<DType> dtype) {
  return Step(ScalingKind::kStopScaling, x, dtype, false);
}
DataAndScale GetDataScale(const ValueOrNumber& x, std::optional<DType> dtype) {
  return {Step(ScalingKind::kGetData, x, std::nullopt, false), Step(ScalingKind::kGetScale, x, dtype, false)};
}
Value DynamicRescaleMax(const ValueOrNumber& x, const ScalingOptions& options) {
  return Step(ScalingKind::kRescaleMax, x, std::nullopt, false, options);
}
Value DynamicRescaleL1(const ValueOrNumber& x, const ScalingOptions& options) {
  return Step(ScalingKind::kRescaleL1, x, std::nullopt, false, options);
}
Value DynamicRescaleL2(const ValueOrNumber& x, const ScalingOptions& options) {
  return Step(ScalingKind::kRescaleL2, x, std::nullopt, false, options);
}
Value DynamicRescaleMaxGrad(const ValueOrNumber& x) { return Step(ScalingKind::kRescaleMax, x, std::nullopt, true); }
Value DynamicRescaleL1Grad(const ValueOrNumber& x) { return Step(ScalingKind::kRescaleL1, x, std::nullopt, true); }
Value DynamicRescaleL2Grad(const ValueOrNumber& x) { return Step(ScalingKind::kRescaleL2, x, std::nullopt, true); }
Value ReducePrecisionOnForward(const ValueOrNumber& x, DType dtype, const ScalingOptions& options) {
  return Step(ScalingKind::kReducePrecision, x, dtype, false, options);
}
Value ReducePrecisionOnBackward(const ValueOrNumber& x, DType dtype) {
  return Step(ScalingKind::kReducePrecision, x, dtype, true);
}
Value CastOnForward(const ValueOrNumber& x, DType dtype) { return Step(ScalingKind::kCast, x, dtype, false); }
Value CastOnBackward(const ValueOrNumber& x, DType dtype) { return Step(ScalingKind::kCast, x, dtype, true); }

}  // namespace ops
}  // namespace aqt
