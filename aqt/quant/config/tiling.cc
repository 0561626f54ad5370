#include "aqt/quant/config/tiling.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/checked_extents.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/config/einsum_equation.h"

namespace aqt {
namespace {

// "lhs,rhs->out" with a letter for each axis.
absl::StatusOr<EinsumEquation> ParseLetters(absl::string_view equation) {
  if (equation.find('.') != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("tiling: \"", equation,
                                                   "\" has an ellipsis, so its axes have no "
                                                   "numbers; spell it out"));
  }
  const size_t comma = std::min(equation.find(','), equation.size()),
               arrow = std::min(equation.find("->"), equation.size());
  const auto letters = [&](size_t begin, size_t end) {
    return std::count_if(equation.begin() + begin, equation.begin() + std::max(begin, end),
                         [](unsigned char c) { return absl::ascii_isalpha(c); });
  };
  return ParseEinsum(equation, letters(0, comma), letters(comma, arrow));
}

}  // namespace

absl::StatusOr<DotTiling> DotTilingFromEinsum(absl::string_view equation,
                                              absl::Span<const std::pair<char, int64_t>> tile_sizes) {
  AQT_ASSIGN_OR_RETURN(const EinsumEquation einsum, ParseLetters(equation));
  DotTiling tiling;
  for (size_t i = 0; i < tile_sizes.size(); ++i) {
    const auto& [letter, size] = tile_sizes[i];
    const auto invalid = [&, name = letter](const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("tiling: axis ", absl::string_view(&name, 1), " of \"", equation, "\" ", what...));
    };
    const bool again = std::any_of(tile_sizes.begin(), tile_sizes.begin() + static_cast<int64_t>(i),
                                   [name = letter](const auto& other) { return other.first == name; });
    if (again) return invalid("is tiled twice");
    if (size < 1) return invalid("has tile size ", size, ", expected at least 1");
    const auto times = [name = letter](const std::string& names) {
      return std::count(names.begin(), names.end(), name);
    };
    const bool in_lhs = times(einsum.lhs) == 1, in_rhs = times(einsum.rhs) == 1, in_out = times(einsum.out) == 1;
    if (in_lhs + in_rhs + in_out != 2 || times(einsum.lhs) > 1 || times(einsum.rhs) > 1) {
      return invalid(
          "is ", times(einsum.lhs), " times in lhs, ", times(einsum.rhs), " in rhs and ", times(einsum.out),
          " in the result, but only axes that occur once in exactly two of them can be tiled: contracting and "
          "remaining ones");
    }
    const size_t lhs = einsum.lhs.find(letter), rhs = einsum.rhs.find(letter);
    const auto axis = [size = size](size_t index) {
      return AxisTiling{.axis = static_cast<int64_t>(index), .tile_size = size};
    };
    if (in_lhs) (in_rhs ? tiling.lhs.contraction_axes : tiling.lhs.remaining_axes).push_back(axis(lhs));
    if (in_rhs) (in_lhs ? tiling.rhs.contraction_axes : tiling.rhs.remaining_axes).push_back(axis(rhs));
  }
  return tiling;
}

absl::StatusOr<TilingState> TilingState::Make(const Shape& shape, absl::Span<const AxisTiling> tilings) {
  AQT_RETURN_IF_ERROR(Annotate(CheckShape(shape), "tiling"));
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
      const bool by_count = tiling.tile_count.has_value();
      return absl::InvalidArgumentError(absl::StrCat("tiling: axis ", axis, " of shape ", shape.ToString(),
                                                     " cannot be cut into ", by_count ? "" : "parts of size ", given,
                                                     by_count ? " equal parts" : ""));
    }
    const int64_t size = tiling.tile_count.has_value() ? extent / given : given;
    if (tiling.tile_size.has_value() && *tiling.tile_size != size) {
      return absl::InvalidArgumentError(absl::StrCat("tiling: axis ", axis, " of shape ", shape.ToString(),
                                                     " does not have ", *tiling.tile_count, " tiles of size ",
                                                     *tiling.tile_size));
    }
    // An empty axis has as many tiles as requested, of size 0.
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
