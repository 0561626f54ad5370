// The endpoints, over byte strings. Exact; probabilities to 1e-6 of doubles that are printed in full.

#include "serving/http/api/http_api.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/http/models/fake_model_testing.h"
#include "serving/http/wire/request_parser.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class HttpApiTest : public ::testing::Test {
 protected:
  HttpApiTest() : models_(FakeSources(), OpenFake) { Start({}); }
  void Start(const ApiOptions& options) {
    (void)models_.LoadAll();
    for (const char* name : {"embed", "org/label", "rank", "tensors"}) EXPECT_TRUE(models_.Load(name).ok());
    api_ = std::make_unique<HttpApi>(models_, options, nullptr);
  }

  // Through the parser, as a server does it.
  HttpResponse Send(const std::string& method, const std::string& path, const std::string& body = "",
                    const std::string& fields = "") {
    RequestParser parser(HttpLimits{});
    parser.Append(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(), "\r\n",
                               fields, "\r\n", body));
    EXPECT_EQ(parser.Advance(), RequestParser::Event::kHead) << parser.error().message;
    std::optional<HttpResponse> refusal = api_->CheckHead(parser.request());
    HttpResponse response;
    if (refusal.has_value()) {
      response = *refusal;
    } else {
      EXPECT_EQ(parser.Advance(), RequestParser::Event::kRequest);
      Cancellation cancellation;
      response = api_->Handle(parser.request(), cancellation);
    }
    EXPECT_THAT(response.body, Not(HasSubstr("/secret"))) << "no path of the file system";
    return response;
  }
  HttpResponse Post(const std::string& path, const std::string& body) { return Send("POST", path, body); }
  HttpResponse Get(const std::string& path) { return Send("GET", path); }
  Json PostJson(const std::string& path, const std::string& body) {
    const HttpResponse response = Post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  Json GetJson(const std::string& path) {
    const HttpResponse response = Get(path);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  void ExpectError(const std::string& path, const std::string& body, int status, const std::string& message) {
    SCOPED_TRACE(absl::StrCat(path, " ", body.substr(0, 200)));
    const HttpResponse response = Post(path, body);
    EXPECT_EQ(response.status, status);
    const Json json = Json::parse(response.body);
    const bool inference = absl::StartsWith(path, "/v2");
    const std::string text = inference ? json["error"] : json["error"]["message"];
    EXPECT_THAT(text, HasSubstr(message));
    if (!inference) {
      for (const char* field : {"type", "param", "code"}) EXPECT_TRUE(json["error"].contains(field));
    }
  }

  ModelRepository models_;
  std::unique_ptr<HttpApi> api_;
};

TEST_F(HttpApiTest, Embeddings) {
  EXPECT_EQ(Post("/v1/embeddings", R"({"model": "embed", "input": "abc"})").body,
            R"({"object":"list","data":[{"object":"embedding","index":0,"embedding":[3,3,0,4]}],"model":"embed",)"
            R"("usage":{"prompt_tokens":3,"total_tokens":3}})");
  const Json two = PostJson("/v1/embeddings",
                            R"({"model": "embed", "input": ["a", "1234"], "user": "me", "encoding_format": "float",)"
                            R"( "dimensions": null})");
  EXPECT_EQ(two["data"][0]["embedding"], Json({1, 3, 0, 4}));
  EXPECT_EQ(two["data"][1]["embedding"], Json({4, 3, 0, 4}));
  EXPECT_EQ(two["data"][1]["index"], 1);
  EXPECT_EQ(two["usage"]["total_tokens"], 5);
}

TEST_F(HttpApiTest, EmbeddingsAsBase64AreTheBytesOfF32) {
  const Json json = PostJson("/v1/embeddings", R"({"model": "embed", "input": "abc", "encoding_format": "base64"})");
  EXPECT_EQ(json["data"][0]["embedding"], "AABAQAAAQEAAAAAAAACAQA==");  // 3, 3, 0, 4
}

TEST_F(HttpApiTest, DimensionsCutAndNormalize) {
  const auto first = [&](int dimensions) {
    return PostJson("/v1/embeddings", absl::StrCat(R"({"model": "embed", "input": "1234", "dimensions": )", dimensions,
                                                   "}"))["data"][0]["embedding"];
  };
  EXPECT_EQ(first(2), Json({0.8, 0.6}));
  EXPECT_EQ(first(1), Json({1}));
  EXPECT_EQ(first(4).size(), 4u);
  ExpectError("/v1/embeddings", R"({"model": "embed", "input": "a", "dimensions": 5})", 400,
              "\"dimensions\" is 5, and the model embed has 4");
  ExpectError("/v1/embeddings", R"({"model": "embed", "input": "a", "dimensions": 0})", 400, "is 0, expected 1 to");
  ExpectError("/v1/embeddings", R"({"model": "embed", "input": "a", "dimensions": 2.5})", 400, "expected an integer");
}

TEST_F(HttpApiTest, LongTexts) {
  const std::string text(21, 'x');
  ExpectError("/v1/embeddings", absl::StrCat(R"({"model": "embed", "input": ")", text, "\"}"), 400, "21 tokens");
  const Json cut =
      PostJson("/v1/embeddings", absl::StrCat(R"({"model": "embed", "truncate": true, "input": ")", text, "\"}"));
  EXPECT_EQ(cut["usage"]["prompt_tokens"], 20);
  Start({.truncate = true});
  EXPECT_EQ(Post("/v1/embeddings", absl::StrCat(R"({"model": "embed", "input": ")", text, "\"}")).status, 200);
  ExpectError("/v1/embeddings", absl::StrCat(R"({"model": "embed", "truncate": false, "input": ")", text, "\"}"), 400,
              "21 tokens");
}

