// The server as `aqt serve` starts it, over sockets: models of files, their answers, and its end. Exact: an answer is
// that of the embedder itself.

#include "serving/http/serve.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/array.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/io/file.h"
#include "aqt/models/text/text_classifier.h"
#include "aqt/models/text/text_embedder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/http/api/access_log.h"
#include "serving/http/wire/cancellation.h"
#include "serving/http/wire/http_client_testing.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kBert[] = "tests/golden/models/bert";

// What one thread writes and another reads.
class SharedText : public std::stringbuf {
 public:
  std::string Await(const std::string& part) {
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (text_.find(part) != std::string::npos && text_.back() == '\n') return text_;
      }
      std::this_thread::yield();
    }
  }

 private:
  int sync() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ = str();
    return 0;
  }
  std::mutex mutex_;
  std::string text_;
};

class ServeTest : public FolderTest {
 protected:
  void Start(ServeOptions options) {
    options.server.port = 0;
    thread_ = std::thread([this, options] {
      std::ostream out(&out_), err(&err_);
      status_ = Serve(options, io::LocalFileSystem(), out, err, &interrupted_);
    });
    const std::string text = out_.Await("listening on http://127.0.0.1:");
    ASSERT_TRUE(absl::SimpleAtoi(text.substr(text.rfind(':') + 1), &port_));
  }
  void TearDown() override {
    interrupted_ = true;
    if (thread_.joinable()) thread_.join();
    EXPECT_TRUE(status_.ok()) << status_;
  }

  SharedText out_, err_;
  std::atomic<bool> interrupted_{false};
  std::thread thread_;
  absl::Status status_;
  int port_ = 0;
};

TEST_F(ServeTest, AnswersAreThoseOfTheEmbedder) {
  Start({.models = {kBert, absl::StrCat("other=", kBert, "/")}});
  const auto embedder = models::TextEmbedder::Open(io::LocalFileSystem(), kBert);
  ASSERT_TRUE(embedder.ok()) << embedder.status();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(port_);
      for (int i = 0; i < 10; ++i) {
        std::string text = absl::StrCat("w", t + 5);
        for (int n = 0; n < i; ++n) absl::StrAppend(&text, " w", (n * 7 + t) % 20 + 5);
        const std::string model = i % 2 == 0 ? "bert" : "other";
        const ClientResponse response =
            client.Post("/v1/embeddings", absl::StrCat(R"({"encoding_format": "base64", "truncate": true, "model": ")",
                                                       model, R"(", "input": ")", text, "\"}"));
        ASSERT_EQ(response.status, 200) << response.body;
        const auto expected = embedder->Embed(text);
        ASSERT_TRUE(expected.ok());
        std::string bytes;
        ASSERT_TRUE(
            absl::Base64Unescape(Json::parse(response.body)["data"][0]["embedding"].get<std::string>(), &bytes));
        EXPECT_EQ(bytes, std::string(reinterpret_cast<const char*>(expected->values.data()),
                                     expected->values.size() * sizeof(float)))
            << text;
        EXPECT_EQ(Json::parse(response.body)["usage"]["prompt_tokens"], expected->tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ServeTest, TokenIdsAndLongTexts) {
  ServeOptions options = {.models = {kBert}};
  options.api.allow_token_ids = true;
  Start(options);
  TestClient client(port_);
  const auto embedder = models::TextEmbedder::Open(io::LocalFileSystem(), kBert);
  ASSERT_TRUE(embedder.ok());
  const int64_t longest = embedder->max_length();
  const auto ask = [&](const std::string& input, const std::string& more = "") {
    return client.Post("/v1/embeddings", absl::StrCat(R"({"model": "bert", "input": )", input, more, "}"));
  };
  EXPECT_EQ(ask("[2, 7, 3]").status, 200);
  EXPECT_EQ(ask("[100000]").status, 400);
  EXPECT_THAT(ask("[100000]").body, HasSubstr("beyond the vocabulary"));
  std::string ids = "[1", text = "\"w5";
  for (int64_t i = 0; i < longest; ++i) {
    ids += ",1";
    text += " w5";
  }
  ids += "]", text += "\"";
  for (const std::string& input : {ids, text}) {
    const ClientResponse response = ask(input);
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body, HasSubstr(absl::StrCat("maximum context length is ", longest, " tokens")));
    EXPECT_EQ(ask(input, ", \"truncate\": true").status, 200);
  }
  EXPECT_THAT(ask(absl::StrCat("[\"w5\", ", text, "]")).body, HasSubstr("text 1: This model's"));
}

