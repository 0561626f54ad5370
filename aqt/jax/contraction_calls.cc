#include "aqt/jax/contraction_calls.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/status_macros.h"
#include "aqt/jax/plans.h"
#include "aqt/jax/xla_executor.h"
#include "aqt/kernels/panels/panel_format.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/engine/planned_contraction_impl.h"
#include "aqt/quant/contraction/engine/prepared_operand_impl.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::jax {
namespace {

using internal::CallKeys;
using internal::ContractionPlan;

constexpr Side kBothSides[] = {Side::kLhs, Side::kRhs};

// Takes the arguments of a call in order.
class Reader {
 public:
  explicit Reader(const Call& call) : call_(call) {}

  absl::StatusOr<ArrayRef> Next() { return call_.Argument(next_++); }
  absl::StatusOr<Key> NextKey() { return call_.KeyArgument(next_++); }
  // The next argument as an array of `aval`, which s8 memory may hold for s4 and s2.
  absl::StatusOr<Array> NextArray(const Aval& aval) {
    AQT_ASSIGN_OR_RETURN(const ArrayRef argument, Next());
    if (argument.shape != aval.shape || AsPassed(aval.dtype) != argument.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument ", next_ - 1, " is ", argument.aval().ToString(), ", expected ", aval.ToString()));
    }
    return Array::Unowned(aval, argument.data);
  }
  int64_t count() const { return next_; }

  static DType AsPassed(DType dtype) { return dtype == DType::kS4 || dtype == DType::kS2 ? DType::kS8 : dtype; }

 private:
  const Call& call_;
  int64_t next_ = 0;
};

// The memory of a result, checked against what is written there.
absl::StatusOr<void*> ResultMemory(const Call& call, int64_t index, const Aval& aval) {
  AQT_ASSIGN_OR_RETURN(const MutableArrayRef result, call.Result(index));
  if (result.shape == aval.shape && result.dtype == Reader::AsPassed(aval.dtype)) return result.data;
  return absl::InvalidArgumentError(
      absl::StrCat("result ", index, " is ", result.aval().ToString(), ", but the call computes ", aval.ToString()));
}

absl::StatusOr<Side> SideAttribute(const Call& call) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view side, call.Text("side"));
  if (side == "lhs") return Side::kLhs;
  if (side == "rhs") return Side::kRhs;
  return absl::InvalidArgumentError(absl::StrCat("side is '", side, "', expected lhs or rhs"));
}

absl::StatusOr<Aval> AvalAttribute(const Call& call, absl::string_view name) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view text, call.Text(name));
  return ParseAval(text);
}

// ---- operands of the forward pass

// How an operand is given (Forward in the header).
struct Form {
  bool has_value = true, has_qvalue = false;
  int num_scales = 0;
  std::optional<Aval> packed = {};  // of an operand given as panels
};

absl::StatusOr<Form> FormAttribute(const Call& call, absl::string_view side) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view text, call.Text(side));
  if (text == "float") return Form{};
  Form form;
  const size_t colon = text.find(':');
  const absl::string_view kind = text.substr(0, colon);
  form.has_value = kind != "qvalue";
  form.has_qvalue = kind != "scales";
  absl::string_view number = colon == absl::string_view::npos ? "" : text.substr(colon + 1);
  if (kind == "panels") {
    const size_t second = number.find(':');
    AQT_ASSIGN_OR_RETURN(form.packed, ParseAval(second == absl::string_view::npos ? "" : number.substr(second + 1)));
    number = number.substr(0, second);
    form.has_value = form.has_qvalue = false;
  }
  const bool is_known = kind == "qvalue" || kind == "scales" || kind == "both" || kind == "panels";
  if (is_known && absl::SimpleAtoi(number, &form.num_scales) && form.num_scales >= 0) return form;
  return absl::InvalidArgumentError(
      absl::StrCat(side, " is '", text, "', expected float, scales:N, qvalue:N, both:N or panels:N:f32[2,3]"));
}

struct GivenOperand {
  Aval aval;                      // of the float operand
  std::optional<ArrayRef> value;  // if given
  std::optional<ArrayRef> qvalue, panels;
  std::vector<Array> scales;
  PreparedOperand prepared;

