#ifndef AQT_SERVING_HTTP_API_API_ERROR_H_
#define AQT_SERVING_HTTP_API_API_ERROR_H_

// Errors as responses, in the form that the clients of each protocol read.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "serving/http/wire/http_message.h"

namespace aqt::serving {

enum class ErrorForm : uint8_t {
  kOpenAi,     // {"error": {"message", "type", "param", "code"}}
  kInference,  // {"error": "..."}, of the Open Inference Protocol
};

// That of a path: kInference below /v2.
ErrorForm ErrorFormOf(absl::string_view path);

// InvalidArgument 400, NotFound (a model) 404, FailedPrecondition 409, ResourceExhausted 429, Unimplemented 501,
// Unavailable and Cancelled 503, DeadlineExceeded 504; anything else 500, without the message, which is not meant for
// clients.
HttpResponse ErrorResponse(ErrorForm form, const absl::Status& status);
// With this HTTP status. 429 and 503 tell when to try again.
HttpResponse ErrorResponse(ErrorForm form, int http_status, absl::string_view message);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_API_ERROR_H_
