// Input: the bytes of a connection. They are the same requests, and the same error, when they arrive a byte at a time;
// no more is kept than the limits allow, and nothing is read after an error.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "serving/http/wire/http_message.h"
#include "serving/http/wire/request_parser.h"

namespace {

using aqt::serving::HttpLimits;
using aqt::serving::HttpRequest;
using aqt::serving::RequestParser;

constexpr HttpLimits kLimits = {.head_bytes = 512, .head_fields = 16, .body_bytes = 1024};

struct Parsed {
  std::vector<HttpRequest> requests;
  int status = 0;
  std::string message;
};

Parsed Parse(absl::string_view bytes, size_t step) {
  RequestParser parser(kLimits);
  Parsed out;
  for (size_t i = 0; i < bytes.size(); i += step) {
    parser.Append(bytes.substr(i, step));
    for (bool more = true; more;) {
      switch (parser.Advance()) {
        case RequestParser::Event::kNeedMore: more = false; break;
        case RequestParser::Event::kHead:
          AQT_CHECK(!parser.request().method.empty() && !parser.request().target.empty());
          AQT_CHECK(static_cast<int>(parser.request().fields.size()) <= kLimits.head_fields);
          break;
        case RequestParser::Event::kRequest:
          AQT_CHECK(static_cast<int64_t>(parser.request().body.size()) <= kLimits.body_bytes);
          out.requests.push_back(parser.Take());
          break;
        case RequestParser::Event::kError:
          AQT_CHECK(parser.Advance() == RequestParser::Event::kError);
          AQT_CHECK(parser.error().status >= 400 && !parser.error().message.empty());
          out.status = parser.error().status;
          return out;
      }
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Parsed whole = Parse(bytes, size == 0 ? 1 : size), cut = Parse(bytes, 1);
  AQT_CHECK(whole.requests.size() == cut.requests.size());
  // The end of chunks is only looked at with five bytes, so that what is cut may wait where the whole is refused.
  AQT_CHECK(cut.status == 0 || whole.status != 0);
  for (size_t i = 0; i < whole.requests.size(); ++i) {
    const HttpRequest &a = whole.requests[i], &b = cut.requests[i];
    AQT_CHECK(a.method == b.method && a.target == b.target && a.path == b.path && a.body == b.body);
    AQT_CHECK(a.fields == b.fields && a.keep_alive == b.keep_alive);
    AQT_CHECK((a.Find("content-length") == nullptr) || (a.Find("transfer-encoding") == nullptr));
  }
  return 0;
}
