#ifndef AQT_SERVING_EXIT_CODE_H_
#define AQT_SERVING_EXIT_CODE_H_

// The exit codes of the `aqt` command, and which status ends in which (docs/converting.md).

#include "absl/status/status.h"

namespace aqt::serving {

enum class ExitCode : int {
  kOk = 0,
  kQuality = 1,         // a check of `verify` failed
  kUsage = 2,           // command line, configuration, calibration
  kMalformedInput = 3,  // a damaged checkpoint, or values that cannot be quantized
  kFile = 4,            // a file that is missing, in the way, unreadable or cannot be written
  kUnsupported = 5,     // legal, but not implemented
  kInterrupted = 130,   // SIGINT, SIGTERM
};

// OK kOk; InvalidArgument kUsage; DataLoss kMalformedInput; Unimplemented kUnsupported; Cancelled kInterrupted;
// anything else kFile.
ExitCode ExitCodeOf(const absl::Status& status);

// For errors of writing: a DataLoss (EIO of the disk) becomes Unknown, so that it is not taken for a damaged input.
absl::Status OutputError(const absl::Status& status);
// For errors of reading what the command line names beside the input (a configuration): every error becomes
// InvalidArgument.
absl::Status UsageError(const absl::Status& status);

}  // namespace aqt::serving

#endif  // AQT_SERVING_EXIT_CODE_H_
