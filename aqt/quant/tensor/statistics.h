#ifndef AQT_QUANT_TENSOR_STATISTICS_H_
#define AQT_QUANT_TENSOR_STATISTICS_H_

// The arrays that calibrations with state keep, and the bounds computed from them; see calibration.h. A calibration has
// six overloads in statistics.cc. Internal.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dtype.h"
#include "aqt/core/shape.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

inline constexpr int kMaxStatistics = 5;

// One array of a state.
struct Statistic {
  absl::string_view name;  // "sum_of_max"
  Aval aval;
  double initial = 0;  // of each element, before the first update
};
using Statistics = absl::InlinedVector<Statistic, 1>;

// InvalidArgument for illegal fields of a calibration with state; OK for one without.
absl::Status CheckStatisticFields(const Calibration& calibration);

// The statistics of a calibration of tensors like x, in their fixed order; empty if it has no state.
Statistics StatisticsOf(const Calibration& calibration, const Aval& x, const Shape& scale_shape);

Array InitialValue(const Statistic& statistic);

// The dense arrays, in that order. `updated` may alias `old`.
struct StatisticData {
  const void* old[kMaxStatistics] = {};
  void* updated[kMaxStatistics] = {};  // null if the mode updates nothing
};

// Whether a call in this mode updates the state.
bool UpdatesIn(QuantMode mode, const Calibration& calibration);
// Whether a scale is read from the state before the call's update rather than after it.
bool ReadsBeforeUpdate(const Calibration& calibration);

// The dtype in which bounds are computed, except array bounds of Constant.
DType BoundDType(const Calibration& calibration, DType x);

// The scratch memory of UpdateStatistics, and the update itself: data.updated = update(data.old, x). Sums run in f64 in
// row-major order of x. A tensor without elements changes nothing.
int64_t UpdateWorkDoubles(const Calibration& calibration, int64_t num_scales);
void UpdateStatistics(const Calibration& calibration, const ArrayRef& x, const Shape& scale_shape,
                      const StatisticData& data, double* work);

// Writes bounds[n], of BoundDType.
void BoundsOf(const Calibration& calibration, DType x, Arithmetic arithmetic, const void* const* statistics, int64_t n,
              float* bounds);

// Whether the state has seen no update (or only updates with zeros, which can leave it unchanged).
bool IsUnseen(const Statistics& specs, const void* const* statistics);

}  // namespace aqt::internal

#endif  // AQT_QUANT_TENSOR_STATISTICS_H_
