#ifndef AQT_QUANT_TILING_H_
#define AQT_QUANT_TILING_H_

// Sub-channel quantization of one tensor: an axis of extent count * size is seen as two axes (count, size) in its place,
// so that each tile gets a scale of its own.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/shape.h"

namespace aqt {

// At least one of count and size; their product must be the extent of the axis.
struct AxisTiling {
  int64_t axis = 0;  // negative: from the end
  std::optional<int64_t> tile_count = std::nullopt, tile_size = std::nullopt;
  bool operator==(const AxisTiling&) const = default;
};

struct TilingState {
  Shape untiled_shape = {};
  Shape tiled_shape = {};
  // tile_map[axis] = {axis in the tiled shape}, or {count axis, size axis} for a tiled one.
  std::vector<Axes> tile_map = {};
  bool operator==(const TilingState&) const = default;

  // InvalidArgument when an axis is out of range, tiled twice, or not count * size long.
  static absl::StatusOr<TilingState> Make(const Shape& shape, absl::Span<const AxisTiling> tilings);

  // `x`, of the untiled shape, seen in the tiled shape; no copy.
  ArrayRef Tile(const ArrayRef& x) const;
  MutableArrayRef Tile(const MutableArrayRef& x) const;
  Strides TiledStrides(absl::Span<const int64_t> strides) const;
  // The tiled-shape axes that `axes` of the untiled shape calibrate over: the size axis of a tiled axis.
  Axes CalibrationAxes(absl::Span<const int64_t> axes) const;
};

}  // namespace aqt

#endif  // AQT_QUANT_TILING_H_
