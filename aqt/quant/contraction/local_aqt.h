#ifndef AQT_QUANT_CONTRACTION_LOCAL_AQT_H_
#define AQT_QUANT_CONTRACTION_LOCAL_AQT_H_

// The tiling that LocalAqt (config.h) means. Internal.

#include <optional>

#include "absl/status/statusor.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/dot_tiling.h"

namespace aqt::internal {

// LocalAqt as a tiling of the operands of a backward contraction, over whose tiles the product is summed.
//
// Cuts the first contracting axis by contraction_axis_shard_count, or with tile_largest_shape the longest one (the
// first of equal ones in the order of lhs's axes) and its partner by contraction_axis_shard_size. Null without
// contracting axes. InvalidArgument when a field is missing, not positive or does not belong to the rule, or does not
// divide the axis.
absl::StatusOr<std::optional<TiledDot>> MakeLocalTiling(const LocalAqt& config, const DotDims& dims, const Shape& lhs,
                                                        const Shape& rhs);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_LOCAL_AQT_H_
