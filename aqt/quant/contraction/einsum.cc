#include "aqt/quant/contraction/einsum.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/core/check.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/reduce.h"
#include "aqt/quant/contraction/one_shot.h"
#include "aqt/quant/contraction/pass.h"
#include "aqt/quant/contraction/workspace.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/numerics/row_ops.h"

namespace aqt {
namespace {

using internal::OfSide;
using internal::ScratchSlot;
using internal::Workspace;

bool Has(const std::string& names, char letter) { return names.find(letter) != std::string::npos; }
int64_t Find(const std::string& names, char letter) { return static_cast<int64_t>(names.find(letter)); }

// How the given operand becomes the one that DotGeneral reads.
struct OperandPlan {
  Aval given;
  // The view: one axis per letter (diagonals taken, broadcast axes dropped), made of these axes of the given array.
  std::string view_names;
  std::vector<Axes> view_axes;
  Axes summed;        // axes of the view
  std::string names;  // of the axes that DotGeneral sees
  Aval used;

  bool converts() const { return given.dtype != used.dtype; }
  bool materializes() const { return converts() || !summed.empty(); }
  bool permutes_only() const { return summed.empty() && static_cast<int64_t>(view_names.size()) == given.shape.rank(); }

  Shape ViewShape() const {
    Shape shape;
    for (const Axes& axes : view_axes) shape.push_back(given.shape[axes[0]]);
    return shape;
  }
  template <class Ref>
  Ref View(const Ref& x) const {
    Ref view = x;
    view.shape = ViewShape();
    view.strides.clear();
    for (const Axes& axes : view_axes) {
      int64_t stride = 0;
      for (const int64_t axis : axes) stride += x.strides[axis];
      view.strides.push_back(stride);
    }
    return view;
  }
  // What DotGeneral reads for x: a view of it, or a buffer.
  ArrayRef Used(const ArrayRef& x, Side side, Workspace& workspace) const {
    const bool is_lhs = side == Side::kLhs;
    ArrayRef view = View(x);
    if (converts()) {
      const Aval aval{used.dtype, view.shape};
      const MutableArrayRef buffer(aval.dtype, aval.shape,
                                   workspace.Get(OfSide(is_lhs, ScratchSlot::kLhsEinsum), aval.num_bytes()));
      AQT_CHECK(CastArray(view, buffer).ok());
      view = buffer;
    }
    if (summed.empty()) return view;
    void* buffer = workspace.Get(OfSide(is_lhs, ScratchSlot::kLhsEinsumSum), used.num_bytes());
    kernels::Reduce(kernels::ReduceKind::kSum, view, summed, buffer);
    return ArrayRef(used.dtype, used.shape, buffer);
  }
  // What Used and a gradient need.
  void AddSlots(Side side, internal::SlotSizes& sizes) const {
    const bool is_lhs = side == Side::kLhs;
    if (converts()) sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsEinsum), ViewShape().num_elements() * SizeOf(used.dtype));
    if (materializes()) sizes.Add(OfSide(is_lhs, ScratchSlot::kLhsEinsumSum), used.num_bytes());
  }
  // Spreads the gradient of what DotGeneral read, when that is not `d` itself.
  void SpreadGradient(const ArrayRef& d_used, const MutableArrayRef& d) const {
    ArrayRef source = d_used;
    const MutableArrayRef view = View(d);
    source.shape = view.shape;
    source.strides.clear();
    for (const char letter : view_names)
      source.strides.push_back(Has(names, letter) ? d_used.strides[Find(names, letter)] : 0);
    AQT_CHECK(CastArray(source, view).ok());
  }
};

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
  EinsumEquation equation;
  OperandPlan lhs, rhs;
  Aval out;
  bool swapped = false;
  std::string product_names;  // of the axes of the product
  std::optional<DotGeneralPlan> plan;
  int64_t scratch_bytes = 0;  // with the plan's

  const OperandPlan& operand(Side side) const { return side == Side::kLhs ? lhs : rhs; }
  Side InProduct(Side side) const { return swapped ? Other(side) : side; }

  // The operand that DotGeneral reads.
  DotOperand Used(Side side, const DotOperand& x, Workspace& workspace) const {
    if (NeedsNoValue(x)) return x;
    const OperandPlan& own = operand(side);
    DotOperand used = x;
    used.value = own.Used(x.value, side, workspace);
    used.transient = x.transient || own.materializes();
    return used;
  }
};

