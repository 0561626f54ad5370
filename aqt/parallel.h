#ifndef AQT_PARALLEL_H_
#define AQT_PARALLEL_H_

// Programs of several processes: their collective operations, data parallel training, and sharded FP8 layers. The
// target is @aqt//:parallel.

// IWYU pragma: begin_exports
#include "aqt/collective/collective.h"
#include "aqt/collective/mesh.h"
#include "aqt/collective/thread_group.h"
#include "aqt/nn/layers/fp8_sharded_dense.h"
#include "aqt/ops/collective/collective_ops.h"
#include "aqt/ops/fp8/fp8_sharded_dense.h"
#include "aqt/ops/fp8/fp8_sharding.h"
#include "aqt/transforms/parallel/data_parallel.h"
// IWYU pragma: end_exports

#endif  // AQT_PARALLEL_H_
