#ifndef AQT_SERVING_HTTP_WIRE_HTTP_MESSAGE_H_
#define AQT_SERVING_HTTP_WIRE_HTTP_MESSAGE_H_

// Requests and responses of HTTP/1.1 (RFC 9110), as values.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace aqt::serving {

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "POST"
  std::string target;  // as sent: "/v2/models/a%2Fb?x=1"
  // The path, split at '/', each part decoded: {"v2", "models", "a/b"}. A slash at the end adds no part.
  std::vector<std::string> path;
  std::string query;  // "x=1", as sent
  HttpFields fields;  // the names in lower case; without trailers
  std::string body;   // without chunks
  bool keep_alive = false;

  // The value of a field, or null. If the field occurs several times, its first value.
  const std::string* Find(absl::string_view name) const;
  // "/v2/models/...", without the query.
  absl::string_view path_text() const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  // Without those that the server adds: Content-Length, Content-Type, Connection, Date, Server.
  HttpFields fields = {};
  std::string body = {};
};

// A request that is refused before its handler sees it.
struct HttpError {
  int status = 400;
  std::string message;
};

// "Not Found" for 404; "Status" for an unknown one.
absl::string_view ReasonPhrase(int status);

// Decodes %41 and the like. False if a percent sign is not followed by two hexadecimal digits, or for %00.
bool PercentDecode(absl::string_view text, std::string* out);

// The head of `response` as bytes, up to and including the empty line. `date` is the value of Date.
std::string ResponseHead(const HttpResponse& response, absl::string_view date, bool keep_alive);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_HTTP_MESSAGE_H_
