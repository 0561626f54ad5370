#include "aqt/quant/reference/dot_general_reference.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/status_macros.h"
#include "aqt/quant/numerics/arith.h"
#include "aqt/quant/reference/product_reference.h"
#include "aqt/quant/reference/reference_value.h"

namespace aqt {
namespace {

using reference::ForEach;
using reference::FromArray;
using reference::Index;
using reference::Multiply;
using reference::MultiplyLocally;
using reference::MultiplyOther;
using reference::Plus;
using reference::ProductAxes;
using reference::Quantized;
using reference::QuantizedProduct;
using reference::Rotated;
using reference::Round;
using reference::Times;
using reference::ToArray;
using reference::Value;

// The gradient of one operand, in that operand's layout.
Value Gradient(Side wrt, const DotGeneralConfig& config, const QuantizedProduct& forward, const Value& lhs,
               const Value& rhs, const Value& g, const DotDims& dims, const std::optional<Key>& g_key,
               const std::optional<Key>& y_key, const Semantics& semantics) {
  const bool is_lhs = wrt == Side::kLhs;
  const DotGeneralRawConfig& raw = is_lhs ? config.dlhs : config.drhs;
  const Value& x = is_lhs ? lhs : rhs;
  Value y = is_lhs ? rhs : lhs;
  const Quantized& y_quantized = is_lhs ? forward.rhs : forward.lhs;
  const Quantized& x_quantized = is_lhs ? forward.lhs : forward.rhs;
  const BackwardDotDims backward = MakeBackwardDotDims(dims, lhs.shape.size(), rhs.shape.size(), wrt);
  Value scaled_g = g;
  if (raw.rhs.use_fwd_quant) {
    MultiplyOther(y_quantized.scale, backward.dims.rhs_contracting, backward.dims.rhs_batch,
                  backward.dims.lhs_contracting, backward.dims.lhs_batch, scaled_g);
    for (size_t i = 0; i < y.data.size(); ++i) y.data[i] = Round(y.dtype, static_cast<float>(y_quantized.q.data[i]));
    const std::optional<Value>& ratio = is_lhs ? forward.rhs_ratio : forward.lhs_ratio;
    if (ratio.has_value()) ForEach(y.shape, [&](const Index& i) { y[i] = Times(y.dtype, y(i), (*ratio)(i)); });
  }
  const Value product = MultiplyLocally(raw, scaled_g, y, backward.dims, g_key, y_key, semantics);
  Value out(x.dtype, x.shape);
  ForEach(product.shape, [&](const Index& p) {
    Index i(x.shape.size());
    for (size_t axis = 0; axis < p.size(); ++axis) i[backward.to_operand[axis]] = p[axis];
    out[i] = product(p);
  });
  // The gradient of the rotated operand, where that is known or masked; then that of the operand.
  const Axes& contracting = is_lhs ? dims.lhs_contracting : dims.rhs_contracting;
  const bool clips = !x_quantized.mask.empty();
  if (clips && !raw.rhs.use_fwd_quant) out = Rotated(config.fwd.hadamard, out, contracting);
  for (size_t i = 0; i < x_quantized.mask.size(); ++i) {
    const bool chooses = semantics.arithmetic == Arithmetic::kXlaCompatible && out.dtype != DType::kBF16;
    if (chooses || semantics.compat.clip_gradient_at_bound) {
      if (x_quantized.mask[i] == 0) out.data[i] = 0;
    } else {
      out.data[i] = Times(out.dtype, static_cast<float>(out.data[i]), x_quantized.mask[i]);
    }
  }
  if (clips || raw.rhs.use_fwd_quant) out = Rotated(config.fwd.hadamard, out, contracting);
  return out;
}

// ---- tiles

// An operand in its tiled shape: repeated along leading axes, with each tiled axis split into (tile, place).
struct TiledValue {
  Value x;
  Index tile_axis, place_axis;  // of x, for each axis of the operand; equal where it is not tiled
  Index place;                  // places per tile, for each axis of the operand

