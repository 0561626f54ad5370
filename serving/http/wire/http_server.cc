#include "serving/http/wire/http_server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "aqt/core/status_macros.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/write.hpp"
#include "serving/http/wire/listen.h"
#include "serving/http/wire/workers.h"

namespace aqt::serving {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using boost::system::error_code;

// What a client may still send after a refusal, so that it can read the response instead of a reset.
constexpr int64_t kMaxLingerBytes = int64_t{64} << 20;
constexpr absl::Duration kLingerTimeout = absl::Seconds(2);
constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr int kClientClosedRequest = 499;

HttpError NoMemory() { return {503, "the server has no memory left for more requests; try again later"}; }

std::string Date(absl::Time now) { return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", now, absl::UTCTimeZone()); }

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpServerOptions& options, HttpHandler& handler)
      : options_(options), handler_(handler), acceptor_(io_), timer_(io_) {}

  absl::Status Listen();
  void Run(const std::atomic<bool>* interrupted);
  void Stop() { stop_asked_.store(true, std::memory_order_relaxed); }
  bool stopping() const { return stop_asked_.load(std::memory_order_relaxed); }
  HttpServerStats stats() const;
  int port() const { return port_; }
  const std::string& url() const { return url_; }

 private:
  class Connection;

  // Whether requests and responses take as much memory as they may.
  bool is_full() const { return buffered_bytes_ > options_.max_buffered_bytes; }
  // How often deadlines are checked.
  Clock::duration TickLength() const;
  void Accept();
  bool IsClientWaiting();
  bool CloseOne(const std::string* group);
  void Admit(tcp::socket socket);
  void Forget(const std::shared_ptr<Connection>& connection);
  void Tick(const std::atomic<bool>* interrupted);
  void BeginStop();
  void EndIfDone();

  const HttpServerOptions options_;
  HttpHandler& handler_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  int port_ = 0;
  std::string url_;
  asio::steady_timer timer_;
  absl::flat_hash_set<std::shared_ptr<Connection>> connections_;
  absl::flat_hash_map<std::string, int> of_group_;  // how many of connections_ an AddressGroup has
  std::array<char, 64 << 10> read_buffer_;          // all connections read on one thread
  bool accepting_ = false, stopping_ = false;
  Clock::time_point idle_end_;  // when idle connections are closed, after stopping_
  std::atomic<bool> stop_asked_{false};
  std::atomic<int64_t> num_connections_{0}, accepted_{0}, refused_{0}, running_{0}, buffered_bytes_{0};
  Workers workers_;  // last: their jobs use the rest
};

// A client. Everything runs on the thread of the sockets, except HttpHandler::Handle.
class HttpServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), parser_(std::in_place, server.options_.limits) {
    error_code ec;
    if (const tcp::endpoint remote = socket_.remote_endpoint(ec); !ec) remote_ = remote.address().to_string();
    group_ = AddressGroup(remote_);
    socket_.non_blocking(true, ec);
    socket_.set_option(tcp::no_delay(true), ec);
    Enter(Phase::kIdle, server.options_.idle_timeout);
  }

  // A handler may outlive Close.
  ~Connection() { server_.buffered_bytes_ -= counted_bytes_; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start() { Read(); }
  // Whether nothing is lost if it is closed.
  bool expendable() const { return phase_ == Phase::kIdle || phase_ == Phase::kLingering; }
  Clock::time_point deadline() const { return deadline_; }
  const std::string& group() const { return group_; }
  void OnTick(Clock::time_point now);
  void Close();
  // Refuses the next request before it was read.
  void Refuse(const HttpError& error) {
    unread_ = true;
    Respond(server_.handler_.Refuse(parser_->request(), error), /*keep_alive=*/false);
  }

 private:
  enum class Phase : uint8_t { kIdle, kHead, kBody, kHandling, kWriting, kLingering };

  void Enter(Phase phase, absl::Duration timeout) {
    phase_ = phase;
    deadline_ = timeout == absl::InfiniteDuration() ? Clock::time_point::max()
                                                    : Clock::now() + absl::ToChronoNanoseconds(timeout);
  }
  bool reading() const { return phase_ != Phase::kHandling && phase_ != Phase::kWriting; }

  void Read();
  void OnReadable();
  void Advance();
  bool OnHead();  // whether to go on
  void Dispatch();
  void RunHandler();
  void CheckClient();
  void Respond(HttpResponse response, bool keep_alive);
  void OnWritten(const error_code& ec);
  void Linger();
  void CountBuffered();

  Impl& server_;
  tcp::socket socket_;
  std::string remote_, group_;
  std::optional<RequestParser> parser_;
  Phase phase_ = Phase::kIdle;
  Clock::time_point deadline_;
  bool waiting_ = false;  // for the socket to become readable
  HttpResponse response_;
  std::string response_head_;
  bool keep_alive_ = false;
  bool unread_ = false;                         // the client may still send what nobody will read
  std::shared_ptr<Cancellation> cancellation_;  // of the request that is handled
  bool probed_ = false;                         // whether CheckClient has written to the client
  Clock::time_point request_begin_;
  int64_t bytes_in_ = 0, counted_bytes_ = 0, lingered_bytes_ = 0;
};

