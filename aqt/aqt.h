#ifndef AQT_AQT_H_
#define AQT_AQT_H_

// Everything that a program needs to quantize contractions, and to trace, inject, train, fold and serve a model. The
// target is @aqt//:aqt. A library that compiles often includes what it uses instead.

// IWYU pragma: begin_exports
#include "aqt/core/array.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/dtype.h"
#include "aqt/core/rng.h"
#include "aqt/core/shape.h"
#include "aqt/core/status_macros.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/graph/eval.h"
#include "aqt/graph/grad.h"
#include "aqt/graph/program.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/io/checkpoint.h"
#include "aqt/io/file.h"
#include "aqt/kernels/thread_pool.h"
#include "aqt/nn/dense.h"
#include "aqt/nn/parameter.h"
#include "aqt/nn/sgd.h"
#include "aqt/nn/state_file.h"
#include "aqt/nn/trainer.h"
#include "aqt/ops/functions.h"
#include "aqt/ops/quantized_dot.h"
#include "aqt/quant/config/builders.h"
#include "aqt/quant/config/calibrations.h"
#include "aqt/quant/config/config.h"
#include "aqt/quant/config/runtime.h"
#include "aqt/quant/config/semantics.h"
#include "aqt/quant/contraction/conv_general.h"
#include "aqt/quant/contraction/dot_general.h"
#include "aqt/quant/contraction/einsum.h"
#include "aqt/quant/contraction/quant_dot.h"
#include "aqt/quant/contraction/ragged_dot.h"
#include "aqt/quant/tensor/calibration.h"
#include "aqt/quant/tensor/qtensor.h"
#include "aqt/quant/tensor/quantizer.h"
#include "aqt/quant/text/config_proto.h"
#include "aqt/transforms/dce.h"
#include "aqt/transforms/expand.h"
#include "aqt/transforms/fold.h"
#include "aqt/transforms/inject.h"
#include "aqt/transforms/inject_proto.h"
#include "aqt/transforms/pipeline.h"
// IWYU pragma: end_exports

#endif  // AQT_AQT_H_
