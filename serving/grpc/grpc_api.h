#ifndef AQT_SERVING_GRPC_GRPC_API_H_
#define AQT_SERVING_GRPC_GRPC_API_H_

// The methods of GRPCInferenceService and of gRPC's health checks, from bytes to bytes. The server itself is
// grpc_server.cc.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "serving/http/api/api_context.h"

namespace aqt::serving {

struct GrpcMethod {
  struct Traits {
    bool anyone = false;  // needs no key: probes have none
    bool quick = false;   // does not compute
    bool stream = false;  // of requests, each of which has a response
  };
  const char* name;  // "ModelInfer"
  // The response's bytes. `stopping` is whether the server ends.
  absl::StatusOr<std::string> (*run)(const ApiContext& context, bool stopping, absl::string_view request);
  Traits traits;
};

// The method of a path such as "/inference.GRPCInferenceService/ModelInfer"; null if there is none.
const GrpcMethod* FindGrpcMethod(absl::string_view path);

// What a client sees of an error: the message in one line, and none of an internal error.
absl::Status PublicStatus(const absl::Status& status);

// A response of a stream that tells an error, with the message of PublicStatus.
std::string StreamError(const absl::Status& status);

}  // namespace aqt::serving

#endif  // AQT_SERVING_GRPC_GRPC_API_H_
