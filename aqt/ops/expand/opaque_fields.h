#ifndef AQT_OPS_EXPAND_OPAQUE_FIELDS_H_
#define AQT_OPS_EXPAND_OPAQUE_FIELDS_H_

// The fields of the opaque operations (opaque_ops.h, graph/composite_fields.h), and the operations. Internal.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "aqt/core/aval.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/ops/expand/opaque_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

// (key) -> key
struct OperandKeyFields {
  KeyRole role = KeyRole::kFwdLhs;
  PrngLayout layout = PrngLayout::kPartitionable;
  static constexpr const char* kFieldNames[] = {"role", "prng_layout"};
  bool operator==(const OperandKeyFields&) const = default;
};

// (key) -> key
struct FoldInKeyFields {
  uint32_t data = 0;
  static constexpr const char* kFieldNames[] = {"data"};
  bool operator==(const FoldInKeyFields&) const = default;
};

// (group_sizes) -> the end row of each group (exclusive), for a ragged contraction of these operands
struct GroupEndsFields {
  Aval lhs, rhs;
  static constexpr const char* kFieldNames[] = {"lhs", "rhs"};
  bool operator==(const GroupEndsFields&) const = default;
};

// (key) -> f32 noise
struct NoiseFields {
  Noise noise;
  Shape shape;
  PrngLayout layout = PrngLayout::kPartitionable;
  static constexpr const char* kFieldNames[] = {"quantizer", "shape", "prng_layout"};
  bool operator==(const NoiseFields&) const = default;
};

// (x[, key]) -> qvalue
struct QvalueFields {
  Numerics numerics;
  PrngLayout layout = PrngLayout::kPartitionable;
  static constexpr const char* kFieldNames[] = {"quantizer", "prng_layout"};
  bool operator==(const QvalueFields&) const = default;
};

// (x[, key]) -> scale
struct ScaleFields {
  Quantizer quantizer;
  Axes axes;
  Semantics semantics;
  static constexpr const char* kFieldNames[] = {"quantizer", "axes", "semantics"};
  bool operator==(const ScaleFields&) const = default;
};

// (x, statistics) -> scale, statistics that the mode updates
struct CalibrateFields {
  Quantizer quantizer;
  Axes axes;
  QuantMode mode = QuantMode::kTrain;
  Semantics semantics;
  Aval x;
  static constexpr const char* kFieldNames[] = {"quantizer", "axes", "mode", "semantics", "x"};
  bool operator==(const CalibrateFields&) const = default;
};

// (statistics) -> the scale that they hold for tensors like x
struct StaticScaleFields {
  Quantizer quantizer;
  Aval x;
  Axes axes;
  Semantics semantics;
  static constexpr const char* kFieldNames[] = {"quantizer", "x", "axes", "semantics"};
  bool operator==(const StaticScaleFields&) const = default;
};

// The operation. InvalidArgument for operands whose ranks are not those of a ragged contraction, and for a calibration
// with state that is illegal for x.
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(OperandKeyFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(FoldInKeyFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(GroupEndsFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(NoiseFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(QvalueFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(ScaleFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(CalibrateFields fields);
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(StaticScaleFields fields);

}  // namespace aqt::internal

#endif  // AQT_OPS_EXPAND_OPAQUE_FIELDS_H_
