// Requests in one piece and cut anywhere, and what is refused. Exact.

#include "serving/http/wire/request_parser.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt::serving {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Event = RequestParser::Event;

struct Parsed {
  std::vector<HttpRequest> requests;
  HttpError error{0, ""};  // that ended the parse
  bool rest = false;       // bytes of another request are left
};

// Appends `step` bytes at a time.
Parsed Parse(const std::string& bytes, size_t step, const HttpLimits& limits = {}) {
  RequestParser parser(limits);
  Parsed out;
  for (size_t i = 0; i < bytes.size(); i += step) {
    parser.Append(absl::string_view(bytes).substr(i, step));
    for (bool more = true; more;) {
      switch (parser.Advance()) {
        case Event::kNeedMore: more = false; break;
        case Event::kHead: break;
        case Event::kRequest: out.requests.push_back(parser.Take()); break;
        case Event::kError: out.error = parser.error(); return out;
      }
    }
  }
  out.rest = !parser.is_empty();
  return out;
}

constexpr char kHead[] = "POST /v1/embeddings HTTP/1.1\r\nHost: a\r\n";

TEST(RequestParser, RequestsHoweverTheyAreCut) {
  const std::string bytes = absl::StrCat(
      "GET /v2/models/org%2Fm%20x/ready?a=%20b&c HTTP/1.1\r\nHost: a\r\nX-One:  two words \t\r\n\r\n", kHead,
      "Content-Length: 5\r\n\r\nhello\r\n", kHead,
      "Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00a;name=\"value\"\r\n0123456789\r\n0\r\nX-Trailer: t\r\nHost: "
      "b\r\n\r\n",
      "HEAD http://host:80/healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "GET / HTTP/1.0\r\n\r\n");
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{64}, bytes.size()}) {
    SCOPED_TRACE(step);
    const Parsed parsed = Parse(bytes, step);
    ASSERT_EQ(parsed.error.status, 0) << parsed.error.message;
    ASSERT_EQ(parsed.requests.size(), 5u);
    EXPECT_FALSE(parsed.rest);
    const HttpRequest& first = parsed.requests[0];
    EXPECT_EQ(first.method, "GET");
    EXPECT_EQ(first.path_text(), "/v2/models/org%2Fm%20x/ready");
    EXPECT_THAT(first.path, ElementsAre("v2", "models", "org/m x", "ready"));
    EXPECT_EQ(first.query, "a=%20b&c");
    EXPECT_THAT(first.fields, ElementsAre(Pair("host", "a"), Pair("x-one", "two words")));
    EXPECT_TRUE(first.keep_alive);
    EXPECT_EQ(parsed.requests[1].body, "hello");
    EXPECT_EQ(parsed.requests[2].body, "abc0123456789");
    EXPECT_EQ(*parsed.requests[2].Find("host"), "a") << "trailers are ignored";
    EXPECT_EQ(parsed.requests[2].Find("x-trailer"), nullptr);
    EXPECT_EQ(parsed.requests[3].method, "HEAD");
    EXPECT_THAT(parsed.requests[3].path, ElementsAre("healthz"));
    EXPECT_FALSE(parsed.requests[3].keep_alive);
    EXPECT_THAT(parsed.requests[4].path, ElementsAre());
    EXPECT_FALSE(parsed.requests[4].keep_alive) << "HTTP/1.0";
  }
}

struct Hostile {
  std::string what, bytes;
  int status;
  std::string message = "";
};

