#ifndef AQT_TESTING_CONTRACTIONS_H_
#define AQT_TESTING_CONTRACTIONS_H_

// Contractions of any kind in the programs of tests.

#include <variant>

#include "absl/types/span.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/value.h"
#include "aqt/ops/contraction/contractions.h"
#include "aqt/ops/contraction_dims.h"

namespace aqt::testing {

// lhs, rhs[, group_sizes] as the float operation.
inline Value FloatContraction(const ContractionDims& dims, absl::Span<const Value> in) {
  if (const auto* dot = std::get_if<DotDims>(&dims)) return ops::DotGeneral(in[0], in[1], *dot);
  if (const auto* conv = std::get_if<ConvDims>(&dims)) return ops::Conv(in[0], in[1], *conv);
  if (const auto* einsum = std::get_if<EinsumDims>(&dims)) return ops::Einsum(einsum->equation, in[0], in[1]);
  return ops::RaggedDot(in[0], in[1], in[2]);
}

}  // namespace aqt::testing

#endif  // AQT_TESTING_CONTRACTIONS_H_