TEST_F(HttpApiTest, TokenIds) {
  ExpectError("/v1/embeddings", R"({"model": "embed", "input": [1, 2]})", 400, "--allow-token-ids");
  ExpectError("/v1/embeddings", R"({"model": "embed", "input": [[1, 2]]})", 400, "\"input[0]\" is a list of token ids");
  Start({.allow_token_ids = true});
  EXPECT_EQ(PostJson("/v1/embeddings", R"({"model": "embed", "input": [1, 2]})")["data"].size(), 1u);
  EXPECT_EQ(PostJson("/v1/embeddings", R"({"model": "embed", "input": [[1, 2], [3], "x"]})")["data"].size(), 3u);
  for (const char* ids : {"[-1]", "[1.5]", "[4294967296]", "[[1], []]", "[1, \"a\"]", "[[1, null]]", "[[[1]]]"}) {
    ExpectError("/v1/embeddings", absl::StrCat(R"({"model": "embed", "input": )", ids, "}"), 400, "expected");
  }
}

TEST_F(HttpApiTest, MistakesInEmbeddings) {
  const std::string path = "/v1/embeddings";
  ExpectError(path, "", 400, "not JSON");
  ExpectError(path, "{", 400, "not JSON: the problem is at byte");
  ExpectError(path, "[]", 400, "is an array, expected a JSON object");
  ExpectError(path, "{} {}", 400, "not JSON");
  const std::string good = R"({"model": "embed", "input": "a"})";
  ExpectError(path, good + '\0', 400, "not JSON: the problem is at byte 33");
  ExpectError(path, good + '\0' + R"(, "input": "b"})", 400, "not JSON: the problem is at byte 33");
  ExpectError(path, "\xEF\xBB\xBF{", 400, "not JSON");
  ExpectError(path, "{\"model\": \"embed\", \"input\": \"\xff\"}", 400, "not JSON");
  ExpectError(path, R"({"model": "embed", "input": NaN})", 400, "not JSON");
  ExpectError(path, R"({"input": "a"})", 400, "\"model\" is missing");
  ExpectError(path, R"({"model": 1, "input": "a"})", 400, "\"model\" is a number, expected a string");
  ExpectError(path, R"({"model": "embed"})", 400, "\"input\" is missing");
  ExpectError(path, R"({"model": "embed", "input": null})", 400, "\"input\" is missing");
  ExpectError(path, R"({"model": "embed", "input": ""})", 400, "\"input\" is empty");
  ExpectError(path, R"({"model": "embed", "input": []})", 400, "has 0 texts");
  ExpectError(path, R"({"model": "embed", "input": ["a", ""]})", 400, "\"input[1]\" is empty");
  ExpectError(path, R"({"model": "embed", "input": ["a", 1]})", 400, "\"input[1]\" is a number");
  ExpectError(path, R"({"model": "embed", "input": ["a", null]})", 400, "\"input[1]\" is null");
  ExpectError(path, R"({"model": "embed", "input": [[]]})", 400, "\"input[0]\" is an empty list");
  ExpectError(path, R"({"model": "embed", "input": {"a": 1}})", 400, "\"input\" is an object");
  ExpectError(path, R"({"model": "embed", "input": "a", "encoding_format": "int8"})", 400, "encoding_format");
  ExpectError(path, R"({"model": "embed", "input": "a", "temperature": 1, "n": 2})", 400,
              "Unrecognized request argument supplied: \"n\", \"temperature\"");
  ExpectError(path, R"({"model": "embed", "input": "a", "input": "b"})", 400, "\"input\" occurs twice");
  ExpectError(path, R"({"model": "gone", "input": "a"})", 404, "The model `gone` does not exist");
  ExpectError(path, R"({"model": "broken", "input": "a"})", 503, "broken is not loaded");
  ExpectError(path, R"({"model": "rank", "input": "a"})", 400, "computes scores of pairs (/rerank)");
  ExpectError(path, R"({"model": "embed", "input": "busy"})", 429, "full");
  ExpectError(path, R"({"model": "embed", "input": "late"})", 504, "too long");
  ExpectError(path, R"({"model": "embed", "input": "bug"})", 500, "internal error");
  ExpectError(path, std::string(100000, '['), 400, "deeper than 4");
  std::string many = "[\"a\"";
  for (int i = 0; i < 2048; ++i) many += ",\"a\"";
  ExpectError(path, absl::StrCat(R"({"model": "embed", "input": )", many, "]}"), 400, "2049 texts, expected 1 to 2048");
  Start({.max_text_bytes = 10, .max_values = 20});
  ExpectError(path, R"({"model": "embed", "input": "12345678901"})", 400, "11 bytes, expected at most 10");
  ExpectError(path, R"({"model": "embed", "input": [1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9]})", 400,
              "more than 20 values");
  const HttpResponse busy = Post(path, R"({"model": "embed", "input": "busy"})");
  EXPECT_THAT(busy.fields, ::testing::Contains(::testing::Pair("Retry-After", "1")));
}