std::vector<Hostile> HostileForms() {
  const std::string head = kHead;
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  const auto get = [](absl::string_view fields) { return absl::StrCat("GET / HTTP/1.1\r\n", fields, "\r\n"); };
  return {
      {"length and chunks", head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunks and length", head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
      {"length and other encoding", head + "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n\r\nhello", 400},
      {"two lengths", head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400},
      {"two equal lengths", head + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, "several"},
      {"list of lengths", head + "Content-Length: 5, 5\r\n\r\nhello", 400, "not one decimal number"},
      {"signed length", head + "Content-Length: +5\r\n\r\nhello", 400},
      {"negative length", head + "Content-Length: -5\r\n\r\nhello", 400},
      {"hexadecimal length", head + "Content-Length: 0x5\r\n\r\nhello", 400},
      {"length of a fraction", head + "Content-Length: 5.0\r\n\r\nhello", 400},
      {"empty length", head + "Content-Length: \r\n\r\nhello", 400},
      {"length that overflows", head + "Content-Length: 18446744073709551621\r\n\r\nhello", 400},
      {"large length", head + "Content-Length: 18446744073709551615\r\n\r\nhello", 413},
      {"encoding other than chunked", head + "Transfer-Encoding: identity\r\n\r\nhello", 501, "chunked"},
      {"encoding with a lookalike", head + "Transfer-Encoding: xchunked\r\n\r\nhello", 501},
      {"encoding in quotes", head + "Transfer-Encoding: \"chunked\"\r\n\r\nhello", 501},
      {"two encodings", head + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {"chunked twice", head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunked and identity", head + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       501},
      {"chunks of HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.0"},
      {"space before a colon", head + "Content-Length : 5\r\n\r\nhello", 400},
      {"space in a name", head + "Content Length: 5\r\n\r\nhello", 400},
      {"folded field", head + "X-A: b\r\n c\r\n\r\n", 400, "folded"},
      {"folded length", head + "Content-Length:\r\n\t5\r\n\r\nhello", 400, "folded"},
      {"folded first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400, "folded"},
      {"bare LF after the request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", 400, "LF without CR"},
      {"bare LF after a field", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400, "LF without CR"},
      {"bare LF at the end", "GET / HTTP/1.1\r\nHost: a\r\n\n", 400, "LF without CR"},
      {"bare CR in a field", "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", 400, "CR without LF"},
      {"NUL in a field", get(absl::string_view("Host: a\0b\r\n", 11)), 400, "NUL"},
      {"control character in a field", get("Host: a\x01\r\n"), 400},
      {"no colon", get("Host\r\n"), 400},
      {"empty name", get(": a\r\n"), 400},
      {"no host", get(""), 400, "0 Host fields"},
      {"two hosts", get("Host: a\r\nHost: b\r\n"), 400, "2 Host fields"},
      {"host with a path", get("Host: a/b\r\n"), 400, "Host is not"},
      {"host with a space", get("Host: a b\r\n"), 400, "Host is not"},
      {"compressed body", head + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415, "Content-Encoding"},
      {"compressed twice", head + "Content-Encoding: identity, br\r\nContent-Length: 1\r\n\r\nx", 415},
      {"other expectation", head + "Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx", 417},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"HTTP/0.9", "GET /\r\n\r\n", 400},
      {"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
      {"two spaces", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"space at the end of the line", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
      {"no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"target without a slash", "GET v1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "begins with '/'"},
      {"CONNECT", "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"bad escape", "GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "two hexadecimal digits"},
      {"escaped NUL", "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15), 400},
      {"chunk size with 0x", chunked + "0x5\r\nhello\r\n0\r\n\r\n", 400},
      {"chunk size with a sign", chunked + "+5\r\nhello\r\n0\r\n\r\n", 400},
      {"negative chunk size", chunked + "-5\r\nhello\r\n0\r\n\r\n", 400},
      {"space before a chunk size", chunked + " 5\r\nhello\r\n0\r\n\r\n", 400},
      {"space after a chunk size", chunked + "5 \r\nhello\r\n0\r\n\r\n", 400},
      {"no chunk size", chunked + "\r\nhello\r\n0\r\n\r\n", 400},
      {"chunk size that overflows", chunked + "10000000000000005\r\nhello\r\n0\r\n\r\n", 400},
      {"large chunk", chunked + "ffffffffffffffff\r\nhello\r\n0\r\n\r\n", 413},
      {"bare LF after a chunk size", chunked + "5\nhello\r\n0\r\n\r\n", 400},
      {"bare LF in an extension", chunked + "5;a\nb\r\nhello\r\n0\r\n\r\n", 400},
      {"line break in an extension", chunked + "5;a=\"b\r\nhello\r\n0\r\n\r\n", 400},
      {"line break in the last extension", chunked + "0;a=\"b\r\n\r\n\"\r\n\r\n", 400},
      {"chunk longer than its size", chunked + "5\r\nhello!\r\n0\r\n\r\n", 400},
      {"bare LF after a chunk's size", chunked + "5\nhello\n0\n\n", 400, "LF without CR"},
      {"bare LF after the last chunk", chunked + "5\r\nhello\r\n0\n\n", 400, "LF without CR"},
      {"bare LF in quoted text", chunked + "5;a=\"b\nc\"\r\nhello\r\n0\r\n\r\n", 400, "LF without CR"},
      {"bare LF in the trailers", chunked + "0\r\nX: 1\n\n", 400},
      {"bare LF after a chunk", chunked + "5\r\nhello\n0\r\n\r\n", 400},
      {"bad trailer", chunked + "0\r\nno colon\r\n\r\n", 400},
      {"length in the trailers", chunked + "0\r\nContent-Length: 5\r\n\r\n", 400},
  };
}

TEST(RequestParser, HostileFormsAreRefused) {
  for (const Hostile& form : HostileForms()) {
    for (const size_t step : {size_t{1}, form.bytes.size()}) {
      SCOPED_TRACE(absl::StrCat(form.what, ", ", step, " bytes at a time"));
      const Parsed parsed = Parse(form.bytes, step);
      EXPECT_EQ(parsed.error.status, form.status) << parsed.error.message;
      EXPECT_THAT(parsed.error.message, HasSubstr(form.message));
      EXPECT_TRUE(parsed.requests.empty());
    }
  }
}

TEST(RequestParser, Limits) {
  const HttpLimits limits = {.head_bytes = 200, .head_fields = 4, .body_bytes = 10};
  const std::string head = kHead;
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  const auto status = [&](const std::string& bytes) {
    const int whole = Parse(bytes, bytes.size(), limits).error.status;
    EXPECT_EQ(Parse(bytes, 1, limits).error.status, whole);
    return whole;
  };
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(168, 'x') + "\r\n\r\n"), 0) << "200 bytes";
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(169, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status("GET /" + std::string(300, 'x')), 414);
  EXPECT_EQ(status("GET /" + std::string(300, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n"), 414) << "at once, or bit by bit";
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nB: b\r\nC: c\r\nD: d\r\n\r\n"), 0);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nHost: a\r\nB: b\r\nC: c\r\nD: d\r\nE: e\r\n\r\n"), 431);
  EXPECT_EQ(status(head + "Content-Length: 10\r\n\r\n0123456789"), 0);
  EXPECT_EQ(status(head + "Content-Length: 11\r\n\r\n"), 413);
  EXPECT_EQ(status(chunked + "5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n"), 0);
  EXPECT_EQ(status(chunked + "5\r\nhello\r\n6\r\nhello!\r\n0\r\n\r\n"), 413);
  EXPECT_EQ(status(chunked + "5;" + std::string(300, 'x')), 400) << "an extension without end";
  EXPECT_EQ(status(chunked + "0\r\nX: " + std::string(300, 'x')), 400) << "trailers without end";
  for (int length = 180; length < 210; ++length) {  // at once, or bit by bit
    const std::string x(length, 'x');
    EXPECT_EQ(status(chunked + "1;" + x + "\r\na\r\n0\r\n\r\n"), 2 + x.size() + 2 > 200 ? 400 : 0) << length;
    EXPECT_EQ(status(chunked + "0\r\nX: " + x + "\r\n\r\n"), 3 + 3 + x.size() + 4 > 200 ? 400 : 0) << length;
    EXPECT_EQ(status(chunked + "1\r\na\r\n0\r\nX: " + x + "\r\n\r\n"), 5 + 3 + x.size() + 4 > 200 ? 400 : 0) << length;
  }
}

TEST(RequestParser, WhoWaitsForContinue) {
  const auto waits = [](const std::string& bytes) {
    RequestParser parser(HttpLimits{});
    parser.Append(bytes);
    EXPECT_EQ(parser.Advance(), Event::kHead);
    return parser.wants_continue();
  };
  const std::string head = kHead;
  EXPECT_TRUE(waits(head + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
  EXPECT_FALSE(waits(head + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nh")) << "the body is coming already";
  EXPECT_FALSE(waits(head + "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"));
  EXPECT_FALSE(waits("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"));
  EXPECT_FALSE(waits(head + "Content-Length: 5\r\n\r\n"));
}

TEST(RequestParser, WhatIsIncompleteWaits) {
  for (const char* bytes : {"", "GET", "GET / HTTP/1.1\r\nHost: a\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r"}) {
    const Parsed parsed = Parse(bytes, 1);
    EXPECT_EQ(parsed.error.status, 0) << bytes;
    EXPECT_TRUE(parsed.requests.empty());
    EXPECT_EQ(parsed.rest, *bytes != '\0') << bytes;
  }
}

}  // namespace
}  // namespace aqt::serving
