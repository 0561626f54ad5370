#ifndef AQT_QUANT_TENSOR_QUANTIZE_SPEC_H_
#define AQT_QUANT_TENSOR_QUANTIZE_SPEC_H_

// A Quantizer resolved for one shape and dtype: everything independent of data. Internal; shared by the allocating
// functions of quantizer.h and by DotGeneralPlan.

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/numerics/numerics_rows.h"
#include "aqt/quant/tensor/statistics.h"

namespace aqt::internal {

struct QuantizeSpec {
  Numerics numerics;  // quantized
  Calibration calibration;
  Aval x;  // in the tiled shape, if there is a tiling
  Axes shared_axes;
  Shape scale_shape;  // 1 along the shared axes; with an array bound of Constant, its shape
  DType bound_dtype = DType::kF32;
  DType scale_dtype = DType::kF32;
  DType scaled_dtype = DType::kF32;  // of x / scale
  DType q_dtype = DType::kF32;
  // Broadcasts to x; has the dtype of x for a number, of the scale for an array. bias_shape is its shape in a QTensor.
  std::optional<Array> bias;
  Shape bias_shape;
  std::optional<Shape> draws_shape;
  Statistics statistics;  // of a calibration with state, otherwise empty

  bool has_state() const { return !statistics.empty(); }
  int64_t num_scales() const { return scale_shape.num_elements(); }
  // Scratch memory of ComputeScale, ComputeScaleWithState, ScaleFromState.
  int64_t num_work_doubles() const;
};

// See Validate(Quantizer) in quantizer.h.
absl::Status ValidateQuantizer(const Quantizer& quantizer);

// The axes of a tensor of this rank that share a scale: those that the quantizer names, or else `calibration_axes`; all
// axes for a scale per tensor. InvalidArgument for axes out of range.
absl::StatusOr<Axes> SharedAxesOf(const Quantizer& quantizer, absl::Span<const int64_t> calibration_axes, int64_t rank);

// For quantized numerics. InvalidArgument and Unimplemented as ValidateQuantizer, and for axes that are out of range.
absl::StatusOr<QuantizeSpec> MakeQuantizeSpec(const Quantizer& quantizer, const Aval& x,
                                              absl::Span<const int64_t> calibration_axes);

// Unimplemented for a calibration that does not quantize as Compat asks.
absl::Status ValidateCompat(const QuantizeSpec& spec, const Compat& compat);

// Writes the scale that the calibration finds for x, dense, in scale_dtype. `draws` is needed by the numerics when
// SnrSearch quantizes, and unused otherwise. `work` has num_work_doubles() elements.
void ComputeScale(const QuantizeSpec& spec, const ArrayRef& x, const Semantics& semantics,
                  const std::optional<TensorDraws>& draws, double* work, void* scale);

// The same for a calibration with state: updates the state if the mode says so, and reads the scale before or after the
// update, depending on the calibration. data.updated is set if and only if the mode updates.
void ComputeScaleWithState(const QuantizeSpec& spec, const ArrayRef& x, QuantMode mode, const Semantics& semantics,
                           const StatisticData& data, double* work, void* scale);
// Only the scale, in a mode that updates nothing.
void ScaleFromState(const QuantizeSpec& spec, const Semantics& semantics, const void* const* statistics, double* work,
                    void* scale);

// FailedPrecondition when a state that the call does not update has seen no batch, unless compat allows it.
absl::Status CheckSeen(const QuantizeSpec& spec, QuantMode mode, const Compat& compat, const void* const* statistics);

// For AbsMax calibration: turns the abs-max of n groups of the spec, in place, into scales of scale_dtype held as
// floats.
void ScalesFromAbsMax(const QuantizeSpec& spec, const Semantics& semantics, float* absmax, int64_t n);

// Compat::clip_gradient_at_bound: mask[i], dense, is 1 where |x| is at most the bound that ComputeScale finds for
// `calibrated`, else 0. For calibrations without state. `work` as for ComputeScale.
void BoundMaskInto(const QuantizeSpec& spec, const ArrayRef& calibrated, const ArrayRef& x, const Semantics& semantics,
                   double* work, int8_t* mask);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TENSOR_QUANTIZE_SPEC_H_
