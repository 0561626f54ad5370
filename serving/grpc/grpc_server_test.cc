// The server over sockets, with the client of gRPC itself.

#include "serving/grpc/grpc_server.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpc/grpc.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/sync_stream.h"
#include "gtest/gtest.h"
#include "serving/grpc/open_inference.pb.h"
#include "serving/http/api/http_api.h"
#include "serving/http/models/fake_model_testing.h"
#include "serving/http/wire/listen.h"

namespace aqt::serving {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;
using ::testing::HasSubstr;

constexpr char kService[] = "/inference.GRPCInferenceService/";

// A model whose texts wait: "wait" until Open, or until its client goes away.
class WaitingModel final : public ServedModel {
 public:
  WaitingModel() { info_.width = 1; }
  const ServedModelInfo& info() const override { return info_; }
  absl::StatusOr<std::vector<TextOutput>> RunTexts(absl::Span<const TextInput> texts,
                                                   const TextOptions& options) const override {
    bool cancelled = false;
    options.call.cancellation->SetHook([&] {
      const std::lock_guard<std::mutex> lock(mutex_);
      cancelled = true;
      changed_.notify_all();
    });
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_ || cancelled; });
      --waiting_;
      cancelled_ += cancelled ? 1 : 0;
      changed_.notify_all();
    }
    options.call.cancellation->SetHook(nullptr);
    return std::vector<TextOutput>(texts.size(), TextOutput{{1}, 1});
  }
  void AwaitWaiting(int n) const {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == n; });
  }
  void AwaitCancelled(int n) const {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_ == n; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  ServedModelInfo info_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0, cancelled_ = 0;
  bool open_ = false;
};

class GrpcServerTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}, ApiOptions api = {}) {
    std::vector<ModelSource> sources = {{"embed", ""}, {"wait", ""}};
    models_ = std::make_unique<ModelRepository>(
        sources, [this](const ModelSource& source) -> absl::StatusOr<std::shared_ptr<const ServedModel>> {
          if (source.name == "wait") return waiting_;
          return OpenFake(source);
        });
    ASSERT_TRUE(models_->LoadAll().ok());
    api_ = std::make_unique<HttpApi>(*models_, api, nullptr);
    absl::StatusOr<std::unique_ptr<ProtocolServer>> server = ListenGrpc(options, api_->context());
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(&interrupted_); });
    channel_ = NewChannel();
  }
  // With a connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments = {}) const {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  }
  void TearDown() override {
    waiting_->Open();
    interrupted_ = true;
    if (thread_.joinable()) thread_.join();
  }

  template <class Request, class Response>
  grpc::Status Call(grpc::ClientContext& context, const char* method, const Request& request, Response& response,
                    std::shared_ptr<grpc::Channel> channel = nullptr, bool wait = true) {
    context.set_wait_for_ready(wait);
    const std::string path = absl::StrCat(kService, method);
    return grpc::internal::BlockingUnaryCall<Request, Response, grpc::protobuf::MessageLite,
                                             grpc::protobuf::MessageLite>(
        (channel == nullptr ? channel_ : channel).get(),
        grpc::internal::RpcMethod(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC), &context, request, &response);
  }
  grpc::Status Infer(const ModelInferRequest& request, ModelInferResponse& response) {
    grpc::ClientContext context;
    return Call(context, "ModelInfer", request, response);
  }
  grpc::Status Live(std::shared_ptr<grpc::Channel> channel = nullptr) {
    grpc::ClientContext context;
    inference::ServerLiveResponse response;
    return Call(context, "ServerLive", inference::ServerLiveRequest(), response, channel);
  }

  const std::shared_ptr<WaitingModel> waiting_ = std::make_shared<WaitingModel>();
  std::unique_ptr<ModelRepository> models_;
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<ProtocolServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::atomic<bool> interrupted_{false};
  std::thread thread_;
};

