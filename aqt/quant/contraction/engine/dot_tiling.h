#ifndef AQT_QUANT_CONTRACTION_ENGINE_DOT_TILING_H_
#define AQT_QUANT_CONTRACTION_ENGINE_DOT_TILING_H_

// The geometry of a tiled contraction (DotGeneralConfig::tiling in config.h), and of LocalAqt. Internal.
//
// Operands are viewed, without a copy, in the shapes of a contraction whose batch axes are the tiles:
//   lhs [rhs tiles..., axes of lhs; a tiled one as (count, size) in its place]     rhs likewise
//   contracting: the size axes; batch: [tiles of contracting axes] + batch + [tiles of lhs] + [tiles of rhs]
// where "tiles of lhs" are the tiles of its remaining axes. Along "rhs tiles" lhs is repeated (stride 0). The product's
// leading axes, the tiles of contracting axes, are summed over; the others are the axes of the result, cut and
// permuted.

#include <optional>

#include "absl/status/statusor.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"

namespace aqt::internal {

struct TiledOperand {
  TilingState tiling;
  Shape shape;            // of the view
  int64_t num_other = 0;  // leading axes: the tiles of the other operand

  ArrayRef View(const ArrayRef& x) const;
};

struct TiledDot {
  TiledOperand lhs, rhs;
  DotDims dims;          // of the views
  int64_t num_sums = 0;  // leading axes of the product that are summed over
  TilingState out;       // of the result
  Axes out_axes;         // for each axis of the product after those, its axis in out.tiled_shape

  const TiledOperand& operand(Side side) const { return side == Side::kLhs ? lhs : rhs; }
  // The result viewed as the product without the leading axes.
  MutableArrayRef OutView(const MutableArrayRef& out) const;
  // The gradient of the result viewed as that of the product: the same for all parts of a sum.
  ArrayRef GradientView(const ArrayRef& g, const Shape& product) const;
};

// InvalidArgument when an axis does not belong in its list, is tiled twice or is not a multiple of its tiles, and when
// the contracting axes of the two sides do not correspond, pair by pair, in axis and number of tiles.
absl::StatusOr<TiledDot> MakeTiledDot(const DotTiling& tiling, const DotDims& dims, const Shape& lhs, const Shape& rhs);

// LocalAqt as a tiling of the operands of a backward contraction, over whose tiles the product is summed.
//
// Cuts the first contracting axis by contraction_axis_shard_count, or with tile_largest_shape the longest one (the
// first of equal ones in the order of lhs's axes) and its partner by contraction_axis_shard_size. Null without
// contracting axes. InvalidArgument when a field is missing, not positive or does not belong to the rule, or does not
// divide the axis.
absl::StatusOr<std::optional<TiledDot>> MakeLocalTiling(const LocalAqt& config, const DotDims& dims, const Shape& lhs,
                                                        const Shape& rhs);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_ENGINE_DOT_TILING_H_
