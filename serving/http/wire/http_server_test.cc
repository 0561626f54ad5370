// The server over real sockets: what clients do, what they do wrong, and its end. Exact.

#include "serving/http/wire/http_server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/http/wire/http_client_testing.h"
#include "serving/http/wire/listen.h"

namespace aqt::serving {
namespace {

using ::testing::HasSubstr;

// Echoes bodies. "/wait" waits until Open; "/quick" runs on the thread of the sockets.
class EchoHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> CheckHead(const HttpRequest& head) override {
    if (head.path_text() != "/forbidden") return std::nullopt;
    return HttpResponse{.status = 403, .body = "no"};
  }
  bool IsQuick(const HttpRequest& request) override { return request.path_text() == "/quick"; }
  HttpResponse Handle(const HttpRequest& request, Cancellation& cancellation) override {
    if (request.path_text() == "/until-cancelled") {
      std::unique_lock<std::mutex> lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      bool cancelled = false;
      lock.unlock();
      cancellation.SetHook([&] {
        const std::lock_guard<std::mutex> hook_lock(mutex_);
        cancelled = true;
        changed_.notify_all();
      });
      lock.lock();
      changed_.wait(lock, [&] { return cancelled; });
      --waiting_;
      lock.unlock();
      cancellation.SetHook(nullptr);
    }
    if (request.path_text() == "/wait") {
      std::unique_lock<std::mutex> lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
      --waiting_;
    }
    if (request.path_text() == "/throw") throw std::bad_alloc();
    if (request.path_text() == "/large") return {.body = std::string(16 << 20, 'x')};
    return {.body = absl::StrCat(request.method, " ", request.target, " ", request.body)};
  }
  HttpResponse Refuse(const HttpRequest&, const HttpError& error) override {
    return {.status = error.status, .body = error.message};
  }
  void Record(const HttpRecord& record) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    statuses_.push_back(record.status);
    changed_.notify_all();
  }
  void AwaitStatuses(const std::vector<int>& statuses) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return statuses_ == statuses; });
  }

  void ForgetStatuses() {
    const std::lock_guard<std::mutex> lock(mutex_);
    statuses_.clear();
  }
  void AwaitWaiting(int n) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == n; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  std::vector<int> statuses() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return statuses_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
  std::vector<int> statuses_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}) {
    absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Listen(options, handler_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  void TearDown() override {
    handler_.Open();
    if (server_ == nullptr) return;
    server_->Stop();
    thread_.join();
  }
  int port() const { return server_->port(); }

  EchoHandler handler_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

TEST_F(HttpServerTest, ManyRequestsOnOneConnection) {
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Post("/a", "one").body, "POST /a one");
  const ClientResponse quick = client.Get("/quick");
  EXPECT_EQ(quick.body, "GET /quick ");
  EXPECT_EQ(quick.Field("connection"), "keep-alive");
  EXPECT_EQ(quick.Field("content-type"), "application/json");
  EXPECT_THAT(quick.Field("date"), HasSubstr(" GMT"));
  const std::string chunked = "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  client.Send("POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char byte : chunked) client.Send(std::string(1, byte));
  EXPECT_EQ(client.Read().body, "POST /c abcde");
  EXPECT_EQ(client.Get("/throw").status, 503);
  EXPECT_EQ(client.Get("/large").body.size(), 16u << 20);
  client.Send("GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().Field("connection"), "close");
  EXPECT_TRUE(client.IsClosed());
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  TestClient client(port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    const char* path = i % 3 == 0 ? "/quick" : "/slow";
    absl::StrAppend(&all, "POST ", path, i, " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxy");
  }
  client.Send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.Read().body, absl::StrCat("POST ", i % 3 == 0 ? "/quick" : "/slow", i, " xy"));
  }
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  Start();
  TestClient client(port());
  client.Send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.Read(/*head=*/true).Field("content-length"), "8") << "HEAD /a and a space";
  EXPECT_EQ(client.Read().body, "GET /b ");
}

