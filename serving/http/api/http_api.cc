#include "serving/http/api/http_api.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "aqt/io/printable.h"
#include "serving/http/api/api_error.h"
#include "serving/http/api/infer_request.h"
#include "serving/http/api/inference_api.h"
#include "serving/http/api/openai_api.h"
#include "serving/http/api/scores_api.h"

namespace aqt::serving {
namespace {

// Whom an endpoint answers without a key: probes have none.
enum class Access : uint8_t { kAnyone, kWithKey };
// Where it runs: on the thread of the sockets, or on one of those that compute.
enum class Cost : uint8_t { kQuick, kComputes };

// What a route needs besides the request.
struct Call {
  const ApiContext& context;
  const ServerView& server;
};

struct Route {
  const char* pattern;  // a part "{}" is the name of a model
  const char* method;
  Access access;
  Cost cost;
  HttpResponse (*run)(const Call& call, const HttpRequest& request, const std::string& name);
};

HttpResponse Health(const Call& c, const HttpRequest&, const std::string&) {
  const bool ready = !c.server.stopping() && c.context.models.all_ready();
  return {.status = ready ? 200 : 503, .body = ready ? "{\"status\":\"ok\"}" : "{\"status\":\"not ready\"}"};
}

HttpResponse MetricsPage(const Call& c, const HttpRequest&, const std::string&) {
  std::vector<ModelMetrics> models;
  for (const ModelRepository::Row& row : c.context.models.List()) {
    models.push_back({row.name, row.model != nullptr, row.model == nullptr ? ServedModelStats() : row.model->stats()});
  }
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = c.context.metrics.Page(c.server.stats(), models)};
}

// clang-format off
constexpr Route kRoutes[] = {
    {"/healthz", "GET", Access::kAnyone, Cost::kQuick, Health},
    {"/metrics", "GET", Access::kWithKey, Cost::kQuick, MetricsPage},
    {"/v1/embeddings", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string&) { return Embeddings(c.context, r); }},
    {"/v1/models", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string&) { return ListModels(c.context); }},
    {"/v1/models/{}", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string& name) { return ShowModel(c.context, name); }},
    {"/rerank", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string&) { return Rerank(c.context, r); }},
    {"/v1/rerank", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string&) { return Rerank(c.context, r); }},
    {"/v2/rerank", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string&) { return Rerank(c.context, r); }},
    {"/classify", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string&) { return Classify(c.context, r); }},
    {"/predict", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string&) { return Classify(c.context, r); }},
    {"/v2", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call&, const HttpRequest&, const std::string&) { return ServerMetadata(); }},
    {"/v2/health/live", "GET", Access::kAnyone, Cost::kQuick,
     [](const Call&, const HttpRequest&, const std::string&) { return ServerLive(); }},
    {"/v2/health/ready", "GET", Access::kAnyone, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string&) {
       return ServerReady(c.context, c.server.stopping());
     }},
    {"/v2/models", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string&) { return ListInferModels(c.context); }},
    {"/v2/models/stats", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string&) { return ModelStatistics(c.context, ""); }},
    {"/v2/models/{}", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string& name) { return ModelMetadata(c.context, name); }},
    {"/v2/models/{}/ready", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string& name) { return ModelReady(c.context, name); }},
    {"/v2/models/{}/config", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string& name) { return ModelConfig(c.context, name); }},
    {"/v2/models/{}/stats", "GET", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest&, const std::string& name) { return ModelStatistics(c.context, name); }},
    {"/v2/models/{}/infer", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string& name) { return Infer(c.context, r, name); }},
    {"/v2/repository/index", "POST", Access::kWithKey, Cost::kQuick,
     [](const Call& c, const HttpRequest& r, const std::string&) { return RepositoryIndex(c.context, r); }},
    {"/v2/repository/models/{}/load", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string& name) { return LoadModel(c.context, r, name); }},
    {"/v2/repository/models/{}/unload", "POST", Access::kWithKey, Cost::kComputes,
     [](const Call& c, const HttpRequest& r, const std::string& name) { return UnloadModel(c.context, r, name); }},
};
// clang-format on

// The parts of a path without /versions/V, and the error of a V that there is not.
std::vector<std::string> WithoutVersion(const std::vector<std::string>& path, absl::Status* version) {
  *version = absl::OkStatus();
  if (path.size() < 5 || path[0] != "v2" || path[1] != "models") return path;
  const auto at = std::find(path.begin() + 3, path.end(), "versions");
  if (path.end() - at < 2) return path;
  *version = CheckModelVersion(at[1]);
  std::vector<std::string> rest(path.begin(), at);
  rest.insert(rest.end(), at + 2, path.end());
  return rest;
}

using Parts = std::vector<absl::string_view>;

// The patterns of kRoutes, split once.
const std::vector<Parts>& PatternParts() {
  static const auto* const all = [] {
    auto* parts = new std::vector<Parts>;
    for (const Route& route : kRoutes)
      parts->push_back(absl::StrSplit(absl::string_view(route.pattern).substr(1), '/'));
    return parts;
  }();
  return *all;
}

// Whether a path has the parts of a pattern. A name may contain '/': "{}" also takes several parts.
bool Matches(const Parts& parts, const std::vector<std::string>& path, std::string* name) {
  size_t hole = 0;
  while (hole < parts.size() && parts[hole] != "{}") ++hole;
  if (path.size() < parts.size() || (hole == parts.size() && path.size() > parts.size())) return false;
  for (size_t i = 0; i < hole; ++i) {
    if (path[i] != parts[i]) return false;
  }
  const size_t after = hole < parts.size() ? parts.size() - hole - 1 : 0;
  for (size_t i = 0; i < after; ++i) {
    if (path[path.size() - after + i] != parts[parts.size() - after + i]) return false;
  }
  if (hole < parts.size()) *name = absl::StrJoin(path.begin() + hole, path.end() - after, "/");
  return true;
}

