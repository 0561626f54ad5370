#include "serving/grpc/grpc_server.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "aqt/core/status_macros.h"
#include "grpc/grpc.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "grpcpp/support/byte_buffer.h"
#include "serving/grpc/grpc_api.h"
#include "serving/http/api/http_api.h"
#include "serving/http/wire/cancellation.h"
#include "serving/http/wire/listen.h"
#include "serving/http/wire/workers.h"

namespace aqt::serving {
namespace {

// How often deadlines and the end of the server are looked at.
constexpr int kTickMs = 100;
// Calls of one connection at a time. A client waits with more.
constexpr int kMaxStreams = 128;

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// The connections that were accepted. gRPC does not tell when it closes one, but the inode of a socket is never reused.
class Connections {
 public:
  // Whether there is room for one more from `remote`.
  bool HasRoom(const HttpServerOptions& options, const std::string& remote) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto closed = [](const Connection& connection) { return InodeOf(connection.fd) != connection.inode; };
    all_.erase(std::remove_if(all_.begin(), all_.end(), closed), all_.end());
    if (static_cast<int64_t>(all_.size()) >= options.max_connections) return false;
    if (options.max_connections_per_address == 0) return true;
    const auto same = [group = AddressGroup(remote)](const Connection& c) { return AddressGroup(c.remote) == group; };
    return std::count_if(all_.begin(), all_.end(), same) < options.max_connections_per_address;
  }
  void Add(int fd, std::string remote) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back({fd, InodeOf(fd), std::move(remote)});
  }
  // The address of the client of a peer such as "fd:7".
  std::string RemoteOf(absl::string_view peer) const {
    int fd = -1;
    if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &fd)) return "";
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto last = std::find_if(all_.rbegin(), all_.rend(), [&](const Connection& c) { return c.fd == fd; });
    return last == all_.rend() ? "" : last->remote;
  }

 private:
  struct Connection {
    int fd;
    ino_t inode;
    std::string remote;
  };
  static ino_t InodeOf(int fd) {
    struct stat info = {};
    return fstat(fd, &info) == 0 ? info.st_ino : 0;
  }
  mutable std::mutex mutex_;
  std::vector<Connection> all_;
};

