#ifndef AQT_SERVING_HTTP_ACCESS_LOG_H_
#define AQT_SERVING_HTTP_ACCESS_LOG_H_

// A line of JSON for each request.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/http/http_server.h"

namespace aqt::serving {

// {"time":"2026-01-02T03:04:05.678Z","remote":"127.0.0.1","method":"POST","path":"/v1/embeddings","status":200,
//  "bytes_in":12,"bytes_out":345,"ms":1.234}
// Paths are cut after 200 bytes, and have no query.
std::string LogLine(const HttpRecord& record);

// A file that lines are appended to. A line that cannot be written, such as on a full disk, is lost; the next one that
// can be begins a new line, so that every other line is whole.
class AccessLog {
 public:
  // Creates the file, or appends to it. The system's error, with the path.
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  // Whether it was written as a whole. Not thread-safe.
  bool Write(absl::string_view line);

 private:
  explicit AccessLog(int fd) : fd_(fd) {}
  const int fd_;
  bool torn_ = false;  // the file ends in a part of a line
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_ACCESS_LOG_H_