TEST_F(HttpApiTest, ModelsOfOpenAi) {
  const Json list = GetJson("/v1/models");
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 4u) << "without the broken one";
  EXPECT_EQ(list["data"][0]["id"], "embed");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(GetJson("/v1/models/org/label")["id"], "org/label");
  EXPECT_EQ(GetJson("/v1/models/org%2Flabel")["id"], "org/label");
  const HttpResponse gone = Get("/v1/models/gone");
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(Json::parse(gone.body)["error"]["code"], "model_not_found");
}

TEST_F(HttpApiTest, RerankInBothForms) {
  const Json cohere =
      PostJson("/v1/rerank", R"({"query": "q", "documents": ["1234", {"text": "123456", "id": 7}, "12345"],)"
                             R"( "top_n": 2, "return_documents": true})");
  ASSERT_EQ(cohere["results"].size(), 2u);
  EXPECT_EQ(cohere["results"][0]["index"], 1);
  EXPECT_NEAR(cohere["results"][0]["relevance_score"], 0.8807970779778823, 1e-6);  // 1 / (1 + e^-2)
  EXPECT_EQ(cohere["results"][0]["document"], Json({{"text", "123456"}, {"id", 7}}));
  EXPECT_EQ(cohere["results"][1]["document"], Json({{"text", "12345"}}));
  EXPECT_EQ(cohere["results"][1]["index"], 2);
  EXPECT_EQ(cohere["model"], "rank");
  EXPECT_EQ(PostJson("/rerank", R"({"model": "rank", "query": "q", "texts": ["1234", "123456"], "raw_scores": true})"),
            Json({{{"index", 1}, {"score", 2.0}}, {{"index", 0}, {"score", 0.0}}}));
  EXPECT_EQ(PostJson("/rerank", R"({"query": "q", "texts": ["1234", "abcd"], "return_text": true})")[1]["text"], "abcd")
      << "equal scores keep their order";
  ExpectError("/rerank", R"({"query": "q"})", 400, "\"documents\" is missing");
  ExpectError("/rerank", R"({"documents": ["a"]})", 400, "\"query\" is missing");
  ExpectError("/rerank", R"({"query": "q", "documents": []})", 400, "has 0 texts, expected a list of 1 to 2048");
  ExpectError("/rerank", R"({"query": "q", "documents": "a"})", 400, "\"documents\" is a string, expected a list");
  ExpectError("/rerank", R"({"query": "q", "documents": [{"txt": "a"}]})", 400, "an object with a string \"text\"");
  ExpectError("/rerank", R"({"query": "q", "documents": ["a", 1]})", 400, "\"documents[1]\" is a number");
  ExpectError("/rerank", R"({"query": "q", "documents": ["a"], "top_n": 0})", 400, "top_n");
  ExpectError("/rerank", R"({"query": "q", "documents": ["a"], "texts": ["a"]})", 400, "Unrecognized");
  ExpectError("/rerank", R"({"model": "embed", "query": "q", "documents": ["a"]})", 400, "computes embeddings");
}