ModelInferRequest Text(const std::string& model, const std::string& text) {
  ModelInferRequest request;
  request.set_model_name(model);
  auto& input = *request.add_inputs();
  input.set_name("text");
  input.set_datatype("BYTES");
  input.add_shape(1);
  input.mutable_contents()->add_bytes_contents(text);
  return request;
}

TEST_F(GrpcServerTest, AnswersAndErrors) {
  Start();
  ModelInferResponse response;
  ASSERT_TRUE(Infer(Text("embed", "abc"), response).ok());
  EXPECT_THAT(response.outputs(0).contents().fp32_contents(), ::testing::ElementsAre(3, 3, 0, 4));
  const auto code = [&](const std::string& text) { return Infer(Text("embed", text), response).error_code(); };
  EXPECT_EQ(code("busy"), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code("late"), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(code("a text of more than twenty bytes"), grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status bug = Infer(Text("embed", "bug"), response);
  EXPECT_EQ(bug.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(bug.error_message(), "the server has an internal error") << "no path";
  EXPECT_EQ(Infer(Text("gone", "a"), response).error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext context;
  const grpc::Status unknown = Call(context, "TraceSetting", ModelInferRequest(), response);
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(unknown.error_message(), HasSubstr("TraceSetting"));
  // A call is counted after its client has the answer.
  for (const char* count : {R"(aqt_grpc_requests_total{method="ModelInfer",code="OK"} 1)",
                            R"(aqt_grpc_requests_total{method="other",code="UNIMPLEMENTED"} 1)"}) {
    while (!absl::StrContains(api_->metrics().Page({}, {}), count)) std::this_thread::yield();
  }
}

TEST_F(GrpcServerTest, Key) {
  Start({}, {.api_key = "secret"});
  EXPECT_TRUE(Live().ok()) << "probes have no key";
  ModelInferResponse response;
  EXPECT_EQ(Infer(Text("embed", "abc"), response).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  for (const auto& [value, code] :
       {std::pair("Bearer secret", grpc::StatusCode::OK), std::pair("bearer secret", grpc::StatusCode::OK),
        std::pair("Bearer secrets", grpc::StatusCode::UNAUTHENTICATED),
        std::pair("secret", grpc::StatusCode::UNAUTHENTICATED)}) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", value);
    EXPECT_EQ(Call(context, "ModelInfer", Text("embed", "abc"), response).error_code(), code) << value;
  }
}

TEST_F(GrpcServerTest, LargeAndCompressedMessages) {
  HttpServerOptions options;
  options.limits.body_bytes = 10000;
  Start(options);
  ModelInferResponse response;
  const grpc::Status large = Infer(Text("embed", std::string(10000, 'x')), response);
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << large.error_message();
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const grpc::Status status = Call(context, "ModelInfer", Text("embed", std::string(5000, 'x')), response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
  EXPECT_TRUE(Infer(Text("embed", "abc"), response).ok());
}

TEST_F(GrpcServerTest, AClientThatGoesAwayCancelsItsRequest) {
  Start({.threads = 1});
  grpc::ClientContext context;
  ModelInferResponse response;
  std::thread client([&] {
    EXPECT_EQ(Call(context, "ModelInfer", Text("wait", "a"), response).error_code(), grpc::StatusCode::CANCELLED);
  });
  waiting_->AwaitWaiting(1);
  context.TryCancel();
  waiting_->AwaitCancelled(1);
  client.join();
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(Call(late, "ModelInfer", Text("wait", "a"), response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  waiting_->AwaitCancelled(2);
}

TEST_F(GrpcServerTest, AFullQueue) {
  Start({.threads = 1, .max_queue = 1});
  ModelInferResponse responses[3];
  std::thread running([&] { EXPECT_TRUE(Infer(Text("wait", "a"), responses[0]).ok()); });
  waiting_->AwaitWaiting(1);
  // One of these waits, and the other is refused at once.
  std::atomic<int> refused{0};
  std::vector<std::thread> more;
  for (int i = 1; i < 3; ++i) {
    more.emplace_back([&, i] {
      const grpc::Status status = Infer(Text("wait", "a"), responses[i]);
      if (status.ok()) return;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_THAT(status.error_message(), HasSubstr("the queue is full"));
      ++refused;
    });
  }
  while (refused == 0) std::this_thread::yield();
  EXPECT_TRUE(Live().ok()) << "even now";
  waiting_->Open();
  running.join();
  for (std::thread& thread : more) thread.join();
  EXPECT_EQ(refused, 1);
}

// A call that sends no message, or only a part, ends.
TEST_F(GrpcServerTest, ASlowSender) {
  Start({.body_timeout = absl::Milliseconds(50)});
  ASSERT_TRUE(Live().ok());
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, absl::StrCat(kService, "ModelInfer"), &queue);
  call->StartCall(reinterpret_cast<void*>(1));
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  grpc::Status status;
  call->Finish(&status, reinterpret_cast<void*>(2));
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Live().ok());
}

// A client of ModelStreamInfer.
class StreamClient {
 public:
  explicit StreamClient(const std::shared_ptr<grpc::Channel>& channel)
      : method_("/inference.GRPCInferenceService/ModelStreamInfer", grpc::internal::RpcMethod::BIDI_STREAMING),
        stream_(grpc::internal::ClientReaderWriterFactory<ModelInferRequest, ModelStreamInferResponse>::Create(
            channel.get(), method_, &context_)) {}
  bool Send(const ModelInferRequest& request) { return stream_->Write(request); }
  void HalfClose() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  // The next answer; an error message "end" at the end.
  ModelStreamInferResponse Read() {
    ModelStreamInferResponse response;
    if (!stream_->Read(&response)) response.set_error_message("end");
    return response;
  }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  grpc::ClientContext context_;
  const grpc::internal::RpcMethod method_;
  const std::unique_ptr<grpc::ClientReaderWriter<ModelInferRequest, ModelStreamInferResponse>> stream_;
};

TEST_F(GrpcServerTest, AStreamAnswersInOrder) {
  Start({.threads = 2});
  StreamClient stream(channel_);
  for (const char* text : {"a", "busy", "abc", "bug", "ab"}) {
    ModelInferRequest request = Text("embed", text);
    request.set_id(text);
    ASSERT_TRUE(stream.Send(request));
  }
  ASSERT_TRUE(stream.Send(Text("gone", "a")));
  stream.HalfClose();
  const auto expect = [&](const std::string& id, float first) {
    const ModelStreamInferResponse response = stream.Read();
    EXPECT_EQ(response.error_message(), "");
    EXPECT_EQ(response.infer_response().id(), id);
    ASSERT_EQ(response.infer_response().outputs_size(), 1);
    EXPECT_THAT(response.infer_response().outputs(0).contents().fp32_contents(),
                ::testing::ElementsAre(first, 3, 0, 4));
  };
  expect("a", 1);
  EXPECT_EQ(stream.Read().error_message(), "the engine's queue is full");
  expect("abc", 3);
  EXPECT_EQ(stream.Read().error_message(), "the server has an internal error");
  expect("ab", 2);
  EXPECT_EQ(stream.Read().error_message(), "The model `gone` does not exist");
  EXPECT_EQ(stream.Read().error_message(), "end");
  EXPECT_TRUE(stream.Finish().ok());
  StreamClient empty(channel_);
  empty.HalfClose();
  EXPECT_TRUE(empty.Finish().ok());
}

TEST_F(GrpcServerTest, AStreamThatIsCancelled) {
  Start();
  StreamClient stream(channel_);
  ASSERT_TRUE(stream.Send(Text("wait", "a")));
  waiting_->AwaitWaiting(1);
  stream.Cancel();
  waiting_->AwaitCancelled(1);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServerTest, StreamsWithoutRequestsEnd) {
  Start({.idle_timeout = absl::Milliseconds(50)});
  ASSERT_TRUE(Live().ok());
  StreamClient stream(channel_);
  EXPECT_EQ(stream.Read().error_message(), "end");
  EXPECT_FALSE(stream.Finish().ok());
}

TEST_F(GrpcServerTest, IdleStreamsDoNotKeepOthersOut) {
  Start({.threads = 1, .max_queue = 1});
  std::vector<std::unique_ptr<StreamClient>> streams;
  for (int i = 0; i < 5; ++i) {
    streams.push_back(std::make_unique<StreamClient>(channel_));
    ASSERT_TRUE(streams.back()->Send(Text("embed", "a")));
    EXPECT_EQ(streams.back()->Read().error_message(), "");
  }
  ModelInferResponse response;
  EXPECT_TRUE(Infer(Text("embed", "abc"), response).ok());
}

TEST_F(GrpcServerTest, AClientThatDoesNotReadIsEnded) {
  Start({.write_timeout = absl::Milliseconds(50)});
  ModelInferRequest request = Text("embed", "a");
  request.mutable_inputs(0)->set_shape(0, 2000);
  for (int i = 1; i < 2000; ++i) request.mutable_inputs(0)->mutable_contents()->add_bytes_contents("a");
  StreamClient stream(channel_);
  while (stream.Send(request)) {  // it waits when the server does not read any more
  }
  while (stream.Read().error_message() != "end") {
  }
  EXPECT_FALSE(stream.Finish().ok());
}

TEST_F(GrpcServerTest, StopEndsStreams) {
  Start();
  StreamClient idle(channel_), running(channel_);
  ASSERT_TRUE(idle.Send(Text("embed", "a")));
  EXPECT_EQ(idle.Read().error_message(), "");
  ASSERT_TRUE(running.Send(Text("wait", "a")));
  waiting_->AwaitWaiting(1);
  interrupted_ = true;
  EXPECT_EQ(idle.Read().error_message(), "end");
  EXPECT_FALSE(idle.Finish().ok());
  waiting_->Open();
  EXPECT_EQ(running.Read().error_message(), "") << "what has begun is answered";
  EXPECT_EQ(running.Read().error_message(), "end");
  EXPECT_EQ(running.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  thread_.join();
}

TEST_F(GrpcServerTest, StopAnswersWhatWasAccepted) {
  Start({.threads = 1});
  ModelInferResponse response;
  std::thread client([&] { EXPECT_TRUE(Infer(Text("wait", "a"), response).ok()); });
  waiting_->AwaitWaiting(1);
  interrupted_ = true;
  // It accepts no connection any more: the port is free.
  const std::string address = server_->address();
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  while (!Listen("127.0.0.1", port, "--grpc-port").ok()) std::this_thread::yield();
  waiting_->Open();
  client.join();
  thread_.join();
}

class TooManyConnections : public GrpcServerTest, public ::testing::WithParamInterface<bool> {};

TEST_P(TooManyConnections, OfAllOrOfAnAddress) {
  Start(GetParam() ? HttpServerOptions{.max_connections_per_address = 2} : HttpServerOptions{.max_connections = 2});
  ASSERT_TRUE(Live().ok());
  std::shared_ptr<grpc::Channel> second = NewChannel();
  EXPECT_TRUE(Live(second).ok());
  const std::shared_ptr<grpc::Channel> third = NewChannel();
  grpc::ClientContext context;
  inference::ServerLiveResponse response;
  const grpc::Status status =
      Call(context, "ServerLive", inference::ServerLiveRequest(), response, third, /*wait=*/false);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  second = nullptr;
  EXPECT_TRUE(Live(third).ok()) << "a place is free again";
}

INSTANTIATE_TEST_SUITE_P(Limits, TooManyConnections, ::testing::Bool());

TEST_F(GrpcServerTest, ATakenPort) {
  Start();
  const std::string address = server_->address();
  HttpServerOptions options;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &options.port));
  const absl::Status taken = ListenGrpc(options, api_->context()).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(taken.message(), HasSubstr("choose another --grpc-port"));
}

}  // namespace
}  // namespace aqt::serving
