#include "aqt/ops/einsum_values.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/ops/xla_sum.h"

namespace aqt::internal {
namespace {

Value Transposed(const Value& x, const Axes& permutation) {
  return std::is_sorted(permutation.begin(), permutation.end()) ? x : ops::Transpose(x, permutation);
}

// One axis per letter. The axes of a repeated letter are merged into one axis; the diagonal takes every
// (1 + n + n^2 + ...)th element of it.
Value ViewOf(const EinsumOperand& operand, const Value& x) {
  Axes permutation;
  std::vector<bool> named(x.rank(), false);
  Shape merged;
  PerAxis start, limit, stride;
  bool has_diagonal = false;
  for (const Axes& axes : operand.view_axes) {
    const int64_t n = x.shape()[axes[0]];
    int64_t extent = 1, step = 0;
    for (const int64_t axis : axes) {
      permutation.push_back(axis);
      named[axis] = true;
      step += extent;
      extent *= n;
    }
    has_diagonal = has_diagonal || axes.size() > 1;
    merged.push_back(extent);
    start.push_back(0);
    limit.push_back(extent);
    stride.push_back(step);
  }
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (!named[axis]) permutation.push_back(axis);  // broadcast: of extent 1
  }
  const Value view = ops::Reshape(Transposed(x, permutation), merged);
  return has_diagonal ? ops::Slice(view, start, limit, stride) : view;
}

// The operand as the product reads it.
Value UsedOf(const EinsumOperand& operand, const Value& x, bool sums_in_dtype) {
  Value used = ops::Cast(ViewOf(operand, x), operand.used.dtype);
  if (!sums_in_dtype) return ops::ReduceSum(used, operand.summed);
  for (const Axes& axes : operand.SumsInDType()) used = SumAsXla(used, axes);
  return used;
}

}  // namespace

Value EinsumValue(const EinsumLowering& lowering, const Value& lhs, const Value& rhs, EinsumProduct product,
                  bool sums_in_dtype) {
  const Value used[] = {UsedOf(lowering.lhs, lhs, sums_in_dtype), UsedOf(lowering.rhs, rhs, sums_in_dtype)};
  const Value result = product(used[lowering.swapped ? 1 : 0], used[lowering.swapped ? 0 : 1], lowering.dims);
  Axes permutation;
  for (const char letter : lowering.equation.out) {
    permutation.push_back(static_cast<int64_t>(lowering.product_names.find(letter)));
  }
  return Transposed(result, permutation);
}

}  // namespace aqt::internal