TEST_F(HttpServerTest, AHalfClosedClientIsAnswered) {
  Start();
  TestClient client(port());
  client.Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
  client.HalfClose();
  EXPECT_EQ(client.Read().body, "POST /a x");
  EXPECT_TRUE(client.IsClosed());
  for (const char* part : {"POST /a HT", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"}) {
    TestClient early(port());
    early.Send(part);
    early.HalfClose();
    const ClientResponse response = early.Read();
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(response.body, "the request ends too early");
    EXPECT_TRUE(early.IsClosed());
  }
}

TEST_F(HttpServerTest, AClientThatGoesAwayCancelsItsRequest) {
  Start({.threads = 1});
  constexpr char kRequest[] = "GET /until-cancelled HTTP/1.1\r\nHost: a\r\n\r\n";
  auto closed = std::make_unique<TestClient>(port());
  closed->Send(kRequest);
  handler_.AwaitWaiting(1);
  closed = nullptr;
  handler_.AwaitStatuses({499});
  TestClient reset(port());
  reset.Send(kRequest);
  handler_.AwaitWaiting(1);
  reset.Reset();
  handler_.AwaitStatuses({499, 499});
  // One that waits for a thread is not handled at all.
  TestClient running(port());
  running.Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.AwaitWaiting(1);
  auto queued = std::make_unique<TestClient>(port());
  queued->Send("GET /throw HTTP/1.1\r\nHost: a\r\n\r\n");
  while (server_->stats().queue < 1) std::this_thread::yield();
  queued->Reset();
  // The second answer comes from a later look at all clients than the first.
  TestClient half(port()), later(port());
  for (TestClient* client : {&half, &later}) {
    client->Send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    client->HalfClose();
    ASSERT_TRUE(client->AwaitContinue()) << "the server asks a client that has ended its side whether it is there";
  }
  handler_.Open();
  EXPECT_EQ(running.Read().status, 200);
  EXPECT_EQ(half.Read().body, "GET /a ");
  EXPECT_EQ(half.continues(), 1);
  EXPECT_EQ(later.Read().body, "GET /a ");
  handler_.AwaitStatuses({499, 499, 200, 499, 200, 200});
}

TEST_F(HttpServerTest, AnOldClientThatEndsItsSideIsAnsweredOnce) {
  Start();
  TestClient client(port());
  client.Send("GET /wait HTTP/1.0\r\nHost: a\r\n\r\n");
  handler_.AwaitWaiting(1);
  client.HalfClose();
  TestClient other(port());
  other.Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.AwaitWaiting(2);
  other.HalfClose();
  ASSERT_TRUE(other.AwaitContinue());
  handler_.Open();
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.continues(), 0) << "HTTP/1.0 has no interim responses";
}

TEST(Cancellation, RunsItsHookOnce) {
  int runs = 0;
  Cancellation first;
  first.SetHook([&] { ++runs; });
  EXPECT_FALSE(first.cancelled());
  first.Cancel();
  first.Cancel();
  EXPECT_TRUE(first.cancelled());
  EXPECT_EQ(runs, 1);
  Cancellation second;
  second.Cancel();
  second.SetHook([&] { ++runs; });
  EXPECT_EQ(runs, 2) << "it was cancelled before";
  Cancellation third;
  third.SetHook([&] { ++runs; });
  third.SetHook(nullptr);
  third.Cancel();
  EXPECT_EQ(runs, 2) << "the hook was taken back";
}

