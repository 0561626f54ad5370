#ifndef AQT_PRECISION_H_
#define AQT_PRECISION_H_

// Mixed precision (AMP), loss scaling, scale propagation (Scalify) and FP8 layers with delayed scaling. The target is
// @aqt//:precision.

// IWYU pragma: begin_exports
#include "aqt/nn/layers/fp8_dense.h"
#include "aqt/ops/fp8/fp8_dot.h"
#include "aqt/ops/fp8/fp8_projections.h"
#include "aqt/ops/fp8/fp8_scaling.h"
#include "aqt/ops/scaling/debug_callback.h"
#include "aqt/ops/scaling/low_precision.h"
#include "aqt/ops/scaling/scaling.h"
#include "aqt/transforms/precision/amp.h"
#include "aqt/transforms/precision/amp_proto.h"
#include "aqt/transforms/precision/loss_scale.h"
#include "aqt/transforms/precision/scaled.h"
#include "aqt/transforms/precision/scaled_arrays.h"
#include "aqt/transforms/precision/scalify.h"
// IWYU pragma: end_exports

#endif  // AQT_PRECISION_H_