  DotOperand ForPlan(const Form& form) const {
    if (form.has_qvalue && form.has_value) return DotOperand(*value, prepared);
    if (form.has_qvalue || form.packed.has_value()) return DotOperand(prepared);
    return form.num_scales > 0 ? DotOperand(*value, prepared) : DotOperand(*value);
  }
};

absl::StatusOr<GivenOperand> ReadOperand(Reader& reader, const Form& form) {
  GivenOperand operand;
  if (form.has_value) {
    AQT_ASSIGN_OR_RETURN(operand.value, reader.Next());
    operand.aval = operand.value->aval();
  }
  if (form.has_qvalue) {
    AQT_ASSIGN_OR_RETURN(operand.qvalue, reader.Next());
    operand.aval.shape = operand.qvalue->shape;
  }
  if (form.packed.has_value()) {
    AQT_ASSIGN_OR_RETURN(operand.panels, reader.Next());
    operand.aval = *form.packed;
  }
  for (int i = 0; i < form.num_scales; ++i) {
    AQT_ASSIGN_OR_RETURN(const ArrayRef scale, reader.Next());
    operand.scales.push_back(Array::Unowned(scale.aval(), scale.data));
  }
  return operand;
}

// XLA's own memory is aligned; memory that a user gave to XLA may not be.
Array PanelsIn(const ArrayRef& argument) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(argument.data) % kernels::kPanelAlignment == 0;
  return is_aligned ? Array::Unowned(argument.aval(), argument.data) : Array::CopyOf(argument);
}

absl::Status PrepareOperand(const DotGeneralPlan& plan, Side side, const Form& form, const Runtime& runtime,
                            GivenOperand* operand) {
  if (form.packed.has_value()) {
    AQT_ASSIGN_OR_RETURN(operand->prepared,
                         internal::EngineOf(plan).FromPanels(side, PanelsIn(*operand->panels), operand->scales));
    return absl::OkStatus();
  }
  if (!form.has_qvalue && form.num_scales == 0) return absl::OkStatus();
  QTensor tensor{.scale = operand->scales, .dequant_dtype = plan.out_aval().dtype};
  if (form.has_qvalue) {
    Aval aval = operand->qvalue->aval();
    const absl::StatusOr<PlannedContraction::QuantizedAvals> planned = plan.quantized_avals(side);
    if (planned.ok() && Reader::AsPassed(planned->qvalue.dtype) == aval.dtype) aval.dtype = planned->qvalue.dtype;
    tensor.qvalue = Array::Unowned(aval, operand->qvalue->data);
  }
  AQT_ASSIGN_OR_RETURN(operand->prepared, plan.Prepare(side, std::move(tensor), runtime));
  return absl::OkStatus();
}

absl::Status ReadKeys(Reader& reader, const internal::ProductPlan& product, Key* lhs, Key* rhs) {
  if (product.lhs.draws()) {
    AQT_ASSIGN_OR_RETURN(*lhs, reader.NextKey());
  }
  if (product.rhs.draws()) {
    AQT_ASSIGN_OR_RETURN(*rhs, reader.NextKey());
  }
  return absl::OkStatus();
}

// The memory for each residual of the plan among the results; null for float operands, which Python has.
absl::StatusOr<std::vector<void*>> ResidualMemory(const Call& call, const DotGeneralPlan& plan) {
  std::vector<void*> memory;
  int64_t next = 1;
  for (const ResidualSlot& slot : plan.residuals()) {
    memory.push_back(nullptr);
    if (slot.kind == ResidualKind::kValue) continue;
    AQT_ASSIGN_OR_RETURN(memory.back(), ResultMemory(call, next++, slot.aval));
  }
  AQT_RETURN_IF_ERROR(call.ExpectCounts(call.num_arguments(), next));
  return memory;
}

}  // namespace