struct Found {
  const Route* route = nullptr;   // with the request's method
  const char* pattern = "other";  // of the path, with any method
  std::string allow;              // the methods of the path
  std::string name;
  absl::Status version;  // an error of the version in the path
};

// The pattern with the fewest names wins: "/v2/models/stats" before "/v2/models/{}".
Found Find(const HttpRequest& request) {
  Found found;
  const std::vector<std::string> path = WithoutVersion(request.path, &found.version);
  size_t longest = 0;
  for (size_t i = 0; i < std::size(kRoutes); ++i) {
    const Route& route = kRoutes[i];
    std::string name;
    if (!Matches(PatternParts()[i], path, &name)) continue;
    const size_t fixed = absl::StrContains(route.pattern, "{}") ? absl::string_view(route.pattern).size() : 1000;
    if (fixed <= longest) continue;
    longest = fixed;
    found.pattern = route.pattern;
    found.allow = absl::string_view(route.method) == "GET" ? "GET, HEAD" : route.method;
    found.name = std::move(name);
    const bool same = request.method == route.method || (request.method == "HEAD" && found.allow == "GET, HEAD");
    found.route = same ? &route : nullptr;
  }
  return found;
}

bool HasKey(const HttpRequest& request, const std::string& key) {
  const std::string* field = request.Find("authorization");
  return field != nullptr && HasBearerKey(*field, key);
}

// Whether a web page on this machine sent it, or none: "http://localhost:3000". Any page can make a browser send
// requests to the loopback.
bool IsOriginHere(const HttpRequest& request) {
  const std::string* field = request.Find("origin");
  if (field == nullptr) return true;
  absl::string_view host = *field;
  if (const size_t at = host.find("://"); at != absl::string_view::npos) host.remove_prefix(at + 3);
  const bool v6 = absl::StartsWith(host, "[");
  host = host.substr(0, v6 ? host.find(']') + 1 : host.find(':'));
  in_addr address = {};
  return absl::EqualsIgnoreCase(host, "localhost") || host == "[::1]" ||
         (inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127);
}

}  // namespace

bool SameKey(absl::string_view given, absl::string_view wanted) {
  unsigned different = given.size() == wanted.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = wanted.empty() ? '\0' : wanted[i % wanted.size()];
    different |= static_cast<unsigned char>(given[i] ^ other);
  }
  return different == 0;
}

bool HasBearerKey(absl::string_view authorization, absl::string_view key) {
  if (!absl::StartsWithIgnoreCase(authorization, "bearer ")) return false;
  return SameKey(absl::StripAsciiWhitespace(authorization.substr(7)), key);
}

HttpApi::HttpApi(ModelRepository& models, ApiOptions options, std::unique_ptr<AccessLog> log)
    : options_(std::move(options)), log_(std::move(log)), context_{models, metrics_, options_, log_.get()} {}

std::optional<HttpResponse> HttpApi::CheckHead(const HttpRequest& head) {
  const Found found = Find(head);
  const ErrorForm form = ErrorFormOf(head.path_text());
  const bool anyone = found.route != nullptr && found.route->access == Access::kAnyone;
  if (!options_.api_key.empty() && !anyone && !HasKey(head, options_.api_key)) {
    HttpResponse response = ErrorResponse(form, 401, "a key is needed: Authorization: Bearer KEY");
    response.fields.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  // With a key, a page cannot send what the server answers.
  if (options_.api_key.empty() && !IsOriginHere(head)) {
    return ErrorResponse(form, 403,
                         "web pages of other machines (the field Origin) are only answered by a server with a key "
                         "(--api-key-file)");
  }
  if (found.allow.empty()) {
    return ErrorResponse(form, 404, absl::StrCat("there is nothing at ", io::Printable(head.path_text())));
  }
  if (found.route == nullptr) {
    HttpResponse response = ErrorResponse(
        form, 405, absl::StrCat(io::Printable(head.method, 20), " is not allowed here, only ", found.allow));
    response.fields.emplace_back("Allow", found.allow);
    return response;
  }
  if (!found.version.ok()) return ErrorResponse(form, found.version);
  return std::nullopt;
}

bool HttpApi::IsQuick(const HttpRequest& request) {
  const Found found = Find(request);
  return found.route != nullptr && found.route->cost == Cost::kQuick;
}

HttpResponse HttpApi::Handle(const HttpRequest& request, Cancellation& cancellation) {
  const Found found = Find(request);
  if (found.route == nullptr) return ErrorResponse(ErrorFormOf(request.path_text()), 404, "there is nothing here");
  ApiContext context = context_;
  context.call.cancellation = &cancellation;
  return found.route->run({context, server_}, request, found.name);
}

HttpResponse HttpApi::Refuse(const HttpRequest& request, const HttpError& error) {
  return ErrorResponse(ErrorFormOf(request.path_text()), error.status, error.message);
}

void HttpApi::Record(const HttpRecord& record) {
  const Found found = Find(record.request);
  const std::string& method = record.request.method;
  context_.Record({.remote = record.remote,
                   .method = method,
                   .path = std::string(record.request.path_text()),
                   .route = found.pattern,
                   .status = record.status,
                   .bytes_in = record.bytes_in,
                   .bytes_out = record.bytes_out,
                   .duration = record.duration});
}

}  // namespace aqt::serving
