#ifndef AQT_QUANT_CONTRACTION_CONTRACT_S32_H_
#define AQT_QUANT_CONTRACTION_CONTRACT_S32_H_

// The product of integers, at least one side of which is wider than a byte. Internal.

#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"

namespace aqt::internal {

// out (s32, dense) = lhs x rhs, each of them s2, s4, s8 or s32, at least one s32. Exact; wraps past 2^31. For unusual
// containers: plain loops, without the vector kernels.
void ContractS32(const ArrayRef& lhs, const ArrayRef& rhs, const DotDims& dims, const MutableArrayRef& out);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_CONTRACT_S32_H_
