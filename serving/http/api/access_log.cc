#include "serving/http/api/access_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "aqt/io/printable.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {

namespace {

int OpenToAppend(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
}

// Whether a file ends in a part of a line: a server was killed, or its disk was full.
bool EndsInPart(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return false;
  char last = '\n';
  const off_t size = lseek(fd, 0, SEEK_END);
  const bool part = size > 0 && pread(fd, &last, 1, size - 1) == 1 && last != '\n';
  close(fd);
  return part;
}

}  // namespace

std::string LogLine(const AnsweredRequest& request) {
  AnswerJson line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  line["remote"] = request.remote;
  line["method"] = io::Printable(request.method, 20);
  line["path"] = io::Printable(request.path);
  line["status"] = request.status;
  if (!request.grpc_code.empty()) line["grpc"] = request.grpc_code;
  line["bytes_in"] = request.bytes_in;
  line["bytes_out"] = request.bytes_out;
  line["ms"] = std::round(absl::ToDoubleMicroseconds(request.duration)) / 1000;
  return absl::StrCat(AnswerText(line), "\n");
}

absl::StatusOr<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path,
                                                           std::function<void(const absl::Status&)> on_loss) {
  const int fd = OpenToAppend(path);
  if (fd < 0) {
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("cannot open the log file ", path, ": ", std::strerror(errno)));
  }
  std::unique_ptr<AccessLog> log(new AccessLog(fd, path, std::move(on_loss)));
  log->torn_ = EndsInPart(path);
  return log;
}

AccessLog::~AccessLog() { close(fd_); }

void AccessLog::FollowPath() {
  struct stat ours = {}, there = {};
  if (fstat(fd_, &ours) != 0) return;
  if (stat(path_.c_str(), &there) == 0 && there.st_ino == ours.st_ino && there.st_dev == ours.st_dev) return;
  const int fd = OpenToAppend(path_);
  if (fd < 0) return;  // the old file is better than none
  close(std::exchange(fd_, fd));
  torn_ = EndsInPart(path_);
}

bool AccessLog::Write(absl::string_view line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FollowPath();
  const std::string bytes = absl::StrCat(torn_ ? "\n" : "", line);
  ssize_t n = 0;
  do {
    n = write(fd_, bytes.data(), bytes.size());
  } while (n < 0 && errno == EINTR);
  if (n > 0) torn_ = static_cast<size_t>(n) < bytes.size();
  if (n == static_cast<ssize_t>(bytes.size())) return true;
  if (auto on_loss = std::exchange(on_loss_, nullptr); on_loss != nullptr) {
    // A part is written where the disk is full, or the file has its largest size.
    const absl::string_view reason = n < 0 ? std::strerror(errno) : "there is no room";
    on_loss(absl::ResourceExhaustedError(absl::StrCat("cannot write the log file ", path_, ": ", reason)));
  }
  return false;
}

}  // namespace aqt::serving
