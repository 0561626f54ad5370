#ifndef AQT_QUANT_REFERENCE_RAGGED_DOT_REFERENCE_H_
#define AQT_QUANT_REFERENCE_RAGGED_DOT_REFERENCE_H_

// ragged_dot.h as loops over all indices, for DEQUANT_MODE_OUTPUT and DEQUANT_MODE_THIS_INPUT: the oracle of its tests.
// It quantizes with quantizer.h and shares only scalar operations with the plan.
//
// Integer sums agree with the plan bit for bit, and so do forward sums of a float lhs and an integer rhs, except with
// WeightOnly::kFloat. Others are in f32 in ascending order, with multiply and add rounded separately, as in the plan on
// Target::kScalar.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/array_ref.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt {

absl::StatusOr<DotGeneralGradients> ReferenceRaggedDotWithGradients(const DotGeneralConfig& config, const ArrayRef& lhs,
                                                                    const ArrayRef& rhs, const ArrayRef& g,
                                                                    absl::Span<const int64_t> group_sizes,
                                                                    const Context& context = {},
                                                                    const Semantics& semantics = {});

}  // namespace aqt

#endif  // AQT_QUANT_REFERENCE_RAGGED_DOT_REFERENCE_H_
