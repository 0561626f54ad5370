#include "aqt/quant/contraction/local_aqt.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/validate.h"

namespace aqt::internal {
namespace {

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