TEST_F(HttpApiTest, ClassifyInBothForms) {
  const Json vllm = PostJson("/classify", R"({"model": "org/label", "input": ["1234567890", "x"]})");
  EXPECT_EQ(vllm["data"][0]["label"], "high");
  EXPECT_EQ(vllm["data"][0]["num_classes"], 3);
  EXPECT_NEAR(vllm["data"][0]["probs"][2], 0.6652409557748218, 1e-6);  // e / (1/e + 1 + e)
  EXPECT_EQ(vllm["usage"]["prompt_tokens"], 11);
  const Json tei = PostJson("/predict", R"({"inputs": "1234567890", "raw_scores": true})");
  EXPECT_EQ(tei, Json({{{"label", "high"}, {"score", 1.0}},
                       {{"label", "middle"}, {"score", 0.0}},
                       {{"label", "low"}, {"score", -1.0}}}));
  const auto high = [&](const char* path, const std::string& inputs) {
    std::vector<double> scores;
    const Json answer = PostJson(path, absl::StrCat(R"({"raw_scores": true, "inputs": )", inputs, "}"));
    for (const Json& row : answer[0].is_array() ? answer : Json::array({answer})) scores.push_back(row[0]["score"]);
    return scores;
  };
  EXPECT_THAT(high("/predict", R"(["1234567890"])"), ElementsAre(1));
  EXPECT_THAT(high("/predict", R"(["1234567890", "12345678901234567890"])"), ElementsAre(3)) << "one pair";
  EXPECT_THAT(high("/predict", R"([["1234567890"], ["1234567890", "1234567890"]])"), ElementsAre(1, 2));
  EXPECT_THAT(high("/classify", R"([["1234567890"], ["1234567890", "1234567890"]])"), ElementsAre(1, 2));
  EXPECT_THAT(high("/classify", R"(["1234567890", "12345678901234567890"])"), ElementsAre(1, 2)) << "two texts";
  ExpectError("/predict", R"({"inputs": ["a", "b", "c"]})", 400, R"("inputs" has 3 texts, expected a list of a text)");
  ExpectError("/predict", R"({"inputs": [["a"], "b"]})", 400, R"("inputs[1]" is a string, expected a list)");
  ExpectError("/predict", R"({"inputs": [["a"], []]})", 400, R"("inputs[1]" has 0 texts)");
  ExpectError("/predict", R"({"inputs": ["a", ["b"]]})", 400, R"("inputs[1]" is an array, expected a string)");
  ExpectError("/predict", R"({"inputs": [["a", ""]]})", 400, R"("inputs[0][1]" is empty)");
  ExpectError("/predict", R"({"inputs": []})", 400, R"("inputs" has 0 texts)");
  ExpectError("/predict", R"({"inputs": 7})", 400, R"("inputs" is a number)");
  std::string many = "[[\"a\"]";
  for (int i = 0; i < 2048; ++i) many += ",[\"a\"]";
  ExpectError("/predict", absl::StrCat(R"({"inputs": )", many, "]}"), 400, "has 2049 texts, expected at most 2048");
  ExpectError("/classify", R"({"model": "org/label"})", 400, "\"input\" is missing");
  ExpectError("/classify", R"({"input": [["a", "b"]]})", 400, "expected a string");
}

