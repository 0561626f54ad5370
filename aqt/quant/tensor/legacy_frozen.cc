#include "aqt/quant/tensor/legacy_frozen.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/tensor/qtensor_internal.h"
#include "aqt/quant/tensor/scale_layout.h"

namespace aqt {
namespace {

// Checks that a contraction with `dims` can have an operand of this shape and another operand of this rank.
absl::Status CheckDims(const Shape& value, Side side, const DotDims& dims, int64_t other_rank) {
  if (other_rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("the other operand has rank ", other_rank, ", expected at least 0"));
  }
  const DotDims own = side == Side::kLhs ? dims : dims.Swapped();
  Shape other;  // extents paired with this operand's; 1 elsewhere
  for (int64_t axis = 0; axis < other_rank; ++axis) other.push_back(1);
  const auto pair = [&](absl::Span<const int64_t> own_axes, absl::Span<const int64_t> other_axes) {
    for (size_t i = 0; i < std::min(own_axes.size(), other_axes.size()); ++i) {
      const int64_t from = own_axes[i], to = other_axes[i];
      if (from >= 0 && from < value.rank() && to >= 0 && to < other_rank) other[to] = value[from];
    }
  };
  pair(own.lhs_contracting, own.rhs_contracting);
  pair(own.lhs_batch, own.rhs_batch);
  return side == Side::kLhs ? ValidateDotDims(dims, value, other) : ValidateDotDims(dims, other, value);
}

}  // namespace

absl::StatusOr<LegacyFrozen> ToLegacyFrozen(const QTensor& qtensor, Side side, const DotDims& dims,
                                            int64_t other_rank) {
  const auto invalid = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("ToLegacyFrozen: the tensor has ", what,
                                                   ", which value and scale cannot hold; store the whole QTensor"));
  };
  if (!qtensor.IsFull()) return invalid("no qvalue");
  if (qtensor.scale.size() != 1) return invalid(absl::StrCat(qtensor.scale.size(), " scales"));
  if (!qtensor.bias.empty()) return invalid("a bias");
  if (qtensor.sparsity_mask.has_value()) return invalid("a sparsity mask");
  if (qtensor.tiling_state.has_value()) return invalid("tiles");
  const Shape& value = qtensor.qvalue->shape();
  AQT_RETURN_IF_ERROR(Annotate(CheckDims(value, side, dims, other_rank), "ToLegacyFrozen"));
  AQT_RETURN_IF_ERROR(Annotate(internal::CheckAffine(qtensor, value), "ToLegacyFrozen"));
  absl::StatusOr<ArrayRef> scale = ScaleToOutput(qtensor.scale[0], side, dims, other_rank);
  if (!scale.ok()) return Annotate(scale.status(), "ToLegacyFrozen");
  return LegacyFrozen{.value = *qtensor.qvalue, .scale = Array::CopyOf(*scale)};
}

absl::StatusOr<QTensor> FromLegacyFrozen(const LegacyFrozen& frozen, Side side, const DotDims& dims,
                                         int64_t other_rank) {
  const DotDims own = side == Side::kLhs ? dims : dims.Swapped();
  const Shape& value = frozen.value.shape();
  AQT_RETURN_IF_ERROR(Annotate(CheckDims(value, side, dims, other_rank), "FromLegacyFrozen"));
  // The axes of the operand in the order of the product; the other operand's remaining axes come after those of lhs
  // and, for rhs, between batch and remaining axes.
  Axes axes = own.lhs_batch;
  const Axes remaining = RemainingAxes(value.rank(), own.lhs_contracting, own.lhs_batch);
  const int64_t others = other_rank - static_cast<int64_t>(own.lhs_batch.size() + own.lhs_contracting.size());
  if (side == Side::kRhs) axes.insert(axes.end(), others, -1);
  axes.insert(axes.end(), remaining.begin(), remaining.end());
  if (side == Side::kLhs) axes.insert(axes.end(), others, -1);

  const ArrayRef in = frozen.scale;
  const auto misfit = [&]() {
    return absl::InvalidArgumentError(absl::StrCat(
        "FromLegacyFrozen: the scale ", in.aval().ToString(), " of the value ", frozen.value.aval().ToString(),
        " does not fit ", side == Side::kLhs ? "lhs" : "rhs", " of a contraction with dims ", dims.ToString(),
        ": expected rank ", axes.size(), ", with extent 1 or the value's along its own axes and 1 along the others"));
  };
  if (!internal::IsArithmeticFloat(in.dtype) || in.shape.rank() != static_cast<int64_t>(axes.size())) return misfit();
  ArrayRef scale;
  scale.dtype = in.dtype;
  scale.data = in.data;
  for (int64_t i = 0; i < value.rank(); ++i) {
    scale.shape.push_back(1);
    scale.strides.push_back(0);
  }
  for (int64_t i = 0; i < in.shape.rank(); ++i) {
    const int64_t axis = axes[i], extent = in.shape[i];
    if (extent != 1 && (axis < 0 || extent != value[axis])) return misfit();
    if (axis < 0) continue;
    scale.shape[axis] = extent;
    scale.strides[axis] = in.strides[i];
  }
  QTensor qtensor;
  qtensor.qvalue = frozen.value;
  qtensor.scale.push_back(Array::CopyOf(scale));
  qtensor.dequant_dtype = in.dtype;
  return qtensor;
}

}  // namespace aqt
