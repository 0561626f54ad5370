// A ragged contraction and its gradients in basic operations. Each group contracts all rows; rows of other groups are
// excluded by their row numbers.

#include <cstdint>
#include <numeric>
#include <vector>

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/quant/contraction/engine/product_plan.h"

namespace aqt::internal {
namespace {

// s32[count,1]: 0, 1, ...
Value RowNumbers(int64_t count) {
  ArrayBuilder rows = ArrayBuilder::ForOverwrite({DType::kS32, {count, 1}});
  const absl::Span<int32_t> numbers = rows.Mutable<int32_t>();
  std::iota(numbers.begin(), numbers.end(), 0);
  return Value(std::move(rows).Build());
}

// Element `index` of axis 0, without that axis.
Value Element(const Value& x, int64_t index) {
  PerAxis start(x.rank(), 0), limit(x.shape().begin(), x.shape().end());
  start[0] = index;
  limit[0] = index + 1;
  return ops::Reshape(ops::Slice(x, start, limit), Shape(x.shape().extents().subspan(1)));
}

// bool [count,1]: whether a row comes before the end of a group.
Value IsBefore(const Value& rows, const Value& group_ends, int64_t group) {
  return ops::Less(rows, Element(group_ends, group));
}

// lhs [m,k] x rhs [groups,k,n], or contracting n instead of k.
Value SumsByRows(const DotDims& dims, const Value& group_ends, const Value& lhs, const Value& rhs) {
  const int64_t groups = rhs.shape()[0], m = lhs.shape()[0];
  const Value rows = RowNumbers(m);
  const int64_t columns = rhs.shape()[rhs.rank() - dims.rhs_contracting[0]];
  const DotDims matrix{.lhs_contracting = {dims.lhs_contracting[0]}, .rhs_contracting = {dims.rhs_contracting[0] - 1}};
  Value out = Zeros({IsFloat(lhs.dtype()) ? DType::kF32 : DType::kS32, {m, columns}});
  for (int64_t group = groups; group-- > 0;) {
    const Value product = SumOf(lhs, Element(rhs, group), matrix);
    out = ops::Select(IsBefore(rows, group_ends, group), product, out);
  }
  return out;
}

// lhs [m,n] x rhs [m,k], contracting the rows of each group: [groups,n,k].
Value SumsOverRows(int64_t groups, const Value& group_ends, const Value& lhs, const Value& rhs) {
  const Value rows = RowNumbers(lhs.shape()[0]);
  const DotDims dims{.lhs_contracting = {0}, .rhs_contracting = {0}};
  const int64_t n = lhs.shape()[1], k = rhs.shape()[1];
  if (groups == 0) return Zeros({IsFloat(lhs.dtype()) ? DType::kF32 : DType::kS32, {0, n, k}});
  // The products of other groups' rows are -0, which changes no sum.
  const bool is_float = IsFloat(rhs.dtype());
  std::vector<Value> parts;
  for (int64_t group = 0; group < groups; ++group) {
    const auto masked = [&](const Value& x, double zero) {
      const Value before_end = ops::Select(IsBefore(rows, group_ends, group), x, zero);
      return group == 0 ? before_end : ops::Select(IsBefore(rows, group_ends, group - 1), zero, before_end);
    };
    parts.push_back(ops::Reshape(SumOf(masked(lhs, 0.0), masked(rhs, is_float ? -0.0 : 0.0), dims), {1, n, k}));
  }
  return ops::Concatenate(parts, 0);
}

}  // namespace

Value ExpandGroupSums(const ProductGeometry& geometry, const Value& group_ends, const Value& lhs, const Value& rhs) {
  return geometry.groups == Groups::kRows ? SumsByRows(geometry.dims, group_ends, lhs, rhs)
                                          : SumsOverRows(geometry.num_groups, group_ends, lhs, rhs);
}

Value ZeroOutsideOfGroups(const Value& x, const Value& group_ends) {
  const int64_t groups = group_ends.shape()[0];
  if (groups == 0) return Zeros(x.aval());
  return ops::Select(IsBefore(RowNumbers(x.shape()[0]), group_ends, groups - 1), x, 0.0);
}

}  // namespace aqt::internal
