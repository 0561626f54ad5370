// Contractions.

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/c_api.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/aval.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/call_options.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/state_arrays.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/dot_operand.h"
#include "aqt/quant/contraction/residuals.h"
#include "aqt/quant/text/config_proto.h"
#include "serving/c/array.h"
#include "serving/c/call.h"
#include "serving/c/qtensor.h"

using aqt::ArrayRef;
using aqt::MutableArrayRef;
using aqt::Side;
using aqt::capi::Call;
using aqt::capi::CallOptions;
using aqt::capi::Check;
using aqt::capi::Make;
using aqt::capi::NotNull;
using aqt::capi::ToArrayRef;
using aqt::capi::ToMutableArrayRef;

struct aqt_dot_general {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kDotGeneral;
  static constexpr char kName[] = "aqt_dot_general";
  explicit aqt_dot_general(aqt::DotGeneralPlan made) : plan(std::move(made)) {}

  aqt::capi::Tag tag = kTag;
  const aqt::DotGeneralPlan plan;
};

struct aqt_prepared {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kPrepared;
  static constexpr char kName[] = "aqt_prepared";
  explicit aqt_prepared(aqt::PreparedOperand made) : operand(std::move(made)) {}

  aqt::capi::Tag tag = kTag;
  const aqt::PreparedOperand operand;
};

struct aqt_residuals {
  static constexpr aqt::capi::Tag kTag = aqt::capi::Tag::kResiduals;
  static constexpr char kName[] = "aqt_residuals";
  explicit aqt_residuals(aqt::Residuals::Operands operands) : residuals(operands) {}

  aqt::capi::Tag tag = kTag;
  aqt::Residuals residuals;
};

namespace {

absl::Status CheckPass(aqt_pass pass) {
  if (pass == AQT_FORWARD || pass == AQT_BACKWARD) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("pass is ", pass, ", expected AQT_FORWARD or AQT_BACKWARD"));
}

absl::StatusOr<Side> ToSide(aqt_side side) {
  if (side == AQT_LHS) return Side::kLhs;
  if (side == AQT_RHS) return Side::kRhs;
  return absl::InvalidArgumentError(absl::StrCat("side is ", side, ", expected AQT_LHS or AQT_RHS"));
}

absl::StatusOr<aqt::DotDims> ToDotDims(const aqt_dot_dims* dims) {
  AQT_RETURN_IF_ERROR(NotNull(dims, "dims"));
  aqt::DotDims result;
  const auto set = [](const int64_t* axes, size_t count, const char* name, aqt::Axes* out) -> absl::Status {
    AQT_ASSIGN_OR_RETURN(*out, aqt::capi::ToAxes(axes, count, name));
    return absl::OkStatus();
  };
  const size_t contracting = dims->num_contracting, batch = dims->num_batch;
  AQT_RETURN_IF_ERROR(set(dims->lhs_contracting, contracting, "dims.lhs_contracting", &result.lhs_contracting));
  AQT_RETURN_IF_ERROR(set(dims->rhs_contracting, contracting, "dims.rhs_contracting", &result.rhs_contracting));
  AQT_RETURN_IF_ERROR(set(dims->lhs_batch, batch, "dims.lhs_batch", &result.lhs_batch));
  AQT_RETURN_IF_ERROR(set(dims->rhs_batch, batch, "dims.rhs_batch", &result.rhs_batch));
  return result;
}

absl::Span<const aqt::StateSlot> StateOf(const aqt_dot_general& plan, aqt_pass pass) {
  return pass == AQT_FORWARD ? plan.plan.forward_state() : plan.plan.backward_state();
}

aqt::Runtime RuntimeOf(const CallOptions& call) {
  aqt::Runtime runtime;
  runtime.executor = call.executor;
  return runtime;
}

// An operand, and whether it has an array, which the output must not overlap.
struct Operand {
  aqt::DotOperand operand;
  bool has_value;
};
absl::StatusOr<Operand> ToOperand(const aqt_operand* given, const char* name) {
  AQT_RETURN_IF_ERROR(NotNull(given, name));
  if (given->prepared != nullptr) AQT_RETURN_IF_ERROR(Check(given->prepared, absl::StrCat(name, ".prepared").c_str()));
  if (given->value == nullptr) {
    if (given->prepared != nullptr) return Operand{aqt::DotOperand(given->prepared->operand), false};
    return absl::InvalidArgumentError(absl::StrCat(name, " has neither a value nor a prepared operand"));
  }
  AQT_ASSIGN_OR_RETURN(const ArrayRef value, ToArrayRef(given->value, name));
  if (given->prepared == nullptr) return Operand{aqt::DotOperand(value), true};
  return Operand{aqt::DotOperand(value, given->prepared->operand), true};
}

