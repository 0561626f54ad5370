#include "aqt/quant/tiling.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aqt {

absl::StatusOr<TilingState> TilingState::Make(const Shape& shape, absl::Span<const AxisTiling> tilings) {
  const int64_t rank = shape.rank();
  struct Tile {
    int64_t count, size;
  };
  std::vector<std::optional<Tile>> tile(rank);
  for (const AxisTiling& tiling : tilings) {
    const int64_t axis = tiling.axis < 0 ? tiling.axis + rank : tiling.axis;
    if (axis < 0 || axis >= rank) {
      return absl::InvalidArgumentError(
          absl::StrCat("tiling: axis ", tiling.axis, " is out of range for shape ", shape.ToString()));
    }
    if (tile[axis].has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("tiling: axis ", axis, " is tiled twice"));
    }
    if (!tiling.tile_count.has_value() && !tiling.tile_size.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("tiling: axis ", axis, " needs a tile_count or a tile_size"));
    }
    const int64_t extent = shape[axis];
    const int64_t given = tiling.tile_count.value_or(tiling.tile_size.value_or(0));
    if (given <= 0 || extent % given != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tiling: axis ", axis, " of shape ", shape.ToString(),
                                                     " cannot be cut in ", given, " equal parts"));
    }
    const int64_t size = tiling.tile_count.has_value() ? extent / given : given;
    if (tiling.tile_size.has_value() && *tiling.tile_size != size) {
      return absl::InvalidArgumentError(absl::StrCat("tiling: axis ", axis, " of shape ", shape.ToString(), " has not ",
                                                     *tiling.tile_count, " tiles of ", *tiling.tile_size));
    }
    // An empty axis has as many tiles as were asked for, of size 0.
    tile[axis] = Tile{tiling.tile_count.has_value() ? given : extent / given, size};
  }
  TilingState state;
  state.untiled_shape = shape;
  for (int64_t axis = 0; axis < rank; ++axis) {
    Axes& map = state.tile_map.emplace_back();
    map.push_back(state.tiled_shape.rank());
    if (tile[axis].has_value()) {
      state.tiled_shape.push_back(tile[axis]->count);
      map.push_back(state.tiled_shape.rank());
      state.tiled_shape.push_back(tile[axis]->size);
    } else {
      state.tiled_shape.push_back(shape[axis]);
    }
  }
  return state;
}

Strides TilingState::TiledStrides(absl::Span<const int64_t> strides) const {
  Strides tiled;
  for (size_t axis = 0; axis < tile_map.size(); ++axis) {
    if (tile_map[axis].size() == 2) tiled.push_back(strides[axis] * tiled_shape[tile_map[axis][1]]);
    tiled.push_back(strides[axis]);
  }
  return tiled;
}

ArrayRef TilingState::Tile(const ArrayRef& x) const {
  return ArrayRef(x.dtype, tiled_shape, TiledStrides(x.strides), x.data);
}

MutableArrayRef TilingState::Tile(const MutableArrayRef& x) const {
  return MutableArrayRef(x.dtype, tiled_shape, TiledStrides(x.strides), x.data);
}

Axes TilingState::CalibrationAxes(absl::Span<const int64_t> axes) const {
  Axes tiled;
  for (const int64_t axis : axes) tiled.push_back(tile_map[axis].back());
  return tiled;
}

}  // namespace aqt
