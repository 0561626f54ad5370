#ifndef AQT_QUANT_REFERENCE_RAGGED_DOT_REFERENCE_H_
#define AQT_QUANT_REFERENCE_RAGGED_DOT_REFERENCE_H_

// ragged_dot.h by loops over all indices, for DEQUANT_MODE_OUTPUT and DEQUANT_MODE_THIS_INPUT: the oracle of its tests.
// It quantizes with quantizer.h and shares scalar operations with the plan, and nothing else.
//
// Sums of integers agree with the plan in every bit, and so do forward sums of a float lhs and an integer rhs, unless
// the semantics say WeightOnly::kFloat; others are in f32 in ascending order, multiply and add
// rounded separately, as the plan does on Target::kScalar.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt {

absl::StatusOr<DotGeneralGradients> ReferenceRaggedDotWithGradients(const DotGeneral& config, const ArrayRef& lhs,
                                                                    const ArrayRef& rhs, const ArrayRef& g,
                                                                    absl::Span<const int64_t> group_sizes,
                                                                    const Context& context = {},
                                                                    const Semantics& semantics = {});

}  // namespace aqt

#endif  // AQT_QUANT_REFERENCE_RAGGED_DOT_REFERENCE_H_
