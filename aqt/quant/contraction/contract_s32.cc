#include "aqt/quant/contraction/contract_s32.h"

#include <cstdint>
#include <vector>

#include "aqt/core/check.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"

namespace aqt::internal {
namespace {

// The operand as s32 in the order [batch, rows, k].
std::vector<int32_t> Gathered(const ArrayRef& x, const Axes& batch, const Axes& contracting) {
  ArrayRef view = x;
  view.shape = Shape();
  view.strides.clear();
  const auto append = [&](const Axes& axes) {
    for (const int64_t axis : axes) {
      view.shape.push_back(x.shape[axis]);
      view.strides.push_back(x.strides[axis]);
    }
  };
  append(batch);
  append(RemainingAxes(x.shape.rank(), contracting, batch));
  append(contracting);
  std::vector<int32_t> values(x.shape.num_elements());
  AQT_CHECK(CastArray(view, MutableArrayRef(DType::kS32, view.shape, values.data())).ok());
  return values;
}

int64_t Extent(const Shape& shape, const Axes& axes) {
  int64_t extent = 1;
  for (const int64_t axis : axes) extent *= shape[axis];
  return extent;
}

}  // namespace

void ContractS32(const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims, const MutableArrayRef& out) {
  AQT_DCHECK(out.IsDense() && out.dtype == DType::kS32);
  const std::vector<int32_t> a = Gathered(lhs, dims.lhs_batch, dims.lhs_contracting);
  const std::vector<int32_t> b = Gathered(rhs, dims.rhs_batch, dims.rhs_contracting);
  const int64_t k = Extent(lhs.shape, dims.lhs_contracting), batch = Extent(lhs.shape, dims.lhs_batch);
  const int64_t m = Extent(lhs.shape, RemainingAxes(lhs.shape.rank(), dims.lhs_contracting, dims.lhs_batch));
  const int64_t n = Extent(rhs.shape, RemainingAxes(rhs.shape.rank(), dims.rhs_contracting, dims.rhs_batch));
  int32_t* sums = static_cast<int32_t*>(out.data);
  for (int64_t i = 0; i < batch * m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int32_t* row = a.data() + i * k;
      const int32_t* column = b.data() + (i / m * n + j) * k;
      uint32_t sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += static_cast<uint32_t>(row[l]) * static_cast<uint32_t>(column[l]);
      *sums++ = static_cast<int32_t>(sum);
    }
  }
}

}  // namespace aqt::internal
