#ifndef AQT_COLLECTIVE_THREAD_GROUP_H_
#define AQT_COLLECTIVE_THREAD_GROUP_H_

// A group of threads that act as processes: for tests, and for trying a program before it runs under MPI.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt {

// Calls `body` on `size` threads concurrently, each with its own rank. Returns when all are done, with the error of the
// lowest rank that failed on its own, if any. When a body fails, the calls of the others return Aborted, which names
// its rank. Mismatched calls return InvalidArgument, which names both. InvalidArgument if size < 1.
absl::Status RunOnThreads(int size, absl::FunctionRef<absl::Status(Collective&)> body);

}  // namespace aqt

#endif  // AQT_COLLECTIVE_THREAD_GROUP_H_
