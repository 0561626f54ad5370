#ifndef AQT_TRANSFORMS_PRECISION_SCALED_ARRAYS_H_
#define AQT_TRANSFORMS_PRECISION_SCALED_ARRAYS_H_

// Named arrays, some of them scaled, such as the state of a training in scaled arithmetic (after the functions on trees
// of jax-scalify). In SlotValues a scaled array is two entries: its data under their own name, and its scale under
// ScaleSlot (scalify.h). The functions below treat the two as one.
//
//   AQT_ASSIGN_OR_RETURN(SlotValues state, AsScaledArrays(params, Array::Scalar(1.0f)));
//   ScalifyOptions options{.scaled_inputs = ScaleDTypes(state)};
//   ...
//   AQT_ASSIGN_OR_RETURN(SlotValues plain, AsArrays(trainer.params()));  // to export them

#include <optional>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/graph/program.h"
#include "aqt/ops/scaling/debug_callback.h"

namespace aqt {

// ---- conversion between slots and named arrays

// Arrays by slot, each with its scale if it has one.
using ScaledArrays = absl::btree_map<Slot, ScaledArray>;
// Joins each array with its scale.
ScaledArrays ScaledArraysOf(const SlotValues& values);
// The inverse of ScaledArraysOf.
SlotValues SlotValuesOf(const ScaledArrays& arrays);

// Replaces each array by the result of `fn`. Errors: those of `fn`, with the name.
absl::StatusOr<SlotValues> MapScaledArrays(const SlotValues& values,
                                           absl::FunctionRef<absl::StatusOr<ScaledArray>(const ScaledArray&)> fn);
// Whether all arrays satisfy the predicate; true without arrays.
bool AllScaledArrays(const SlotValues& values, absl::FunctionRef<bool(const ScaledArray&)> is);

// The dtypes of the scales, for ScalifyOptions::scaled_inputs.
absl::btree_map<Slot, DType> ScaleDTypes(const SlotValues& values);

// ---- conversion between plain and scaled arrays

// Plain floats become scaled: data = x / scale, each in the dtype of x. Without a scale, or with the scale 1, x is kept
// and a scalar is split into mantissa and power of two (scaled::AsScaled). Integers, bools and arrays that are already
// scaled are kept. `scale` has rank 0 and a float dtype: InvalidArgument otherwise.
absl::StatusOr<SlotValues> AsScaledArrays(const SlotValues& values, const std::optional<Array>& scale = std::nullopt);
// Scaled arrays become plain: data and scale are converted to `dtype` (null: that of the data) and multiplied in it.
// Plain arrays are converted to `dtype` if it is given.
absl::StatusOr<SlotValues> AsArrays(const SlotValues& values, std::optional<DType> dtype = std::nullopt);
// Converts the data and keeps the scales. With `floats_only`, integers and bools are kept, too.
SlotValues WithDataDType(const SlotValues& values, DType dtype, bool floats_only = false);

}  // namespace aqt

#endif  // AQT_TRANSFORMS_PRECISION_SCALED_ARRAYS_H_