std::string AddressText(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "";
  const auto* base = reinterpret_cast<const sockaddr*>(&address);
  if (getnameinfo(base, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

class Service final : public grpc::CallbackGenericService {
 public:
  Service(const HttpServerOptions& options, const ApiContext& context) : options_(options), context_(context) {}

  absl::Status Start() { return workers_.Start(options_.threads); }
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
  // Ends calls whose clients take too long.
  void Tick();
  // Ends streams that wait for a message. No other one begins to.
  void BeginStop();
  Connections& connections() { return connections_; }

 private:
  class Call;
  // What a call waits for from its client: its request, the next one of a stream, or that it reads the answer.
  enum Wait : uint8_t { kRequest, kNextRequest, kReading };
  // Begins to wait. False if too many calls wait for that.
  bool Enter(Call* call);
  // Ends it. Does nothing if it does not wait.
  void Leave(Call* call);
  // Whether answers that clients have not read take as much memory as they may.
  bool is_full() const { return unread_bytes_ > options_.max_buffered_bytes; }

  const HttpServerOptions& options_;
  const ApiContext& context_;
  Connections connections_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::array<std::unordered_set<Call*>, 3> waiting_;  // guarded by mutex_; the calls of each Wait
  std::atomic<int64_t> unread_bytes_{0};
  Workers workers_;  // last: their jobs use the rest
};

// One call. It is deleted by OnDone, after Finish or the client's end. A stream answers one message after the other.
class Service::Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(Service& service, grpc::GenericCallbackServerContext& context)
      : service_(service),
        context_(context),
        method_(FindGrpcMethod(context.method())),
        remote_(service.connections_.RemoteOf(context.peer())),
        path_(context.method()) {}

  void Begin() {
    if (absl::Status status = Check(); !status.ok()) return End(status);
    Read();
  }

  void OnReadDone(bool ok) override {
    service_.Leave(this);
    if (!ok && stream()) return End(absl::OkStatus());  // the client has sent all, or its time is over
    if (!ok) return End(absl::InvalidArgumentError("the call has no request, or it did not arrive in time"));
    if (!stream()) begin_ = absl::Now();
    if (method_->traits.quick) return Run();
    if (service_.is_full()) {
      return Respond(absl::ResourceExhaustedError("the server has no memory left for more requests; try again later"));
    }
    if (service_.workers_.waiting() >= service_.options_.max_queue) {
      return Respond(absl::ResourceExhaustedError(
          absl::StrCat("the queue is full: ", service_.options_.max_queue, " requests wait; try again later")));
    }
    service_.workers_.Add([this] { Run(); });
  }
  // Only of streams.
  void OnWriteDone(bool ok) override {
    EndResponse();
    if (!ok) return End(NobodyWaits());
    Read();
  }
  void OnCancel() override { cancellation_.Cancel(); }
  void OnDone() override {
    EndResponse();
    service_.context_.Record({.remote = remote_,
                              .method = "POST",
                              .path = path_,
                              .route = method_ == nullptr ? "other" : method_->name,
                              .grpc_code = absl::StatusCodeToString(status_.code()),
                              .bytes_in = bytes_in_,
                              .bytes_out = bytes_out_,
                              .duration = absl::Now() - begin_});
    delete this;
  }

  bool stream() const { return method_->traits.stream; }
  // Only while it waits.
  Wait wait() const { return wait_; }
  bool IsLate(absl::Time now) const { return now > deadline_; }
  void Abandon() { context_.TryCancel(); }

 private:
  static absl::Status NobodyWaits() { return absl::CancelledError("the client does not wait for the answer"); }

  // Before the request is read.
  absl::Status Check() const {
    if (method_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("there is no method ", path_));
    }
    const std::string& key = service_.context_.options.api_key;
    if (key.empty() || method_->traits.anyone) return absl::OkStatus();
    const auto fields = context_.client_metadata().equal_range("authorization");
    for (auto it = fields.first; it != fields.second; ++it) {
      if (HasBearerKey({it->second.data(), it->second.size()}, key)) return absl::OkStatus();
    }
    return absl::UnauthenticatedError("a key is needed: the metadata authorization: Bearer KEY");
  }

  bool BeginWait(Wait wait, absl::Duration timeout) {
    wait_ = wait;
    deadline_ = absl::Now() + timeout;
    return service_.Enter(this);
  }

  void Read() {
    const HttpServerOptions& options = service_.options_;
    if (!(stream() ? BeginWait(kNextRequest, options.idle_timeout) : BeginWait(kRequest, options.body_timeout))) {
      return End(service_.stopping_
                     ? absl::UnavailableError("the server ends")
                     : absl::ResourceExhaustedError("the server reads as many requests as it may; try again later"));
    }
    StartRead(&request_);
  }

  void Run() {
    absl::StatusOr<std::string> response = NobodyWaits();
    try {
      if (!cancellation_.cancelled()) response = Answer();
    } catch (const std::bad_alloc&) {
      response = absl::ResourceExhaustedError("the server is out of memory; try again later");
    } catch (const std::exception&) {
      response = absl::InternalError("");
    }
    Respond(std::move(response));
  }

  // Nothing of this object may be used after it.
  void Respond(absl::StatusOr<std::string> response) {
    request_.Clear();
    if (!response.ok() && stream()) response = StreamError(response.status());
    if (!response.ok()) return End(response.status());
    unread_bytes_ = static_cast<int64_t>(response->size());
    bytes_out_ += unread_bytes_;
    service_.unread_bytes_ += unread_bytes_;
    BeginWait(kReading, service_.options_.write_timeout);
    const grpc::Slice slice(*response);
    response_ = grpc::ByteBuffer(&slice, 1);
    if (stream()) return StartWrite(&response_);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void EndResponse() {
    service_.Leave(this);
    service_.unread_bytes_ -= std::exchange(unread_bytes_, 0);
  }

  absl::StatusOr<std::string> Answer() {
    bytes_in_ += static_cast<int64_t>(request_.Length());
    grpc::Slice slice;
    if (!request_.DumpToSingleSlice(&slice).ok()) return absl::InternalError("");
    ApiContext context = service_.context_;
    const auto deadline = context_.deadline();
    context.call = {.deadline = deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                                         : absl::FromChrono(deadline),
                    .cancellation = &cancellation_};
    return method_->run(context, service_.stopping_, {reinterpret_cast<const char*>(slice.begin()), slice.size()});
  }

  // Nothing of this object may be used after it.
  void End(const absl::Status& status) {
    status_ = PublicStatus(status);
    Finish(ToGrpc(status_));
  }

  Service& service_;
  grpc::GenericCallbackServerContext& context_;
  const GrpcMethod* const method_;
  const std::string remote_, path_;
  grpc::ByteBuffer request_, response_;
  Cancellation cancellation_;
  Wait wait_ = kRequest;
  absl::Time begin_ = absl::Now(), deadline_;
  absl::Status status_;
  int64_t bytes_in_ = 0, bytes_out_ = 0, unread_bytes_ = 0;
};

bool Service::Enter(Call* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unordered_set<Call*>& calls = waiting_[call->wait()];
  const int64_t count = static_cast<int64_t>(calls.size());
  if (call->wait() == kRequest && count >= options_.max_queue + options_.threads) return false;
  if (call->wait() == kNextRequest && (stopping_ || count >= options_.max_connections)) return false;
  calls.insert(call);
  return true;
}

void Service::Leave(Call* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_[call->wait()].erase(call);
}

void Service::Tick() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const absl::Time now = absl::Now();
  for (const std::unordered_set<Call*>& calls : waiting_) {
    for (Call* call : calls) {
      if (call->IsLate(now)) call->Abandon();
    }
  }
}

void Service::BeginStop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
  for (Call* call : waiting_[kNextRequest]) call->Abandon();
}

