#include "tests/digest/draw.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/tiling.h"

namespace aqt::digest {

namespace {

// Shuffles the axes of one operand and notes where the batch and contracting ones went.
void Place(Draw& draw, const std::vector<int64_t>& batch, const std::vector<int64_t>& free,
           const std::vector<int64_t>& contract, Shape& shape, Axes& batch_axes, Axes& contract_axes) {
  std::vector<int64_t> extents = batch;
  extents.insert(extents.end(), free.begin(), free.end());
  extents.insert(extents.end(), contract.begin(), contract.end());
  std::vector<int64_t> order;
  while (order.size() < extents.size()) order.push_back(static_cast<int64_t>(order.size()));
  if (draw.OneIn(2)) draw.Shuffle(order);
  std::vector<int64_t> where(extents.size());
  for (size_t i = 0; i < order.size(); ++i) {
    shape.push_back(extents[order[i]]);
    where[order[i]] = static_cast<int64_t>(i);
  }
  batch_axes.assign(where.begin(), where.begin() + static_cast<int64_t>(batch.size()));
  contract_axes.assign(where.end() - static_cast<int64_t>(contract.size()), where.end());
}

}  // namespace

DotShapes DrawDotShapes(Draw& draw) {
  const auto extents = [&](std::initializer_list<int64_t> counts) {
    std::vector<int64_t> list(draw.Pick(counts));
    for (int64_t& e : list) e = draw.OneIn(50) ? 0 : draw.Pick<int64_t>({1, 2, 3, 4, 5, 6, 7});
    return list;
  };
  const std::vector<int64_t> batch = extents({0, 0, 1, 2});
  std::vector<int64_t> lhs_free = extents({0, 1, 1, 2}), rhs_free = extents({0, 1, 1, 2}),
                       contract = extents({0, 1, 1, 1, 2});
  if (!contract.empty() && draw.OneIn(3)) contract[0] = draw.Pick<int64_t>({16, 31, 64, 65});
  for (std::vector<int64_t>* free : {&lhs_free, &rhs_free}) {
    if (!free->empty() && draw.OneIn(6)) free->front() = draw.Pick<int64_t>({17, 33, 40});
  }
  DotShapes s;
  Place(draw, batch, lhs_free, contract, s.lhs, s.dims.lhs_batch, s.dims.lhs_contracting);
  Place(draw, batch, rhs_free, contract, s.rhs, s.dims.rhs_batch, s.dims.rhs_contracting);
  return s;
}

DotShapes DrawLargeDotShapes(Draw& draw) {
  int64_t m = draw.Pick<int64_t>({1, 7, 65, 130}), k = draw.Pick<int64_t>({64, 255, 257}),
          n = draw.Pick<int64_t>({1, 17, 33, 130});
  switch (draw.Below(10)) {
    case 0: m = 200, k = 257, n = 130; break;  // enough work for threads
    case 1: m = 1, k = 260, n = 330; break;
    default: break;
  }
  const int64_t batch = m * k * n < 200'000 && draw.OneIn(2) ? 3 : 0;
  DotShapes s;
  std::vector<int64_t> batches;
  if (batch > 0) batches.push_back(batch);
  Place(draw, batches, {m}, {k}, s.lhs, s.dims.lhs_batch, s.dims.lhs_contracting);
  Place(draw, batches, {n}, {k}, s.rhs, s.dims.rhs_batch, s.dims.rhs_contracting);
  return s;
}

DotTiling DrawTiling(Draw& draw, const DotShapes& shapes) {
  const auto tiles_of = [&](int64_t extent) {
    int64_t tiles = 1 + draw.Below(std::clamp<int64_t>(extent, 3, 6));
    while (extent % tiles != 0) --tiles;
    return tiles;
  };
  // By count, by size, or by both; from the front or from the end.
  const auto cut = [&](const Shape& shape, int64_t axis, int64_t tiles) {
    AxisTiling tiling{.axis = draw.OneIn(2) ? axis : axis - shape.rank()};
    const int64_t size = shape[axis] / tiles;
    if (size == 0 || draw.OneIn(2)) tiling.tile_count = tiles;
    if (!tiling.tile_count.has_value() || (size > 0 && draw.OneIn(3))) tiling.tile_size = size;
    return tiling;
  };
  DotTiling tiling;
  for (size_t i = 0; i < shapes.dims.lhs_contracting.size(); ++i) {
    if (draw.OneIn(3)) continue;
    const int64_t lhs_axis = shapes.dims.lhs_contracting[i], rhs_axis = shapes.dims.rhs_contracting[i];
    const int64_t tiles = tiles_of(shapes.lhs[lhs_axis]);
    tiling.lhs.contraction_axes.push_back(cut(shapes.lhs, lhs_axis, tiles));
    tiling.rhs.contraction_axes.push_back(cut(shapes.rhs, rhs_axis, tiles));
  }
  for (const Side side : {Side::kLhs, Side::kRhs}) {
    const DotDims own = side == Side::kLhs ? shapes.dims : shapes.dims.Swapped();
    const Shape& shape = side == Side::kLhs ? shapes.lhs : shapes.rhs;
    TensorTiling& tensor = side == Side::kLhs ? tiling.lhs : tiling.rhs;
    for (const int64_t axis : RemainingAxes(shape.rank(), own.lhs_contracting, own.lhs_batch)) {
      if (draw.OneIn(2)) tensor.remaining_axes.push_back(cut(shape, axis, tiles_of(shape[axis])));
    }
    if (draw.OneIn(2)) std::reverse(tensor.remaining_axes.begin(), tensor.remaining_axes.end());
  }
  return tiling;
}

void AddLocalAqt(Draw& draw, const DotShapes& shapes, DotGeneralConfig& config) {
  for (const Side wrt : {Side::kLhs, Side::kRhs}) {
    if (draw.OneIn(4)) continue;
    DotGeneralRawConfig& raw = wrt == Side::kLhs ? config.dlhs : config.drhs;
    const Shape g = DotOutputShape(shapes.dims, shapes.lhs, shapes.rhs);
    const Axes contracting =
        MakeBackwardDotDims(shapes.dims, shapes.lhs.rank(), shapes.rhs.rank(), wrt).dims.lhs_contracting;
    const auto divisor = [&](int64_t extent) {
      int64_t d = 1 + draw.Below(std::max<int64_t>(extent, 3));
      while (extent % d != 0) --d;
      return d;
    };
    LocalAqt local{.tile_largest_shape = draw.OneIn(2)};
    if (local.tile_largest_shape) {
      int64_t largest = 1;
      for (const int64_t axis : contracting) largest = std::max(largest, g[axis]);
      local.contraction_axis_shard_size = divisor(largest);
    } else {
      local.contraction_axis_shard_count = divisor(contracting.empty() ? 1 : g[contracting[0]]);
    }
    raw.local_aqt = local;
    for (TensorConfig* tensor : {&raw.lhs, &raw.rhs}) tensor->quantizer.calib_shared_axes = {};
  }
}

Equation DrawEquation(Draw& draw) {
  std::string lhs, rhs, out;
  std::vector<int64_t> extents;
  const int64_t num_letters = 2 + draw.Below(4);
  for (int64_t i = 0; i < num_letters; ++i) {
    const char letter = static_cast<char>('a' + i);
    extents.push_back(draw.OneIn(40) ? 0 : draw.Pick<int64_t>({1, 2, 3, 4, 5, 6, 18}));
    // Remaining of either, contracting, batch, or what is done before the product.
    const int64_t role = draw.Below(12);
    const bool in_lhs = role < 2 || role >= 4, in_rhs = role >= 2 && role != 10;
    if (in_lhs) lhs.append(role == 11 ? 2 : 1, letter);
    if (in_rhs) rhs.push_back(letter);
    if (role < 4 || (role >= 7 && role < 9) || (role == 11 && draw.OneIn(2))) out.push_back(letter);
  }
  for (std::string* term : {&lhs, &rhs}) {
    if (draw.OneIn(2)) draw.Shuffle(*term);
  }
  if (draw.OneIn(2)) draw.Shuffle(out);
  Equation e;
  const auto shape = [&](const std::string& term) {
    Shape s;
    for (const char letter : term) s.push_back(draw.OneIn(20) ? 1 : extents[letter - 'a']);
    return s;
  };
  e.lhs = shape(lhs);
  e.rhs = shape(rhs);
  if (draw.OneIn(5)) {
    // An axis without a letter, which one operand may lack.
    const auto longer = [](int64_t extent, const Shape& s) {
      Shape result = {extent};
      for (const int64_t e : s) result.push_back(e);
      return result;
    };
    e.lhs = longer(3, e.lhs);
    if (draw.OneIn(2)) e.rhs = longer(draw.Pick<int64_t>({1, 3}), e.rhs);
    lhs = "..." + lhs;
    rhs = "..." + rhs;
    out = "..." + out;
  }
  e.text = lhs + "," + rhs + (draw.OneIn(10) ? "" : "->" + out);
  return e;
}

// ---- data

Array DrawData(Draw& draw, DType dtype, const Shape& shape) {
  ArrayBuilder builder(DType::kF32, shape);
  const double scale = draw.Pick({1.0, 1.0, 1.0, 100.0, 1e-3, 1e-37, 1e30});
  for (float& v : builder.Mutable<float>()) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += draw.Uniform(-1, 1);
    v = static_cast<float>(sum * scale);
  }
  const auto sprinkle = [&](float special) {
    for (float& v : builder.Mutable<float>()) v = draw.OneIn(20) ? special : v;
  };
  if (draw.OneIn(4)) sprinkle(0);
  if (draw.OneIn(12)) sprinkle(-0.0f);
  if (draw.OneIn(8)) sprinkle(1e-40f);
  if (draw.OneIn(16)) sprinkle(std::numeric_limits<float>::quiet_NaN());
  if (draw.OneIn(16)) sprinkle(std::numeric_limits<float>::infinity());
  if (draw.OneIn(16)) sprinkle(-3e38f);
  if (draw.OneIn(8)) {
    const absl::Span<float> values = builder.Mutable<float>();
    std::fill(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2, 0.0f);
  }
  return Cast(std::move(builder).Build(), dtype);
}

}  // namespace aqt::digest
