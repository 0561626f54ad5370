#ifndef AQT_OPS_AQT_DOT_GENERAL_H_
#define AQT_OPS_AQT_DOT_GENERAL_H_

// The quantized contraction (quant/dot_general.h) as operations of a program:
//   aqt_dot_general(lhs, rhs[, key]) -> out                   one equation per contraction
//   aqt_dot_general_fwd(...) -> out, residuals...             instead of it, while a gradient is wanted
//   aqt_dot_general_bwd(g, residuals...[, key]) -> dlhs, drhs
//   aqt_quantize(x[, key]) -> qvalue, scale                   an operand ahead of time (a weight, for serving)
// A side of aqt_dot_general may be (qvalue, scale) instead of a float operand. Each runs DotGeneralPlan and expands into basic
// operations with the same bits. Only the gradients that something uses are computed.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/source_line.h"
#include "aqt/graph/value.h"
#include "aqt/ops/aqt_parts.h"
#include "aqt/quant/config.h"
#include "aqt/quant/dot_general.h"

namespace aqt {

// One contraction, configured for its shapes. Immutable; cheap to copy.
class AqtDot {
 public:
  // One side: a float operand, or a qvalue with its scale.
  struct Operand {
    Value value;
    std::optional<Value> scale = std::nullopt;
  };

  // Errors: DotGeneralPlan::Make's.
  static absl::StatusOr<AqtDot> Make(const DotGeneral& config, const Aval& lhs, const Aval& rhs, const DotDims& dims,
                                     const QuantRules& rules = {});

  const DotGeneralPlan& plan() const;
  // Whether the forward pass, or a gradient of it, draws random numbers.
  bool ForwardNeedsKey() const { return plan().ForwardNeedsKey(); }
  bool NeedsKey() const { return plan().ForwardNeedsKey() || plan().BackwardNeedsKey(); }

  // lhs x rhs. `key`, u32[2], is AQT's context key: split into one for each operand of the three contractions. Poisoned:
  // InvalidArgument when operands are not as configured; FailedPrecondition when the forward pass needs a key and gets none,
  // when a gradient needs one and gets none, and for a gradient with an operand quantized before.
  Value Apply(const Operand& lhs, const Operand& rhs, const std::optional<Value>& key, const SourceLine& where) const;

  // Quantizes one side as Apply would. Poisoned where QuantizedAvalsOf fails, and FailedPrecondition when a key is missing.
  Operand Quantize(Side side, const Value& x, const std::optional<Value>& key, const SourceLine& where) const;

  // What Quantize gives. InvalidArgument when the side is not quantized; Unimplemented when its calibration has a bias.
  using QuantizedAvals = DotGeneralPlan::QuantizedAvals;
  absl::StatusOr<QuantizedAvals> QuantizedAvalsOf(Side side) const;

  struct Impl;

 private:
  explicit AqtDot(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

namespace ops {

// Make and Apply. Operands of one dtype: f32, bf16 or f16.
Value AqtDotGeneral(const Operand& lhs, const Operand& rhs, const DotDims& dims, const aqt::DotGeneral& config,
                    const std::optional<Value>& key = std::nullopt, const QuantRules& rules = {});

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_AQT_DOT_GENERAL_H_
