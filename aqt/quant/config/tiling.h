#ifndef AQT_QUANT_CONFIG_TILING_H_
#define AQT_QUANT_CONFIG_TILING_H_

// Sub-channel quantization: an axis of extent count * size is viewed as two axes (count, size) in its place, so that
// each tile gets its own scale. TilingState describes one tensor, DotTiling the operands of a contraction.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/shape.h"

namespace aqt {

// One axis to tile. At least one of count and size must be set; their product must be the extent of the axis.
struct AxisTiling {
  int64_t axis = 0;  // negative: from the end
  std::optional<int64_t> tile_count = std::nullopt, tile_size = std::nullopt;
  bool operator==(const AxisTiling&) const = default;
};

// The axes of one operand of a contraction to cut. Batch axes are never cut: each batch already has its own scales.
struct TensorTiling {
  std::vector<AxisTiling> contraction_axes = {};
  std::vector<AxisTiling> remaining_axes = {};
  bool operator==(const TensorTiling&) const = default;
};

// The axes of both operands to cut. Contracting axes are cut in pairs: the i-th entries of both lists are contracted
// with each other and have the same number of tiles.
struct DotTiling {
  TensorTiling lhs = {}, rhs = {};
  bool operator==(const DotTiling&) const = default;
};

// The tiling of an equation "lhs,rhs->out" with these tile sizes for the axes named by letters:
//   DotTilingFromEinsum("ab,bc->ac", {{'b', 4}, {'a', 2}})
// The lists are in the order of `tile_sizes`. InvalidArgument when the equation does not parse (ParseEinsum) or has an
// ellipsis, and when a letter is tiled twice, does not occur once in exactly two of the operands and the result, or has
// a size below 1.
absl::StatusOr<DotTiling> DotTilingFromEinsum(absl::string_view equation,
                                              absl::Span<const std::pair<char, int64_t>> tile_sizes);

// The tiled view of one tensor: its two shapes, and how their axes correspond.
struct TilingState {
  Shape untiled_shape = {};
  Shape tiled_shape = {};
  // tile_map[axis] = {axis in the tiled shape}, or {count axis, size axis} for a tiled one.
  std::vector<Axes> tile_map = {};
  bool operator==(const TilingState&) const = default;

  // InvalidArgument when an axis is out of range, tiled twice, or not count * size long.
  static absl::StatusOr<TilingState> Make(const Shape& shape, absl::Span<const AxisTiling> tilings);

  // `x`, of the untiled shape, viewed in the tiled shape; no copy.
  ArrayRef Tile(const ArrayRef& x) const;
  MutableArrayRef Tile(const MutableArrayRef& x) const;
  Strides TiledStrides(absl::Span<const int64_t> strides) const;
  // Maps calibration axes of the untiled shape to the tiled shape; a tiled axis becomes its size axis.
  Axes CalibrationAxes(absl::Span<const int64_t> axes) const;
};

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_TILING_H_
