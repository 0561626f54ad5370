#include "serving/http/api/api_error.h"

#include <string>

#include "absl/strings/match.h"
#include "aqt/io/printable.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {
namespace {

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument: return 400;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kFailedPrecondition: return 409;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled: return 503;
    case absl::StatusCode::kDeadlineExceeded: return 504;
    case absl::StatusCode::kUnimplemented: return 501;
    default: return 500;
  }
}

const char* OpenAiType(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

AnswerJson OpenAiCode(int status) {
  if (status == 401) return "invalid_api_key";
  if (status == 429) return "rate_limit_exceeded";
  return nullptr;
}

}  // namespace

ErrorForm ErrorFormOf(absl::string_view path) {
  return path == "/v2" || absl::StartsWith(path, "/v2/") ? ErrorForm::kInference : ErrorForm::kOpenAi;
}

namespace {

HttpResponse MakeResponse(ErrorForm form, int http_status, absl::string_view message, const AnswerJson& code) {
  const std::string text = io::PrintableLine(message);
  AnswerJson body;
  if (form == ErrorForm::kInference) {
    body["error"] = text;
  } else {
    body["error"] = {{"message", text}, {"type", OpenAiType(http_status)}, {"param", nullptr}, {"code", code}};
  }
  HttpResponse response = {.status = http_status, .body = AnswerText(body)};
  if (http_status == 429 || http_status == 503) response.fields.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace

HttpResponse ErrorResponse(ErrorForm form, int http_status, absl::string_view message) {
  return MakeResponse(form, http_status, message, OpenAiCode(http_status));
}

HttpResponse ErrorResponse(ErrorForm form, const absl::Status& status) {
  const int http_status = HttpStatusOf(status);
  return MakeResponse(form, http_status, http_status == 500 ? "the server has an internal error" : status.message(),
                      http_status == 404 ? AnswerJson("model_not_found") : OpenAiCode(http_status));
}

}  // namespace aqt::serving