absl::Status Forward(const aqt_dot_general* plan, const aqt_operand* lhs, const aqt_operand* rhs,
                     const aqt_call_options* options, const aqt_array* out, aqt_residuals* residuals) {
  AQT_RETURN_IF_ERROR(Check(plan, "plan"));
  if (residuals != nullptr) AQT_RETURN_IF_ERROR(Check(residuals, "residuals"));
  AQT_ASSIGN_OR_RETURN(const Operand left, ToOperand(lhs, "lhs"));
  AQT_ASSIGN_OR_RETURN(const Operand right, ToOperand(rhs, "rhs"));
  AQT_ASSIGN_OR_RETURN(const MutableArrayRef result, ToMutableArrayRef(out, "out"));
  if (left.has_value) AQT_RETURN_IF_ERROR(aqt::capi::CheckApart(result, "out", left.operand.value, "lhs"));
  if (right.has_value) AQT_RETURN_IF_ERROR(aqt::capi::CheckApart(result, "out", right.operand.value, "rhs"));
  AQT_ASSIGN_OR_RETURN(const CallOptions call, aqt::capi::ToCallOptions(options));
  return plan->plan.Forward(left.operand, right.operand, call.context, result,
                            residuals == nullptr ? nullptr : &residuals->residuals, RuntimeOf(call),
                            {.old = call.old_state, .updated = call.new_state});
}

absl::Status Backward(const aqt_dot_general* plan, const aqt_array* g, const aqt_residuals* residuals,
                      const aqt_call_options* options, const aqt_array* dlhs, const aqt_array* drhs) {
  AQT_RETURN_IF_ERROR(Check(plan, "plan"));
  AQT_RETURN_IF_ERROR(Check(residuals, "residuals"));
  AQT_ASSIGN_OR_RETURN(const ArrayRef gradient, ToArrayRef(g, "g"));
  std::optional<MutableArrayRef> results[2];
  const aqt_array* const given[2] = {dlhs, drhs};
  const char* const names[2] = {"dlhs", "drhs"};
  for (int i = 0; i < 2; ++i) {
    if (given[i] == nullptr) continue;
    AQT_ASSIGN_OR_RETURN(results[i], ToMutableArrayRef(given[i], names[i]));
    AQT_RETURN_IF_ERROR(aqt::capi::CheckApart(*results[i], names[i], gradient, "g"));
  }
  if (results[0].has_value() && results[1].has_value()) {
    AQT_RETURN_IF_ERROR(aqt::capi::CheckApart(*results[0], names[0], *results[1], names[1]));
  }
  AQT_ASSIGN_OR_RETURN(const CallOptions call, aqt::capi::ToCallOptions(options));
  return plan->plan.Backward(gradient, residuals->residuals, call.context, results[0], results[1], RuntimeOf(call),
                             {.old = call.old_state, .updated = call.new_state});
}

}  // namespace

aqt_code aqt_dot_general_make(const char* config, const aqt_aval* lhs, const aqt_aval* rhs, const aqt_dot_dims* dims,
                              const aqt_plan_options* options, aqt_dot_general** plan, aqt_error** error) {
  return Make(plan, error, [&]() -> absl::StatusOr<aqt::DotGeneralPlan> {
    AQT_RETURN_IF_ERROR(NotNull(config, "config"));
    AQT_ASSIGN_OR_RETURN(const aqt::PlanOptions plan_options, aqt::capi::ToPlanOptions(options));
    AQT_ASSIGN_OR_RETURN(const aqt::Aval left, aqt::capi::ToAval(lhs, "lhs"));
    AQT_ASSIGN_OR_RETURN(const aqt::Aval right, aqt::capi::ToAval(rhs, "rhs"));
    AQT_ASSIGN_OR_RETURN(const aqt::DotDims dot_dims, ToDotDims(dims));
    AQT_ASSIGN_OR_RETURN(const aqt::DotGeneralConfig parsed, aqt::DotGeneralFromText(config));
    return aqt::DotGeneralPlan::Make(parsed, left, right, dot_dims, plan_options);
  });
}

void aqt_dot_general_free(aqt_dot_general* plan) { aqt::capi::Free(plan); }

aqt_code aqt_dot_general_out(const aqt_dot_general* plan, aqt_aval* aval, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    AQT_RETURN_IF_ERROR(NotNull(aval, "aval"));
    *aval = aqt::capi::FromAval(plan->plan.out_aval());
    return absl::OkStatus();
  });
}

aqt_code aqt_dot_general_needs_key(const aqt_dot_general* plan, aqt_pass pass, int32_t* needs_key, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    AQT_RETURN_IF_ERROR(CheckPass(pass));
    AQT_RETURN_IF_ERROR(NotNull(needs_key, "needs_key"));
    *needs_key = pass == AQT_FORWARD ? plan->plan.ForwardNeedsKey() : plan->plan.BackwardNeedsKey();
    return absl::OkStatus();
  });
}

aqt_code aqt_dot_general_config(const aqt_dot_general* plan, aqt_string** config, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    if (config != nullptr) *config = nullptr;
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    return aqt::capi::Return(aqt::ToText(plan->plan.config()), config);
  });
}

