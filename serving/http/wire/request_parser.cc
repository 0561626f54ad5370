#include "serving/http/wire/request_parser.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "boost/asio/buffer.hpp"
#include "boost/beast/http/basic_parser.hpp"
#include "boost/beast/http/error.hpp"

namespace aqt::serving {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using beast::error_code;

absl::string_view View(beast::string_view text) { return absl::string_view(text.data(), text.size()); }

// Why the bytes of a head are refused whatever they mean; empty if they are not. Those before `from` are checked
// already. Beast unfolds folded lines.
absl::string_view HeadProblem(absl::string_view head, size_t from) {
  for (size_t i = from; i < head.size(); ++i) {
    const char before = i == 0 ? ' ' : head[i - 1];
    if (head[i] == '\0') return "the head has a NUL byte";
    if (head[i] == '\n' && before != '\r') return "a line of the head ends in LF without CR";
    if (head[i] != '\n' && before == '\r') return "a line of the head has a CR without LF";
    if ((head[i] == ' ' || head[i] == '\t') && before == '\n') {
      return "a line of the head begins with white space; folded fields are not accepted";
    }
  }
  return "";
}

// The path and the query of a target: "/path?query", or "http://host/path?query". What is wrong with it; empty if
// nothing is.
absl::string_view SplitTarget(HttpRequest& request) {
  absl::string_view rest = request.target;
  if (absl::StartsWithIgnoreCase(rest, "http://") || absl::StartsWithIgnoreCase(rest, "https://")) {
    rest.remove_prefix(rest.find("//") + 2);
    const size_t slash = rest.find('/');
    rest = slash == absl::string_view::npos ? absl::string_view("/") : rest.substr(slash);
    request.target = std::string(rest);
    rest = request.target;
  }
  if (!absl::StartsWith(rest, "/")) return "the request target is not a path that begins with '/'";
  if (const size_t mark = rest.find('?'); mark != absl::string_view::npos) {
    request.query = std::string(rest.substr(mark + 1));
    rest = rest.substr(0, mark);
  }
  absl::ConsumeSuffix(&rest, "/");
  if (rest.empty()) return "";
  for (const absl::string_view part : absl::StrSplit(rest.substr(1), '/')) {
    if (!PercentDecode(part, &request.path.emplace_back())) {
      return "the path has a '%' without two hexadecimal digits, or %00";
    }
  }
  return "";
}

constexpr absl::string_view kBareLf = "a line of the chunks ends in LF without CR";

// Why more bytes cannot help Beast, which waits for the end of a chunk's line or of the trailers; empty if they can.
absl::string_view WhyStuck(absl::string_view rest) {
  absl::ConsumePrefix(&rest, "\r\n");  // of the chunk before
  for (size_t lf = rest.find('\n'); lf != absl::string_view::npos; lf = rest.find('\n', lf + 1)) {
    if (lf == 0 || rest[lf - 1] != '\r') return kBareLf;
  }
  if (!absl::StrContains(rest, "\r\n")) return "";
  const size_t digit = rest.find_first_not_of('0');
  const bool last = digit > 0 && !absl::ascii_isxdigit(rest[digit]);
  if (last && !absl::StrContains(rest, "\r\n\r\n")) return "";
  // Beast looks for the end of its quoted text in the lines that follow, and counts the chunk again each time.
  return "an extension of a chunk does not end in its line";
}

// Whether the request line is well formed, with any version: "GET / HTTP/2.0".
bool HasOtherVersion(absl::string_view head) {
  const std::vector<absl::string_view> parts = absl::StrSplit(head.substr(0, head.find("\r\n")), ' ');
  if (parts.size() != 3 || parts[2].size() != 8) return false;
  return absl::StartsWith(parts[2], "HTTP/") && absl::ascii_isdigit(parts[2][5]) && parts[2][6] == '.' &&
         absl::ascii_isdigit(parts[2][7]);
}

int Count(const HttpRequest& request, absl::string_view name) {
  return static_cast<int>(std::count_if(request.fields.begin(), request.fields.end(),
                                        [&](const auto& field) { return field.first == name; }));
}

// Whether a value has only the characters of a host and a port (RFC 3986).
bool IsHost(absl::string_view value) {
  return std::all_of(value.begin(), value.end(),
                     [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-._~%!$&'()*+,;=:[]", c); });
}

// What is wrong with the fields of a head; the status is 200 if nothing is.
HttpError FieldsProblem(const HttpRequest& request, int version) {
  const int lengths = Count(request, "content-length"), encodings = Count(request, "transfer-encoding");
  if (lengths > 0 && encodings > 0) return {400, "Content-Length and Transfer-Encoding exclude each other"};
  if (lengths > 1) return {400, "there are several Content-Length fields, expected one"};
  if (lengths == 1 && !std::all_of(request.Find("content-length")->begin(), request.Find("content-length")->end(),
                                   absl::ascii_isdigit)) {
    return {400, "Content-Length is not one decimal number"};
  }
  if (encodings > 1 || (encodings == 1 && !absl::EqualsIgnoreCase(*request.Find("transfer-encoding"), "chunked"))) {
    return {501, "the only Transfer-Encoding that is accepted is chunked"};
  }
  if (encodings > 0 && version < 11) return {400, "HTTP/1.0 has no Transfer-Encoding"};
  const int hosts = Count(request, "host");
  if (hosts > 1 || (hosts == 0 && version >= 11)) {
    return {400, absl::StrCat("there are ", hosts, " Host fields, expected one")};
  }
  if (hosts == 1 && !IsHost(*request.Find("host"))) return {400, "Host is not the name or address of a host"};
  if (const std::string* encoding = request.Find("content-encoding");
      encoding != nullptr && !absl::EqualsIgnoreCase(*encoding, "identity")) {
    return {415, "compressed bodies are not accepted; send the body without Content-Encoding"};
  }
  if (const std::string* expect = request.Find("expect");
      expect != nullptr && !absl::EqualsIgnoreCase(*expect, "100-continue")) {
    return {417, "the only Expect that is accepted is 100-continue"};
  }
  return {200, ""};
}

}  // namespace

// Fills a request from the events of Beast's parser, which checks the grammar of each line and the lengths of bodies.
class RequestParser::Machine final : public http::basic_parser</*isRequest=*/true> {
 public:
  explicit Machine(const HttpLimits& limits) : limits_(limits) {
    header_limit(static_cast<std::uint32_t>(std::min<int64_t>(limits.head_bytes, 1 << 30)));
    body_limit(static_cast<std::uint64_t>(limits.body_bytes));
    eager(true);
  }

  HttpRequest request;
  HttpError problem{200, ""};  // of the head
  bool has_body = false;
  bool wants_continue = false;
  int version() const { return version_; }  // 11: HTTP/1.1

 private:
  void on_request_impl(http::verb, beast::string_view method, beast::string_view target, int version,
                       error_code& ec) override {
    request.method = std::string(View(method));
    request.target = std::string(View(target));
    version_ = version;
    if (const absl::string_view why = SplitTarget(request); !why.empty()) Stop({400, std::string(why)}, ec);
  }

  void on_field_impl(http::field, beast::string_view name, beast::string_view value, error_code& ec) override {
    if (head_done_) return;  // a trailer
    request.fields.emplace_back(absl::AsciiStrToLower(View(name)), std::string(View(value)));
    if (static_cast<int>(request.fields.size()) > limits_.head_fields) {
      Stop({431, absl::StrCat("the head has more than ", limits_.head_fields, " fields")}, ec);
    }
  }

  void on_header_impl(error_code& ec) override {
    head_done_ = true;
    request.keep_alive = keep_alive();
    if (HttpError found = FieldsProblem(request, version_); found.status != 200) return Stop(std::move(found), ec);
    has_body = chunked() || (content_length().has_value() && *content_length() > 0);
    wants_continue = has_body && version_ >= 11 && request.Find("expect") != nullptr;
  }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(beast::string_view body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  // Beast takes LF in quoted text. While it waits for the rest of the line, WhyStuck refuses it.
  void on_chunk_header_impl(std::uint64_t, beast::string_view extensions, error_code& ec) override {
    if (absl::StrContains(View(extensions), '\n')) Stop({400, std::string(kBareLf)}, ec);
  }
  std::size_t on_chunk_body_impl(std::uint64_t, beast::string_view body, error_code&) override {
    request.body.append(body.data(), body.size());
    return body.size();
  }
  void on_finish_impl(error_code&) override {}
  void on_response_impl(int, beast::string_view, int, error_code&) override {}

  void Stop(HttpError why, error_code& ec) {
    problem = std::move(why);
    ec = http::error::bad_value;
  }

  const HttpLimits& limits_;
  int version_ = 11;
  bool head_done_ = false;
};

RequestParser::RequestParser(const HttpLimits& limits)
    : limits_(limits), machine_(std::make_unique<Machine>(limits_)) {}
RequestParser::~RequestParser() = default;

void RequestParser::Append(absl::string_view bytes) {
  pending_.erase(0, begin_);
  begin_ = 0;
  pending_.append(bytes.data(), bytes.size());
}

const HttpRequest& RequestParser::request() const { return machine_->request; }
bool RequestParser::is_empty() const { return begin_ == pending_.size() && !machine_->got_some(); }
bool RequestParser::has_body() const { return machine_->has_body; }
bool RequestParser::wants_continue() const { return machine_->wants_continue && begin_ == pending_.size(); }
bool RequestParser::takes_interim_responses() const { return machine_->version() >= 11; }
int64_t RequestParser::buffered_bytes() const {
  return static_cast<int64_t>(pending_.capacity() + machine_->request.body.capacity());
}

HttpRequest RequestParser::Take() {
  HttpRequest request = std::move(machine_->request);
  machine_ = std::make_unique<Machine>(limits_);
  return request;
}

RequestParser::Event RequestParser::Fail(int status, absl::string_view message) {
  failed_ = true;
  error_ = {status, std::string(message)};
  return Event::kError;
}

RequestParser::Event RequestParser::Advance() {
  if (failed_) return Event::kError;
  return machine_->is_header_done() ? AdvanceBody() : AdvanceHead();
}

// The head is only parsed as a whole, but what is wrong with its bytes is noticed at once: a client that ends its lines
// in bare LF would never send the end.
RequestParser::Event RequestParser::AdvanceHead() {
  // Empty lines before a request are ignored (RFC 9112, 2.2).
  while (scanned_ <= 1 && absl::StartsWith(absl::string_view(pending_).substr(begin_), "\r\n")) {
    begin_ += 2;
    scanned_ = 0;
  }
  const absl::string_view rest = absl::string_view(pending_).substr(begin_);
  const size_t end = rest.find("\r\n\r\n", scanned_ > 3 ? scanned_ - 3 : 0);
  const bool complete = end != absl::string_view::npos;
  const absl::string_view head = complete ? rest.substr(0, end + 4) : rest;
  if (static_cast<int64_t>(head.size()) > limits_.head_bytes) {
    const bool long_line = !absl::StrContains(head.substr(0, static_cast<size_t>(limits_.head_bytes)), '\n');
    return Fail(long_line ? 414 : 431, absl::StrCat(long_line ? "the request line" : "the head of the request",
                                                    " is longer than ", limits_.head_bytes, " bytes"));
  }
  if (const absl::string_view problem = HeadProblem(head, scanned_); !problem.empty()) return Fail(400, problem);
  scanned_ = rest.size();
  return complete ? ParseHead(head) : Event::kNeedMore;
}

RequestParser::Event RequestParser::ParseHead(absl::string_view head) {
  scanned_ = 0;
  error_code ec;
  machine_->eager(false);
  begin_ += machine_->put(boost::asio::buffer(head.data(), head.size()), ec);
  if (machine_->problem.status != 200) return Fail(machine_->problem.status, machine_->problem.message);
  if (ec == http::error::body_limit) {
    return Fail(413, absl::StrCat("the body is longer than ", limits_.body_bytes, " bytes"));
  }
  if (ec == http::error::bad_version) {
    return Fail(HasOtherVersion(head) ? 505 : 400, "the request line does not end in HTTP/1.1 or HTTP/1.0");
  }
  if (ec || !machine_->is_header_done()) return Fail(400, absl::StrCat("the head is not HTTP/1.1: ", ec.message()));
  machine_->eager(true);
  return Event::kHead;
}

RequestParser::Event RequestParser::AdvanceBody() {
  if (machine_->is_done()) return Event::kRequest;
  // A body in chunks ends in at least five bytes, "0\r\n\r\n", which Beast takes together. With fewer, an assertion of
  // its debug build fails.
  const size_t least = machine_->chunked() ? 5 : 1;
  while (pending_.size() - begin_ >= least) {
    // No more at once than may be left over below, so that a long line is refused however it arrives.
    const absl::string_view next =
        absl::string_view(pending_).substr(begin_, std::max(static_cast<size_t>(limits_.head_bytes), least));
    error_code ec;
    const size_t used = machine_->put(boost::asio::buffer(next.data(), next.size()), ec);
    begin_ += used;
    if (machine_->problem.status != 200) return Fail(machine_->problem.status, machine_->problem.message);
    if (machine_->is_done()) return Event::kRequest;
    if (ec == http::error::body_limit) {
      return Fail(413, absl::StrCat("the body is longer than ", limits_.body_bytes, " bytes"));
    }
    if (ec && ec != http::error::need_more) {
      return Fail(400, absl::StrCat("the chunks of the body are not HTTP/1.1: ", ec.message()));
    }
    if (used > 0) continue;
    if (!machine_->chunked()) break;
    const absl::string_view why = WhyStuck(next);
    if (!why.empty()) return Fail(400, why);
    break;
  }
  // What is left is a line of a chunk, or the trailers.
  if (static_cast<int64_t>(pending_.size() - begin_) > limits_.head_bytes) {
    return Fail(400,
                absl::StrCat("a line of the chunks, or the trailers, are longer than ", limits_.head_bytes, " bytes"));
  }
  return Event::kNeedMore;
}

}  // namespace aqt::serving
