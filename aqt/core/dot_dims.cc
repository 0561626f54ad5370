#include "aqt/core/dot_dims.h"

#include <algorithm>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "aqt/core/status_macros.h"

namespace aqt {
namespace {

std::string AxesText(absl::Span<const int64_t> axes) { return absl::StrCat("[", absl::StrJoin(axes, ","), "]"); }

bool Contains(absl::Span<const int64_t> axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

absl::Status ValidateOperand(absl::string_view name, absl::Span<const int64_t> contracting,
                             absl::Span<const int64_t> batch, const Shape& shape) {
  absl::InlinedVector<bool, kInlineRank> seen(shape.rank(), false);
  for (const absl::Span<const int64_t> list : {contracting, batch}) {
    for (const int64_t axis : list) {
      if (axis < 0 || axis >= shape.rank()) {
        return absl::InvalidArgumentError(absl::StrCat("dot dims: ", name, " ", shape.ToString(), " has rank ",
                                                       shape.rank(), ", but axis ", axis, " is named"));
      }
      if (seen[axis]) {
        return absl::InvalidArgumentError(absl::StrCat("dot dims: ", name, " axis ", axis,
                                                       " is named twice (contracting ", AxesText(contracting),
                                                       ", batch ", AxesText(batch), ")"));
      }
      seen[axis] = true;
    }
  }
  return absl::OkStatus();
}

absl::Status ValidatePairs(absl::string_view kind, absl::Span<const int64_t> lhs_axes,
                           absl::Span<const int64_t> rhs_axes, const Shape& lhs, const Shape& rhs) {
  for (size_t i = 0; i < lhs_axes.size(); ++i) {
    if (lhs[lhs_axes[i]] == rhs[rhs_axes[i]]) continue;
    return absl::InvalidArgumentError(absl::StrCat("dot dims: ", kind, " sizes differ: lhs ", lhs.ToString(), " axis ",
                                                   lhs_axes[i], " = ", lhs[lhs_axes[i]], ", rhs ", rhs.ToString(),
                                                   " axis ", rhs_axes[i], " = ", rhs[rhs_axes[i]]));
  }
  return absl::OkStatus();
}

}  // namespace

std::string DotDims::ToString() const {
  return absl::StrCat("((", AxesText(lhs_contracting), ",", AxesText(rhs_contracting), "),(", AxesText(lhs_batch), ",",
                      AxesText(rhs_batch), "))");
}

std::ostream& operator<<(std::ostream& os, const DotDims& dims) { return os << dims.ToString(); }

std::ostream& operator<<(std::ostream& os, Side side) { return os << (side == Side::kLhs ? "lhs" : "rhs"); }

absl::Status ValidateDotDims(const DotDims& dims, const Shape& lhs, const Shape& rhs) {
  if (dims.lhs_contracting.size() != dims.rhs_contracting.size()) {
    return absl::InvalidArgumentError(absl::StrCat("dot dims: lhs contracts the axes ", AxesText(dims.lhs_contracting),
                                                   ", rhs ", AxesText(dims.rhs_contracting),
                                                   "; the lists must be of equal length"));
  }
  if (dims.lhs_batch.size() != dims.rhs_batch.size()) {
    return absl::InvalidArgumentError(absl::StrCat("dot dims: lhs has the batch axes ", AxesText(dims.lhs_batch),
                                                   ", rhs ", AxesText(dims.rhs_batch),
                                                   "; the lists must be of equal length"));
  }
  AQT_RETURN_IF_ERROR(ValidateOperand("lhs", dims.lhs_contracting, dims.lhs_batch, lhs));
  AQT_RETURN_IF_ERROR(ValidateOperand("rhs", dims.rhs_contracting, dims.rhs_batch, rhs));
  AQT_RETURN_IF_ERROR(ValidatePairs("contracting", dims.lhs_contracting, dims.rhs_contracting, lhs, rhs));
  return ValidatePairs("batch", dims.lhs_batch, dims.rhs_batch, lhs, rhs);
}

Axes RemainingAxes(int64_t rank, absl::Span<const int64_t> contracting, absl::Span<const int64_t> batch) {
  Axes remaining;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (!Contains(contracting, axis) && !Contains(batch, axis)) remaining.push_back(axis);
  }
  return remaining;
}

Shape DotOutputShape(const DotDims& dims, const Shape& lhs, const Shape& rhs) {
  Shape out;
  for (const int64_t axis : dims.lhs_batch) out.push_back(lhs[axis]);
  for (const int64_t axis : RemainingAxes(lhs.rank(), dims.lhs_contracting, dims.lhs_batch)) out.push_back(lhs[axis]);
  for (const int64_t axis : RemainingAxes(rhs.rank(), dims.rhs_contracting, dims.rhs_batch)) out.push_back(rhs[axis]);
  return out;
}

BackwardDotDims MakeBackwardDotDims(const DotDims& dims, int64_t lhs_rank, int64_t rhs_rank, Side wrt) {
  // x is the operand whose gradient is computed, and y is the other one.
  const bool lhs = wrt == Side::kLhs;
  const Axes& x_contracting = lhs ? dims.lhs_contracting : dims.rhs_contracting;
  const Axes& y_contracting = lhs ? dims.rhs_contracting : dims.lhs_contracting;
  const Axes& x_batch = lhs ? dims.lhs_batch : dims.rhs_batch;
  const Axes& y_batch = lhs ? dims.rhs_batch : dims.lhs_batch;
  const Axes x_remaining = RemainingAxes(lhs ? lhs_rank : rhs_rank, x_contracting, x_batch);
  const Axes y_remaining = RemainingAxes(lhs ? rhs_rank : lhs_rank, y_contracting, y_batch);

  BackwardDotDims backward;
  const int64_t batch_rank = static_cast<int64_t>(x_batch.size());
  // The axes of g: batch, then the remaining axes of lhs, then those of rhs.
  const int64_t first = lhs ? batch_rank + static_cast<int64_t>(x_remaining.size()) : batch_rank;
  for (size_t i = 0; i < y_remaining.size(); ++i) {
    backward.dims.lhs_contracting.push_back(first + static_cast<int64_t>(i));
  }
  backward.dims.rhs_contracting = y_remaining;
  for (int64_t i = 0; i < batch_rank; ++i) backward.dims.lhs_batch.push_back(i);
  backward.dims.rhs_batch = y_batch;

  // The product has the batch axes, then the remaining axes of x, then the contracting axes of y in ascending order.
  backward.to_operand = x_batch;
  backward.to_operand.insert(backward.to_operand.end(), x_remaining.begin(), x_remaining.end());
  std::vector<size_t> order(y_contracting.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return y_contracting[a] < y_contracting[b]; });
  for (const size_t i : order) backward.to_operand.push_back(x_contracting[i]);
  return backward;
}

}  // namespace aqt
