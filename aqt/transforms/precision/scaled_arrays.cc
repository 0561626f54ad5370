#include "aqt/transforms/precision/scaled_arrays.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array_ops.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/context.h"
#include "aqt/graph/value.h"
#include "aqt/transforms/precision/scaled.h"
#include "aqt/transforms/precision/scalify.h"

namespace aqt {

ScaledArrays ScaledArraysOf(const SlotValues& values) {
  ScaledArrays arrays;
  for (const auto& [slot, array] : values) {
    if (const auto scale = values.find(ScaleSlot(slot)); scale != values.end()) {
      arrays.insert_or_assign(slot, ScaledArray{array, scale->second});
    } else {
      arrays.try_emplace(slot, ScaledArray{array});
    }
  }
  for (const auto& [slot, array] : values) arrays.erase(ScaleSlot(slot));
  return arrays;
}

SlotValues SlotValuesOf(const ScaledArrays& arrays) {
  SlotValues values;
  for (const auto& [slot, array] : arrays) {
    values.emplace(slot, array.data);
    if (array.scale.has_value()) values.emplace(ScaleSlot(slot), *array.scale);
  }
  return values;
}

absl::StatusOr<SlotValues> MapScaledArrays(const SlotValues& values,
                                           absl::FunctionRef<absl::StatusOr<ScaledArray>(const ScaledArray&)> fn) {
  ScaledArrays arrays = ScaledArraysOf(values);
  for (auto& [slot, array] : arrays) {
    absl::StatusOr<ScaledArray> mapped = fn(array);
    if (!mapped.ok()) return Annotate(mapped.status(), slot.ToString());
    array = *std::move(mapped);
  }
  return SlotValuesOf(arrays);
}

bool AllScaledArrays(const SlotValues& values, absl::FunctionRef<bool(const ScaledArray&)> is) {
  const ScaledArrays arrays = ScaledArraysOf(values);
  return std::all_of(arrays.begin(), arrays.end(), [&](const auto& entry) { return is(entry.second); });
}

absl::btree_map<Slot, DType> ScaleDTypes(const SlotValues& values) {
  absl::btree_map<Slot, DType> dtypes;
  for (const auto& [slot, array] : ScaledArraysOf(values)) {
    if (array.scale.has_value()) dtypes.emplace(slot, array.scale->dtype());
  }
  return dtypes;
}

absl::StatusOr<SlotValues> AsScaledArrays(const SlotValues& values, const std::optional<Array>& scale) {
  if (scale.has_value() && (scale->shape().rank() != 0 || !IsFloat(scale->dtype()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("AsScaledArrays: the scale is ", scale->aval().ToString(), ", expected a float scalar"));
  }
  const SuspendTrace at_once;
  const std::optional<Value> value = scale.has_value() ? std::make_optional<Value>(*scale) : std::nullopt;
  return MapScaledArrays(values, [&](const ScaledArray& x) -> absl::StatusOr<ScaledArray> {
    if (x.scale.has_value() || !IsFloat(x.data.dtype())) return x;
    const ScaledValue result = scaled::AsScaled(Value(x.data), value);
    AQT_ASSIGN_OR_RETURN(Array data, result.data.ToArray());
    AQT_ASSIGN_OR_RETURN(Array own_scale, result.scale.ToArray());
    return ScaledArray{std::move(data), std::move(own_scale)};
  });
}

absl::StatusOr<SlotValues> AsArrays(const SlotValues& values, std::optional<DType> dtype) {
  const SuspendTrace at_once;
  return MapScaledArrays(values, [&](const ScaledArray& x) -> absl::StatusOr<ScaledArray> {
    if (!x.scale.has_value()) return ScaledArray{dtype.has_value() ? Cast(x.data, *dtype) : x.data};
    AQT_ASSIGN_OR_RETURN(Array array, scaled::ToArray({Value(x.data), Value(*x.scale)}, dtype).ToArray());
    return ScaledArray{std::move(array)};
  });
}

SlotValues WithDataDType(const SlotValues& values, DType dtype, bool floats_only) {
  ScaledArrays arrays = ScaledArraysOf(values);
  for (auto& [slot, array] : arrays) {
    if (!floats_only || IsFloat(array.data.dtype())) array.data = Cast(array.data, dtype);
  }
  return SlotValuesOf(arrays);
}

}  // namespace aqt