TEST_F(HttpServerTest, ContinueIsSentOnlyForARequestThatIsWanted) {
  Start();
  TestClient client(port());
  client.Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  std::thread sender([&] { client.Send("xy"); });
  EXPECT_EQ(client.Read().body, "POST /a xy");
  sender.join();
  TestClient refused(port());
  refused.Send("POST /forbidden HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(refused.Read().status, 403);
  EXPECT_EQ(refused.continues(), 0);
  EXPECT_TRUE(refused.IsClosed()) << "its body would be taken for a request";
}

TEST_F(HttpServerTest, ARefusedRequestWithoutBodyKeepsTheConnection) {
  Start();
  TestClient client(port());
  EXPECT_EQ(client.Get("/forbidden").status, 403);
  EXPECT_EQ(client.Get("/a").status, 200);
}

TEST_F(HttpServerTest, ARefusalCanBeReadAfterALargeBody) {
  Start({.limits = {.body_bytes = 1 << 20}});
  TestClient client(port());
  client.Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n");
  client.Send(std::string(4000000, 'x'));
  EXPECT_EQ(client.Read().status, 413);
}

// A reset would take away the response of a client that sends first and reads later.
TEST_F(HttpServerTest, ABodyThatFollowsARefusalIsRead) {
  Start({.limits = {.body_bytes = 1 << 20}});
  for (const char* request : {"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n",
                              "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n"}) {
    TestClient client(port());
    client.Send(request);
    handler_.AwaitStatuses({413});
    EXPECT_TRUE(client.Send(std::string(4000000, 'x')));
    EXPECT_EQ(client.Read().status, 413);
    handler_.ForgetStatuses();
  }
}

TEST_F(HttpServerTest, AMalformedRequestEndsTheConnection) {
  Start();
  TestClient client(port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /quick HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.IsClosed()) << "what follows is not read";
}

TEST_F(HttpServerTest, TheQueueIsBounded) {
  Start({.threads = 2, .max_queue = 3});
  std::vector<std::unique_ptr<TestClient>> clients;
  const auto ask = [&] {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  };
  ask(), ask();
  handler_.AwaitWaiting(2);
  ask(), ask(), ask();
  while (server_->stats().queue < 3) std::this_thread::yield();
  TestClient extra(port());
  const ClientResponse full = extra.Get("/wait");
  EXPECT_EQ(full.status, 429);
  EXPECT_THAT(full.body, HasSubstr("3 requests wait"));
  EXPECT_EQ(extra.Get("/quick").status, 200) << "what does not compute is answered";
  handler_.Open();
  for (const auto& client : clients) EXPECT_EQ(client->Read().status, 200);
  EXPECT_EQ(extra.Get("/wait").status, 200);
}

TEST_F(HttpServerTest, SlowSendersAreEnded) {
  const absl::Duration shortly = absl::Milliseconds(30);
  Start({.head_timeout = shortly, .body_timeout = shortly, .idle_timeout = shortly});
  TestClient idle(port()), head(port()), body(port());
  head.Send("GET / HT");
  body.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe");
  EXPECT_EQ(head.Read().body, "the head of the request did not arrive in time");
  EXPECT_TRUE(head.IsClosed());
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(body.IsClosed());
  EXPECT_TRUE(idle.IsClosed());
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsEnded) {
  Start({.write_timeout = absl::Milliseconds(30)});
  TestClient client(port());
  for (int i = 0; i < 4; ++i) client.Send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
  while (handler_.statuses().empty() || server_->stats().connections > 0) std::this_thread::yield();
  int complete = 0;
  while (client.Read().status == 200) ++complete;
  EXPECT_LT(complete, 4);
}

TEST_F(HttpServerTest, ConnectionsAreBounded) {
  Start({.max_connections = 2});
  TestClient busy(port()), other(port());
  busy.Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  other.Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.AwaitWaiting(2);
  TestClient extra(port());
  const ClientResponse refused = extra.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("2 connections"));
  handler_.Open();
  EXPECT_EQ(busy.Read().status, 200);
  EXPECT_EQ(other.Read().status, 200);
  TestClient late(port());
  EXPECT_EQ(late.Get("/a").status, 200) << "idle clients make room";
}

TEST_F(HttpServerTest, ConnectionsOfAnAddressAreBounded) {
  Start({.max_connections_per_address = 2});
  TestClient busy(port()), sending(port());
  busy.Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.AwaitWaiting(1);
  sending.Send("GET /a");
  while (server_->stats().buffered_bytes == 0) std::this_thread::yield();
  TestClient extra(port());
  const ClientResponse refused = extra.Read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("has 2 connections"));
  EXPECT_EQ(server_->stats().refused_connections, 1);
  TestClient other(port(), "127.0.0.2");
  EXPECT_EQ(other.Get("/a").status, 200);
  handler_.Open();
  EXPECT_EQ(busy.Read().status, 200);
  TestClient late(port());
  EXPECT_EQ(late.Get("/a").status, 200) << "idle clients of the address make room";
  EXPECT_TRUE(busy.IsClosed());
  EXPECT_EQ(other.Get("/a").status, 200) << "those of another one stay";
  sending.Send(" HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(sending.Read().status, 200) << "and those that send";
}

// The files that the process may still open, for as long as it lives.
class FewFiles {
 public:
  FewFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int first = Take();
    SetLimit({.rlim_cur = static_cast<rlim_t>(first) + 2, .rlim_max = before_.rlim_max});
    while (Take() >= 0) {
    }
  }
  ~FewFiles() {
    SetLimit(before_);
    for (const int fd : taken_) close(fd);
  }
  void GiveOne() {
    close(taken_.back());
    taken_.pop_back();
  }
  static void SetLimit(const rlimit& limit) { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0); }

 private:
  int Take() {
    const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) taken_.push_back(fd);
    return fd;
  }
  rlimit before_ = {};
  std::vector<int> taken_;
};

TEST_F(HttpServerTest, AnIdleClientMakesRoomForAFile) {
  Start();
  TestClient idle(port());
  EXPECT_EQ(idle.Get("/a").status, 200);
  FewFiles files;
  files.GiveOne();
  TestClient late(port());
  ASSERT_TRUE(late.connected()) << "it has the last file, and the server needs one, too";
  EXPECT_EQ(late.Get("/a").status, 200);
  EXPECT_TRUE(idle.IsClosed());
}

