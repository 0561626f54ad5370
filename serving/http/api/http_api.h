#ifndef AQT_SERVING_HTTP_API_HTTP_API_H_
#define AQT_SERVING_HTTP_API_HTTP_API_H_

// The endpoints of `aqt serve`: docs/serving-http.md.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "serving/http/api/access_log.h"
#include "serving/http/api/api_context.h"
#include "serving/http/wire/http_message.h"
#include "serving/http/wire/http_server.h"

namespace aqt::serving {

// What an endpoint needs to know of the server. Set before it runs.
struct ServerView {
  std::function<HttpServerStats()> stats = [] { return HttpServerStats(); };
  std::function<bool()> stopping = [] { return false; };
};

class HttpApi final : public HttpHandler {
 public:
  // Borrows `models`. `log` may be null.
  HttpApi(ModelRepository& models, ApiOptions options, std::unique_ptr<AccessLog> log);
  void set_server(ServerView server) { server_ = std::move(server); }

  // 404, 405 with Allow, 401: before the body is read.
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override;
  bool IsQuick(const HttpRequest& request) override;
  HttpResponse Handle(const HttpRequest& request, Cancellation& cancellation) override;
  HttpResponse Refuse(const HttpRequest& request, const HttpError& error) override;
  void Record(const HttpRecord& record) override;

  Metrics& metrics() { return metrics_; }
  const ApiContext& context() const { return context_; }
  const ServerView& server() const { return server_; }

 private:
  const ApiOptions options_;
  Metrics metrics_;
  std::unique_ptr<AccessLog> log_;
  ApiContext context_;
  ServerView server_;
};

// Whether two keys are equal. The time depends only on the length of `given`.
bool SameKey(absl::string_view given, absl::string_view wanted);
// Whether the value of a field Authorization is "Bearer KEY". Compares as SameKey.
bool HasBearerKey(absl::string_view authorization, absl::string_view key);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_HTTP_API_H_
