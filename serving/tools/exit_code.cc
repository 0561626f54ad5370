#include "serving/tools/exit_code.h"

namespace aqt::serving {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk: return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument: return ExitCode::kUsage;
    case absl::StatusCode::kDataLoss: return ExitCode::kMalformedInput;
    case absl::StatusCode::kUnimplemented: return ExitCode::kUnsupported;
    case absl::StatusCode::kCancelled: return ExitCode::kInterrupted;
    default: return ExitCode::kFile;
  }
}

absl::Status CheckCancelled(const std::atomic<bool>* cancelled) {
  if (cancelled == nullptr || !cancelled->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("interrupted");
}

absl::Status OutputError(const absl::Status& status) {
  return status.code() == absl::StatusCode::kDataLoss ? absl::UnknownError(status.message()) : status;
}

absl::Status UsageError(const absl::Status& status) {
  return status.ok() ? status : absl::InvalidArgumentError(status.message());
}

}  // namespace aqt::serving
