#ifndef AQT_SERVING_HTTP_SERVE_H_
#define AQT_SERVING_HTTP_SERVE_H_

// `aqt serve` without its command line: docs/serving-http.md.

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aqt/io/file.h"
#include "serving/http/api/api_context.h"
#include "serving/http/engine_model.h"
#include "serving/http/wire/http_server.h"

namespace aqt::serving {

// Another protocol for the same models, on a port of its own.
class ProtocolServer {
 public:
  virtual ~ProtocolServer() = default;
  virtual std::string address() const = 0;  // "127.0.0.1:8001"
  // As HttpServer::Run.
  virtual void Run(const std::atomic<bool>* interrupted) = 0;
};

struct ServeOptions {
  std::vector<std::string> models;  // PATH or NAME=PATH
  HttpServerOptions server = {};
  ApiOptions api = {};
  OpenModelOptions open = {};
  std::string log_file = "";  // none
  // Listens for gRPC. Null: there is none.
  std::function<absl::StatusOr<std::unique_ptr<ProtocolServer>>(const ApiContext&)> grpc = nullptr;
};

// Listens, loads the models, writes the address to `out`, and answers until `interrupted` is true. Then it answers what
// it has accepted. Until the models are loaded, it answers that they are not. Warnings go to `err`.
absl::Status Serve(const ServeOptions& options, const io::FileSystem& fs, std::ostream& out, std::ostream& err,
                   const std::atomic<bool>* interrupted);

// The key in `file`, or in the variable AQT_API_KEY if `file` is empty; "" if there is neither. Space around it is
// removed. InvalidArgument if the file has no key, several lines, or other characters than printable ASCII.
absl::StatusOr<std::string> ReadApiKey(const io::FileSystem& fs, const std::string& file);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_SERVE_H_
