#include "aqt/ops/contraction/aqt_dot_ops.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/ops/contraction/packed_contraction.h"
#include "aqt/quant/numerics/numerics_rows.h"

namespace aqt {

absl::Status AqtDot::Impl::Backward(const ArrayRef& g, const Residuals& residuals, const Array* group_sizes,
                                    const Context& context, const std::optional<MutableArrayRef>& dlhs,
                                    const std::optional<MutableArrayRef>& drhs, const Runtime& runtime,
                                    const StateArrays& state) const {
  if (const RaggedDotPlan* plan = ragged()) {
    return plan->Backward(g, residuals, internal::GroupSizesOf(*group_sizes), context, dlhs, drhs, runtime, state);
  }
  if (const auto* plan = std::get_if<ConvGeneralPlan>(&door)) return plan->Backward(g, residuals, dlhs, drhs, runtime);
  return std::get<DotGeneralPlan>(door).Backward(g, residuals, context, dlhs, drhs, runtime, state);
}

}  // namespace aqt

namespace aqt::internal {

Value TileOperand(const AqtDot::Impl& dot, Side side, const Value& x) {
  if (!dot.tiled().has_value()) return x;
  const TiledOperand& operand = dot.tiled()->operand(side);
  const Value tiled = ops::Reshape(x, operand.tiling.tiled_shape);
  Axes axes;
  for (int64_t axis = operand.num_other; axis < operand.shape.rank(); ++axis) axes.push_back(axis);
  return operand.num_other == 0 ? tiled : ops::BroadcastInDim(tiled, operand.shape, axes);
}

Value RotatedOperand(const AqtDot::Impl& dot, Side side, const Value& x) {
  return Rotated(dot.config.fwd.hadamard, TileOperand(dot, side, x), dot.engine().forward().side(side).axes);
}

Value UntileOperandGradient(const AqtDot::Impl& dot, Side side, const Value& gradient) {
  if (!dot.tiled().has_value()) return gradient;
  const int64_t num_other = dot.tiled()->operand(side).num_other;
  return ops::Reshape(num_other == 0 ? gradient : SumLeading(gradient, num_other), dot.aval(side).shape);
}

Value UntileProduct(const AqtDot::Impl& dot, const Value& product) {
  if (!dot.tiled().has_value()) return product;
  const TiledDot& tiled = *dot.tiled();
  const Value sum = tiled.num_sums == 0 ? product : SumLeading(product, tiled.num_sums);
  Axes permutation(tiled.out_axes.size());
  for (size_t i = 0; i < permutation.size(); ++i) permutation[tiled.out_axes[i]] = static_cast<int64_t>(i);
  return ops::Reshape(ops::Transpose(sum, permutation), dot.plan().out_aval().shape);
}

Value TileProductGradient(const AqtDot::Impl& dot, const Value& g) {
  if (!dot.tiled().has_value()) return g;
  const TiledDot& tiled = *dot.tiled();
  const Value parts = ops::Transpose(ops::Reshape(g, tiled.out.tiled_shape), tiled.out_axes);
  if (tiled.num_sums == 0) return parts;
  Shape shape;
  for (int64_t i = 0; i < tiled.num_sums; ++i) shape.push_back(tiled.lhs.shape[tiled.dims.lhs_batch[i]]);
  Axes axes;
  for (const int64_t extent : parts.shape()) {
    axes.push_back(shape.rank());
    shape.push_back(extent);
  }
  return ops::BroadcastInDim(parts, shape, axes);
}

bool ClipsAtBound(const AqtDot::Impl& dot) {
  if (!dot.semantics().compat.clip_gradient_at_bound) return false;
  return std::any_of(std::begin(kSides), std::end(kSides), [&](Side side) {
    return GradientBound(dot.forward(side).quantizer.numerics, DType::kF32).has_value();
  });
}

absl::Status ExpectAval(const char* name, const Aval& got, const Aval& want) {
  if (got == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", got.ToString(), ", expected ", want.ToString()));
}

Context ContextOf(const AqtDot::Impl& dot, const Array* key) {
  Context context{.quant_mode = dot.modes.lhs, .rhs_quant_mode = dot.modes.rhs};
  if (key != nullptr) context.key = Key{key->View<uint32_t>()[0], key->View<uint32_t>()[1]};
  return context;
}

namespace {
thread_local PackCounts* current_packs = nullptr;
}  // namespace

Runtime CurrentRuntime() { return {.executor = CurrentExecutor(), .packs = current_packs}; }

KeyRole RoleOf(const AqtDot::Impl& dot, Pass pass, Side side) {
  constexpr KeyRole kRoles[][2] = {{KeyRole::kFwdLhs, KeyRole::kFwdRhs},
                                   {KeyRole::kDlhsLhs, KeyRole::kDlhsRhs},
                                   {KeyRole::kDrhsLhs, KeyRole::kDrhsRhs}};
  if (dot.is_conv()) return side == Side::kLhs ? KeyRole::kConvLhs : KeyRole::kConvRhs;
  return kRoles[static_cast<int>(pass)][static_cast<int>(side)];
}

std::optional<Value> KeyFor(const AqtDot::Impl& dot, const Value* key, Pass pass, Side side) {
  if (key == nullptr) return std::nullopt;
  return OperandKey(*key, RoleOf(dot, pass, side), dot.semantics().prng_layout);
}

Value GroupEndsOf(const AqtDot::Impl& dot, const Value* group_sizes) {
  return group_sizes != nullptr ? GroupEnds(*dot.ragged(), *group_sizes) : Value();
}

absl::Status CheckGroupSizesAval(const AqtDot::Impl& dot, const Aval& group_sizes) {
  return ExpectAval("group_sizes", group_sizes, {DType::kS32, {dot.ragged()->num_groups()}});
}

std::vector<Value> StatisticsOf(absl::string_view operand, absl::Span<const StateSlot> slots,
                                absl::Span<const Value> values) {
  std::vector<Value> statistics;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].operand == operand) statistics.push_back(values[i]);
  }
  return statistics;
}

}  // namespace aqt::internal

namespace aqt {

CountPacks::CountPacks() : outer_(std::exchange(internal::current_packs, &counts_)) {}
CountPacks::~CountPacks() { internal::current_packs = outer_; }

}  // namespace aqt