void HttpServer::Impl::Connection::Close() {
  error_code ec;
  socket_.close(ec);
  server_.buffered_bytes_ -= std::exchange(counted_bytes_, 0);
  server_.Forget(shared_from_this());
  server_.EndIfDone();
}

void HttpServer::Impl::Connection::OnTick(Clock::time_point now) {
  if (server_.stopping_ && phase_ == Phase::kIdle && now >= server_.idle_end_) {
    // A request that has arrived, but was not read yet, is answered.
    error_code ec;
    if (socket_.available(ec) == 0 || ec) return Close();
  }
  if (phase_ == Phase::kHandling) return CheckClient();
  if (now < deadline_) return;
  switch (phase_) {
    case Phase::kHead: return Refuse({408, "the head of the request did not arrive in time"});
    case Phase::kBody: return Refuse({408, "the body of the request did not arrive in time"});
    default: return Close();
  }
}

void HttpServer::Impl::Connection::Read() {
  if (std::exchange(waiting_, true)) return;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& ec) {
    self->waiting_ = false;
    if (!self->socket_.is_open()) return;
    if (ec) return self->Close();
    if (self->reading()) self->OnReadable();
  });
}

void HttpServer::Impl::Connection::OnReadable() {
  error_code ec;
  const size_t n = socket_.read_some(asio::buffer(server_.read_buffer_), ec);
  if (ec == asio::error::would_block) return Read();
  if (ec == asio::error::eof && (phase_ == Phase::kHead || phase_ == Phase::kBody)) {
    return Refuse({400, "the request ends too early"});
  }
  if (ec) return Close();
  if (phase_ == Phase::kLingering) {
    lingered_bytes_ += static_cast<int64_t>(n);
    return lingered_bytes_ > kMaxLingerBytes ? Close() : Read();
  }
  if (phase_ == Phase::kIdle) Enter(Phase::kHead, server_.options_.head_timeout);
  parser_->Append(absl::string_view(server_.read_buffer_.data(), n));
  Advance();
}

// What it holds of its request and of its response.
void HttpServer::Impl::Connection::CountBuffered() {
  const int64_t now = parser_->buffered_bytes() + static_cast<int64_t>(response_.body.capacity());
  server_.buffered_bytes_ += now - std::exchange(counted_bytes_, now);
}

void HttpServer::Impl::Connection::Advance() {
  for (;;) {
    switch (parser_->Advance()) {
      case RequestParser::Event::kNeedMore: CountBuffered(); return server_.is_full() ? Refuse(NoMemory()) : Read();
      case RequestParser::Event::kHead:
        if (!OnHead()) return;
        break;
      case RequestParser::Event::kRequest: return Dispatch();
      case RequestParser::Event::kError: return Refuse(parser_->error());
    }
  }
}

