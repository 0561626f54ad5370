#ifndef AQT_RUNTIME_FUSION_OP_KERNELS_H_
#define AQT_RUNTIME_FUSION_OP_KERNELS_H_

// Operations of a program as functions on memory, with all decisions made that do not depend on data. Internal.

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

// Dense arrays. Arrays of one call do not overlap, unless the kernel allows it.
struct KernelCall {
  const void* const* in;
  void* const* out;
  void* scratch;
  Executor* executor;              // null: only the calling thread
  BlockEpilogue* block = nullptr;  // null, or a block epilogue, if OpKernel::has_blocks
};

struct OpKernel {
  std::function<void(const KernelCall&)> run;
  int64_t scratch_bytes = 0;
  // Pairs (operand, result) that may share memory if they have the same size.
  std::vector<std::pair<int, int>> may_share = {};
  // Whether it may run KernelCall::block on blocks of the result: on the full result, or not at all.
  bool has_blocks = false;
};

// The kernel of an operation that the runtime knows; it has one output. Null for other operations, which EvalOp runs.
std::optional<OpKernel> KernelOf(const Op& op, absl::Span<const Aval> in, const Aval& out);

}  // namespace aqt::internal

#endif  // AQT_RUNTIME_FUSION_OP_KERNELS_H_
