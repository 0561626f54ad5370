#ifndef AQT_OPS_CONTRACTION_CONTRACTIONS_H_
#define AQT_OPS_CONTRACTION_CONTRACTIONS_H_

// Contractions of floats other than the basic dot_general, as operations of a program. Each is one equation that a rule
// can quantize (transforms/quantize/inject.h). It has gradients, and expands into basic operations with the same bits.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aqt/core/aval.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/composite.h"
#include "aqt/graph/op.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction_dims.h"
#include "aqt/quant/contraction/conv_dims.h"

namespace aqt {

// The dims of a float contraction, a dot_general or one of those below, which a rule can quantize. Null for any other
// operation.
std::optional<ContractionDims> ContractionOf(const Op& op);

namespace internal {

// The fields of an einsum (graph/composite_fields.h), and the operation. InvalidArgument as EinsumPlan::Make.
struct EinsumFields {
  std::string equation;
  Aval lhs, rhs;
  static constexpr const char* kFieldNames[] = {"equation", "lhs", "rhs"};
  bool operator==(const EinsumFields&) const = default;
};
absl::StatusOr<std::shared_ptr<const Composite>> MakeComposite(const EinsumFields& fields);

}  // namespace internal

namespace ops {

// The convolution of quant/contraction/conv_dims.h, channels last, as one equation "conv".
//   lhs [B, in..., Ci] * rhs [kernel..., Ci / groups, Co] -> [B, out..., Co], with 1 to 3 spatial axes
//   out[b,o,c] = sum over k, i of pad(lhs)[b, o * stride + k * rhs_dilation, i] * rhs[k,i,c]
// Operands have one dtype f32, bf16 or f16; they are summed in f32 in the order of rhs's elements and rounded once.
// Zeros of the padding are included. The gradients are those of ConvGeneralPlan. Poisoned: InvalidArgument, as
// ConvGeneralPlan::Make.
Value Conv(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const ConvDims& dims = {});

// The ragged contraction of quant/contraction/ragged_dot.h, as one equation "ragged_dot".
//   lhs [m,k], rhs [groups,k,n], group_sizes s32[groups] -> [m,n]: row r, in group i, is multiplied with rhs[i]
// Operands have one dtype f32, bf16 or f16; they are summed in f32 in ascending order of k and rounded once. Rows after
// the last group are zero. Poisoned: InvalidArgument, as RaggedDotPlan::Make; sizes that do not fit fail when the
// program runs.
Value RaggedDot(const ValueOrNumber& lhs, const ValueOrNumber& rhs, const ValueOrNumber& group_sizes);

// The einsum of quant/contraction/einsum.h, as one equation "einsum": Einsum("bqhd,bkhd->bhqk", q, k). The dtypes may
// differ (EinsumDType). Its expansion takes diagonals and sums, multiplies in jax's order and transposes. Gradients are
// those of the expansion, with the bits of EinsumPlan. Poisoned: InvalidArgument, as EinsumPlan::Make.
Value Einsum(absl::string_view equation, const ValueOrNumber& lhs, const ValueOrNumber& rhs);

}  // namespace ops
}  // namespace aqt

#endif  // AQT_OPS_CONTRACTION_CONTRACTIONS_H_