TEST_F(HttpApiTest, ServerAndModelsOfTheInferenceProtocol) {
  EXPECT_EQ(Get("/v2/health/live").body, R"({"live":true})");
  EXPECT_EQ(Get("/v2/health/ready").status, 503) << "a model is broken";
  EXPECT_EQ(GetJson("/v2")["name"], "aqt");
  EXPECT_THAT(GetJson("/v2")["extensions"], ::testing::Contains("binary_tensor_data"));
  EXPECT_EQ(GetJson("/v2/models")["models"].size(), 5u);
  for (const char* path : {"/v2/models/tensors", "/v2/models/tensors/versions/1", "/v2/models/tensors/"}) {
    const Json json = GetJson(path);
    EXPECT_EQ(json["versions"], Json({"1"}));
    EXPECT_EQ(json["inputs"][0], Json({{"name", "x"}, {"datatype", "FP32"}, {"shape", {2, -1}}}));
    EXPECT_EQ(json["outputs"][1]["datatype"], "INT64");
  }
  EXPECT_EQ(GetJson("/v2/models/org%2Flabel")["inputs"][0]["datatype"], "BYTES");
  EXPECT_EQ(GetJson("/v2/models/org/label/versions/1")["outputs"][0]["name"], "logits");
  EXPECT_EQ(Get("/v2/models/tensors/versions/1/ready").body, R"({"name":"tensors","ready":true})");
  EXPECT_EQ(Get("/v2/models/broken/ready").status, 503);
  EXPECT_EQ(Get("/v2/models/gone/ready").status, 404);
  EXPECT_EQ(Get("/v2/models/tensors/versions/2").status, 404);
  EXPECT_EQ(GetJson("/v2/models/tensors/config")["input"][0]["data_type"], "TYPE_FP32");
  EXPECT_EQ(GetJson("/v2/models/rank/config")["input"][0]["dims"], Json({-1, 2}));
  EXPECT_EQ(Post("/v2/models/embed/infer", R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1],)"
                                           R"( "data": ["abc"]}]})")
                .status,
            200);
  const Json stats = GetJson("/v2/models/embed/stats")["model_stats"][0];
  EXPECT_EQ(stats["inference_count"], 1);
  EXPECT_EQ(stats["inference_stats"]["success"]["count"], 1);
  EXPECT_GT(stats["last_inference"], 0);
  EXPECT_EQ(GetJson("/v2/models/stats")["model_stats"].size(), 4u);
}

TEST_F(HttpApiTest, InferInJson) {
  const Json json = PostJson("/v2/models/tensors/infer",
                             R"({"id": "7", "inputs": [)"
                             R"({"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [3, -4e1]]},)"
                             R"({"name": "k", "datatype": "INT32", "shape": [], "data": [10]}]})");
  EXPECT_EQ(json["id"], "7");
  EXPECT_EQ(json["model_name"], "tensors");
  EXPECT_EQ(json["outputs"][0],
            Json({{"name", "y"}, {"datatype", "FP32"}, {"shape", {2, 2}}, {"data", {11, 12.5, 13, -30}}}));
  EXPECT_EQ(json["outputs"][1]["data"], Json({4}));
  const Json text = PostJson("/v2/models/rank/infer", R"({"inputs": [{"name": "text", "datatype": "BYTES",)"
                                                      R"( "shape": [1, 2], "data": ["q", "123456"]}]})");
  EXPECT_EQ(text["outputs"][0]["data"], Json({2}));
}

// As KServe's clients do.
TEST_F(HttpApiTest, InferMayRepeatTheModel) {
  const auto body = [](const std::string& more) {
    return R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["abc"]}])" + more + "}";
  };
  const std::string path = "/v2/models/embed/infer";
  EXPECT_EQ(Post(path, body(R"(, "model_name": "embed")")).status, 200);
  EXPECT_EQ(Post(path, body(R"(, "model_name": "embed", "model_version": "1")")).status, 200);
  EXPECT_EQ(Post(path, body(R"(, "model_name": null, "model_version": null)")).status, 200);
  ExpectError(path, body(R"(, "model_name": "rank")"), 400, "\"model_name\" is rank, and the path is that of embed");
  ExpectError(path, body(R"(, "model_name": 1)"), 400, "\"model_name\" is a number");
  ExpectError(path, body(R"(, "model_version": "2")"), 404, "only the version 1");
}

