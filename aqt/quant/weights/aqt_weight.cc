#include "aqt/quant/weights/aqt_weight.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"
#include "aqt/core/status_macros.h"
#include "aqt/kernels/quantize/absmax.h"
#include "aqt/kernels/quantize/quantize.h"
#include "aqt/quant/numerics/row_ops.h"
#include "aqt/quant/weights/weight_matrix.h"

namespace aqt {

absl::StatusOr<AqtQuantizedWeight> AqtQuantizeWeightPerChannel(const ArrayRef& w, int bits, kernels::Target target,
                                                               Executor* executor) {
  if (bits < 2 || bits > 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("AqtQuantizeWeightPerChannel: bits = ", bits, "; expected 2 to 8 (one integer per s8)"));
  }
  AQT_ASSIGN_OR_RETURN(const kernels::FloatMatrix x, internal::WeightMatrix("AqtQuantizeWeightPerChannel", w));
  const float half = static_cast<float>(1 << (bits - 1));
  ArrayBuilder q = ArrayBuilder::ForOverwrite({DType::kS8, w.shape});
  ArrayBuilder scale = ArrayBuilder::ForOverwrite({w.dtype, {x.rows, 1}});
  std::vector<float> values(x.rows);  // absmax, then inverse scales
  internal::ForEachRowBlock(executor, x.rows, x.cols, /*multiple=*/1, [&](int64_t first, int64_t n) {
    kernels::AbsMaxGroups(internal::RowsOf(x, first, n), x.cols, &values[first], target);
    float* const rows = &values[first];
    internal::FlushRow(w.dtype, rows, n);
    std::replace(rows, rows + n, 0.0f, 1.0f);
    internal::OverConstantRow(w.dtype, half - 0.5f, /*divide=*/x.rows == 1, rows, n);
    internal::StoreRow(w.dtype, rows, n, scale.ref().data, first, 1);
    internal::InvertScaleRow(w.dtype, rows, n);
    kernels::QuantizeMatrixArgs args;
    args.x = internal::RowsOf(x, first, n);
    args.rule = kernels::QuantizeRule::kMultiplyByInverse;
    args.grid = {&values[first], nullptr, 1, 0};
    args.lo = 1 - half;
    args.hi = half - 1;
    args.subnormals_are_zero = true;
    args.q = q.Mutable<int8_t>().data() + first * x.cols;
    args.q_row_stride = x.cols;
    kernels::QuantizeMatrix(args, target);
  });
  return AqtQuantizedWeight{std::move(q).Build(), std::move(scale).Build()};
}

}  // namespace aqt
