#ifndef AQT_SERVING_TOOLS_EXIT_CODE_H_
#define AQT_SERVING_TOOLS_EXIT_CODE_H_

// The exit codes of the `aqt` command, and the statuses that they stand for (docs/converting.md).

#include <atomic>

#include "absl/status/status.h"

namespace aqt::serving {

enum class ExitCode : int {
  kOk = 0,
  kQuality = 1,         // a check of `verify` failed, or `diff` found a difference
  kUsage = 2,           // command line, configuration, calibration
  kMalformedInput = 3,  // a damaged checkpoint, or values that cannot be quantized
  // A file is missing, in the way, unreadable or cannot be written; too little memory, too few threads.
  kFile = 4,
  kUnsupported = 5,    // legal, but not implemented
  kInterrupted = 130,  // SIGINT, SIGTERM, SIGHUP, SIGXCPU
};

// OK: kOk; InvalidArgument: kUsage; DataLoss: kMalformedInput; Unimplemented: kUnsupported; Cancelled: kInterrupted;
// anything else: kFile.
ExitCode ExitCodeOf(const absl::Status& status);

// Cancelled if `cancelled` is not null and holds true.
absl::Status CheckCancelled(const std::atomic<bool>* cancelled);

// For errors of writing: turns DataLoss (a disk's EIO) into Unknown, so that it is not mistaken for a damaged input.
absl::Status OutputError(const absl::Status& status);
// For errors of reading the other files on the command line (a configuration): turns every error into InvalidArgument.
absl::Status UsageError(const absl::Status& status);

}  // namespace aqt::serving

#endif  // AQT_SERVING_TOOLS_EXIT_CODE_H_
