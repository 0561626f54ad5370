// DotGeneralRawConfig::hadamard in basic operations: the butterflies of aqt/kernels/quantize/hadamard.h, in their
// order.

#include <cstdint>
#include <optional>
#include <vector>

#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/kernels/contraction.h"
#include "aqt/kernels/quantize/hadamard.h"
#include "aqt/ops/expand/aqt_expand.h"
#include "aqt/ops/quant_math.h"

namespace aqt::internal {
namespace {

// `count` parts of m elements in each row of x [rows, count * m], transformed.
Value TransformParts(const Value& x, int64_t m, int64_t count) {
  const int64_t rows = x.shape()[0];
  Value y = x;
  for (int64_t h = 1; h < m; h *= 2) {
    const int64_t pairs = rows * count * m / (2 * h);
    y = ops::Reshape(y, {pairs, 2, h});
    const Value a = ops::Slice(y, {0, 0, 0}, {pairs, 1, h}), b = ops::Slice(y, {0, 1, 0}, {pairs, 2, h});
    y = ops::Concatenate({a + b, a - b}, 1);
  }
  return ops::Reshape(y * static_cast<double>(kernels::HadamardScale(m)), {rows, count * m});
}

}  // namespace

Value Rotated(const std::optional<Hadamard>& hadamard, const Value& x, const kernels::OperandAxes& axes) {
  if (!hadamard.has_value() || x.shape().num_elements() == 0) return x;
  Axes permutation, inverse(x.rank());
  for (const Axes* group : {&axes.batch, &axes.rows, &axes.k}) {
    permutation.insert(permutation.end(), group->begin(), group->end());
  }
  for (size_t i = 0; i < permutation.size(); ++i) inverse[permutation[i]] = static_cast<int64_t>(i);
  const int64_t k = kernels::Extent(x.shape(), axes.k), rows = x.shape().num_elements() / k;
  const Value in_order = ops::Transpose(ToF32(x), permutation);
  const Value matrix = ops::Reshape(in_order, {rows, k});
  std::vector<Value> parts;
  kernels::ForEachHadamard(k, hadamard->block, [&](int64_t first, int64_t m, int64_t count) {
    parts.push_back(TransformParts(ops::Slice(matrix, {0, first}, {rows, first + count * m}), m, count));
  });
  const Value rotated = parts.size() == 1 ? parts[0] : ops::Concatenate(parts, 1);
  return FromF32(ops::Transpose(ops::Reshape(rotated, in_order.shape()), inverse), x.dtype());
}

}  // namespace aqt::internal