bool HttpServer::Impl::Connection::OnHead() {
  Enter(Phase::kBody, server_.options_.body_timeout);
  if (std::optional<HttpResponse> refusal = server_.handler_.CheckHead(parser_->request()); refusal.has_value()) {
    const bool complete = !parser_->has_body() && parser_->Advance() == RequestParser::Event::kRequest;
    unread_ = !complete;
    Respond(*std::move(refusal), complete && parser_->request().keep_alive);
    return false;
  }
  if (!parser_->wants_continue()) return true;
  error_code ec;
  if (socket_.write_some(asio::buffer(kContinue.data(), kContinue.size()), ec) == kContinue.size()) return true;
  Close();  // the client sends, and does not read
  return false;
}

void HttpServer::Impl::Connection::Dispatch() {
  bytes_in_ = static_cast<int64_t>(parser_->request().body.size());
  request_begin_ = Clock::now();
  if (server_.handler_.IsQuick(parser_->request())) {
    Cancellation never;
    return Respond(server_.handler_.Handle(parser_->request(), never), parser_->request().keep_alive);
  }
  if (server_.workers_.waiting() >= server_.options_.max_queue) {
    return Respond(server_.handler_.Refuse(parser_->request(),
                                           {429, absl::StrCat("the queue is full: ", server_.options_.max_queue,
                                                              " requests wait; try again later")}),
                   parser_->request().keep_alive);
  }
  CountBuffered();
  // Answers that clients do not read count, too.
  if (server_.is_full()) {
    return Respond(server_.handler_.Refuse(parser_->request(), NoMemory()), parser_->request().keep_alive);
  }
  Enter(Phase::kHandling, absl::InfiniteDuration());
  cancellation_ = std::make_shared<Cancellation>();
  probed_ = false;
  ++server_.running_;
  server_.workers_.Add([self = shared_from_this()] { self->RunHandler(); });
}

// On a worker's thread. The connection's thread does not touch the request meanwhile.
void HttpServer::Impl::Connection::RunHandler() {
  HttpResponse response;
  try {
    if (!cancellation_->cancelled()) response = server_.handler_.Handle(parser_->request(), *cancellation_);
  } catch (const std::bad_alloc&) {
    response = server_.handler_.Refuse(parser_->request(), {503, "the server is out of memory; try again later"});
  } catch (const std::exception&) {
    response = server_.handler_.Refuse(parser_->request(), {500, "the server has an internal error"});
  }
  // Nobody reads it; logs and metrics show it.
  if (cancellation_->cancelled()) response.status = kClientClosedRequest;
  asio::post(server_.io_, [self = shared_from_this(), answer = std::move(response)]() mutable {
    --self->server_.running_;
    self->Respond(std::move(answer), self->parser_->request().keep_alive);
  });
}

// Cancels the request if its client is gone. A client that has only ended its side waits for the answer. The two look
// the same until something is written: an interim response, which every client of HTTP/1.1 skips, is answered with a
// reset by the system of a client that is gone.
void HttpServer::Impl::Connection::CheckClient() {
  pollfd state = {.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  if (poll(&state, 1, 0) <= 0) return;
  if ((state.revents & (POLLERR | POLLHUP)) != 0) return cancellation_->Cancel();
  if (std::exchange(probed_, true) || !parser_->takes_interim_responses()) return;
  error_code ec;
  const size_t n = socket_.write_some(asio::buffer(kContinue.data(), kContinue.size()), ec);
  if (n == kContinue.size()) return;
  // It has not read earlier answers.
  cancellation_->Cancel();
  Close();
}

void HttpServer::Impl::Connection::Respond(HttpResponse response, bool keep_alive) {
  if (phase_ != Phase::kHandling) request_begin_ = Clock::now();
  keep_alive_ = keep_alive && !server_.stopping_;
  response_ = std::move(response);
  response_head_ = ResponseHead(response_, Date(absl::Now()), keep_alive_);
  if (parser_->request().method == "HEAD") response_.body.clear();
  CountBuffered();
  Enter(Phase::kWriting, server_.options_.write_timeout);
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(response_head_), asio::buffer(response_.body)};
  asio::async_write(socket_, buffers,
                    [self = shared_from_this()](const error_code& ec, size_t) { self->OnWritten(ec); });
}