absl::Status Forward(const Call& call) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view spec, call.Text("spec"));
  AQT_ASSIGN_OR_RETURN(const absl::string_view passes, call.Text("passes"));
  const bool has_residuals = passes == "both";
  AQT_ASSIGN_OR_RETURN(const Form lhs_form, FormAttribute(call, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Form rhs_form, FormAttribute(call, "rhs"));
  Reader reader(call);
  AQT_ASSIGN_OR_RETURN(GivenOperand lhs, ReadOperand(reader, lhs_form));
  AQT_ASSIGN_OR_RETURN(GivenOperand rhs, ReadOperand(reader, rhs_form));
  AQT_ASSIGN_OR_RETURN(const MutableArrayRef out, call.Result(0));
  lhs.aval.dtype = rhs.aval.dtype = out.dtype;
  AQT_ASSIGN_OR_RETURN(
      const std::shared_ptr<const DotGeneralPlan> plan,
      PlanOf(spec, lhs.aval, rhs.aval, has_residuals ? PlanPasses::kForwardAndBackward : PlanPasses::kForwardOnly));
  const ContractionPlan& engine = internal::EngineOf(*plan);
  XlaExecutor executor(call.frame());
  const Runtime runtime{.executor = &executor};
  AQT_RETURN_IF_ERROR(PrepareOperand(*plan, Side::kLhs, lhs_form, runtime, &lhs));
  AQT_RETURN_IF_ERROR(PrepareOperand(*plan, Side::kRhs, rhs_form, runtime, &rhs));
  OperandKeys keys;
  AQT_RETURN_IF_ERROR(ReadKeys(reader, engine.forward(), &keys.fwd_lhs, &keys.fwd_rhs));
  CallKeys context;
  context.operand_keys = &keys;
  if (!has_residuals) {
    AQT_RETURN_IF_ERROR(call.ExpectCounts(reader.count(), 1));
    return engine.Forward(lhs.ForPlan(lhs_form), rhs.ForPlan(rhs_form), {}, context, out, nullptr, runtime, {});
  }
  AQT_RETURN_IF_ERROR(call.ExpectCounts(reader.count(), call.num_results()));
  AQT_ASSIGN_OR_RETURN(const std::vector<void*> memory, ResidualMemory(call, *plan));
  Residuals residuals = Residuals::Into(memory);
  return engine.Forward(lhs.ForPlan(lhs_form), rhs.ForPlan(rhs_form), {}, context, out, &residuals, runtime, {});
}

absl::Status Gradient(const Call& call) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view spec, call.Text("spec"));
  AQT_ASSIGN_OR_RETURN(const Side side, SideAttribute(call));
  Reader reader(call);
  AQT_ASSIGN_OR_RETURN(const ArrayRef g, reader.Next());
  AQT_ASSIGN_OR_RETURN(const Aval lhs, AvalAttribute(call, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Aval rhs, AvalAttribute(call, "rhs"));
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const DotGeneralPlan> plan,
                       PlanOf(spec, lhs, rhs, PlanPasses::kForwardAndBackward));
  const ContractionPlan& engine = internal::EngineOf(*plan);
  std::vector<Array> arrays;
  for (const ResidualSlot& slot : plan->residuals()) {
    AQT_ASSIGN_OR_RETURN(Array array, reader.NextArray(slot.aval));
    arrays.push_back(std::move(array));
  }
  OperandKeys keys;
  const bool is_lhs = side == Side::kLhs;
  AQT_RETURN_IF_ERROR(ReadKeys(reader, engine.gradient(side).product, is_lhs ? &keys.dlhs_lhs : &keys.drhs_lhs,
                               is_lhs ? &keys.dlhs_rhs : &keys.drhs_rhs));
  AQT_RETURN_IF_ERROR(call.ExpectCounts(reader.count(), 1));
  AQT_ASSIGN_OR_RETURN(const MutableArrayRef result, call.Result(0));
  CallKeys context;
  context.operand_keys = &keys;
  XlaExecutor executor(call.frame());
  return engine.Backward(g, Residuals::FromArrays(arrays), {}, context, is_lhs ? std::optional(result) : std::nullopt,
                         is_lhs ? std::nullopt : std::optional(result), {.executor = &executor}, {});
}