TEST_F(HttpApiTest, InferInBinary) {
  const float x[4] = {1, 2, 3, 4};
  const std::string bytes(reinterpret_cast<const char*>(x), sizeof(x));
  const std::string json = R"({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2],)"
                           R"( "parameters": {"binary_data_size": 16}},)"
                           R"( {"name": "k", "datatype": "INT32", "shape": [], "data": [1]}],)"
                           R"( "outputs": [{"name": "y", "parameters": {"binary_data": true}}]})";
  const std::string field = absl::StrCat("Inference-Header-Content-Length: ", json.size(), "\r\n");
  const HttpResponse response = Send("POST", "/v2/models/tensors/infer", json + bytes, field);
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.content_type, "application/octet-stream");
  const size_t size = response.body.size() - 16;
  EXPECT_THAT(response.fields,
              ::testing::Contains(::testing::Pair("Inference-Header-Content-Length", absl::StrCat(size))));
  const Json head = Json::parse(response.body.substr(0, size));
  ASSERT_EQ(head["outputs"].size(), 1u) << "only what is asked for";
  EXPECT_EQ(head["outputs"][0]["parameters"]["binary_data_size"], 16);
  const float y[4] = {2, 3, 4, 5};
  EXPECT_EQ(response.body.substr(size), std::string(reinterpret_cast<const char*>(y), sizeof(y)));
  EXPECT_EQ(Send("POST", "/v2/models/tensors/infer", json, "Inference-Header-Content-Length: x\r\n").status, 400);
  EXPECT_EQ(Send("POST", "/v2/models/tensors/infer", json, "Inference-Header-Content-Length: -1\r\n").status, 400);
  for (const char* sign : {"+", "0x"}) {
    const std::string other = absl::StrCat("Inference-Header-Content-Length: ", sign, json.size(), "\r\n");
    EXPECT_THAT(Send("POST", "/v2/models/tensors/infer", json + bytes, other).body,
                HasSubstr("not one decimal number"));
  }
  EXPECT_EQ(Send("POST", "/v2/models/tensors/infer", json, "Inference-Header-Content-Length: 9999\r\n").status, 400);
}

TEST_F(HttpApiTest, MistakesInInfer) {
  const std::string path = "/v2/models/tensors/infer";
  const std::string k = R"({"name": "k", "datatype": "INT32", "shape": [], "data": [1]})";
  const auto body = [&](const std::string& x) { return absl::StrCat("{\"inputs\": [", x, ", ", k, "]}"); };
  ExpectError("/v2/models/gone/infer", "{}", 404, "does not exist");
  ExpectError(path, R"({"inputs": []})", 400, "the input 'x' is missing");
  ExpectError(path, absl::StrCat("{\"inputs\": [", k, ", ", k, "]}"), 400, "'k' is given twice");
  ExpectError(path, body(R"({"name": "z", "datatype": "FP32", "shape": [1], "data": [1]})"), 400,
              "no input 'z'; it has");
  ExpectError(path, body(R"({"name": "x", "datatype": "FP64", "shape": [1], "data": [1]})"), 400,
              "is FP64, expected FP32");
  ExpectError(path, body(R"({"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 3]})"), 400,
              "x is [3,1], expected [2,n]");
  ExpectError(path, absl::StrCat("{\"inputs\": [", k, "], \"outputs\": [{\"name\": \"w\"}]}"), 400, "no output 'w'");
  ExpectError("/v2/models/embed/infer", absl::StrCat("{\"inputs\": [", k, "]}"), 400, "expected one: 'text' of BYTES");
  const std::string json = R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2],)"
                           R"( "parameters": {"binary_data_size": 11}}]})";
  const std::string strings("\1\0\0\0a\2\0\0\0\xc3(", 11);
  const HttpResponse latin = Send("POST", "/v2/models/embed/infer", json + strings,
                                  absl::StrCat("Inference-Header-Content-Length: ", json.size(), "\r\n"));
  EXPECT_EQ(latin.status, 400);
  EXPECT_THAT(latin.body, HasSubstr("string 1 of 'text' is not UTF-8"));
}

