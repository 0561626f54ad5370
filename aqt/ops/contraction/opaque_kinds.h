#ifndef AQT_OPS_CONTRACTION_OPAQUE_KINDS_H_
#define AQT_OPS_CONTRACTION_OPAQUE_KINDS_H_

// The parts that define the opaque operations (opaque_ops.h), for serialization. Internal.

#include <cstdint>
#include <memory>
#include <variant>

#include "absl/status/statusor.h"
#include "aqt/core/array.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/graph/composite.h"
#include "aqt/ops/contraction/opaque_ops.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"

namespace aqt::internal {

// (key) -> key
struct OperandKeyOp {
  KeyRole role;
  PrngLayout layout;
};
// (key) -> key
struct FoldInKeyOp {
  uint32_t data;
};
// (group_sizes) -> the end row of each group (exclusive), for a ragged contraction of these operands
struct GroupEndsOp {
  Aval lhs, rhs;
};
// (key) -> f32 noise
struct NoiseOp {
  Noise noise;
  Shape shape;
  PrngLayout layout;
};
// (x[, key]) -> qvalue
struct QvalueOp {
  Numerics numerics;
  PrngLayout layout;
};
// (x[, key]) -> scale
struct ScaleOp {
  Quantizer quantizer;
  Axes axes;
  Semantics semantics;
};
// (x, statistics) -> scale, statistics that the mode updates
struct CalibrateOp {
  Quantizer quantizer;
  Axes axes;
  QuantMode mode;
  Semantics semantics;
  Aval x;
};
// (statistics) -> the scale that they hold for tensors like x
struct StaticScaleOp {
  Quantizer quantizer;
  Aval x;
  Axes axes;
  Semantics semantics;
};

using OpaqueKind =
    std::variant<OperandKeyOp, FoldInKeyOp, GroupEndsOp, NoiseOp, QvalueOp, ScaleOp, CalibrateOp, StaticScaleOp>;

// The operation for any values of the fields. InvalidArgument for a calibration that is illegal for x, if x is known.
absl::StatusOr<std::shared_ptr<const Composite>> MakeOpaqueOp(OpaqueKind kind);

// The kind of `op`; null for any other operation.
const OpaqueKind* OpaqueKindOf(const Composite& op);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_OPAQUE_KINDS_H_
