#ifndef AQT_COLLECTIVE_THREAD_GROUP_H_
#define AQT_COLLECTIVE_THREAD_GROUP_H_

// A group of threads in the place of processes: for tests, and to try a program before it runs under MPI.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt {

// Calls `body` on `size` threads at the same time, each with its own rank, and returns when all are done: the error of
// the lowest rank that failed of itself, if one did. When a body fails, the calls of the others fail with Aborted,
// which names its rank; calls that differ are InvalidArgument, with both. InvalidArgument if size < 1.
absl::Status RunOnThreads(int size, absl::FunctionRef<absl::Status(Collective&)> body);

}  // namespace aqt

#endif  // AQT_COLLECTIVE_THREAD_GROUP_H_
