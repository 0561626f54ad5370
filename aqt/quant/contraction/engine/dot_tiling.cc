#include "aqt/quant/contraction/engine/dot_tiling.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/validate.h"

namespace aqt::internal {
namespace {

const char* Name(Side side) { return side == Side::kLhs ? "lhs" : "rhs"; }

bool Has(const Axes& axes, int64_t axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// The axes of a list, counted from the front; they are in range.
Axes FromFront(absl::Span<const AxisTiling> list, int64_t rank) {
  Axes axes;
  for (const AxisTiling& tiling : list) axes.push_back(tiling.axis < 0 ? tiling.axis + rank : tiling.axis);
  return axes;
}

absl::Status CheckKind(Side side, const char* list, const Axes& tiled, const char* kind, const Axes& allowed) {
  for (const int64_t axis : tiled) {
    if (Has(allowed, axis)) continue;
    return absl::InvalidArgumentError(absl::StrCat("tiling: ", Name(side), ".", list, " names axis ", axis,
                                                   ", but the ", kind, " axes of ", Name(side), " are [",
                                                   absl::StrJoin(allowed, ","), "]"));
  }
  return absl::OkStatus();
}

// For a tiling made for other axes, such as a preset's.
constexpr char kRemedy[] = "; give this contraction a rule with a tiling of its own axes";

// One side, independent of the other.
struct TiledSide {
  TilingState tiling;
  Axes contracting, remaining;  // tiled axes, in the order of the lists
  Axes all_remaining;           // tiled or not

  int64_t Tiles(int64_t axis) const { return tiling.tiled_shape[tiling.tile_map[axis][0]]; }
};

absl::StatusOr<TiledSide> MakeSide(Side side, const TensorTiling& config, const DotDims& own, const Shape& shape) {
  TiledSide result;
  std::vector<AxisTiling> all = config.contraction_axes;
  all.insert(all.end(), config.remaining_axes.begin(), config.remaining_axes.end());
  absl::StatusOr<TilingState> tiling = TilingState::Make(shape, all);
  if (!tiling.ok()) {
    const bool sums_over_one = own.lhs_contracting.size() == 1;
    const absl::Status& why = tiling.status();
    return absl::Status(why.code(), absl::StrCat(Name(side), ": ", why.message(), sums_over_one ? "" : kRemedy));
  }
  result.tiling = *std::move(tiling);
  result.contracting = FromFront(config.contraction_axes, shape.rank());
  result.remaining = FromFront(config.remaining_axes, shape.rank());
  result.all_remaining = RemainingAxes(shape.rank(), own.lhs_contracting, own.lhs_batch);
  AQT_RETURN_IF_ERROR(CheckKind(side, "contraction_axes", result.contracting, "contracting", own.lhs_contracting));
  AQT_RETURN_IF_ERROR(CheckKind(side, "remaining_axes", result.remaining, "remaining", result.all_remaining));
  return result;
}

absl::Status CheckPairs(const TiledSide& lhs, const TiledSide& rhs, const DotDims& dims) {
  if (lhs.contracting.size() != rhs.contracting.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tiling: contraction_axes cut ", lhs.contracting.size(),
                                                   " axes of lhs and ", rhs.contracting.size(),
                                                   " of rhs; they are cut in pairs"));
  }
  for (size_t i = 0; i < lhs.contracting.size(); ++i) {
    const int64_t lhs_axis = lhs.contracting[i], rhs_axis = rhs.contracting[i];
    const auto* found = std::find(dims.lhs_contracting.begin(), dims.lhs_contracting.end(), lhs_axis);
    const int64_t partner = dims.rhs_contracting[found - dims.lhs_contracting.begin()];
    if (partner != rhs_axis) {
      return absl::InvalidArgumentError(absl::StrCat("tiling: contraction_axes[", i, "] cuts axis ", lhs_axis,
                                                     " of lhs and axis ", rhs_axis, " of rhs, but axis ", lhs_axis,
                                                     " of lhs is contracted with axis ", partner, " of rhs", kRemedy));
    }
    if (lhs.Tiles(lhs_axis) != rhs.Tiles(rhs_axis)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tiling: contraction_axes[", i, "]: axis ", lhs_axis, " of lhs has ", lhs.Tiles(lhs_axis), " tiles, axis ",
          rhs_axis, " of rhs has ", rhs.Tiles(rhs_axis), "; they must have equally many"));
    }
  }
  return absl::OkStatus();
}

