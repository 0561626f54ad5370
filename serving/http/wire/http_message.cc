#include "serving/http/wire/http_message.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aqt::serving {

const std::string* HttpRequest::Find(absl::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

absl::string_view HttpRequest::path_text() const {
  const absl::string_view text = target;
  return text.substr(0, text.find('?'));
}

absl::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
  }
}

bool PercentDecode(absl::string_view text, std::string* out) {
  out->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out->push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size() || !absl::ascii_isxdigit(text[i + 1]) || !absl::ascii_isxdigit(text[i + 2])) return false;
    out->append(absl::HexStringToBytes(text.substr(i + 1, 2)));
    if (out->back() == '\0') return false;
    i += 2;
  }
  return true;
}

std::string ResponseHead(const HttpResponse& response, absl::string_view date, bool keep_alive) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
                                  "\r\nServer: aqt\r\nDate: ", date, "\r\n");
  if (response.status != 204) {
    absl::StrAppend(&head, "Content-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                    "\r\nX-Content-Type-Options: nosniff\r\n");
  }
  for (const auto& [name, value] : response.fields) absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, "Connection: ", keep_alive ? "keep-alive" : "close", "\r\n\r\n");
  return head;
}

}  // namespace aqt::serving
