#ifndef AQT_RUNTIME_FUSION_OP_KERNELS_H_
#define AQT_RUNTIME_FUSION_OP_KERNELS_H_

// Operations of a program as functions on memory, with everything decided that does not depend on data. Internal.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/block_epilogue.h"
#include "aqt/core/executor.h"
#include "aqt/graph/op.h"

namespace aqt::internal {

// Dense arrays; those of one call do not overlap, unless the kernel says so.
struct KernelCall {
  const void* const* in;
  void* const* out;
  void* scratch;
  Executor* executor;              // null: only the calling thread
  BlockEpilogue* block = nullptr;  // null, or what OpKernel::has_blocks says
};

struct OpKernel {
  std::function<void(const KernelCall&)> run;
  int64_t scratch_bytes = 0;
  // Pairs (operand, result) that may share memory if they have the same size.
  std::vector<std::pair<int, int>> may_share = {};
  // Whether it may run KernelCall::block on blocks of the result: on all of it, or on nothing.
  bool has_blocks = false;
};

// The operations that the runtime knows; they have one output. Null for others, which EvalOp runs.
std::optional<OpKernel> KernelOf(const Op& op, absl::Span<const Aval> in, const Aval& out);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_OP_KERNELS_H_
