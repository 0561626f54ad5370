#include "serving/http/access_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "aqt/io/printable.h"
#include "serving/http/json_body-inl.h"

namespace aqt::serving {

std::string LogLine(const HttpRecord& record) {
  AnswerJson line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  line["remote"] = record.remote;
  line["method"] = io::Printable(record.request.method, 20);
  line["path"] = io::Printable(record.request.path_text());
  line["status"] = record.status;
  line["bytes_in"] = record.bytes_in;
  line["bytes_out"] = record.bytes_out;
  line["ms"] = std::round(absl::ToDoubleMicroseconds(record.duration)) / 1000;
  return absl::StrCat(AnswerText(line), "\n");
}

absl::StatusOr<std::unique_ptr<AccessLog>> AccessLog::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
  if (fd < 0) {
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("cannot open the log file ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<AccessLog>(new AccessLog(fd));
}

AccessLog::~AccessLog() { close(fd_); }

bool AccessLog::Write(absl::string_view line) {
  const std::string bytes = absl::StrCat(torn_ ? "\n" : "", line);
  ssize_t n = 0;
  do {
    n = write(fd_, bytes.data(), bytes.size());
  } while (n < 0 && errno == EINTR);
  if (n > 0) torn_ = static_cast<size_t>(n) < bytes.size();
  return n == static_cast<ssize_t>(bytes.size());
}

}  // namespace aqt::serving
