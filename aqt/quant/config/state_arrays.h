#ifndef AQT_QUANT_CONFIG_STATE_ARRAYS_H_
#define AQT_QUANT_CONFIG_STATE_ARRAYS_H_

// The statistics of calibrations with state (calibration.h) as contractions take and return them.

#include <string>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/config.h"

namespace aqt {

// One array of the statistics of an operand whose calibration has state.
struct StateSlot {
  std::string operand;    // "fwd.lhs", "fwd.rhs", "dlhs.lhs", "dlhs.rhs", "drhs.lhs", "drhs.rhs"
  Side side;              // of the operand in its contraction; determines its mode
  std::string name;       // "amax_history"; calibration.h
  Array initial;          // before the first update
  bool updated_in_train;  // CALIBRATE updates all, CONVERT and SERVE none

  bool UpdatedIn(QuantMode mode) const {
    return mode == QuantMode::kCalibrate || (mode == QuantMode::kTrain && updated_in_train);
  }
};

// The statistics of one call: one dense array per slot of forward_state() or backward_state(). `old` is read. `updated`
// receives the new values; it may share memory with `old`, and may be left out if the mode updates nothing. Slots that
// the mode does not update, and those of a prepared operand, are not touched.
struct StateArrays {
  absl::Span<const ArrayRef> old = {};
  absl::Span<const MutableArrayRef> updated = {};
};

}  // namespace aqt

#endif  // AQT_QUANT_CONFIG_STATE_ARRAYS_H_