void HttpServer::Impl::Connection::OnWritten(const error_code& ec) {
  server_.handler_.Record({.request = parser_->request(),
                           .status = response_.status,
                           .remote = remote_,
                           .bytes_in = std::exchange(bytes_in_, 0),
                           .bytes_out = static_cast<int64_t>(response_.body.size()),
                           .duration = absl::FromChrono(Clock::now() - request_begin_)});
  std::string().swap(response_.body);  // assigning an empty string would keep the memory
  if (!socket_.is_open()) return;
  if (ec) return Close();
  if (!keep_alive_) return Linger();
  parser_->Take();
  CountBuffered();
  if (parser_->is_empty()) {
    if (server_.stopping_) return Close();
    Enter(Phase::kIdle, server_.options_.idle_timeout);
    return Read();
  }
  Enter(Phase::kHead, server_.options_.head_timeout);
  Advance();
}

// Closes after the client has read the response: closing with unread bytes would reset the connection.
void HttpServer::Impl::Connection::Linger() {
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (ec || (!unread_ && socket_.available(ec) == 0)) return Close();
  parser_.emplace(server_.options_.limits);  // frees what was read
  CountBuffered();
  Enter(Phase::kLingering, kLingerTimeout);
  Read();
}

absl::Status HttpServer::Impl::Listen() {
  AQT_ASSIGN_OR_RETURN(const Listener listener, serving::Listen(options_.host, options_.port, "--port"));
  error_code ec;
  acceptor_.assign(listener.v6 ? tcp::v6() : tcp::v4(), listener.fd, ec);
  if (!ec) acceptor_.non_blocking(true, ec);  // Asio remembers it of each object
  if (ec) return absl::InternalError(absl::StrCat("cannot use the socket: ", ec.message()));
  port_ = listener.port;
  url_ = absl::StrCat("http://", listener.address);
  return workers_.Start(options_.threads);
}

Clock::duration HttpServer::Impl::TickLength() const {
  const absl::Duration shortest =
      std::min({options_.head_timeout, options_.body_timeout, options_.idle_timeout, options_.write_timeout});
  return absl::ToChronoNanoseconds(std::clamp(shortest / 4, absl::Milliseconds(5), absl::Milliseconds(100)));
}

void HttpServer::Impl::Accept() {
  if (accepting_ || stopping_) return;
  accepting_ = true;
  acceptor_.async_accept([this](const error_code& ec, tcp::socket socket) {
    accepting_ = false;
    if (ec) {
      // An idle client makes room for a file. After another error the next tick tries again.
      const bool no_files =
          ec == asio::error::no_descriptors || ec == boost::system::errc::too_many_files_open_in_system;
      if (no_files && IsClientWaiting() && CloseOne(nullptr)) Accept();
      return;
    }
    Admit(std::move(socket));
    Accept();
  });
}

