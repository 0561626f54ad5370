#ifndef AQT_SERVING_GRPC_INFER_MESSAGES_H_
#define AQT_SERVING_GRPC_INFER_MESSAGES_H_

// `infer` requests and responses between messages of gRPC and values (serving/http/api/infer_request.h).

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/grpc/open_inference.pb.h"
#include "serving/http/api/infer_request.h"

namespace aqt::serving {

// A ModelInferRequest from its bytes. Its lists are counted before they are parsed, as a message takes up to a hundred
// times the memory of its bytes. InvalidArgument for bytes that are no such message, and for one with more inputs,
// outputs or parameters than limits.tensors, more strings than limits.strings, or more numbers that are not raw than
// limits.values.
absl::StatusOr<inference::ModelInferRequest> ParseInferMessage(absl::string_view bytes, const InferLimits& limits);

// InvalidArgument, naming the tensor and the field, for everything that is not a request: contents that do not have the
// shape or the datatype, a number that the datatype does not have, both contents and raw contents, parameters or fields
// that are not known.
absl::StatusOr<InferRequest> InferRequestOf(const inference::ModelInferRequest& message, const InferLimits& limits);

// Raw contents if the request has raw contents, or an output is FP16 or BF16, which have no others.
inference::ModelInferResponse InferResponseOf(const inference::ModelInferRequest& request,
                                              const std::vector<InferTensor>& outputs);

}  // namespace aqt::serving

#endif  // AQT_SERVING_GRPC_INFER_MESSAGES_H_
