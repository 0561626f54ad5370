#include "aqt/ops/contraction/contractions.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/bind_one.h"
#include "aqt/graph/composite_base.h"
#include "aqt/graph/composite_fields.h"
#include "aqt/graph/context.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/trace.h"
#include "aqt/ops/contraction/aqt_dot_general.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/ops/einsum_values.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/einsum_lowering.h"
#include "aqt/quant/contraction/scratch.h"

namespace aqt {

using internal::EinsumFields;

namespace {

// (lhs, rhs) -> out.
class EinsumOp : public CompositeOf<EinsumFields> {
 public:
  EinsumOp(const EinsumFields& fields, internal::EinsumLowering lowering, EinsumPlan plan)
      : CompositeOf(fields), lowering_(std::move(lowering)), plan_(std::move(plan)) {}

  std::string Name() const override { return "einsum"; }
  std::string Attributes() const override { return absl::StrCat("\"", fields_.equation, "\""); }
  absl::StatusOr<std::vector<Aval>> Infer(absl::Span<const Aval> in) const override {
    if (in.size() != 2 || in[0] != plan_.lhs_aval() || in[1] != plan_.rhs_aval()) {
      return absl::InvalidArgumentError(
          absl::StrCat("takes ", plan_.lhs_aval().ToString(), " and ", plan_.rhs_aval().ToString()));
    }
    return std::vector<Aval>{plan_.out_aval()};
  }
  absl::StatusOr<std::vector<Array>> Eval(absl::Span<const Array> in, absl::Span<const bool> needed) const override {
    return EvalByKernel(in, needed);
  }
  absl::StatusOr<OpKernel> MakeKernel(absl::Span<const KernelInput>, absl::Span<const bool>) const override {
    const auto run = [plan = plan_](const KernelCall& call) {
      const auto operand = [](const Aval& aval, const void* data) { return ArrayRef(aval.dtype, aval.shape, data); };
      const Aval& out = plan.out_aval();
      Scratch scratch(call.scratch, plan.scratch_bytes());
      return plan.Forward(operand(plan.lhs_aval(), call.in[0]), operand(plan.rhs_aval(), call.in[1]), {},
                          MutableArrayRef(out.dtype, out.shape, call.out[0]), /*residuals=*/nullptr,
                          {.executor = call.executor, .scratch = &scratch});
    };
    return OpKernel{.run = run, .scratch_bytes = plan_.scratch_bytes()};
  }
  std::vector<Value> Expand(absl::Span<const Value> in) const override {
    return {internal::EinsumValue(lowering_, in[0], in[1], [](const Value& lhs, const Value& rhs, const DotDims& dims) {
      const absl::StatusOr<AqtDot> dot = AqtDot::MakeFloat(lhs.aval(), rhs.aval(), dims);
      if (!dot.ok()) return Refuse(dot.status(), "einsum", {lhs, rhs}, SourceLine());
      return dot->Apply({lhs}, {rhs}, std::nullopt, SourceLine());
    })};
  }

 private:
  const internal::EinsumLowering lowering_;
  const EinsumPlan plan_;  // of the forward pass
};

// The float operation on lhs, rhs and, for a ragged contraction, group_sizes.
Value Float(const std::vector<Value>& operands, const PlannedDims& dims, const SourceLine& where) {
  for (const Value& operand : operands) {
    if (!operand.status().ok()) return operand;
  }
  const absl::StatusOr<AqtDot> dot = AqtDot::MakeFloat(operands[0].aval(), operands[1].aval(), dims);
  if (!dot.ok()) return Refuse(dot.status(), KindOf(dims), operands, where);
  AqtDot::Arguments arguments{.lhs = {operands[0]}, .rhs = {operands[1]}};
  if (operands.size() > 2) arguments.group_sizes = operands[2];
  return dot->ApplyWithState(arguments, where).out;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Composite>> internal::MakeComposite(const EinsumFields& fields) {
  const auto& [equation, lhs, rhs] = fields;
  AQT_ASSIGN_OR_RETURN(EinsumLowering lowering, LowerEinsum(equation, lhs, rhs));
  AQT_ASSIGN_OR_RETURN(EinsumPlan plan, EinsumPlan::Make(equation, {}, lhs, rhs, {.passes = PlanPasses::kForwardOnly}));
  return std::make_shared<EinsumOp>(fields, std::move(lowering), std::move(plan));
}

std::optional<ContractionDims> ContractionOf(const Op& op) {
  if (const DotGeneralOp* dot = std::get_if<DotGeneralOp>(&op)) return dot->dims;
  if (const std::optional<PlannedDims> dims = FloatDimsOf(op)) {
    return std::visit([](const auto& own) -> ContractionDims { return own; }, *dims);
  }
  const std::optional<EinsumFields> einsum = FieldsOf<EinsumFields>(op);
  if (!einsum.has_value()) return std::nullopt;
  return EinsumDims{einsum->equation};
}

namespace ops {

Value Conv(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const ConvDims& dims) {
  return Float({lhs.As(DType::kF32), rhs.As(DType::kF32)}, dims, lhs.where());
}

Value RaggedDot(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const ValueOrNumber& group_sizes) {
  return Float({lhs.As(DType::kF32), rhs.As(DType::kF32), group_sizes.As(DType::kS32)}, RaggedDims(), lhs.where());
}

Value Einsum(absl::string_view equation, const ValueOrNumber& lhs, const ValueOrNumber& rhs) {
  const Value a = lhs.As(DType::kF32), b = rhs.As(DType::kF32);
  for (const Value& operand : {a, b}) {
    if (!operand.status().ok()) return operand;
  }
  const auto op = internal::MakeComposite(EinsumFields{std::string(equation), a.aval(), b.aval()});
  if (!op.ok()) return Refuse(op.status(), "einsum", {a, b}, lhs.where());
  return BindOne(CompositeOp{*op}, {a, b}, lhs.where());
}

}  // namespace ops
}  // namespace aqt
