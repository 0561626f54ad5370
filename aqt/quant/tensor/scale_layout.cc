#include "aqt/quant/tensor/scale_layout.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace aqt {
namespace {

absl::Status CheckOnes(const ArrayRef& scale, Side side, const char* kind, absl::Span<const int64_t> axes) {
  for (const int64_t axis : axes) {
    if (scale.shape[axis] == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat("scale of ", side == Side::kLhs ? "lhs" : "rhs", " has shape ",
                                                   scale.shape.ToString(), ": it varies along the ", kind, " axis ",
                                                   axis));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ArrayRef> ScaleToOutput(const ArrayRef& scale, Side side, const DotDims& dims, int64_t other_rank) {
  const bool lhs = side == Side::kLhs;
  const DotDims own = lhs ? dims : dims.Swapped();  // this operand as "lhs"
  if (absl::Status s = CheckOnes(scale, side, "contracting", own.lhs_contracting); !s.ok()) return s;
  ArrayRef out;
  out.dtype = scale.dtype;
  out.data = scale.data;
  const auto append = [&](int64_t extent, int64_t stride) {
    out.shape.push_back(extent);
    out.strides.push_back(stride);
  };
  const auto append_others = [&]() {
    const int64_t others = other_rank - static_cast<int64_t>(own.rhs_batch.size() + own.rhs_contracting.size());
    for (int64_t i = 0; i < others; ++i) append(1, 0);
  };
  for (const int64_t axis : own.lhs_batch) append(scale.shape[axis], scale.strides[axis]);
  if (!lhs) append_others();
  for (const int64_t axis : RemainingAxes(scale.shape.rank(), own.lhs_contracting, own.lhs_batch)) {
    append(scale.shape[axis], scale.strides[axis]);
  }
  if (lhs) append_others();
  return out;
}

absl::StatusOr<ArrayRef> ScaleToOther(const ArrayRef& scale, Side side, const DotDims& dims, int64_t other_rank) {
  const DotDims own = side == Side::kLhs ? dims : dims.Swapped();
  const Axes remaining = RemainingAxes(scale.shape.rank(), own.lhs_contracting, own.lhs_batch);
  if (absl::Status s = CheckOnes(scale, side, "remaining", remaining); !s.ok()) return s;
  const size_t pairs = std::min(own.lhs_contracting.size(), own.rhs_contracting.size());
  const absl::Span<const int64_t> unpaired = absl::MakeConstSpan(own.lhs_contracting).subspan(pairs);
  if (absl::Status s = CheckOnes(scale, side, "group", unpaired); !s.ok()) return s;
  ArrayRef out;
  out.dtype = scale.dtype;
  out.data = scale.data;
  for (int64_t axis = 0; axis < other_rank; ++axis) {
    out.shape.push_back(1);
    out.strides.push_back(0);
  }
  const auto place = [&](absl::Span<const int64_t> own_axes, absl::Span<const int64_t> other_axes) {
    for (size_t i = 0; i < std::min(own_axes.size(), other_axes.size()); ++i) {
      out.shape[other_axes[i]] = scale.shape[own_axes[i]];
      out.strides[other_axes[i]] = scale.strides[own_axes[i]];
    }
  };
  place(own.lhs_contracting, own.rhs_contracting);
  place(own.lhs_batch, own.rhs_batch);
  return out;
}

}  // namespace aqt
