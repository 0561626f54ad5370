#include "aqt/quant/contraction/engine/rotate.h"

#include <algorithm>
#include <cstdint>

#include "aqt/core/ceil_div.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/kernels/quantize/hadamard.h"

namespace aqt::internal {

ArrayRef RotateInto(const ArrayRef& x, const kernels::OperandAxes& axes, int64_t block, kernels::Target target,
                    Executor* executor, void* buffer) {
  kernels::GatheredOperand(x, axes, buffer);
  const int64_t k = kernels::Extent(x.shape, axes.k), elements = x.shape.num_elements();
  const int64_t rows = k == 0 ? 0 : elements / k;
  // As many rows as fill a few pages: enough for a thread to be worth its wake-up.
  const int64_t step = std::max<int64_t>(1, (16 << 10) / std::max<int64_t>(1, k));
  const auto rotate = [&](int64_t task) {
    const int64_t first = task * step;
    char* const data = static_cast<char*>(buffer) + first * k * SizeOf(x.dtype);
    kernels::HadamardRows({.x = data,
                           .out = data,
                           .dtype = x.dtype,
                           .rows = std::min(step, rows - first),
                           .n = k,
                           .x_row_stride = k,
                           .out_row_stride = k,
                           .block = block},
                          target);
  };
  const int64_t tasks = CeilDiv(rows, step);
  if (executor != nullptr && tasks > 1) {
    executor->ParallelFor(tasks, rotate);
  } else {
    for (int64_t task = 0; task < tasks; ++task) rotate(task);
  }

  ArrayRef rotated(x.dtype, x.shape, buffer);
  int64_t stride = 1;
  for (const Axes* group : {&axes.k, &axes.rows, &axes.batch}) {
    for (size_t i = group->size(); i-- > 0;) {
      rotated.strides[(*group)[i]] = stride;
      stride *= x.shape[(*group)[i]];
    }
  }
  return rotated;
}

}  // namespace aqt::internal
