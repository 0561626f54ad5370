#ifndef AQT_QUANT_RAW_DOT_H_
#define AQT_QUANT_RAW_DOT_H_

// One quantized contraction without gradient: what DotGeneral does three times. Internal.

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config.h"
#include "aqt/quant/local_aqt.h"
#include "aqt/quant/qtensor.h"
#include "aqt/quant/packed_side.h"
#include "aqt/quant/quantize_spec.h"
#include "aqt/quant/runtime.h"
#include "aqt/quant/workspace.h"

namespace aqt::internal {

enum class Pass { kFwd, kDlhs, kDrhs };
absl::string_view ToString(Pass pass);  // "fwd", "dlhs", "drhs"

// One operand, resolved.
struct SidePlan {
  Tensor config;
  Aval x;
  std::optional<QuantizeSpec> spec;  // null: not quantized
  DType operand_dtype = DType::kF32;  // of what the contraction receives
};

struct RawDotPlan {
  Pass pass = Pass::kFwd;
  // Null without LocalAqt. With it, dims, sides and product_shape are those of the cut operands.
  std::optional<LocalSplit> split;
  DotDims dims;
  SidePlan lhs, rhs;
  Shape product_shape;
  DType accumulator_dtype = DType::kF32;
  DType dtype = DType::kF32;  // of the float operands and of the result
  // With either set, both sides are quantized.
  std::optional<double> lhs_mid_alpha, rhs_mid_alpha;

  const SidePlan& side(Side s) const { return s == Side::kLhs ? lhs : rhs; }
  bool NeedsKey() const;
  bool HasMidScales() const { return lhs_mid_alpha.has_value() || rhs_mid_alpha.has_value(); }
};

// Checks everything that can be known without data. Operands have the dtype `lhs.dtype`. Messages begin with the pass.
absl::StatusOr<RawDotPlan> MakeRawDotPlan(Pass pass, const DotGeneralRaw& config, const Aval& lhs, const Aval& rhs,
                                          const DotDims& dims);

// One operand of a call.
struct RawOperand {
  ArrayRef x;                          // planned aval; not read when `given` has a qvalue
  const QTensor* given = nullptr;      // a qvalue, or only scales, from outside
  const Panels* panels = nullptr;      // the qvalue of `given`, packed
  std::optional<Key> key;              // of this operand
  // Where to leave the qvalue, the scale and the clip mask (dense); null: nowhere.
  void* keep_qvalue = nullptr;
  void* keep_scale = nullptr;
  int8_t* keep_mask = nullptr;
};

struct RawCall {
  RawOperand lhs, rhs;  // not cut
  PrngLayout layout = PrngLayout::kPartitionable;
  MutableArrayRef out;  // product_shape (without the count axis of a LocalAqt), any strides, `dtype`
};

// Preconditions: avals as planned, keys where needed.
void RunRawDot(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Runtime& runtime);

// The qvalue of `qtensor`, which stands for an operand of the plan, packed for the kernel that RunRawDot will use; null when
// it will use none.
std::shared_ptr<const Panels> PackPrepared(const RawDotPlan& plan, Side side, const QTensor& qtensor,
                                           const Runtime& runtime);

}  // namespace aqt::internal

#endif  // AQT_QUANT_RAW_DOT_H_