namespace {

// The axes of one operand, given the names of the other one.
absl::StatusOr<OperandPlan> MakeOperand(absl::string_view equation, Side side, const Aval& own,
                                        const std::string& names, const Aval& other, const std::string& other_names,
                                        const std::string& out) {
  OperandPlan plan;
  plan.given = own;
  for (int64_t axis = 0; axis < own.shape.rank(); ++axis) {
    const char letter = names[axis];
    const int64_t first = Find(names, letter);
    if (own.shape[axis] != own.shape[first]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "einsum \"", equation, "\": '", std::string(1, letter), "' is ", own.shape[first], " and ", own.shape[axis],
          " in ", internal::Name(side), " ", own.ToString(), "; a repeated letter needs equal extents"));
    }
    if (Has(other_names, letter)) {
      const int64_t extent = other.shape[Find(other_names, letter)];
      if (extent != own.shape[axis] && extent != 1 && own.shape[axis] != 1) {
        return absl::InvalidArgumentError(absl::StrCat("einsum \"", equation, "\": '", std::string(1, letter), "' is ",
                                                       own.shape[axis], " in ", internal::Name(side), " ",
                                                       own.ToString(), ", but ", extent, " in the other operand, ",
                                                       other.ToString(), "; expected equal, or 1"));
      }
      if (own.shape[axis] == 1 && extent != 1) continue;
    }
    if (first == axis) {
      plan.view_names.push_back(letter);
      plan.view_axes.push_back({axis});
    } else {
      plan.view_axes[Find(plan.view_names, letter)].push_back(axis);
    }
  }
  for (size_t i = 0; i < plan.view_names.size(); ++i) {
    const char letter = plan.view_names[i];
    const bool in_other = Has(other_names, letter) &&
                          (own.shape[Find(names, letter)] == 1 || other.shape[Find(other_names, letter)] != 1);
    if (in_other || Has(out, letter)) {
      plan.names.push_back(letter);
      plan.used.shape.push_back(own.shape[plan.view_axes[i][0]]);
    } else {
      plan.summed.push_back(static_cast<int64_t>(i));
    }
  }
  return plan;
}

}  // namespace

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

DotGeneral SwapOperands(DotGeneral config) {
  std::swap(config.fwd.lhs, config.fwd.rhs);
  std::swap(config.fwd.lhs_mid_alpha, config.fwd.rhs_mid_alpha);
  std::swap(config.dlhs, config.drhs);
  if (config.tiling.has_value()) std::swap(config.tiling->lhs, config.tiling->rhs);
  return config;
}

