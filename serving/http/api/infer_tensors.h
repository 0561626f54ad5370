#ifndef AQT_SERVING_HTTP_API_INFER_TENSORS_H_
#define AQT_SERVING_HTTP_API_INFER_TENSORS_H_

// The requests and responses of `infer` of the Open Inference Protocol, version 2, as bytes: JSON, or JSON followed by
// the tensors' bytes (the binary tensor data extension).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/http/api/infer_request.h"

namespace aqt::serving {

// `json_bytes` is the value of Inference-Header-Content-Length, if there is one. InvalidArgument, naming the field or
// the tensor, for everything that is not such a request: a tensor whose data does not have its shape, a number that its
// datatype does not have, bytes that are missing or left over, parameters that are not supported.
absl::StatusOr<InferRequest> ParseInfer(absl::string_view body, std::optional<int64_t> json_bytes,
                                        const InferLimits& limits = {});

struct InferAnswer {
  std::string body;
  std::optional<int64_t> json_bytes;  // the value of Inference-Header-Content-Length; null if all outputs are JSON
};
// InvalidArgument, naming the tensor, if a value of an output is not finite, which JSON cannot tell.
absl::StatusOr<InferAnswer> InferAnswerOf(absl::string_view model, const InferRequest& request,
                                          const std::vector<InferTensor>& outputs);

}  // namespace aqt::serving

#endif  // AQT_SERVING_HTTP_API_INFER_TENSORS_H_
