#ifndef AQT_QUANT_TENSOR_BOUNDS_H_
#define AQT_QUANT_TENSOR_BOUNDS_H_

// The bounds of a tensor's groups, for calibrations without state, and the scales that follow from bounds. A
// calibration has three overloads in bounds.cc: CheckFields, WorkDoubles and FindBounds. Internal; quantize_spec.h puts
// it together.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/tensor/quantize_spec.h"

namespace aqt::internal {

// The number of doubles that hold n floats. Scratch memory is counted in doubles.
inline int64_t DoublesForFloats(int64_t n) { return (n + 1) / 2; }

// The functions below take only calibrations without state.

// InvalidArgument for illegal fields.
absl::Status CheckBoundFields(const Calibration& calibration);

// Scratch memory of ComputeBounds.
int64_t BoundsWorkDoubles(const QuantizeSpec& spec);

// Computes bounds[spec.num_scales()], of spec.bound_dtype, from x. `draws` as for ComputeScale.
void ComputeBounds(const QuantizeSpec& spec, const ArrayRef& x, const Semantics& semantics,
                   const std::optional<TensorDraws>& draws, double* work, float* bounds);

// ---- for every calibration

// Turns bounds[n] into scales of the spec, not yet rounded to scale_dtype: bound / quant_bound, then
// small_scales_are_one, then po2, each step in the dtype of the bounds.
void ScalesFromBounds(const QuantizeSpec& spec, DType bound_dtype, const Semantics& semantics, float* bounds,
                      int64_t n);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TENSOR_BOUNDS_H_