TiledOperand MakeOperand(const TiledSide& own, const TiledSide& other) {
  TiledOperand operand;
  operand.tiling = own.tiling;
  operand.num_other = static_cast<int64_t>(other.remaining.size());
  for (const int64_t axis : other.remaining) operand.shape.push_back(other.Tiles(axis));
  for (const int64_t extent : own.tiling.tiled_shape) operand.shape.push_back(extent);
  return operand;
}

// Axes of the view: the tiles (or the axis itself if it is not tiled) and the sizes of `axes`.
Axes TileAxes(const TiledOperand& operand, const Axes& axes) {
  Axes result;
  for (const int64_t axis : axes) result.push_back(operand.num_other + operand.tiling.tile_map[axis].front());
  return result;
}
Axes SizeAxes(const TiledOperand& operand, const Axes& axes) {
  Axes result;
  for (const int64_t axis : axes) result.push_back(operand.num_other + operand.tiling.tile_map[axis].back());
  return result;
}
Axes OtherAxes(const TiledOperand& operand) {
  Axes result;
  for (int64_t axis = 0; axis < operand.num_other; ++axis) result.push_back(axis);
  return result;
}

Axes Joined(std::initializer_list<Axes> lists) {
  Axes result;
  for (const Axes& list : lists) result.insert(result.end(), list.begin(), list.end());
  return result;
}

// The index, in dims.lhs_contracting, of the pair to cut.
size_t PairToCut(const LocalAqt& config, const DotDims& dims, const Shape& lhs) {
  if (!config.tile_largest_shape) return 0;
  size_t best = 0;
  for (size_t i = 1; i < dims.lhs_contracting.size(); ++i) {
    const int64_t axis = dims.lhs_contracting[i], best_axis = dims.lhs_contracting[best];
    const bool longer = lhs[axis] > lhs[best_axis];
    if (longer || (lhs[axis] == lhs[best_axis] && axis < best_axis)) best = i;
  }
  return best;
}

}  // namespace

ArrayRef TiledOperand::View(const ArrayRef& x) const {
  ArrayRef view(x.dtype, shape, Strides(num_other, 0), x.data);
  for (const int64_t stride : tiling.TiledStrides(x.strides)) view.strides.push_back(stride);
  return view;
}

MutableArrayRef TiledDot::OutView(const MutableArrayRef& result) const {
  const MutableArrayRef tiled = out.Tile(result);
  MutableArrayRef view;
  view.dtype = tiled.dtype;
  view.data = tiled.data;
  for (const int64_t axis : out_axes) {
    view.shape.push_back(tiled.shape[axis]);
    view.strides.push_back(tiled.strides[axis]);
  }
  return view;
}

ArrayRef TiledDot::GradientView(const ArrayRef& g, const Shape& product) const {
  const Strides tiled = out.TiledStrides(g.strides);
  ArrayRef view(g.dtype, product, Strides(num_sums, 0), g.data);
  for (const int64_t axis : out_axes) view.strides.push_back(tiled[axis]);
  return view;
}