aqt_code aqt_dot_general_num_state(const aqt_dot_general* plan, aqt_pass pass, size_t* count, aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    AQT_RETURN_IF_ERROR(CheckPass(pass));
    AQT_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = StateOf(*plan, pass).size();
    return absl::OkStatus();
  });
}

aqt_code aqt_dot_general_state(const aqt_dot_general* plan, aqt_pass pass, size_t index, aqt_state* state,
                               aqt_error** error) {
  return Call(error, [&]() -> absl::Status {
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    AQT_RETURN_IF_ERROR(CheckPass(pass));
    const absl::Span<const aqt::StateSlot> slots = StateOf(*plan, pass);
    if (index >= slots.size()) {
      return absl::OutOfRangeError(absl::StrCat("the pass has ", slots.size(), " statistics, and index is ", index));
    }
    const aqt::StateSlot& slot = slots[index];
    return aqt::capi::Write<aqt_state>({sizeof(aqt_state), slot.operand.c_str(), slot.name.c_str(),
                                        aqt::capi::FromArray(slot.initial), slot.updated_in_train ? 1 : 0},
                                       state, "state");
  });
}

aqt_code aqt_dot_general_forward(const aqt_dot_general* plan, const aqt_operand* lhs, const aqt_operand* rhs,
                                 const aqt_call_options* options, const aqt_array* out, aqt_residuals* residuals,
                                 aqt_error** error) {
  return Call(error, [&]() { return Forward(plan, lhs, rhs, options, out, residuals); });
}

aqt_code aqt_dot_general_backward(const aqt_dot_general* plan, const aqt_array* g, const aqt_residuals* residuals,
                                  const aqt_call_options* options, const aqt_array* dlhs, const aqt_array* drhs,
                                  aqt_error** error) {
  return Call(error, [&]() { return Backward(plan, g, residuals, options, dlhs, drhs); });
}

aqt_code aqt_residuals_make(int32_t borrow, aqt_residuals** residuals, aqt_error** error) {
  return Make(residuals, error, [&]() -> absl::StatusOr<aqt::Residuals::Operands> {
    return borrow != 0 ? aqt::Residuals::Operands::kBorrow : aqt::Residuals::Operands::kCopy;
  });
}

int64_t aqt_residuals_bytes(const aqt_residuals* residuals) {
  return Check(residuals, "residuals").ok() ? residuals->residuals.num_bytes() : 0;
}

void aqt_residuals_free(aqt_residuals* residuals) { aqt::capi::Free(residuals); }

aqt_code aqt_dot_general_prepare(const aqt_dot_general* plan, aqt_side side, const aqt_array* value,
                                 const aqt_call_options* options, aqt_prepared** prepared, aqt_error** error) {
  return Make(prepared, error, [&]() -> absl::StatusOr<aqt::PreparedOperand> {
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    AQT_ASSIGN_OR_RETURN(const Side which, ToSide(side));
    AQT_ASSIGN_OR_RETURN(const ArrayRef array, ToArrayRef(value, "value"));
    AQT_ASSIGN_OR_RETURN(const CallOptions call, aqt::capi::ToCallOptions(options));
    return plan->plan.Prepare(which, array, call.context, RuntimeOf(call));
  });
}

aqt_code aqt_dot_general_prepare_qtensor(const aqt_dot_general* plan, aqt_side side, const aqt_qtensor* qtensor,
                                         const aqt_call_options* options, aqt_prepared** prepared, aqt_error** error) {
  return Make(prepared, error, [&]() -> absl::StatusOr<aqt::PreparedOperand> {
    AQT_RETURN_IF_ERROR(Check(plan, "plan"));
    AQT_ASSIGN_OR_RETURN(const Side which, ToSide(side));
    AQT_RETURN_IF_ERROR(Check(qtensor, "qtensor"));
    AQT_ASSIGN_OR_RETURN(const CallOptions call, aqt::capi::ToCallOptions(options));
    return plan->plan.Prepare(which, qtensor->qtensor, RuntimeOf(call));
  });
}

aqt_code aqt_prepared_qtensor(const aqt_prepared* prepared, aqt_qtensor** qtensor, aqt_error** error) {
  return Make(qtensor, error, [&]() -> absl::StatusOr<aqt::QTensor> {
    AQT_RETURN_IF_ERROR(Check(prepared, "prepared"));
    return prepared->operand.qtensor();
  });
}

aqt_code aqt_prepared_without_values(const aqt_prepared* prepared, aqt_prepared** smaller, aqt_error** error) {
  return Make(smaller, error, [&]() -> absl::StatusOr<aqt::PreparedOperand> {
    AQT_RETURN_IF_ERROR(Check(prepared, "prepared"));
    return prepared->operand.WithoutValues();
  });
}

int64_t aqt_prepared_panel_bytes(const aqt_prepared* prepared) {
  return Check(prepared, "prepared").ok() ? prepared->operand.panel_bytes() : 0;
}

void aqt_prepared_free(aqt_prepared* prepared) { aqt::capi::Free(prepared); }
