#ifndef AQT_SERVING_GRPC_GRPC_SERVER_H_
#define AQT_SERVING_GRPC_GRPC_SERVER_H_

// GRPCInferenceService of the Open Inference Protocol, version 2: docs/serving-grpc.md.

#include <memory>

#include "absl/status/statusor.h"
#include "serving/http/api/api_context.h"
#include "serving/http/serve.h"
#include "serving/http/wire/http_server.h"

namespace aqt::serving {

// Listens on options.host and options.port. Limits are those of HTTP: bodies are messages, heads are metadata. The
// errors of Listen (serving/http/wire/listen.h); Unimplemented, with the remedy, if this build has no gRPC.
absl::StatusOr<std::unique_ptr<ProtocolServer>> ListenGrpc(const HttpServerOptions& options, const ApiContext& context);

}  // namespace aqt::serving

#endif  // AQT_SERVING_GRPC_GRPC_SERVER_H_