grpc::ServerGenericBidiReactor* Service::CreateReactor(grpc::GenericCallbackServerContext* context) {
  auto* call = new Call(*this, *context);
  call->Begin();
  return call;
}

class GrpcServer final : public ProtocolServer {
 public:
  GrpcServer(const HttpServerOptions& options, const ApiContext& context, Listener listener)
      : options_(options), context_(context), listener_(std::move(listener)), service_(options_, context_) {}
  ~GrpcServer() override { CloseListener(); }

  absl::Status Start();
  std::string address() const override { return listener_.address; }
  void Run(const std::atomic<bool>* interrupted) override;

 private:
  bool AcceptOne();
  void CloseListener() {
    if (listener_.fd >= 0) close(std::exchange(listener_.fd, -1));
  }

  const HttpServerOptions options_;
  const ApiContext context_;
  Listener listener_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

absl::Status GrpcServer::Start() {
  AQT_RETURN_IF_ERROR(service_.Start());
  const auto milliseconds = [](absl::Duration d) { return static_cast<int>(absl::ToInt64Milliseconds(d)); };
  grpc::ServerBuilder builder;
  builder.RegisterCallbackGenericService(&service_);
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::min<int64_t>(options_.limits.body_bytes, INT32_MAX)));
  builder.SetResourceQuota(grpc::ResourceQuota("aqt").Resize(static_cast<size_t>(options_.max_buffered_bytes)));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options_.limits.head_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, milliseconds(options_.idle_timeout));
  // A client whose machine is gone does not answer pings.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(options_.idle_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds(options_.head_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             milliseconds(options_.head_timeout));
  // A small compressed message could have any size.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC cannot start a server");
  return absl::OkStatus();
}

// Whether there may be more.
bool GrpcServer::AcceptOne() {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  const int fd = accept4(listener_.fd, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return errno == EINTR || errno == ECONNABORTED;
  std::string remote = AddressText(address, size);
  if (!service_.connections().HasRoom(options_, remote)) {
    close(fd);
    return true;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  service_.connections().Add(fd, std::move(remote));
  grpc::AddInsecureChannelFromFd(server_.get(), fd);
  return true;
}

void GrpcServer::Run(const std::atomic<bool>* interrupted) {
  while (interrupted == nullptr || !interrupted->load(std::memory_order_relaxed)) {
    pollfd state = {.fd = listener_.fd, .events = POLLIN, .revents = 0};
    if (poll(&state, 1, kTickMs) > 0) {
      while (AcceptOne()) {
      }
      // After an error such as too many open files there is still a client to accept.
      if (errno != EAGAIN && errno != EWOULDBLOCK) poll(nullptr, 0, kTickMs);
    }
    service_.Tick();
  }
  while (AcceptOne()) {
  }
  CloseListener();
  service_.BeginStop();
  // What waits is answered by then, or has its own deadline.
  server_->Shutdown(absl::ToChronoTime(absl::Now() + options_.body_timeout + context_.options.timeout));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProtocolServer>> ListenGrpc(const HttpServerOptions& options,
                                                           const ApiContext& context) {
  AQT_ASSIGN_OR_RETURN(Listener listener, Listen(options.host, options.port, "--grpc-port"));
  auto server = std::make_unique<GrpcServer>(options, context, std::move(listener));
  AQT_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace aqt::serving
