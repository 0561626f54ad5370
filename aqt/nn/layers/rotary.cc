#include "aqt/nn/layers/rotary.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/trace.h"

namespace aqt::nn {
namespace {

// The features [begin, end) of x.
Value LastAxis(const Value& x, int64_t begin, int64_t end) {
  PerAxis start(x.rank(), 0), limit(x.shape().begin(), x.shape().end());
  start.back() = begin;
  limit.back() = end;
  return ops::Slice(x, start, limit);
}

absl::Status CheckOperands(const Value& x, const RotaryAngles& angles) {
  if (x.rank() != 4 || !IsFloat(x.dtype())) {
    return absl::InvalidArgumentError("takes an array of floats [batch, length, heads, features]");
  }
  const auto fits = [&](const Value& table) {
    return table.rank() == 2 && table.dtype() == DType::kF32 && table.dim(0) == x.dim(1) &&
           2 * table.dim(1) <= x.dim(3) && table.shape() == angles.cos.shape();
  };
  if (fits(angles.cos) && fits(angles.sin)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("takes angles f32[", x.dim(1), ",n] with at most ", x.dim(3) / 2,
                                                 " pairs n, for ", x.dim(1), " positions of ", x.dim(3), " features"));
}

}  // namespace

RotaryAngles MakeRotaryAngles(int64_t length, int64_t features, double theta, const std::source_location& where) {
  const CallSite site(where);
  if (length < 1 || features < 2 || features % 2 != 0 || !(theta > 0) || !std::isfinite(theta)) {
    const Value refused = Refuse(
        absl::InvalidArgumentError(absl::StrCat("length = ", length, ", features = ", features, ", theta = ", theta,
                                                "; expected at least one position, an even number of "
                                                "features and a finite theta above 0")),
        "rotary_angles", {}, where);
    return {refused, refused};
  }
  const int64_t pairs = features / 2;
  std::vector<float> cos(length * pairs), sin(length * pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(features);
    const float frequency = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
    for (int64_t position = 0; position < length; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      cos[position * pairs + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[position * pairs + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  const auto value = [&](const std::vector<float>& table) {
    return Value(Array::FromSpan(absl::MakeConstSpan(table), {length, pairs}));
  };
  return {value(cos), value(sin)};
}

Value RotaryEmbedding(const Value& x, const RotaryAngles& angles, RotaryPairs pairs,
                      const std::source_location& where) {
  const CallSite site(where);
  for (const Value* operand : {&x, &angles.cos, &angles.sin}) {
    if (!operand->status().ok()) return *operand;
  }
  if (absl::Status status = CheckOperands(x, angles); !status.ok()) {
    return Refuse(status, "rotary_embedding", {x, angles.cos, angles.sin}, where);
  }
  const DType dtype = x.dtype(), wide = dtype == DType::kF64 ? dtype : DType::kF32;
  const int64_t batch = x.dim(0), length = x.dim(1), heads = x.dim(2), features = x.dim(3), n = angles.cos.dim(1);
  const bool halves = pairs == RotaryPairs::kHalves;
  const auto table = [&](const Value& values) { return ops::Reshape(ops::Cast(values, wide), {length, 1, n}); };
  const Value cos = table(angles.cos), sin = table(angles.sin);
  const Value turned = ops::Cast(2 * n == features ? x : LastAxis(x, 0, 2 * n), wide);
  const auto part = [&](int64_t which) {
    if (halves) return LastAxis(turned, which * n, (which + 1) * n);
    const Value split = ops::Reshape(turned, {batch, length, heads, n, 2});
    return ops::Reshape(LastAxis(split, which, which + 1), {batch, length, heads, n});
  };
  const Value a = part(0), b = part(1);
  Value first = a * cos - b * sin, second = b * cos + a * sin;
  if (!halves) {
    first = ops::Reshape(first, {batch, length, heads, n, 1});
    second = ops::Reshape(second, {batch, length, heads, n, 1});
  }
  const Value both[] = {first, second};
  const Value result =
      ops::Cast(ops::Reshape(ops::Concatenate(both, first.rank() - 1), {batch, length, heads, 2 * n}), dtype);
  if (2 * n == features) return result;
  const Value whole[] = {result, LastAxis(x, 2 * n, features)};
  return ops::Concatenate(whole, 3);
}

}  // namespace aqt::nn
