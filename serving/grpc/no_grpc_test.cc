// A build without gRPC says so.

#include <memory>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/grpc/grpc_server.h"
#include "serving/http/api/http_api.h"
#include "serving/http/models/fake_model_testing.h"

namespace aqt::serving {
namespace {

TEST(NoGrpc, NamesTheRemedy) {
  ModelRepository models(FakeSources(), OpenFake);
  const HttpApi api(models, {}, nullptr);
  const absl::Status status = ListenGrpc({}, api.context()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), testing::HasSubstr("build it with ./bazelw build --config=grpc"));
}

}  // namespace
}  // namespace aqt::serving
