#ifndef AQT_QUANT_REFERENCE_DOT_GENERAL_REFERENCE_H_
#define AQT_QUANT_REFERENCE_DOT_GENERAL_REFERENCE_H_

// dot_general.h, element by element: slow, obvious, and the oracle of its tests. It shares only scalar operations
// (arith.h, the rounding to small floats) and the random bits with the plan: no kernels, no strides, no reused buffers.
//
// Contractions of integers agree with the plan bit for bit, and so do forward products of integers and floats, except
// with WeightOnly::kFloat. Others are summed in f32 in ascending order of k, with multiply and add rounded separately,
// as in the plan on Target::kScalar; other targets fuse them.

#include "absl/status/statusor.h"
#include "aqt/core/array_ref.h"
#include "aqt/core/dot_dims.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt {

// Fails as DotGeneralPlan does.
absl::StatusOr<DotGeneralGradients> ReferenceDotGeneralWithGradients(const DotGeneralConfig& config,
                                                                     const ArrayRef& lhs, const ArrayRef& rhs,
                                                                     const ArrayRef& g, const DotDims& dims,
                                                                     const Context& context = {},
                                                                     const Semantics& semantics = {});

}  // namespace aqt

#endif  // AQT_QUANT_REFERENCE_DOT_GENERAL_REFERENCE_H_
