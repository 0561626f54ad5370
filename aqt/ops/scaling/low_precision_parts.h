#ifndef AQT_OPS_SCALING_LOW_PRECISION_PARTS_H_
#define AQT_OPS_SCALING_LOW_PRECISION_PARTS_H_

// The parts that define low_precision_sum (low_precision.h), for serialization. Internal.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "aqt/graph/composite.h"
#include "aqt/ops/scaling/low_precision.h"

namespace aqt::internal {

// The format of a low_precision_sum; null for any other operation.
std::optional<SmallFloat> LowPrecisionSumFormatOf(const Composite& op);

// The operation. InvalidArgument for an illegal format.
absl::StatusOr<std::shared_ptr<const Composite>> MakeLowPrecisionSum(const SmallFloat& format);

}  // namespace aqt::internal

#endif  // AQT_OPS_SCALING_LOW_PRECISION_PARTS_H_