TEST(ReserveFiles, RaisesTheLimitAsFarAsItMay) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  FewFiles::SetLimit({.rlim_cur = 80, .rlim_max = before.rlim_max});
  EXPECT_EQ(ReserveFiles(30), 30);
  rlimit after = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, 94);
  EXPECT_EQ(ReserveFiles(10), 10);
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, 94) << "it is not made smaller";
  FewFiles::SetLimit(before);
  const auto with_few = [] {
    FewFiles::SetLimit({.rlim_cur = 70, .rlim_max = 80});
    const bool right = ReserveFiles(1000) == 16 && ReserveFiles(16) == 16;
    FewFiles::SetLimit({.rlim_cur = 20, .rlim_max = 20});
    std::_Exit(right && ReserveFiles(1000) == 1 ? 0 : 1);
  };
  EXPECT_EXIT(with_few(), ::testing::ExitedWithCode(0), "");
}

TEST(AddressGroup, IsTheNetworkOfAHousehold) {
  EXPECT_EQ(AddressGroup("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(AddressGroup("::ffff:192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(AddressGroup("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(AddressGroup("2001:db8:1:2::9"), "2001:db8:1:2::/64");
  EXPECT_NE(AddressGroup("2001:db8:1:3::9"), "2001:db8:1:2::/64");
  EXPECT_EQ(AddressGroup("::1"), "::/64");
  EXPECT_EQ(AddressGroup(""), "");
}

TEST_F(HttpServerTest, BufferedBytesAreBounded) {
  Start({.max_buffered_bytes = 1 << 20});
  TestClient client(port());
  client.Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
  client.Send(std::string(3000000, 'x'));
  EXPECT_EQ(client.Read().status, 503);
  TestClient small(port());
  EXPECT_EQ(small.Post("/a", "x").status, 200);
}

TEST_F(HttpServerTest, AnswersThatNobodyReadsAreBounded) {
  Start({.max_buffered_bytes = 40 << 20});
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int64_t n = 1; n <= 3; ++n) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->Send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    while (server_->stats().buffered_bytes < n * (16 << 20)) std::this_thread::yield();
  }
  TestClient other(port());
  EXPECT_EQ(other.Get("/large").status, 503);
  EXPECT_EQ(other.Get("/quick").status, 200);
  for (const auto& client : clients) EXPECT_EQ(client->Read().status, 200);
  while (server_->stats().buffered_bytes > 40 << 20) std::this_thread::yield();
  EXPECT_EQ(other.Get("/large").status, 200);
}

TEST_F(HttpServerTest, ClientsThatGoAwayLeaveNothing) {
  Start();
  for (const char* part : {"", "GET", "GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "GET /large HTTP/1.1\r\nHost: a\r\n\r\n",
                           "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"}) {
    TestClient client(port());
    client.Send(part);
    client.Reset();
  }
  while (server_->stats().connections > 0) std::this_thread::yield();
  EXPECT_EQ(server_->stats().buffered_bytes, 0);
}

TEST_F(HttpServerTest, StopAnswersWhatWasAccepted) {
  Start({.threads = 1});
  TestClient running(port()), queued(port()), idle(port()), reading(port());
  running.Send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  handler_.AwaitWaiting(1);
  queued.Send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
  reading.Send("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx");
  while (server_->stats().queue < 1 || server_->stats().buffered_bytes == 0) std::this_thread::yield();
  server_->Stop();
  EXPECT_TRUE(idle.IsClosed());
  reading.Send("y");
  handler_.Open();
  EXPECT_EQ(running.Read().Field("connection"), "close");
  EXPECT_EQ(queued.Read().status, 200);
  EXPECT_EQ(reading.Read().body, "POST /b xy");
  thread_.join();
  EXPECT_EQ(server_->stats().connections, 0);
  EXPECT_FALSE(TestClient(port()).connected());
  thread_ = std::thread([] {});
}

TEST_F(HttpServerTest, AFlagStops) {
  std::atomic<bool> interrupted{true};
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Listen({}, handler_);
  ASSERT_TRUE(server.ok());
  (*server)->Run(&interrupted);
  EXPECT_TRUE((*server)->stopping());
}

TEST_F(HttpServerTest, WhereItCannotListen) {
  Start();
  const absl::Status taken = HttpServer::Listen({.port = port()}, handler_).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(taken.message(), HasSubstr(absl::StrCat("port ", port(), " of 127.0.0.1 is taken")));
  for (const char* host : {"example.com", "", "1.2.3", "127.0.0.1:80"}) {
    EXPECT_EQ(HttpServer::Listen({.host = host}, handler_).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(HttpServer::Listen({.host = "192.0.2.1"}, handler_).ok()) << "an address of another machine";
  EXPECT_EQ(server_->url(), absl::StrCat("http://127.0.0.1:", port()));
}

}  // namespace
}  // namespace aqt::serving
