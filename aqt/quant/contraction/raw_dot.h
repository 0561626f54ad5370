#ifndef AQT_QUANT_CONTRACTION_RAW_DOT_H_
#define AQT_QUANT_CONTRACTION_RAW_DOT_H_

// One quantized contraction without gradient: what DotGeneral does three times. Internal.

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/contraction/local_aqt.h"
#include "aqt/quant/contraction/packed_side.h"
#include "aqt/quant/contraction/quantize_side.h"
#include "aqt/quant/contraction/workspace.h"
#include "aqt/quant/tensor/qtensor.h"

namespace aqt::internal {

// A contraction in groups of rows (ragged_dot.h). kRows: lhs [m,k], rhs with a leading axis of groups, each of which is
// multiplied with the rows of its group. kContracting: both have the rows as their axis 0, which is contracted group by
// group; the product has a leading axis of groups.
enum class Ragged { kNo, kRows, kContracting };

struct RawDotPlan {
  Ragged ragged = Ragged::kNo;
  Pass pass = Pass::kFwd;
  // Null without LocalAqt. With it, dims, sides and product_shape are those of the cut operands.
  std::optional<LocalSplit> split;
  DotDims dims;
  SidePlan lhs, rhs;
  Shape product_shape;
  DType accumulator_dtype = DType::kF32;
  DType dtype = DType::kF32;  // of the float operands and of the result
  std::optional<double> lhs_mid_alpha, rhs_mid_alpha;

  const SidePlan& side(Side s) const { return s == Side::kLhs ? lhs : rhs; }
  bool NeedsKey() const;
  bool HasState() const { return (lhs.spec && lhs.spec->has_state()) || (rhs.spec && rhs.spec->has_state()); }
  bool HasMidScales() const { return lhs_mid_alpha.has_value() || rhs_mid_alpha.has_value(); }
  // Whether it is what the s8 kernels compute: integers of at most a byte, summed in s32.
  bool IsProductOfBytes() const {
    return accumulator_dtype == DType::kS32 && lhs.operand_dtype != DType::kS32 && rhs.operand_dtype != DType::kS32;
  }
};

// Checks everything that can be known without data. Operands have the dtype `lhs.dtype`. Messages begin with the pass.
absl::StatusOr<RawDotPlan> MakeRawDotPlan(Pass pass, const DotGeneralRaw& config, const Aval& lhs, const Aval& rhs,
                                          const DotDims& dims);

struct RawCall {
  RawOperand lhs, rhs;                         // not cut
  absl::Span<const int64_t> group_sizes = {};  // of a ragged plan
  PrngLayout layout = PrngLayout::kPartitionable;
  MutableArrayRef out;  // product_shape (without the count axis of a LocalAqt), any strides, `dtype`
};

// Preconditions: avals as planned, keys and statistics where needed.
void RunRawDot(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Execution& runtime);

// Only what RunRawDot does to the statistics; call.out is not written.
void UpdateStatisticsOf(const RawDotPlan& plan, const RawCall& call, Workspace& workspace, const Execution& runtime);

// The qvalue of `qtensor`, which replaces an operand of the plan, packed for the kernel that RunRawDot will use; null
// if it will not use one.
std::shared_ptr<const Panels> PackPrepared(const RawDotPlan& plan, Side side, const QTensor& qtensor,
                                           const Execution& runtime);

}  // namespace aqt::internal

#endif  // AQT_QUANT_CONTRACTION_RAW_DOT_H_
