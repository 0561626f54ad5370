#include "aqt/quant/contraction/einsum.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/check.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/reduce/reduce.h"
#include "aqt/kernels/reduce/xla_sum.h"
#include "aqt/quant/contraction/einsum_lowering.h"
#include "aqt/quant/contraction/engine/pass.h"
#include "aqt/quant/contraction/engine/workspace.h"
#include "aqt/quant/contraction/one_shot.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt {
namespace {

using internal::EinsumOperand;
using internal::OfSide;
using internal::ScratchSlot;
using internal::Workspace;

bool Has(const std::string& names, char letter) { return names.find(letter) != std::string::npos; }
int64_t Find(const std::string& names, char letter) { return static_cast<int64_t>(names.find(letter)); }

template <class Ref>
Ref ViewOf(const EinsumOperand& operand, const Ref& x) {
  Ref view = x;
  view.shape = operand.ViewShape();
  view.strides.clear();
  for (const Axes& axes : operand.view_axes) {
    int64_t stride = 0;
    for (const int64_t axis : axes) stride += x.strides[axis];
    view.strides.push_back(stride);
  }
  return view;
}

// For Compat::einsum_sums_in_dtype.
void SumInDType(const EinsumOperand& operand, const ArrayRef& view, void* out) {
  const std::vector<Axes> sums = operand.SumsInDType();
  Array sum;  // that `left` refers to
  ArrayRef left = view;
  for (size_t i = 0; i + 1 < sums.size(); ++i) {
    Shape shape;
    for (const int64_t axis : RemainingAxes(left.shape.rank(), sums[i], {})) shape.push_back(left.shape[axis]);
    ArrayBuilder builder(view.dtype, shape);
    kernels::SumAsXla(left, sums[i], builder.data());
    sum = std::move(builder).Build();
    left = sum;
  }
  kernels::SumAsXla(left, sums.back(), out);
}

// The operand that DotGeneral reads for x: a view of it, or a buffer.
ArrayRef UsedOf(const EinsumOperand& operand, const ArrayRef& x, Side side, bool sums_in_dtype, Workspace& workspace) {
  const bool is_lhs = side == Side::kLhs;
  ArrayRef view = ViewOf(operand, x);
  if (operand.converts()) {
    const Aval aval{operand.used.dtype, view.shape};
    const MutableArrayRef buffer(aval.dtype, aval.shape,
                                 workspace.Get(OfSide(is_lhs, ScratchSlot::kLhsEinsum), aval.num_bytes()));
    AQT_CHECK(CastArray(view, buffer).ok());
    view = buffer;
  }
  if (operand.summed.empty()) return view;
  void* buffer = workspace.Get(OfSide(is_lhs, ScratchSlot::kLhsEinsumSum), operand.used.num_bytes());
  if (sums_in_dtype) SumInDType(operand, view, buffer);
  else kernels::Reduce(kernels::ReduceKind::kSum, view, operand.summed, buffer);
  return ArrayRef(operand.used.dtype, operand.used.shape, buffer);
}

// The scratch memory of UsedOf and of a gradient.
void AddSlots(const EinsumOperand& operand, Side side, internal::SlotSizes& sizes) {
  const bool is_lhs = side == Side::kLhs;
  if (operand.converts()) {
    sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsEinsum), operand.ViewShape().num_elements() * SizeOf(operand.used.dtype));
  }
  if (operand.materializes()) sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsEinsumSum), operand.used.num_bytes());
}

// Spreads the gradient of the operand that DotGeneral read to `d`, if they differ.
void SpreadGradient(const EinsumOperand& operand, const ArrayRef& d_used, const MutableArrayRef& d) {
  ArrayRef source = d_used;
  const MutableArrayRef view = ViewOf(operand, d);
  source.shape = view.shape;
  source.strides.clear();
  for (const char letter : operand.view_names) {
    source.strides.push_back(Has(operand.names, letter) ? d_used.strides[Find(operand.names, letter)] : 0);
  }
  AQT_CHECK(CastArray(source, view).ok());
}

// `x` with its axes, named `from`, in the order `to`.
template <class Ref>
Ref Permuted(const Ref& x, const std::string& from, const std::string& to) {
  Ref view = x;
  for (size_t i = 0; i < to.size(); ++i) {
    view.shape[static_cast<int64_t>(i)] = x.shape[Find(from, to[i])];
    view.strides[i] = x.strides[Find(from, to[i])];
  }
  return view;
}

// Whether a stored tensor replaces the operand, without a float value for gradients.
bool NeedsNoValue(const DotOperand& x) {
  return x.prepared != nullptr && x.prepared->qtensor().IsFull() && x.value.data == nullptr;
}

}  // namespace

struct EinsumPlan::Impl {
  internal::EinsumLowering lowering;
  DotGeneralPlan plan;
  int64_t scratch_bytes = 0;  // including the plan's

