#ifndef AQT_SERVING_HTTP_WIRE_HTTP_SERVER_H_
#define AQT_SERVING_HTTP_WIRE_HTTP_SERVER_H_

// An HTTP/1.1 server for a handler. One thread reads and writes all sockets, so that slow clients cost no thread; other
// threads run the handler. HttpServerOptions has a limit for everything that a client can use up.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "serving/http/wire/cancellation.h"
#include "serving/http/wire/http_message.h"
#include "serving/http/wire/request_parser.h"

namespace aqt::serving {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, or "localhost"
  int port = 0;                    // 0: one that is free
  HttpLimits limits = {};
  int max_connections = 1024;
  int max_connections_per_address = 0;              // of an AddressGroup; 0: no limit
  int64_t max_buffered_bytes = int64_t{256} << 20;  // of the requests and responses of all connections
  int threads = 16;                                 // that run HttpHandler::Handle
  int max_queue = 256;                              // requests that wait for a thread
  absl::Duration head_timeout = absl::Seconds(10);  // from the first byte of a head to its end
  absl::Duration body_timeout = absl::Seconds(60);  // from the end of a head to the end of its body
  absl::Duration idle_timeout = absl::Seconds(75);  // between requests
  absl::Duration write_timeout = absl::Seconds(60);
};

// A request that was answered, for logs and metrics.
struct HttpRecord {
  const HttpRequest& request;  // incomplete if the server refused it; its body is gone
  int status = 0;
  std::string remote;       // the address of the client
  int64_t bytes_in = 0;     // of the body
  int64_t bytes_out = 0;    // of the body
  absl::Duration duration;  // from the complete request to the complete response
};

struct HttpServerStats {
  int64_t connections = 0, accepted_connections = 0, refused_connections = 0;
  int64_t queue = 0, running = 0;
  int64_t queue_limit = 0;
  int64_t buffered_bytes = 0;
};

// Thread-safe.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at the head of a request before its body is read. A response refuses the request. Quick.
  virtual std::optional<HttpResponse> CheckHead(const HttpRequest& head) = 0;
  // Whether Handle does not compute, so that it can run on the thread of the sockets, even when the queue is full.
  virtual bool IsQuick(const HttpRequest& request) = 0;
  // `cancellation` is cancelled when the client goes away; its answer is not read then.
  virtual HttpResponse Handle(const HttpRequest& request, Cancellation& cancellation) = 0;
  // The response for what the server refuses itself. `request` has what is known of it. Quick.
  virtual HttpResponse Refuse(const HttpRequest& request, const HttpError& error) = 0;
  // After the response was sent, or its client went away. Quick.
  virtual void Record(const HttpRecord& record) = 0;
};

class HttpServer {
 public:
  // Listens. InvalidArgument for a host that is no address; AlreadyExists if the port is taken; otherwise the system's
  // error. `handler` must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options, HttpHandler& handler);
  ~HttpServer();

  int port() const;
  // "http://127.0.0.1:8000"
  std::string url() const;

  // Serves until Stop, or until `interrupted` is true. Then no connection is accepted any more, requests whose first
  // byte arrived are answered, and all connections are closed.
  void Run(const std::atomic<bool>* interrupted = nullptr);
  // May be called from any thread, once or more.
  void Stop();
  bool stopping() const;
  HttpServerStats stats() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_HTTP_SERVER_H_
