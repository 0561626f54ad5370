#ifndef AQT_OPS_CONTRACTION_AQT_DOT_KERNELS_H_
#define AQT_OPS_CONTRACTION_AQT_DOT_KERNELS_H_

// The operations of an AqtDot as functions on memory. Internal to the library of aqt_dot_general.h.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "aqt/core/aval.h"
#include "aqt/graph/op_kernel.h"
#include "aqt/ops/contraction/aqt_dot_ops.h"

namespace aqt::internal {

// `updated`: positions in the plan's forward_state(); `outputs`: what the operation infers. Operands of the plan that
// are constants (panels or a qvalue with its scale, or only a scale) are prepared here, all others in each run.
absl::StatusOr<OpKernel> MakeForwardKernel(std::shared_ptr<const AqtDot::Impl> dot, const OperandOrder& order,
                                           bool with_residuals, absl::Span<const size_t> updated,
                                           absl::Span<const KernelInput> operands, absl::Span<const Aval> outputs,
                                           absl::Span<const bool> needed);

// `updated`: positions in the plan's backward_state().
OpKernel MakeBackwardKernel(std::shared_ptr<const AqtDot::Impl> dot, bool has_key, absl::Span<const size_t> updated,
                            absl::Span<const KernelInput> operands, absl::Span<const Aval> outputs,
                            absl::Span<const bool> needed);

}  // namespace aqt::internal

#endif  // AQT_OPS_CONTRACTION_AQT_DOT_KERNELS_H_