TEST_F(ServeTest, HeadsDecideTheTask) {
  const std::string folder = "tests/golden/models/";
  Start({.models = {folder + "bert_classes", folder + "bert_pairs"}});
  const auto classes = models::TextClassifier::Open(io::LocalFileSystem(), folder + "bert_classes");
  const auto pairs = models::TextClassifier::Open(io::LocalFileSystem(), folder + "bert_pairs");
  ASSERT_TRUE(classes.ok() && pairs.ok()) << classes.status() << pairs.status();
  TestClient client(port_);
  const ClientResponse labels =
      client.Post("/classify", R"({"model": "bert_classes", "input": "w7 w8", "raw_scores": true})");
  ASSERT_EQ(labels.status, 200) << labels.body;
  EXPECT_EQ(Json::parse(labels.body)["data"][0]["probs"].get<std::vector<float>>(), classes->Classify("w7 w8")->logits);
  const ClientResponse scores =
      client.Post("/rerank", R"({"model": "bert_pairs", "query": "w7", "texts": ["w8 w9"], "raw_scores": true})");
  ASSERT_EQ(scores.status, 200) << scores.body;
  EXPECT_EQ(Json::parse(scores.body)[0]["score"].get<float>(), pairs->Classify("w7", "w8 w9")->logits[0]);
}

TEST_F(ServeTest, ASavedProgramIsAModel) {
  const absl::StatusOr<Program> program =
      Trace([](absl::Span<const Value> in) { return std::vector<Value>{ops::Add(in[0], in[0])}; },
            {{Slot{SlotKind::kData, "x"}, {DType::kF32, {2, 3}}}}, {Slot{SlotKind::kData, "y"}});
  ASSERT_TRUE(program.ok()) << program.status();
  const absl::StatusOr<std::string> bytes = SaveProgram(*program);
  ASSERT_TRUE(bytes.ok());
  WriteText(At("double.aqtprog"), *bytes);
  Start({.models = {At("double.aqtprog")}});
  TestClient client(port_);
  const Json about = Json::parse(client.Get("/v2/models/double").body);
  EXPECT_EQ(about["inputs"], Json::parse(R"([{"name": "x", "datatype": "FP32", "shape": [2, 3]}])"));
  const ClientResponse answer =
      client.Post("/v2/models/double/infer",
                  R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]})");
  EXPECT_EQ(Json::parse(answer.body)["outputs"][0]["data"], Json({2, 4, 6, 8, 10, 12})) << answer.body;
  const ClientResponse shape =
      client.Post("/v2/models/double/infer",
                  R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}]})");
  EXPECT_EQ(shape.status, 400);
  EXPECT_THAT(shape.body, HasSubstr("[3,2]"));
}

TEST_F(ServeTest, LogAndPaths) {
  ServeOptions options = {.models = {absl::StrCat("m=", kBert)}};
  options.log_file = At("log.jsonl");
  Start(options);
  TestClient client(port_);
  EXPECT_EQ(client.Get("/healthz?secret=1").status, 200);
  EXPECT_EQ(client.Post("/v1/embeddings", R"({"model": "m", "input": "w7"})").status, 200);
  EXPECT_EQ(client.Post("/v2/repository/models/m/unload", "").status, 200);
  EXPECT_EQ(client.Post("/v2/repository/models/m/load", "").status, 200);
  client.Send("GET / HTTP/1.1\r\nBad\r\n\r\n");
  EXPECT_EQ(client.Read().status, 400);
  interrupted_ = true;
  thread_.join();
  const std::vector<std::string> lines = absl::StrSplit(ReadText(At("log.jsonl")), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(Json::parse(lines[0])["path"], "/healthz");
  EXPECT_EQ(Json::parse(lines[1])["status"], 200);
  EXPECT_EQ(Json::parse(lines[1])["bytes_in"], 29);
  EXPECT_EQ(Json::parse(lines[4])["status"], 400);
}

// The port on which this process listens.
int ListeningPort() {
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in address = {};
    size = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) return ntohs(address.sin_port);
  }
  return 0;
}