  // The operand's index for an index of x.
  Index Untiled(const Index& i) const {
    Index index;
    for (size_t a = 0; a < place.size(); ++a) {
      index.push_back(tile_axis[a] == place_axis[a] ? i[place_axis[a]] : i[tile_axis[a]] * place[a] + i[place_axis[a]]);
    }
    return index;
  }
};

int64_t AxisOf(const AxisTiling& tiling, const Value& x) {
  return tiling.axis < 0 ? tiling.axis + static_cast<int64_t>(x.shape.size()) : tiling.axis;
}

int64_t TilesOf(const AxisTiling& tiling, const Value& x) {
  return tiling.tile_count.has_value() ? *tiling.tile_count : x.shape[AxisOf(tiling, x)] / *tiling.tile_size;
}

TiledValue TileValue(const Value& x, const TensorTiling& tiling, const Index& repeats) {
  TiledValue result;
  Index tiles(x.shape.size(), -1);  // -1: not tiled
  for (const auto* list : {&tiling.contraction_axes, &tiling.remaining_axes}) {
    for (const AxisTiling& t : *list) tiles[AxisOf(t, x)] = TilesOf(t, x);
  }
  Index shape = repeats;
  for (size_t a = 0; a < tiles.size(); ++a) {
    result.tile_axis.push_back(static_cast<int64_t>(shape.size()));
    if (tiles[a] >= 0) shape.push_back(tiles[a]);
    result.place_axis.push_back(static_cast<int64_t>(shape.size()));
    result.place.push_back(tiles[a] > 0 ? x.shape[a] / tiles[a] : tiles[a] == 0 ? 0 : x.shape[a]);
    shape.push_back(result.place.back());
  }
  result.x = Value(x.dtype, shape);
  ForEach(shape, [&](const Index& i) { result.x[i] = x(result.Untiled(i)); });
  return result;
}

// sum[where(i)] = the sum of x[i], in f32, in the order of i.
template <class F>
Value SumInto(const Value& x, Index shape, F where) {
  Value sum(DType::kF32, std::move(shape));
  ForEach(x.shape, [&](const Index& i) {
    const Index to = where(i);
    sum[to] = Plus(DType::kF32, sum(to), x(i));
  });
  for (double& v : sum.data) v = Round(x.dtype, static_cast<float>(v));
  sum.dtype = x.dtype;
  return sum;
}

absl::StatusOr<DotGeneralGradients> TiledWithGradients(DotGeneralConfig config, const Value& lhs, const Value& rhs,
                                                       const Value& g, const DotDims& dims, const Context& context,
                                                       const Semantics& semantics) {
  const DotTiling tiling = *config.tiling;
  config.tiling.reset();
  const auto repeats = [](const TensorTiling& other, const Value& x) {
    Index tiles;
    for (const AxisTiling& t : other.remaining_axes) tiles.push_back(TilesOf(t, x));
    return tiles;
  };
  const TiledValue l = TileValue(lhs, tiling.lhs, repeats(tiling.rhs, rhs));
  const TiledValue r = TileValue(rhs, tiling.rhs, repeats(tiling.lhs, lhs));
  DotDims inner;
  for (const int64_t a : dims.lhs_contracting) inner.lhs_contracting.push_back(l.place_axis[a]);
  for (const int64_t a : dims.rhs_contracting) inner.rhs_contracting.push_back(r.place_axis[a]);
  for (const AxisTiling& t : tiling.lhs.contraction_axes) inner.lhs_batch.push_back(l.tile_axis[AxisOf(t, lhs)]);
  for (const AxisTiling& t : tiling.rhs.contraction_axes) inner.rhs_batch.push_back(r.tile_axis[AxisOf(t, rhs)]);
  for (const int64_t a : dims.lhs_batch) inner.lhs_batch.push_back(l.place_axis[a]);
  for (const int64_t a : dims.rhs_batch) inner.rhs_batch.push_back(r.place_axis[a]);
  for (size_t i = 0; i < tiling.lhs.remaining_axes.size(); ++i) {
    inner.lhs_batch.push_back(l.tile_axis[AxisOf(tiling.lhs.remaining_axes[i], lhs)]);
    inner.rhs_batch.push_back(static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < tiling.rhs.remaining_axes.size(); ++i) {
    inner.lhs_batch.push_back(static_cast<int64_t>(i));
    inner.rhs_batch.push_back(r.tile_axis[AxisOf(tiling.rhs.remaining_axes[i], rhs)]);
  }
  const ProductAxes outside(dims, lhs.shape, rhs.shape), inside(inner, l.x.shape, r.x.shape);
  const Index sums(inside.sum_shape.size(), 0);
  // The index in the result of an element of the tiled product.
  const auto where = [&](const Index& p) {
    Index to(outside.product_shape.size());
    const auto place = [&](const Index& from, const Index& source) {
      for (size_t a = 0; a < from.size(); ++a) {
        if (source[a] < static_cast<int64_t>(to.size())) to[source[a]] = from[a];
      }
    };
    place(l.Untiled(ProductAxes::Gather(inside.lhs_source, p, sums)), outside.lhs_source);
    place(r.Untiled(ProductAxes::Gather(inside.rhs_source, p, sums)), outside.rhs_source);
    return to;
  };
  Value inner_g(g.dtype, inside.product_shape);
  ForEach(inner_g.shape, [&](const Index& p) { inner_g[p] = g(where(p)); });
  AQT_ASSIGN_OR_RETURN(const DotGeneralGradients tiled,
                       ReferenceDotGeneralWithGradients(config, ToArray(l.x), ToArray(r.x), ToArray(inner_g), inner,
                                                        context, semantics));
  return DotGeneralGradients{
      ToArray(SumInto(FromArray(tiled.out), outside.product_shape, where)),
      ToArray(SumInto(FromArray(tiled.dlhs), lhs.shape, [&](const Index& i) { return l.Untiled(i); })),
      ToArray(SumInto(FromArray(tiled.drhs), rhs.shape, [&](const Index& i) { return r.Untiled(i); }))};
}

}  // namespace

absl::StatusOr<DotGeneralGradients> ReferenceDotGeneralWithGradients(const DotGeneralConfig& config,
                                                                     const ArrayRef& lhs_ref, const ArrayRef& rhs_ref,
                                                                     const ArrayRef& g_ref, const DotDims& dims,
                                                                     const Context& context,
                                                                     const Semantics& semantics) {
  AQT_ASSIGN_OR_RETURN(const DotGeneralPlan plan,
                       DotGeneralPlan::Make(config, lhs_ref.aval(), rhs_ref.aval(), dims, {.semantics = semantics}));
  if (g_ref.aval() != plan.out_aval())
    return absl::InvalidArgumentError("reference: g does not have the output's shape");
  if ((plan.ForwardNeedsKey() || plan.BackwardNeedsKey()) && !context.key.has_value()) {
    return absl::FailedPreconditionError("reference: set Context::key");
  }
  const Value lhs = FromArray(lhs_ref), rhs = FromArray(rhs_ref), g = FromArray(g_ref);
  if (config.tiling.has_value()) return TiledWithGradients(config, lhs, rhs, g, dims, context, semantics);
  const auto key = [&](int pass, int side) -> std::optional<Key> {
    if (!context.key.has_value()) return std::nullopt;
    return SplitKey(SplitKey(*context.key, 3, pass, semantics.prng_layout), 2, side, semantics.prng_layout);
  };
  const QuantizedProduct forward = Multiply(config.fwd, lhs, rhs, dims, key(0, 0), key(0, 1), semantics);
  const Value dlhs = Gradient(Side::kLhs, config, forward, lhs, rhs, g, dims, key(1, 0), key(1, 1), semantics);
  const Value drhs = Gradient(Side::kRhs, config, forward, lhs, rhs, g, dims, key(2, 0), key(2, 1), semantics);
  return DotGeneralGradients{ToArray(forward.out), ToArray(dlhs), ToArray(drhs)};
}

}  // namespace aqt
