#ifndef AQT_SERVING_HTTP_API_ACCESS_LOG_H_
#define AQT_SERVING_HTTP_API_ACCESS_LOG_H_

// A line of JSON for each request.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace aqt::serving {

// A request that was answered.
struct AnsweredRequest {
  std::string remote;  // the address of the client
  std::string method;
  std::string path;            // without the query
  std::string route;           // a pattern of paths, or a method of gRPC: one of a few texts
  int status = 200;            // of HTTP
  std::string grpc_code = "";  // "OK", "NOT_FOUND", ...; "" if it was not gRPC
  int64_t bytes_in = 0, bytes_out = 0;
  absl::Duration duration;
};

// {"time":"2026-01-02T03:04:05.678Z","remote":"127.0.0.1","method":"POST","path":"/v1/embeddings","status":200,
//  "bytes_in":12,"bytes_out":345,"ms":1.234}
// Paths are cut after 200 bytes. A request of gRPC has a field more: "grpc":"OK".
std::string LogLine(const AnsweredRequest& request);

// A file that lines are appended to. A line that cannot be written, such as on a full disk, is lost; the next one that
// can be begins a new line, so that every other line is whole. When somebody moves the file away, the next line begins
// a new one. Thread-safe.
class AccessLog {
 public:
  // Creates the file, or appends to it: on a new line, if its last one is not whole. The system's error, with the path.
  // `on_loss` gets the system's error, with the path, when the first line is lost; it is called once.
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path,
                                                         std::function<void(const absl::Status&)> on_loss = nullptr);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  // Whether it was written as a whole.
  bool Write(absl::string_view line);

 private:
  AccessLog(int fd, std::string path, std::function<void(const absl::Status&)> on_loss)
      : path_(std::move(path)), fd_(fd), on_loss_(std::move(on_loss)) {}
  // Opens the path again if it is not the open file any more.
  void FollowPath();

  const std::string path_;
  std::mutex mutex_;
  int fd_;                                            // guarded by mutex_
  std::function<void(const absl::Status&)> on_loss_;  // guarded by mutex_; null after the first loss
  bool torn_ = false;                                 // guarded by mutex_; the file ends in a part of a line
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_ACCESS_LOG_H_
