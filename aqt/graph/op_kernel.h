#ifndef AQT_GRAPH_OP_KERNEL_H_
#define AQT_GRAPH_OP_KERNEL_H_

// An operation compiled for an Executable (runtime/executable.h): a function on memory, with everything decided that
// does not depend on data.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/core/executor.h"

namespace aqt {

class BlockEpilogue;  // core/block_epilogue.h

// The memory of one run. Arrays are dense and do not overlap, except as OpKernel::may_share says.
struct KernelCall {
  const void* const* in;
  void* const* out;                // null for outputs that are not needed, and for those of OpKernel::same
  void* scratch;                   // OpKernel::scratch_bytes, aligned to 64 bytes
  Executor* executor;              // null: only the calling thread
  BlockEpilogue* block = nullptr;  // may be set if OpKernel::has_blocks
};

struct OpKernel {
  // Thread-safe.
  std::function<absl::Status(const KernelCall&)> run;
  int64_t scratch_bytes = 0;
  // Pairs (operand, output) that may share memory if they have the same size.
  std::vector<std::pair<int, int>> may_share = {};
  // Pairs (operand, output) of equal elements: the output is the operand, and `run` does not write it.
  std::vector<std::pair<int, int>> same = {};
  // Whether `run` can run KernelCall::block on blocks of output 0: on all of it, or on nothing.
  bool has_blocks = false;
  // The arrays that `run` allocates for its results, in bytes.
  int64_t array_bytes = 0;
};

// An operand of an operation for which a kernel is made.
struct KernelInput {
  Aval aval;
  std::optional<Array> constant = std::nullopt;  // its value, if that is the same in every run
};

inline std::vector<Aval> AvalsOf(absl::Span<const KernelInput> operands) {
  std::vector<Aval> avals;
  for (const KernelInput& operand : operands) avals.push_back(operand.aval);
  return avals;
}

}  // namespace aqt

#endif  // AQT_GRAPH_OP_KERNEL_H_
