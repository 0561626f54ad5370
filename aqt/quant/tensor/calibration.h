#ifndef AQT_QUANT_TENSOR_CALIBRATION_H_
#define AQT_QUANT_TENSOR_CALIBRATION_H_

// Calibrations with state: scales from statistics of the tensors seen so far. The state is a value; a call takes it and
// returns the next one. DotGeneralPlan does the same arithmetic without allocating (dot_general.h); in programs the
// state is stored in slots of kind stat (docs/quantization.md).
//
//   AQT_ASSIGN_OR_RETURN(CalibrationState state, InitialCalibrationState(quantizer, x.aval(), {1}));
//   for (const Array& batch : batches) {
//     AQT_ASSIGN_OR_RETURN(state, UpdateCalibration(quantizer, state, batch, {1}));
//   }
//   AQT_ASSIGN_OR_RETURN(const Array scale, StaticScale(quantizer, state, x.aval(), {1}));
//
// m = max|x| over the shared axes, R rounds to the dtype of x; sums run over the shared axes.
//
//   MeanOfAbsMax    sum_of_max (shape of the scale, dtype of x, 0), count (s32, 0)
//     update        sum_of_max = R(sum_of_max + m); count += 1; after 2^31 - 1 updates nothing changes
//     bound         sum_of_max / count, with more than one scale times the reciprocal (Arithmetic::kXlaCompatible)
//   WeightedStats   sum_of_ones, sum_of_vals, max_of_abs_vals, sum_of_l1_vals, sum_of_lp_vals (shape of the scale, f32)
//     before        ucp = update_count_prior, mean_prior * ucp, max_dev_prior, l1_dev_prior * ucp,
//                   lp_dev_prior^lp * ucp
//     update        s = (1 - r) * s + R(r * R(new)), r = 1 / ema_update_count, where new is the sum of 1 (with
//                   filter_zeros: of x != 0), the sum of x, m, the sum of |x|, the sum of |x|^lp
//     bound         l1_dev_coeff * sum_of_l1_vals / sum_of_ones + lp_dev_coeff * (sum_of_lp_vals / sum_of_ones)^(1/lp)
//                   + max_dev_coeff * max_of_abs_vals + const_bound_coeff, in f32
//   DelayedScaling  amax_history (f32[amax_history_length], 0), bound (f32[1], 0)
//     bound         max(amax_history) if that is finite and > 0, else the old bound
//     update        bound = that; amax_history rotates left by one; amax_history[0] = max|x|
//
// scale = bound / quant_bound, po2 and cast to scale_dtype, as for other calibrations (quantizer.h). A bound of 0 is
// not replaced: the reciprocal of its scale is taken as 1, and quantized values dequantize to 0.
//
//                   TRAIN    CALIBRATE   CONVERT, SERVE
//   MeanOfAbsMax    reads    updates     reads
//   WeightedStats   updates  updates     reads
//   DelayedScaling  updates  updates     reads
//
// MeanOfAbsMax and WeightedStats are updated before the scale is read: a batch contributes to its own scale.
// DelayedScaling is read first: its very first call has bound 0. A tensor without elements updates nothing. NaN and Inf
// enter a state unchanged (but never become the bound of DelayedScaling). Sums are f64 in row-major order of x and
// everything else is elementwise, so bits are the same everywhere (docs/bits.md, Level 1).

#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt {

// The arrays of a calibration's state by the names above. Empty for a quantizer without state.
using CalibrationState = absl::btree_map<std::string, Array>;

// Whether the quantizer quantizes and its calibration has state.
bool HasState(const Quantizer& quantizer);

// The names of the state's arrays in the order of StateSlots (dot_general.h); empty without state.
std::vector<std::string> StatisticNames(const Quantizer& quantizer);

// Whether a call in this mode updates the state; false for calibrations without one.
bool UpdatesState(const Quantizer& quantizer, QuantMode mode);

// The state before the first update, for tensors like x (f32, bf16, f16). Axes as for Calibrate (quantizer.h). These
// functions reject what Calibrate rejects, and return InvalidArgument for a quantizer without state.
absl::StatusOr<CalibrationState> InitialCalibrationState(const Quantizer& quantizer, const Aval& x,
                                                         absl::Span<const int64_t> calibration_axes);

// A tensor's scale and the next state of its calibration.
struct CalibratedTensor {
  QTensor qtensor;         // scale, no qvalue: for CalculateQvalue
  CalibrationState state;  // unchanged if the mode updates nothing
};
// The scale of x and the next state, in the mode of `context`. Errors: InvalidArgument when `state` does not fit
// tensors like x; FailedPrecondition when it has seen no batch and is not updated (see
// Compat::read_unseen_calibration).
absl::StatusOr<CalibratedTensor> CalibrateWithState(const Quantizer& quantizer, const CalibrationState& state,
                                                    const ArrayRef& x, absl::Span<const int64_t> calibration_axes,
                                                    const Context& context = {}, const Semantics& semantics = {});

// The state after x was seen in mode CALIBRATE.
absl::StatusOr<CalibrationState> UpdateCalibration(const Quantizer& quantizer, const CalibrationState& state,
                                                   const ArrayRef& x, absl::Span<const int64_t> calibration_axes);

// The scale that mode CONVERT or SERVE reads for tensors like x. Errors as for CalibrateWithState.
absl::StatusOr<Array> StaticScale(const Quantizer& quantizer, const CalibrationState& state, const Aval& x,
                                  absl::Span<const int64_t> calibration_axes, const Semantics& semantics = {});

}  // namespace aqt

#endif  // AQT_QUANT_TENSOR_CALIBRATION_H_
