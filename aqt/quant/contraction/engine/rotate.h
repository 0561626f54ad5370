#ifndef AQT_QUANT_CONTRACTION_ENGINE_ROTATE_H_
#define AQT_QUANT_CONTRACTION_ENGINE_ROTATE_H_

// DotGeneralRawConfig::hadamard on arrays, outside of the fused kernels. Internal.

#include <cstdint>

#include "aqt/core/array_ref.h"
#include "aqt/core/executor.h"
#include "aqt/core/machine/target.h"
#include "aqt/kernels/contraction.h"

namespace aqt::internal {

// x with its contracting axes, as one axis, transformed by kernels::HadamardRows with this block. x is f32, bf16 or
// f16. The result has its dtype, is dense in the order [batch, rows, k] in `buffer`, and is viewed with the axes of x.
ArrayRef RotateInto(const ArrayRef& x, const kernels::OperandAxes& axes, int64_t block, kernels::Target target,
                    Executor* executor, void* buffer);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_ROTATE_H_