TEST_F(HttpApiTest, LoadAndUnload) {
  EXPECT_EQ(Post("/v2/repository/models/embed/unload", "").status, 200);
  ExpectError("/v1/embeddings", R"({"model": "embed", "input": "a"})", 503, "not loaded");
  const Json index = PostJson("/v2/repository/index", "");
  EXPECT_EQ(index[1], Json({{"name", "embed"}, {"version", "1"}, {"state", "UNAVAILABLE"}, {"reason", "unloaded"}}));
  EXPECT_EQ(PostJson("/v2/repository/index", R"({"ready": true})").size(), 3u);
  EXPECT_EQ(Post("/v2/repository/models/embed/load", "{}").status, 200);
  EXPECT_EQ(Post("/v1/embeddings", R"({"model": "embed", "input": "a"})").status, 200);
  EXPECT_EQ(Post("/v2/repository/models/embed/unload", R"({"parameters": {"unload_dependents": false}})").status, 200);
  ExpectError("/v2/repository/models/broken/load", "", 500, "failed to load 'broken'");
  for (const char* path : {"/v2/repository/index", "/v2/repository/models/embed/load"}) {
    ExpectError(path, absl::StrCat("{\"x\": \"", std::string(1 << 16, 'x'), "\"}"), 400,
                "bytes, expected at most 65536");
  }
  ExpectError("/v2/repository/models/gone/load", "", 404, "does not exist");
  ExpectError("/v2/repository/models/embed/load", R"({"parameters": {"config": "{}"}})", 400, "not supported");
  Start({.model_control = false});
  ExpectError("/v2/repository/models/embed/unload", "", 400, "--model-control on");
}