  const EinsumOperand& operand(Side side) const { return lowering.operand(side); }

  // The operand that DotGeneral reads.
  DotOperand Used(Side side, const DotOperand& x, Workspace& workspace) const {
    if (NeedsNoValue(x)) return x;
    const EinsumOperand& own = operand(side);
    DotOperand used = x;
    used.value = UsedOf(own, x.value, side, plan.options().semantics.compat.einsum_sums_in_dtype, workspace);
    used.transient = x.transient || own.materializes();
    return used;
  }
};

absl::StatusOr<DType> EinsumDType(DType lhs, DType rhs) {
  const auto widened = [](DType dtype) {
    if (dtype == DType::kS2 || dtype == DType::kS4) return DType::kF32;
    return dtype == DType::kE4M3FN || dtype == DType::kE5M2 ? DType::kBF16 : dtype;
  };
  for (const DType dtype : {lhs, rhs}) {
    if (dtype != DType::kF64 && dtype != DType::kBool) continue;
    return absl::InvalidArgumentError(absl::StrCat("einsum: an operand is ", ToString(dtype),
                                                   ", expected f32, bf16, f16, an 8-bit float or an integer"));
  }
  if (lhs == rhs && widened(lhs) != lhs) {
    return absl::InvalidArgumentError(absl::StrCat("einsum: both operands are ", ToString(lhs),
                                                   ", which is not converted; cast one of them to f32, bf16 or f16"));
  }
  const DType dtype = internal::Promote(widened(lhs), widened(rhs));
  return IsInteger(dtype) ? DType::kF32 : dtype;
}

DotGeneralConfig SwapOperands(DotGeneralConfig config, bool keeps_mid_alphas) {
  std::swap(config.fwd.lhs, config.fwd.rhs);
  if (!keeps_mid_alphas) std::swap(config.fwd.lhs_mid_alpha, config.fwd.rhs_mid_alpha);
  std::swap(config.dlhs, config.drhs);
  if (config.tiling.has_value()) std::swap(config.tiling->lhs, config.tiling->rhs);
  return config;
}

absl::StatusOr<EinsumPlan> EinsumPlan::Make(absl::string_view equation, const DotGeneralConfig& config, const Aval& lhs,
                                            const Aval& rhs, const PlanOptions& options) {
  AQT_ASSIGN_OR_RETURN(internal::EinsumLowering lowering, internal::LowerEinsum(equation, lhs, rhs));
  const DotGeneralConfig product_config =
      lowering.swapped ? SwapOperands(config, options.semantics.compat.einsum_keeps_mid_alphas) : config;
  const EinsumOperand& first = lowering.operand(lowering.InProduct(Side::kLhs));
  const EinsumOperand& second = lowering.operand(lowering.InProduct(Side::kRhs));
  absl::StatusOr<DotGeneralPlan> plan =
      DotGeneralPlan::Make(product_config, first.used, second.used, lowering.dims, options);
  if (!plan.ok()) return Annotate(plan.status(), internal::ProductOf(equation, lowering));
  auto impl = std::make_shared<Impl>(Impl{std::move(lowering), *std::move(plan)});
  internal::SlotSizes sizes;
  for (const Side side : internal::kSides) AddSlots(impl->operand(side), side, sizes);
  impl->scratch_bytes = sizes.Total() + impl->plan.scratch_bytes();
  return EinsumPlan(std::move(impl));
}

const Aval& EinsumPlan::lhs_aval() const { return impl_->lowering.lhs.given; }
const Aval& EinsumPlan::rhs_aval() const { return impl_->lowering.rhs.given; }
const Aval& EinsumPlan::out_aval() const { return impl_->lowering.out; }
const EinsumEquation& EinsumPlan::equation() const { return impl_->lowering.equation; }
const DotGeneralPlan& EinsumPlan::dot_general() const { return impl_->plan; }
int64_t EinsumPlan::scratch_bytes() const { return impl_->scratch_bytes; }
bool EinsumPlan::swapped() const { return impl_->lowering.swapped; }

namespace {

absl::Status CheckArray(const char* name, const Aval& got, const Aval& want) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("einsum: ", name, " is ", got.ToString(), ", but the plan is for ", want.ToString()));
}

}  // namespace

absl::Status EinsumPlan::Forward(const DotOperand& lhs, const DotOperand& rhs, const Context& context,
                                 const MutableArrayRef& out, Residuals* residuals, const Runtime& runtime,
                                 const StateArrays& state) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckArray("out", out.aval(), impl.lowering.out));
  for (const Side side : internal::kSides) {
    const DotOperand& x = side == Side::kLhs ? lhs : rhs;
    if (NeedsNoValue(x)) continue;
    AQT_RETURN_IF_ERROR(CheckArray(internal::Name(side), x.value.aval(), impl.operand(side).given));
  }
  Workspace workspace(internal::ScratchOf(runtime));
  const DotOperand a = impl.Used(Side::kLhs, lhs, workspace), b = impl.Used(Side::kRhs, rhs, workspace);
  Context in_product = context;
  if (impl.lowering.swapped) {
    in_product.quant_mode = context.rhs_quant_mode.value_or(context.quant_mode);
    in_product.rhs_quant_mode = context.quant_mode;
  }
  return impl.plan.Forward(impl.lowering.swapped ? b : a, impl.lowering.swapped ? a : b, in_product,
                           Permuted(out, impl.lowering.equation.out, impl.lowering.product_names), residuals, runtime,
                           state);
}