absl::StatusOr<TiledDot> MakeTiledDot(const DotTiling& tiling, const DotDims& dims, const Shape& lhs_shape,
                                      const Shape& rhs_shape) {
  AQT_ASSIGN_OR_RETURN(const TiledSide lhs, MakeSide(Side::kLhs, tiling.lhs, dims, lhs_shape));
  AQT_ASSIGN_OR_RETURN(const TiledSide rhs, MakeSide(Side::kRhs, tiling.rhs, dims.Swapped(), rhs_shape));
  AQT_RETURN_IF_ERROR(CheckPairs(lhs, rhs, dims));
  TiledDot dot;
  dot.lhs = MakeOperand(lhs, rhs);
  dot.rhs = MakeOperand(rhs, lhs);
  dot.num_sums = static_cast<int64_t>(lhs.contracting.size());
  dot.dims.lhs_contracting = SizeAxes(dot.lhs, dims.lhs_contracting);
  dot.dims.rhs_contracting = SizeAxes(dot.rhs, dims.rhs_contracting);
  dot.dims.lhs_batch = Joined({TileAxes(dot.lhs, lhs.contracting), TileAxes(dot.lhs, dims.lhs_batch),
                               TileAxes(dot.lhs, lhs.remaining), OtherAxes(dot.lhs)});
  dot.dims.rhs_batch = Joined({TileAxes(dot.rhs, rhs.contracting), TileAxes(dot.rhs, dims.rhs_batch),
                               OtherAxes(dot.rhs), TileAxes(dot.rhs, rhs.remaining)});

  // The axis of the result for each remaining axis of a side.
  const int64_t num_batch = static_cast<int64_t>(dims.lhs_batch.size());
  const auto out_axis = [&](const TiledSide& side, int64_t axis) {
    const int64_t before = &side == &rhs ? static_cast<int64_t>(lhs.all_remaining.size()) : 0;
    return num_batch + before +
           (std::find(side.all_remaining.begin(), side.all_remaining.end(), axis) - side.all_remaining.begin());
  };
  std::vector<AxisTiling> out_tilings;
  for (const TiledSide* side : {&lhs, &rhs}) {
    for (const int64_t axis : side->remaining) {
      const Axes& map = side->tiling.tile_map[axis];
      AxisTiling& out_tiling = out_tilings.emplace_back(AxisTiling{.axis = out_axis(*side, axis)});
      // For an empty axis only the count can be given.
      const int64_t size = side->tiling.tiled_shape[map[1]];
      (size > 0 ? out_tiling.tile_size : out_tiling.tile_count) = size > 0 ? size : side->tiling.tiled_shape[map[0]];
    }
  }
  AQT_ASSIGN_OR_RETURN(dot.out, TilingState::Make(DotOutputShape(dims, lhs_shape, rhs_shape), out_tilings));
  for (int64_t axis = 0; axis < num_batch; ++axis) dot.out_axes.push_back(dot.out.tile_map[axis][0]);
  for (const TiledSide* side : {&lhs, &rhs}) {
    for (const int64_t axis : side->remaining) dot.out_axes.push_back(dot.out.tile_map[out_axis(*side, axis)].front());
  }
  for (const TiledSide* side : {&lhs, &rhs}) {
    for (const int64_t axis : side->all_remaining)
      dot.out_axes.push_back(dot.out.tile_map[out_axis(*side, axis)].back());
  }
  return dot;
}

absl::StatusOr<std::optional<TiledDot>> MakeLocalTiling(const LocalAqt& config, const DotDims& dims, const Shape& lhs,
                                                        const Shape& rhs) {
  AQT_RETURN_IF_ERROR(ValidateLocalAqt(config));
  if (dims.lhs_contracting.empty()) return std::optional<TiledDot>();
  const size_t pair = PairToCut(config, dims, lhs);
  const int64_t lhs_axis = dims.lhs_contracting[pair], rhs_axis = dims.rhs_contracting[pair];
  const int64_t parts =
      config.tile_largest_shape ? *config.contraction_axis_shard_size : *config.contraction_axis_shard_count;
  if (lhs[lhs_axis] % parts != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "local_aqt: contracting axis ", lhs_axis, " of lhs ", lhs.ToString(), " (axis ", rhs_axis,
        " of rhs) has extent ", lhs[lhs_axis], ", which is not a multiple of ",
        config.tile_largest_shape ? "contraction_axis_shard_size" : "contraction_axis_shard_count", " = ", parts));
  }
  const auto cut = [&](int64_t axis) {
    return AxisTiling{.axis = axis,
                      .tile_count = config.contraction_axis_shard_count,
                      .tile_size = config.contraction_axis_shard_size};
  };
  DotTiling tiling;
  tiling.lhs.contraction_axes = {cut(lhs_axis)};
  tiling.rhs.contraction_axes = {cut(rhs_axis)};
  AQT_ASSIGN_OR_RETURN(TiledDot tiled, MakeTiledDot(tiling, dims, lhs, rhs));
  return std::optional<TiledDot>(std::move(tiled));
}

}  // namespace aqt::internal
