#ifndef AQT_COLLECTIVE_MPI_GROUP_H_
#define AQT_COLLECTIVE_MPI_GROUP_H_

// An engine for the processes that mpirun starts. The target is skipped where MPI is not installed.

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "aqt/collective/collective.h"

namespace aqt {

// Initializes MPI, calls `body` with this process of MPI_COMM_WORLD, and finalizes MPI. Call it once per process, from
// the main thread, before any other use of MPI. A program started without mpirun is a group of one.
//
// If `body` fails, the error is printed to stderr with the rank, and MPI ends all processes of the group because the
// others would wait forever; RunOnMpi then does not return. Errors: Internal with MPI's message; OutOfRange for a call
// with more than 2^31 - 1 bytes per process.
absl::Status RunOnMpi(absl::FunctionRef<absl::Status(Collective&)> body);

}  // namespace aqt

#endif  // AQT_COLLECTIVE_MPI_GROUP_H_
