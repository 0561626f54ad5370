// Input: a number of an endpoint, then a body. Every endpoint answers with a status of HTTP and JSON, which is an error
// with a message or has what it promises.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "aqt/core/check.h"
#include "nlohmann/json.hpp"
#include "serving/http/api/http_api.h"
#include "serving/http/models/fake_model_testing.h"

namespace {

using aqt::serving::ApiOptions;
using aqt::serving::FakeSources;
using aqt::serving::HttpApi;
using aqt::serving::HttpRequest;
using aqt::serving::HttpResponse;
using aqt::serving::ModelRepository;
using aqt::serving::OpenFake;

constexpr char kFolder[] = "/secret";  // of the models of OpenFake
constexpr const char* kPaths[][3] = {
    {"v1", "embeddings"},
    {"rerank"},
    {"classify"},
    {"v2", "repository", "index"},
};

HttpApi& Api() {
  static ModelRepository* models = [] {
    auto* made = new ModelRepository(FakeSources(), OpenFake);
    for (const auto& source : FakeSources()) (void)made->Load(source.name);
    return made;
  }();
  static HttpApi* api = [] {
    ApiOptions options;
    options.allow_token_ids = true;
    options.max_values = 1000;
    options.max_texts = 50;
    return new HttpApi(*models, options, nullptr);
  }();
  return *api;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  HttpRequest request;
  request.method = "POST";
  for (const char* part : kPaths[data[0] % std::size(kPaths)]) {
    if (part == nullptr) continue;
    request.path.emplace_back(part);
    request.target += std::string("/") + part;
  }
  request.body = std::string(reinterpret_cast<const char*>(data) + 1, size - 1);
  aqt::serving::Cancellation cancellation;
  AQT_CHECK(!Api().CheckHead(request).has_value());
  const HttpResponse response = Api().Handle(request, cancellation);
  const nlohmann::json json = nlohmann::json::parse(response.body);
  AQT_CHECK(response.status == 200 || (response.status >= 400 && response.status < 600));
  // No path of the file system is in an answer, unless the request has it.
  AQT_CHECK(response.body.find(kFolder) == std::string::npos || request.body.find(kFolder) != std::string::npos);
  AQT_CHECK(response.status == 200 || json.contains("error"));
  return 0;
}
