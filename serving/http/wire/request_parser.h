#ifndef AQT_SERVING_HTTP_WIRE_REQUEST_PARSER_H_
#define AQT_SERVING_HTTP_WIRE_REQUEST_PARSER_H_

// Requests from the bytes of a connection, however they are cut. It does not read: the caller appends bytes.
//
//   parser.Append(bytes);
//   for (;;) {
//     switch (parser.Advance()) {
//       case RequestParser::Event::kHead: ...      // parser.request() has its head
//       case RequestParser::Event::kRequest: ...   // parser.Take()
//       case RequestParser::Event::kError: ...     // parser.error(); the connection must be closed
//       case RequestParser::Event::kNeedMore: ...  // append more
//     }
//   }
//
// Whatever two servers could read in two ways is refused, so that nothing can be smuggled past a proxy: Content-Length
// together with Transfer-Encoding, several lengths, other encodings than "chunked", lines that end in a bare LF or CR,
// folded lines, space before a colon, several Host fields.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "serving/http/wire/http_message.h"

namespace aqt::serving {

struct HttpLimits {
  int64_t head_bytes = 16 << 10;  // the request line and the fields; also a line of chunks, and the trailers
  int head_fields = 100;
  int64_t body_bytes = 32 << 20;
};

class RequestParser {
 public:
  enum class Event : uint8_t { kNeedMore, kHead, kRequest, kError };

  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  void Append(absl::string_view bytes);
  // What comes next: kHead, then kRequest, once for each request. After kError it stays kError.
  Event Advance();

  // What is known of the current request. Complete after kRequest.
  const HttpRequest& request() const;
  // After kRequest: the request. The next Advance begins another one, with the bytes that follow.
  HttpRequest Take();
  // After kError.
  const HttpError& error() const { return error_; }

  // Whether nothing of the next request has arrived.
  bool is_empty() const;
  // After kHead: whether a body follows, and whether the client waits for "100 Continue" before it sends it.
  bool has_body() const;
  bool wants_continue() const;
  // After kHead: whether the client skips responses such as "100 Continue". HTTP/1.0 does not know them.
  bool takes_interim_responses() const;
  // The memory that the bytes of requests take here.
  int64_t buffered_bytes() const;

 private:
  class Machine;  // of Boost.Beast
  Event Fail(int status, absl::string_view message);
  Event AdvanceHead();
  Event ParseHead(absl::string_view head);
  Event AdvanceBody();

  const HttpLimits limits_;
  std::unique_ptr<Machine> machine_;  // of the current request
  std::string pending_;               // bytes that are not parsed, from `begin_` on
  size_t begin_ = 0;
  size_t scanned_ = 0;  // bytes of an incomplete head that are checked
  HttpError error_;
  bool failed_ = false;
};

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_WIRE_REQUEST_PARSER_H_