TEST_F(ServeTest, HealthIsAnsweredWhileModelsAreLoaded) {
  ServeOptions options = {.models = {kBert}};
  std::vector<int> statuses;
  options.open.quantize = [&](const std::string&) -> absl::StatusOr<FolderQuantization> {
    TestClient client(ListeningPort());
    for (const char* path : {"/healthz", "/v2/health/live", "/v2/health/ready", "/v2/models/bert/ready"}) {
      statuses.push_back(client.Get(path).status);
    }
    statuses.push_back(client.Post("/v1/embeddings", R"({"model": "bert", "input": "w7"})").status);
    EXPECT_EQ(out_.str(), "") << "the address is written when models are ready";
    return FolderQuantization();
  };
  Start(options);
  EXPECT_EQ(statuses, std::vector<int>({503, 200, 503, 503, 503}));
  EXPECT_EQ(TestClient(port_).Get("/healthz").status, 200);
}

TEST_F(ServeTest, WhatCannotStart) {
  Start({.models = {kBert}});
  const auto refused = [&](ServeOptions options) {
    std::ostringstream out, err;
    return Serve(options, io::LocalFileSystem(), out, err, nullptr);
  };
  ServeOptions taken = {.models = {kBert}};
  taken.server.port = port_;
  EXPECT_EQ(refused(taken).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(refused({.models = {"gone"}}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(refused({.models = {kBert, kBert}}).code(), absl::StatusCode::kInvalidArgument);
  WriteText(At("bad.aqtprog"), "not a program");
  EXPECT_THAT(refused({.models = {At("bad.aqtprog")}}).message(), HasSubstr("bad.aqtprog"));
  ServeOptions log = {.models = {kBert}};
  log.log_file = At("no/such/folder/log");
  EXPECT_THAT(refused(log).message(), HasSubstr("cannot open the log file"));
}

TEST_F(ServeTest, Keys) {
  status_ = absl::OkStatus();
  const io::FileSystem& fs = io::LocalFileSystem();
  WriteText(At("key"), "  abc-123\n");
  EXPECT_EQ(*ReadApiKey(fs, At("key")), "abc-123");
  for (const char* text : {"", "\n", "two words", "a\nb", "caf\xc3\xa9"}) {
    WriteText(At("bad"), text);
    EXPECT_EQ(ReadApiKey(fs, At("bad")).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(ReadApiKey(fs, At("gone")).ok());
  unsetenv("AQT_API_KEY");
  EXPECT_EQ(*ReadApiKey(fs, ""), "");
  setenv("AQT_API_KEY", "from-variable", 1);
  EXPECT_EQ(*ReadApiKey(fs, ""), "from-variable");
  setenv("AQT_API_KEY", "", 1);
  EXPECT_FALSE(ReadApiKey(fs, "").ok()) << "an empty variable must not turn the key off";
  unsetenv("AQT_API_KEY");
}

TEST(AccessLog, SurvivesAFullDiskAndSaysSoOnce) {
  std::vector<std::string> said;
  const auto log =
      AccessLog::Open("/dev/full", [&](const absl::Status& status) { said.emplace_back(status.message()); });
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_FALSE((*log)->Write("{}\n"));
  EXPECT_FALSE((*log)->Write("{}\n"));
  EXPECT_THAT(said, ::testing::ElementsAre("cannot write the log file /dev/full: No space left on device"));
}

TEST_F(FolderTest, ALogThatEndsInAPartOfALineGoesOnWithANewLine) {
  WriteText(At("log"), "{\"a\": 1}\n{\"b\"");
  {
    const auto log = AccessLog::Open(At("log"));
    ASSERT_TRUE(log.ok());
    EXPECT_TRUE((*log)->Write("{}\n"));
    EXPECT_TRUE((*log)->Write("{}\n"));
  }
  EXPECT_EQ(ReadText(At("log")), "{\"a\": 1}\n{\"b\"\n{}\n{}\n");
  const auto log = AccessLog::Open(At("log"));
  EXPECT_TRUE((*log)->Write("{}\n"));
  EXPECT_EQ(ReadText(At("log")), "{\"a\": 1}\n{\"b\"\n{}\n{}\n{}\n");
}

TEST_F(FolderTest, ALogThatIsMovedAwayGoesOnInANewFile) {
  const auto log = AccessLog::Open(At("log"));
  ASSERT_TRUE(log.ok());
  EXPECT_TRUE((*log)->Write("1\n"));
  ASSERT_EQ(rename(At("log").c_str(), At("log.1").c_str()), 0);
  EXPECT_TRUE((*log)->Write("2\n"));
  EXPECT_TRUE((*log)->Write("3\n"));
  EXPECT_EQ(ReadText(At("log.1")), "1\n");
  EXPECT_EQ(ReadText(At("log")), "2\n3\n");
  ASSERT_EQ(unlink(At("log").c_str()), 0);
  ASSERT_EQ(mkdir(At("log").c_str(), 0755), 0);
  EXPECT_TRUE((*log)->Write("4\n")) << "into the old file, as there can be no new one";
  ASSERT_EQ(rmdir(At("log").c_str()), 0);
  EXPECT_TRUE((*log)->Write("5\n"));
  EXPECT_EQ(ReadText(At("log")), "5\n");
}

TEST_F(ServeTest, AFullDiskForTheLog) {
  ServeOptions options = {.models = {kBert}};
  options.log_file = "/dev/full";
  Start(options);
  TestClient client(port_);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(client.Get("/healthz").status, 200);
  EXPECT_THAT(client.Get("/metrics").body, HasSubstr("\naqt_log_lines_dropped_total 5\n"));
  interrupted_ = true;
  thread_.join();
  const std::string said =
      "warning: cannot write the log file /dev/full: No space left on device; requests are answered, and lines are "
      "lost "
      "until it can be written (aqt_log_lines_dropped_total)\n";
  const std::string err = err_.str();
  EXPECT_THAT(err, HasSubstr(said));
  EXPECT_EQ(err.find("log file"), err.rfind("log file")) << "once";
}

TEST_F(ServeTest, WhatNobodyWaitsForIsNotStarted) {
  status_ = absl::OkStatus();
  const auto model = OpenModel(io::LocalFileSystem(), kBert);
  ASSERT_TRUE(model.ok()) << model.status();
  Cancellation cancellation;
  cancellation.Cancel();
  const std::vector<TextInput> texts(3, TextInput{.text = "w7", .second = {}, .ids = {}});
  EXPECT_EQ((*model)->RunTexts(texts, {.call = {.cancellation = &cancellation}}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ((*model)->stats().answered, 0);
  Cancellation waits;
  EXPECT_TRUE((*model)->RunTexts(texts, {.call = {.cancellation = &waits}}).ok());
  const ServedModelStats stats = (*model)->stats();
  EXPECT_EQ(stats.answered, 3);
  EXPECT_GT(stats.queue_sum, 0);
  EXPECT_LT(stats.queue_sum, stats.latency_sum);
  double batches = 0;
  for (const double seconds : stats.batch_sums) batches += seconds;
  EXPECT_GT(batches, 0);
}

TEST(ModelSources, Names) {
  const auto names = [](const std::vector<std::string>& arguments) {
    const auto sources = ParseModelSources(arguments);
    EXPECT_TRUE(sources.ok()) << sources.status();
    std::vector<std::pair<std::string, std::string>> out;
    for (const ModelSource& source : *sources) out.emplace_back(source.name, source.path);
    return out;
  };
  using ::testing::ElementsAre;
  using ::testing::Pair;
  EXPECT_THAT(names({"models/bge/", "a.aqtprog", "x=y", "org/m=/z/", "n=a=b"}),
              ElementsAre(Pair("bge", "models/bge"), Pair("a", "a.aqtprog"), Pair("x", "y"), Pair("org/m", "/z/"),
                          Pair("n", "a=b")));
  for (const char* bad : {"=x", "x=", "a b=x", "/", ".", "..", "caf\xc3\xa9", "a\"=x"}) {
    EXPECT_FALSE(ParseModelSources({bad}).ok()) << bad;
  }
}

}  // namespace
}  // namespace aqt::serving
