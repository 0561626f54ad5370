#ifndef AQT_QUANT_TENSOR_SCALE_LAYOUT_H_
#define AQT_QUANT_TENSOR_SCALE_LAYOUT_H_

// Scales, which have the rank of their tensor, viewed in the layout of the product or of the other operand. Nothing is
// copied: only shape and strides change. One operand may have more contracting axes than the other (the group axis of a
// ragged contraction); the unpaired ones have no counterpart in the other operand.

#include "absl/status/statusor.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"

namespace aqt {

// A scale of operand `side`, in the layout of the product, with extent 1 along the other operand's axes:
//   'bmnts,bsnh->bnmth':  lhs scale [2,1,4,7,1] -> [2,4,1,7,1],  rhs scale [2,1,4,1] -> [2,4,1,1,1]
// InvalidArgument when it varies along a contracting axis.
absl::StatusOr<ArrayRef> ScaleToOutput(const ArrayRef& scale, Side side, const DotDims& dims, int64_t other_rank);

// A scale of operand `side` in the layout of the other operand, with extent 1 along the other's remaining axes.
// InvalidArgument when it varies along a remaining axis of its own.
absl::StatusOr<ArrayRef> ScaleToOther(const ArrayRef& scale, Side side, const DotDims& dims, int64_t other_rank);

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_SCALE_LAYOUT_H_