absl::Status EinsumPlan::Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                                  const std::optional<MutableArrayRef>& dlhs,
                                  const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                  const StateArrays& state) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckArray("g", g.aval(), impl.lowering.out));
  Workspace workspace(internal::ScratchOf(runtime));
  std::optional<MutableArrayRef> used[2];
  for (const Side side : internal::kSides) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    if (!d.has_value()) continue;
    const EinsumOperand& own = impl.operand(side);
    if (IsInteger(own.given.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("einsum: ", internal::Name(side), " is ", own.given.ToString(),
                                                     ": integers have no gradient; do not request one"));
    }
    AQT_RETURN_IF_ERROR(CheckArray(side == Side::kLhs ? "dlhs" : "drhs", d->aval(), own.given));
    used[static_cast<int>(side)] =
        own.materializes() ? MutableArrayRef(own.used.dtype, own.used.shape,
                                             workspace.Get(OfSide(side == Side::kLhs, ScratchSlot::kLhsEinsumSum),
                                                           own.used.num_bytes()))
                           : ViewOf(own, *d);
  }
  // Zeros off diagonals are written first, since the product may be written between them.
  for (const Side side : internal::kSides) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    const EinsumOperand& own = impl.operand(side);
    if (d.has_value() && own.ViewShape().num_elements() != own.given.shape.num_elements()) internal::FillZeros(*d);
  }
  AQT_RETURN_IF_ERROR(impl.plan.Backward(Permuted(g, impl.lowering.equation.out, impl.lowering.product_names),
                                         residuals, context, used[impl.lowering.swapped ? 1 : 0],
                                         used[impl.lowering.swapped ? 0 : 1], runtime, state));
  for (const Side side : internal::kSides) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    const EinsumOperand& own = impl.operand(side);
    if (d.has_value() && own.materializes()) SpreadGradient(own, *used[static_cast<int>(side)], *d);
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedOperand> EinsumPlan::Prepare(Side side, const ArrayRef& value, const Context& context,
                                                    const Runtime& runtime) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckArray(internal::Name(side), value.aval(), impl.operand(side).given));
  Workspace workspace(internal::ScratchOf(runtime));
  return impl.plan.Prepare(impl.lowering.InProduct(side), impl.Used(side, value, workspace).value, context, runtime);
}

absl::StatusOr<PreparedOperand> EinsumPlan::Prepare(Side side, QTensor qtensor, const Runtime& runtime) const {
  const Impl& impl = *impl_;
  if (!impl.operand(side).permutes_only()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "einsum: the equation takes a diagonal, a sum or a broadcast of ", internal::Name(side), " ",
        impl.operand(side).given.ToString(), ", which a quantized tensor cannot replace; prepare the float operand"));
  }
  return impl.plan.Prepare(impl.lowering.InProduct(side), std::move(qtensor), runtime);
}

absl::StatusOr<Array> QuantizedEinsum(absl::string_view equation, const DotGeneralConfig& config, const ArrayRef& lhs,
                                      const ArrayRef& rhs, const Context& context, const PlanOptions& options,
                                      const Runtime& runtime) {
  return internal::RunOnce(EinsumPlan::Make(equation, config, lhs.aval(), rhs.aval(),
                                            internal::WithPasses(options, PlanPasses::kForwardOnly)),
                           [&](const EinsumPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
                             return plan.Forward(lhs, rhs, context, out, residuals, runtime);
                           });
}

absl::StatusOr<DotGeneralGradients> QuantizedEinsumWithGradients(absl::string_view equation,
                                                                 const DotGeneralConfig& config, const ArrayRef& lhs,
                                                                 const ArrayRef& rhs, const ArrayRef& g,
                                                                 const Context& context, const PlanOptions& options,
                                                                 const Runtime& runtime) {
  return internal::RunOnceWithGradients(
      EinsumPlan::Make(equation, config, lhs.aval(), rhs.aval(),
                       internal::WithPasses(options, PlanPasses::kForwardAndBackward)),
      [&](const EinsumPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
        return plan.Forward(lhs, rhs, context, out, residuals, runtime);
      },
      [&](const EinsumPlan& plan, const Residuals& residuals, const MutableArrayRef& dlhs,
          const MutableArrayRef& drhs) { return plan.Backward(g, residuals, context, dlhs, drhs, runtime); });
}

}  // namespace aqt
