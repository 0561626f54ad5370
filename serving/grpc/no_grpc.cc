// Builds without gRPC.

#include "absl/status/status.h"
#include "serving/grpc/grpc_server.h"

namespace aqt::serving {

absl::StatusOr<std::unique_ptr<ProtocolServer>> ListenGrpc(const HttpServerOptions&, const ApiContext&) {
  return absl::UnimplementedError(
      "--grpc-port: this aqt was built without gRPC; build it with ./bazelw build --config=grpc //serving/cli:aqt");
}

}  // namespace aqt::serving
