#ifndef AQT_SERVING_TOOLS_PARALLEL_H_
#define AQT_SERVING_TOOLS_PARALLEL_H_

// Independent tasks on several threads, within a memory budget.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace aqt::serving {

// The message for std::bad_alloc.
inline constexpr char kOutOfMemory[] = "out of memory; raise its limit (ulimit -v), or use fewer threads (--jobs)";

struct ParallelOptions {
  int threads = 1;
  // Bytes that running tasks may hold together. A task that needs more runs alone.
  int64_t memory_budget = 0;
};

// Calls run(i) for i = 0 .. n-1, starting them in this order, and returns when all started calls are done. After a
// failure no more calls are started. Returns the error of the smallest i that failed. It does not depend on the number
// of threads if the failure of run(i) depends only on i. `memory(i)` is the memory of run(i), in bytes.
// ResourceExhausted if a thread cannot be started or a task throws std::bad_alloc.
absl::Status ParallelRun(int64_t n, const ParallelOptions& options, absl::FunctionRef<int64_t(int64_t)> memory,
                         absl::FunctionRef<absl::Status(int64_t)> run);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_PARALLEL_H_