// Whether a client waits to be accepted. The system refuses a file even if there is none.
bool HttpServer::Impl::IsClientWaiting() {
  pollfd state = {.fd = acceptor_.native_handle(), .events = POLLIN, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

// Makes room: the client whose time without a request ends first; of a group, if there is one. False if there is none.
bool HttpServer::Impl::CloseOne(const std::string* group) {
  std::shared_ptr<Connection> first;
  for (const std::shared_ptr<Connection>& connection : connections_) {
    if (!connection->expendable() || (group != nullptr && connection->group() != *group)) continue;
    if (first == nullptr || connection->deadline() < first->deadline()) first = connection;
  }
  if (first != nullptr) first->Close();
  return first != nullptr;
}

void HttpServer::Impl::Admit(tcp::socket socket) {
  ++accepted_;
  const auto connection = std::make_shared<Connection>(*this, std::move(socket));
  const std::string group = connection->group();
  const int most = options_.max_connections;
  const int most_of_group = options_.max_connections_per_address > 0 ? options_.max_connections_per_address : INT32_MAX;
  const auto of_group = [&] {
    const auto it = of_group_.find(group);
    return it == of_group_.end() ? 0 : it->second;
  };
  while (of_group() >= most_of_group && CloseOne(&group)) {
  }
  while (num_connections_ >= most && CloseOne(nullptr)) {
  }
  const bool full = num_connections_ >= most, group_is_full = of_group() >= most_of_group;
  if (full || group_is_full) ++refused_;
  // Refusals take a connection, too; beyond twice the limit there is none left for them.
  if (num_connections_ >= 2 * most || of_group() / 2 >= most_of_group) return;
  connections_.insert(connection);
  ++num_connections_;
  ++of_group_[group];
  if (group_is_full) {
    return connection->Refuse(
        {429, absl::StrCat("your address has ", most_of_group, " connections already; close one, or try again later")});
  }
  if (full) return connection->Refuse({503, absl::StrCat("the server has ", most, " connections; try again later")});
  connection->Start();
}

void HttpServer::Impl::Forget(const std::shared_ptr<Connection>& connection) {
  if (connections_.erase(connection) == 0) return;
  --num_connections_;
  const auto it = of_group_.find(connection->group());
  if (--it->second == 0) of_group_.erase(it);
}

void HttpServer::Impl::Tick(const std::atomic<bool>* interrupted) {
  if (interrupted != nullptr && interrupted->load(std::memory_order_relaxed)) Stop();
  if (stop_asked_ && !stopping_) BeginStop();
  const Clock::time_point now = Clock::now();
  const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const std::shared_ptr<Connection>& connection : all) connection->OnTick(now);
  Accept();
  EndIfDone();
  if (stopping_ && connections_.empty()) return;
  timer_.expires_after(TickLength());
  timer_.async_wait([this, interrupted](const error_code& ec) {
    if (!ec) Tick(interrupted);
  });
}

// Clients that the kernel has accepted already are answered.
void HttpServer::Impl::BeginStop() {
  error_code ec;
  for (;;) {
    tcp::socket socket(io_);
    acceptor_.accept(socket, ec);
    if (ec) break;
    Admit(std::move(socket));
  }
  acceptor_.close(ec);
  stopping_ = true;
  idle_end_ = Clock::now() + TickLength();
}

void HttpServer::Impl::EndIfDone() {
  if (stopping_ && connections_.empty()) io_.stop();
}

void HttpServer::Impl::Run(const std::atomic<bool>* interrupted) {
  asio::post(io_, [this, interrupted] { Tick(interrupted); });
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::bad_alloc&) {
      // What one request needed. Its connection ends with its deadline.
    }
  }
}

HttpServerStats HttpServer::Impl::stats() const {
  return {.connections = num_connections_,
          .accepted_connections = accepted_,
          .refused_connections = refused_,
          .queue = workers_.waiting(),
          .running = running_ - workers_.waiting(),
          .queue_limit = options_.max_queue,
          .buffered_bytes = buffered_bytes_};
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options, HttpHandler& handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  AQT_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }
std::string HttpServer::url() const { return impl_->url(); }
void HttpServer::Run(const std::atomic<bool>* interrupted) { impl_->Run(interrupted); }
void HttpServer::Stop() { impl_->Stop(); }
bool HttpServer::stopping() const { return impl_->stopping(); }
HttpServerStats HttpServer::stats() const { return impl_->stats(); }

}  // namespace aqt::serving