absl::StatusOr<EinsumPlan> EinsumPlan::Make(absl::string_view equation, const DotGeneral& config, const Aval& lhs,
                                            const Aval& rhs, const PlanOptions& options) {
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(lhs.shape), "einsum: lhs"));
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(rhs.shape), "einsum: rhs"));
  auto impl = std::make_shared<Impl>();
  AQT_ASSIGN_OR_RETURN(impl->equation, ParseEinsum(equation, lhs.shape.rank(), rhs.shape.rank()));
  const EinsumEquation& names = impl->equation;
  AQT_ASSIGN_OR_RETURN(impl->lhs, MakeOperand(equation, Side::kLhs, lhs, names.lhs, rhs, names.rhs, names.out));
  AQT_ASSIGN_OR_RETURN(impl->rhs, MakeOperand(equation, Side::kRhs, rhs, names.rhs, lhs, names.lhs, names.out));
  AQT_ASSIGN_OR_RETURN(const DType dtype, EinsumDType(lhs.dtype, rhs.dtype));
  impl->lhs.used.dtype = impl->rhs.used.dtype = dtype;

  const std::string &a = impl->lhs.names, &b = impl->rhs.names;
  std::string batch, contracted, a_rest, b_rest;
  impl->out.dtype = dtype;
  for (const char letter : names.out) {
    if (Has(a, letter) && Has(b, letter)) batch.push_back(letter);
    impl->out.shape.push_back(Has(a, letter) ? impl->lhs.used.shape[Find(a, letter)]
                                             : impl->rhs.used.shape[Find(b, letter)]);
  }
  for (const char letter : a) {
    if (!Has(b, letter)) a_rest.push_back(letter);
    if (Has(b, letter) && !Has(names.out, letter)) contracted.push_back(letter);
  }
  for (const char letter : b) {
    if (!Has(a, letter)) b_rest.push_back(letter);
  }
  std::sort(contracted.begin(), contracted.end());
  impl->swapped = batch + a_rest + b_rest != names.out;
  impl->product_names = batch + (impl->swapped ? b_rest + a_rest : a_rest + b_rest);

  const OperandPlan& first = impl->operand(impl->InProduct(Side::kLhs));
  const OperandPlan& second = impl->operand(impl->InProduct(Side::kRhs));
  DotDims dims;
  for (const char letter : batch) {
    dims.lhs_batch.push_back(Find(first.names, letter));
    dims.rhs_batch.push_back(Find(second.names, letter));
  }
  for (const char letter : contracted) {
    dims.lhs_contracting.push_back(Find(first.names, letter));
    dims.rhs_contracting.push_back(Find(second.names, letter));
  }
  DotGeneral product_config = impl->swapped ? SwapOperands(config) : config;
  if (options.semantics.compat.einsum_keeps_mid_alphas) {
    product_config.fwd.lhs_mid_alpha = config.fwd.lhs_mid_alpha;
    product_config.fwd.rhs_mid_alpha = config.fwd.rhs_mid_alpha;
  }
  absl::StatusOr<DotGeneralPlan> plan = DotGeneralPlan::Make(product_config, first.used, second.used, dims, options);
  if (!plan.ok()) {
    const char* swapped = impl->swapped ? " (as rhs x lhs: sides and passes are exchanged)" : "";
    return Annotate(plan.status(), absl::StrCat("einsum \"", equation, "\"", swapped));
  }
  impl->plan = *std::move(plan);
  internal::SlotSizes sizes;
  for (const Side side : internal::kSides) impl->operand(side).AddSlots(side, sizes);
  impl->scratch_bytes = sizes.Total() + impl->plan->scratch_bytes();
  return EinsumPlan(std::move(impl));
}

const Aval& EinsumPlan::lhs_aval() const { return impl_->lhs.given; }
const Aval& EinsumPlan::rhs_aval() const { return impl_->rhs.given; }
const Aval& EinsumPlan::out_aval() const { return impl_->out; }
const EinsumEquation& EinsumPlan::equation() const { return impl_->equation; }
const DotGeneralPlan& EinsumPlan::dot_general() const { return *impl_->plan; }
int64_t EinsumPlan::scratch_bytes() const { return impl_->scratch_bytes; }
bool EinsumPlan::swapped() const { return impl_->swapped; }

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
  AQT_RETURN_IF_ERROR(CheckArray("out", out.aval(), impl.out));
  for (const Side side : internal::kSides) {
    const DotOperand& x = side == Side::kLhs ? lhs : rhs;
    if (NeedsNoValue(x)) continue;
    AQT_RETURN_IF_ERROR(CheckArray(internal::Name(side), x.value.aval(), impl.operand(side).given));
  }
  Workspace workspace(internal::ScratchOf(runtime));
  const DotOperand a = impl.Used(Side::kLhs, lhs, workspace), b = impl.Used(Side::kRhs, rhs, workspace);
  Context in_product = context;
  if (impl.swapped) {
    in_product.quant_mode = context.rhs_quant_mode.value_or(context.quant_mode);
    in_product.rhs_quant_mode = context.quant_mode;
  }
  return impl.plan->Forward(impl.swapped ? b : a, impl.swapped ? a : b, in_product,
                            Permuted(out, impl.equation.out, impl.product_names), residuals, runtime, state);
}

