#ifndef AQT_RUNTIME_FUSION_OP_KERNELS_H_
#define AQT_RUNTIME_FUSION_OP_KERNELS_H_

// The kernels of basic operations. Internal.

#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/op_kernel.h"

namespace aqt::internal {

// The kernel of an operation that is not a composite. Kernels for which nothing can be decided ahead of time run
// EvalOpInto.
OpKernel KernelOf(const Op& op, absl::Span<const Aval> in, const Aval& out);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_OP_KERNELS_H_
