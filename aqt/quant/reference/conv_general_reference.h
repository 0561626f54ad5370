#ifndef AQT_QUANT_REFERENCE_CONV_GENERAL_REFERENCE_H_
#define AQT_QUANT_REFERENCE_CONV_GENERAL_REFERENCE_H_

// conv_general.h as loops over all indices: slow, obvious, and the oracle of its tests. It quantizes with quantizer.h
// and shares only the geometry and scalar operations with the plan.
//
// Integer sums agree with the plan bit for bit. Float sums are in f32, ascending over kernel axes and channels (in
// drhs: examples and positions), with multiply and add rounded separately, as in the plan on Target::kScalar.

#include "absl/status/statusor.h"
#include "aqt/core/array_ref.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_dims.h"
#include "aqt/quant/contraction/dot_general.h"

namespace aqt {

// Fails as ConvGeneralPlan does.
absl::StatusOr<DotGeneralGradients> ReferenceConvGeneralWithGradients(const DotGeneralRawConfig& config,
                                                                      const ArrayRef& lhs, const ArrayRef& rhs,
                                                                      const ArrayRef& g, const ConvDims& dims,
                                                                      const Context& context = {},
                                                                      const Semantics& semantics = {});

}  // namespace aqt

#endif  // AQT_QUANT_REFERENCE_CONV_GENERAL_REFERENCE_H_