absl::Status EinsumPlan::Backward(const ArrayRef& g, const Residuals& residuals, const Context& context,
                                  const std::optional<MutableArrayRef>& dlhs,
                                  const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                  const StateArrays& state) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckArray("g", g.aval(), impl.out));
  Workspace workspace(internal::ScratchOf(runtime));
  std::optional<MutableArrayRef> used[2];
  for (const Side side : internal::kSides) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    if (!d.has_value()) continue;
    const OperandPlan& own = impl.operand(side);
    if (IsInteger(own.given.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("einsum: ", internal::Name(side), " is ", own.given.ToString(),
                                                     ": integers have no gradient; do not request one"));
    }
    AQT_RETURN_IF_ERROR(CheckArray(side == Side::kLhs ? "dlhs" : "drhs", d->aval(), own.given));
    used[static_cast<int>(side)] =
        own.materializes() ? MutableArrayRef(own.used.dtype, own.used.shape,
                                             workspace.Get(OfSide(side == Side::kLhs, ScratchSlot::kLhsEinsumSum),
                                                           own.used.num_bytes()))
                           : own.View(*d);
  }
  // Zeros off diagonals are written before the product, which may be written between them.
  for (const Side side : internal::kSides) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    const OperandPlan& own = impl.operand(side);
    if (d.has_value() && own.ViewShape().num_elements() != own.given.shape.num_elements()) internal::FillZeros(*d);
  }
  AQT_RETURN_IF_ERROR(impl.plan->Backward(Permuted(g, impl.equation.out, impl.product_names), residuals, context,
                                          used[impl.swapped ? 1 : 0], used[impl.swapped ? 0 : 1], runtime, state));
  for (const Side side : internal::kSides) {
    const std::optional<MutableArrayRef>& d = side == Side::kLhs ? dlhs : drhs;
    const OperandPlan& own = impl.operand(side);
    if (d.has_value() && own.materializes()) own.SpreadGradient(*used[static_cast<int>(side)], *d);
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedOperand> EinsumPlan::Prepare(Side side, const ArrayRef& value, const Context& context,
                                                    const Runtime& runtime) const {
  const Impl& impl = *impl_;
  AQT_RETURN_IF_ERROR(CheckArray(internal::Name(side), value.aval(), impl.operand(side).given));
  Workspace workspace(internal::ScratchOf(runtime));
  return impl.plan->Prepare(impl.InProduct(side), impl.Used(side, value, workspace).value, context, runtime);
}

absl::StatusOr<PreparedOperand> EinsumPlan::Prepare(Side side, QTensor qtensor, const Runtime& runtime) const {
  const Impl& impl = *impl_;
  if (!impl.operand(side).permutes_only()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "einsum: the equation takes a diagonal, a sum or a broadcast of ", internal::Name(side), " ",
        impl.operand(side).given.ToString(), ", which a quantized tensor cannot replace; prepare the float operand"));
  }
  return impl.plan->Prepare(impl.InProduct(side), std::move(qtensor), runtime);
}

absl::StatusOr<Array> QuantizedEinsum(absl::string_view equation, const DotGeneral& config, const ArrayRef& lhs,
                                      const ArrayRef& rhs, const Context& context, const PlanOptions& options,
                                      const Runtime& runtime) {
  return internal::RunOnce(EinsumPlan::Make(equation, config, lhs.aval(), rhs.aval(),
                                            internal::WithPasses(options, PlanPasses::kForwardOnly)),
                           [&](const EinsumPlan& plan, const MutableArrayRef& out, Residuals* residuals) {
                             return plan.Forward(lhs, rhs, context, out, residuals, runtime);
                           });
}

absl::StatusOr<DotGeneralGradients> QuantizedEinsumWithGradients(absl::string_view equation, const DotGeneral& config,
                                                                 const ArrayRef& lhs, const ArrayRef& rhs,
                                                                 const ArrayRef& g, const Context& context,
                                                                 const PlanOptions& options, const Runtime& runtime) {
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
