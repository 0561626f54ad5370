#ifndef AQT_QUANT_TENSOR_LEGACY_FROZEN_H_
#define AQT_QUANT_TENSOR_LEGACY_FROZEN_H_

// The older format of a quantized operand in AQT's checkpoints ("value" and "scale"): the scale has the layout of the
// product instead of that of the operand. For a weight [2,5,6] in 'ijkh,mkh->ijm' with one scale per leading index, a
// QTensor has the scale [2,1,1] and the older format [1,1,2].

#include <cstdint>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

struct LegacyFrozen {
  Array value;  // the qvalue
  Array scale;  // as ScaleToOutput gives it
};

// `side` is the operand's place in a contraction with `dims`, `other_rank` the rank of the other operand.
// InvalidArgument when the QTensor has no qvalue, not exactly one scale, a bias, a mask or tiles, when the scale does
// not broadcast to the qvalue or varies along a contracting axis, and when `dims` do not fit the operands' ranks.
absl::StatusOr<LegacyFrozen> ToLegacyFrozen(const QTensor& qtensor, Side side, const DotDims& dims, int64_t other_rank);

// The inverse; dequant_dtype is the dtype of the scale, since the older format has no other. InvalidArgument when the
// scale does not have the rank and the extents (1, or the qvalue's) that the contraction gives it, and when `dims` do
// not fit the operands' ranks.
absl::StatusOr<QTensor> FromLegacyFrozen(const LegacyFrozen& frozen, Side side, const DotDims& dims,
                                         int64_t other_rank);

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_LEGACY_FROZEN_H_
