#ifndef AQT_SERVING_EXIT_CODE_H_
#define AQT_SERVING_EXIT_CODE_H_

// The exit codes of the `aqt` command, and which status ends in which (docs/converting.md).

#include <atomic>

#include "absl/status/status.h"

namespace aqt::serving {

enum class ExitCode : int {
  kOk = 0,
  kQuality = 1,         // a check of `verify` failed
  kUsage = 2,           // command line, configuration, calibration
  kMalformedInput = 3,  // a damaged checkpoint, or values that cannot be quantized
  // A file that is missing, in the way, unreadable or cannot be written; no memory, no threads.
  kFile = 4,
  kUnsupported = 5,    // legal, but not implemented
  kInterrupted = 130,  // SIGINT, SIGTERM, SIGHUP, SIGXCPU
};

// OK kOk; InvalidArgument kUsage; DataLoss kMalformedInput; Unimplemented kUnsupported; Cancelled kInterrupted;
// anything else kFile.
ExitCode ExitCodeOf(const absl::Status& status);

// Cancelled when `cancelled` is true; null never is.
absl::Status CheckCancelled(const std::atomic<bool>* cancelled);

// For errors of writing: a DataLoss (EIO of the disk) becomes Unknown, so that it is not taken for a damaged input.
absl::Status OutputError(const absl::Status& status);
// For errors of reading what the command line names beside the input (a configuration): every error becomes
// InvalidArgument.
absl::Status UsageError(const absl::Status& status);

}  // namespace aqt::serving

#endif  // AQT_SERVING_EXIT_CODE_H_