TEST(ModelRepository, IsReadyWhenWhatIsWantedIsLoaded) {
  std::function<void()> meanwhile = [] {};
  bool broken = false;
  ModelRepository models({{"a", "/a"}, {"b", "/b"}}, [&](const ModelSource&) -> decltype(OpenFake({})) {
    meanwhile();
    if (broken) return absl::NotFoundError("gone");
    return std::make_shared<FakeModel>(ModelTask::kEmbedding);
  });
  EXPECT_FALSE(models.all_ready());
  meanwhile = [&] {
    EXPECT_FALSE(models.all_ready());
    EXPECT_EQ(models.Load("b").code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(models.Find("b").status().message(), HasSubstr("is being loaded"));
  };
  EXPECT_TRUE(models.LoadAll().ok());
  EXPECT_TRUE(models.all_ready());
  EXPECT_TRUE(models.Unload("b").ok());
  EXPECT_TRUE(models.all_ready()) << "a client wants it so";
  meanwhile = [&] { EXPECT_FALSE(models.all_ready()); };
  EXPECT_TRUE(models.Load("b").ok());
  EXPECT_TRUE(models.all_ready());
  broken = true;
  meanwhile = [&] { EXPECT_TRUE(models.all_ready()); };
  EXPECT_FALSE(models.Load("b").ok());
  EXPECT_TRUE(models.all_ready()) << "the old weights answer";
  EXPECT_TRUE(models.Unload("b").ok());
  meanwhile = [] {};
  EXPECT_FALSE(models.Load("b").ok());
  EXPECT_FALSE(models.all_ready());
}

TEST_F(HttpApiTest, PathsAndMethods) {
  EXPECT_EQ(Json::parse(Get("/nothing").body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Get("/nothing").status, 404);
  EXPECT_EQ(Json::parse(Get("/v2/nothing").body)["error"], "there is nothing at /v2/nothing");
  EXPECT_EQ(Get("/").status, 404);
  EXPECT_EQ(Get("//v1/models").status, 404);
  EXPECT_EQ(Get("/v1/../v1/models").status, 404);
  const HttpResponse method = Get("/v1/embeddings");
  EXPECT_EQ(method.status, 405);
  EXPECT_THAT(method.fields, ::testing::Contains(::testing::Pair("Allow", "POST")));
  EXPECT_THAT(Send("DELETE", "/v1/models").fields, ::testing::Contains(::testing::Pair("Allow", "GET, HEAD")));
  EXPECT_EQ(Send("HEAD", "/v1/models").status, 200);
  EXPECT_EQ(Get("/healthz").status, 503) << "a model is broken";
}

TEST_F(HttpApiTest, AKeyIsAskedFor) {
  Start({.api_key = "secret-key"});
  EXPECT_EQ(Get("/healthz").status, 503) << "probes need no key";
  EXPECT_EQ(Get("/v2/health/live").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/v2", "/nothing", "/v2/models/embed"}) {
    const HttpResponse response = Get(path);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_THAT(response.fields, ::testing::Contains(::testing::Pair("WWW-Authenticate", "Bearer")));
  }
  for (const char* field : {"Authorization: Bearer secret-kez\r\n", "Authorization: Bearer secret-key2\r\n",
                            "Authorization: Bearer secret-ke\r\n", "Authorization: Basic secret-key\r\n",
                            "Authorization: Bearer \r\n", "Authorization: secret-key\r\n"}) {
    EXPECT_EQ(Send("GET", "/v1/models", "", field).status, 401) << field;
  }
  EXPECT_EQ(Send("GET", "/v1/models", "", "Authorization: Bearer secret-key\r\n").status, 200);
  EXPECT_EQ(Send("GET", "/v1/models", "", "authorization: bearer   secret-key\r\n").status, 200);
}

TEST_F(HttpApiTest, WebPagesNeedAKey) {
  const std::string path = "/v2/repository/models/embed/unload";
  const auto send = [&](const std::string& origin, const std::string& fields = "") {
    return Send("POST", path, "", absl::StrCat("Origin: ", origin, "\r\n", fields));
  };
  for (const char* page :
       {"https://example.com", "null", "http://localhost.example.com", "http://127.0.0.1.example.com",
        "http://127.evil.example", "http://10.0.0.1:80", "http://[::2]", "http://[", ""}) {
    const HttpResponse response = send(page);
    EXPECT_EQ(response.status, 403) << page;
    EXPECT_THAT(response.body, HasSubstr("--api-key-file"));
  }
  EXPECT_TRUE(models_.Find("embed").ok());
  for (const char* page : {"http://localhost:3000", "http://127.0.0.1:8000", "https://LOCALHOST", "http://[::1]:80"}) {
    EXPECT_EQ(send(page).status, 200) << page;
  }
  Start({.api_key = "secret"});
  EXPECT_EQ(send("https://example.com").status, 401);
  EXPECT_EQ(send("https://example.com", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(HttpApiTest, MetricsPage) {
  Post("/v1/embeddings", R"({"model": "embed", "input": ["abc", "de"]})");
  Post("/v1/embeddings", R"({"model": "embed", "input": "busy"})");
  HttpRequest request;
  request.method = "GET";
  request.target = "/v1/models/x";
  request.path = {"v1", "models", "x"};
  api_->Record({.request = request, .status = 404, .remote = "", .duration = absl::Milliseconds(3)});
  const HttpResponse page = Get("/metrics");
  EXPECT_THAT(page.content_type, HasSubstr("version=0.0.4"));
  EXPECT_THAT(page.body,
              AllOf(HasSubstr("aqt_model_tokens_total{model=\"embed\"} 5\n"),
                    HasSubstr("aqt_model_rows_total{model=\"embed\"} 2\n"),
                    HasSubstr("aqt_model_requests_total{model=\"embed\",result=\"error\"} 1\n"),
                    HasSubstr("aqt_http_requests_total{route=\"/v1/models/{}\",method=\"GET\",status=\"404\"} 1\n"),
                    HasSubstr("aqt_http_request_seconds_bucket{route=\"/v1/models/{}\",le=\"0.005\"} 1\n"),
                    HasSubstr("aqt_http_request_seconds_bucket{route=\"/v1/models/{}\",le=\"0.002\"} 0\n"),
                    HasSubstr("aqt_model_ready{model=\"broken\"} 0\n"), HasSubstr("# TYPE aqt_http_queue gauge\n")));
}

}  // namespace
}  // namespace aqt::serving