absl::Status QuantizeSide(const Call& call) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view spec, call.Text("spec"));
  AQT_ASSIGN_OR_RETURN(const Side side, SideAttribute(call));
  AQT_ASSIGN_OR_RETURN(const Aval other, AvalAttribute(call, "other"));
  Reader reader(call);
  AQT_ASSIGN_OR_RETURN(const ArrayRef x, reader.Next());
  const bool is_lhs = side == Side::kLhs;
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const DotGeneralPlan> plan,
                       PlanOf(spec, is_lhs ? x.aval() : other, is_lhs ? other : x.aval(), PlanPasses::kForwardOnly));
  const ContractionPlan& engine = internal::EngineOf(*plan);
  OperandKeys keys;
  if (engine.forward().side(side).draws()) {
    AQT_ASSIGN_OR_RETURN(is_lhs ? keys.fwd_lhs : keys.fwd_rhs, reader.NextKey());
  }
  CallKeys context;
  context.operand_keys = &keys;
  AQT_ASSIGN_OR_RETURN(const QTensor tensor, engine.QuantizeOperand(side, x, context));
  AQT_RETURN_IF_ERROR(call.ExpectCounts(reader.count(), 1 + static_cast<int64_t>(tensor.scale.size())));
  const auto write = [&](int64_t index, const Array& array) -> absl::Status {
    AQT_ASSIGN_OR_RETURN(void* const memory, ResultMemory(call, index, array.aval()));
    if (array.num_bytes() > 0) std::memcpy(memory, array.data(), static_cast<size_t>(array.num_bytes()));
    return absl::OkStatus();
  };
  AQT_RETURN_IF_ERROR(write(0, *tensor.qvalue));
  for (size_t i = 0; i < tensor.scale.size(); ++i) {
    AQT_RETURN_IF_ERROR(write(static_cast<int64_t>(i) + 1, tensor.scale[i]));
  }
  return absl::OkStatus();
}

absl::Status PackOperand(const Call& call) {
  AQT_ASSIGN_OR_RETURN(const absl::string_view spec, call.Text("spec"));
  AQT_ASSIGN_OR_RETURN(const Side side, SideAttribute(call));
  AQT_ASSIGN_OR_RETURN(const Aval lhs, AvalAttribute(call, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Aval rhs, AvalAttribute(call, "rhs"));
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const DotGeneralPlan> plan,
                       PlanOf(spec, lhs, rhs, PlanPasses::kForwardOnly));
  Reader reader(call);
  const Form form{.has_value = false, .has_qvalue = true, .num_scales = static_cast<int>(call.num_arguments()) - 1};
  AQT_ASSIGN_OR_RETURN(GivenOperand operand, ReadOperand(reader, form));
  AQT_RETURN_IF_ERROR(call.ExpectCounts(reader.count(), 1));
  XlaExecutor executor(call.frame());
  AQT_RETURN_IF_ERROR(PrepareOperand(*plan, side, form, {.executor = &executor}, &operand));
  const internal::Panels* panels = operand.prepared.impl().panels.get();
  if (panels == nullptr) {
    return absl::UnimplementedError("this operand is packed in each call; use it without panels");
  }
  AQT_ASSIGN_OR_RETURN(void* const memory, ResultMemory(call, 0, {DType::kU8, {panels->bytes}}));
  if (panels->bytes > 0) std::memcpy(memory, panels->data.get(), static_cast<size_t>(panels->bytes));
  return absl::OkStatus();
}

absl::Status DequantizeTensor(const Call& call) {
  Reader reader(call);
  AQT_ASSIGN_OR_RETURN(const ArrayRef qvalue, reader.Next());
  AQT_ASSIGN_OR_RETURN(const MutableArrayRef result, call.Result(0));
  QTensor tensor{.qvalue = Array::Unowned(qvalue.aval(), qvalue.data), .dequant_dtype = result.dtype};
  while (reader.count() < call.num_arguments()) {
    AQT_ASSIGN_OR_RETURN(const ArrayRef scale, reader.Next());
    tensor.scale.push_back(Array::Unowned(scale.aval(), scale.data));
  }
  AQT_RETURN_IF_ERROR(call.ExpectCounts(reader.count(), 1));
  AQT_ASSIGN_OR_RETURN(const Array value, tensor.Dequantize());
  AQT_ASSIGN_OR_RETURN(void* const memory, ResultMemory(call, 0, value.aval()));
  if (value.num_bytes() > 0) std::memcpy(memory, value.data(), static_cast<size_t>(value.num_bytes()));
  return absl::OkStatus();
}

}  // namespace aqt::jax
