// The methods of gRPC without a connection: messages in, messages out. Exact.

#include "serving/grpc/grpc_api.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/array.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "serving/grpc/infer_messages.h"
#include "serving/grpc/open_inference.pb.h"
#include "serving/http/api/http_api.h"
#include "serving/http/models/fake_model_testing.h"

namespace aqt::serving {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GrpcApiTest : public ::testing::Test {
 protected:
  GrpcApiTest() : models_(FakeSources(), OpenFake), api_(models_, {}, nullptr) {
    for (const ModelSource& source : FakeSources()) models_.Load(source.name).IgnoreError();
  }

  absl::StatusOr<std::string> Bytes(const std::string& method, const std::string& request) {
    const GrpcMethod* found = FindGrpcMethod("/inference.GRPCInferenceService/" + method);
    if (found == nullptr) return absl::UnimplementedError(method);
    return found->run(api_.context(), /*stopping=*/false, request);
  }
  template <class Response, class Request>
  Response Call(const std::string& method, const Request& request) {
    const absl::StatusOr<std::string> bytes = Bytes(method, request.SerializeAsString());
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    Response response;
    EXPECT_TRUE(response.ParseFromString(bytes.value_or("")));
    return response;
  }
  template <class Request>
  absl::Status Error(const std::string& method, const Request& request) {
    return Bytes(method, request.SerializeAsString()).status();
  }
  ModelInferResponse Infer(const ModelInferRequest& request) { return Call<ModelInferResponse>("ModelInfer", request); }
  void ExpectError(const ModelInferRequest& request, const std::string& part) {
    const absl::Status status = Error("ModelInfer", request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(part));
  }

  ModelRepository models_;
  HttpApi api_;
};

ModelInferRequest::InferInputTensor& AddInput(ModelInferRequest& request, const std::string& name,
                                              const std::string& datatype, const std::vector<int64_t>& shape) {
  auto& input = *request.add_inputs();
  input.set_name(name);
  input.set_datatype(datatype);
  for (const int64_t extent : shape) input.add_shape(extent);
  return input;
}

// y = x + k.
ModelInferRequest Sum() {
  ModelInferRequest request;
  request.set_model_name("tensors");
  request.set_id("seven");
  auto& x = *AddInput(request, "x", "FP32", {2, 2}).mutable_contents();
  for (const float value : {1.5f, 2.0f, 3.0f, 4.0f}) x.add_fp32_contents(value);
  AddInput(request, "k", "INT32", {}).mutable_contents()->add_int_contents(10);
  return request;
}

template <class T>
std::string Raw(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

ModelInferRequest RawSum() {
  ModelInferRequest request = Sum();
  for (auto& input : *request.mutable_inputs()) input.clear_contents();
  request.add_raw_input_contents(Raw<float>({1.5f, 2, 3, 4}));
  request.add_raw_input_contents(Raw<int32_t>({10}));
  return request;
}

TEST_F(GrpcApiTest, ContentsAreAnsweredWithContents) {
  const ModelInferResponse response = Infer(Sum());
  EXPECT_EQ(response.model_name(), "tensors");
  EXPECT_EQ(response.model_version(), "1");
  EXPECT_EQ(response.id(), "seven");
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "y");
  EXPECT_EQ(response.outputs(0).datatype(), "FP32");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 2));
  EXPECT_THAT(response.outputs(0).contents().fp32_contents(), ElementsAre(11.5f, 12, 13, 14));
  EXPECT_THAT(response.outputs(1).contents().int64_contents(), ElementsAre(4));
  EXPECT_EQ(response.raw_output_contents_size(), 0);
}

TEST_F(GrpcApiTest, RawContentsAreAnsweredWithRawContents) {
  const ModelInferResponse response = Infer(RawSum());
  EXPECT_THAT(response.raw_output_contents(), ElementsAre(Raw<float>({11.5f, 12, 13, 14}), Raw<int64_t>({4})));
  EXPECT_FALSE(response.outputs(0).has_contents());
  ModelInferRequest one = RawSum();
  one.add_outputs()->set_name("n");
  EXPECT_THAT(Infer(one).raw_output_contents(), ElementsAre(Raw<int64_t>({4})));
}

TEST_F(GrpcApiTest, Texts) {
  ModelInferRequest request;
  request.set_model_name("embed");
  auto& text = AddInput(request, "text", "BYTES", {2});
  text.mutable_contents()->add_bytes_contents("abc");
  text.mutable_contents()->add_bytes_contents("abcde");
  (*text.mutable_parameters())["content_type"].set_string_param("str");
  EXPECT_THAT(Infer(request).outputs(0).contents().fp32_contents(), ElementsAre(3, 3, 0, 4, 5, 3, 0, 4));
  text.clear_contents();
  request.add_raw_input_contents(std::string("\3\0\0\0abc\5\0\0\0abcde", 16));
  EXPECT_THAT(Infer(request).raw_output_contents(), ElementsAre(Raw<float>({3, 3, 0, 4, 5, 3, 0, 4})));
  request.set_model_name("org/label");
  EXPECT_EQ(Infer(request).outputs(0).name(), "logits");
}

TEST_F(GrpcApiTest, WrongRequests) {
  const auto change = [](auto edit) {
    ModelInferRequest request = Sum();
    edit(request);
    return request;
  };
  ExpectError(change([](auto& r) { r.mutable_inputs(0)->set_shape(0, 3); }),
              "the input 'x' has 4 values in fp32_contents, and its shape has 6");
  ExpectError(change([](auto& r) { r.mutable_inputs(0)->set_shape(0, -1); }), "extents of 0 and more");
  ExpectError(change([](auto& r) {
                for (int i = 0; i < 9; ++i) r.mutable_inputs(0)->add_shape(1);
              }),
              "up to 8 extents");
  ExpectError(change([](auto& r) { r.mutable_inputs(0)->set_datatype("FLOAT"); }), "datatype FLOAT is not supported");
  ExpectError(change([](auto& r) { r.mutable_inputs(0)->set_datatype("FP16"); }), "send it in raw_input_contents");
  ExpectError(change([](auto& r) { r.mutable_inputs(0)->set_datatype("FP64"); }),
              "is FP64, whose values belong in fp64_contents, and it has fp32_contents");
  ExpectError(change([](auto& r) { r.mutable_inputs(1)->mutable_contents()->add_bool_contents(true); }),
              "it has bool_contents");
  ExpectError(change([](auto& r) { r.mutable_inputs(1)->set_name("x"); }), "the input 'x' is given twice");
  ExpectError(change([](auto& r) { r.mutable_inputs(1)->set_name("z"); }), "no input 'z'; it has 'x', 'k'");
  ExpectError(change([](auto& r) { r.mutable_inputs()->RemoveLast(); }), "the input 'k' is missing");
  ExpectError(change([](auto& r) { r.add_outputs()->set_name("z"); }), "no output 'z'; it has 'y', 'n'");
  ExpectError(change([](auto& r) {
                r.add_outputs()->set_name("y");
                r.add_outputs()->set_name("y");
              }),
              "asked for twice");
  ExpectError(change([](auto& r) { (*r.mutable_parameters())["priority"].set_int64_param(1); }),
              "the parameter 'priority', which is not supported");
  ExpectError(change([](auto& r) {
                (*r.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("a");
              }),
              "the input 'x' has the parameter 'shared_memory_region'");
  ExpectError(change([](auto& r) { r.GetReflection()->MutableUnknownFields(&r)->AddVarint(99, 1); }), "number 99");
  ExpectError(change([](auto& r) {
                auto* x = r.mutable_inputs(0);
                x->GetReflection()->MutableUnknownFields(x)->AddVarint(98, 1);
              }),
              "number 98");
  ExpectError(change([](auto& r) { r.add_raw_input_contents("a"); }), "2 inputs, and 1 entries in raw_input_contents");
  ExpectError(change([](auto& r) {
                r.add_raw_input_contents(Raw<float>({1, 2, 3, 4}));
                r.add_raw_input_contents("");
              }),
              "has contents, and the request has raw_input_contents");
  ModelInferRequest raw = RawSum();
  (*raw.mutable_inputs(0)->mutable_parameters())["binary_data_size"].set_int64_param(16);
  EXPECT_EQ(Infer(raw).outputs_size(), 2);
  (*raw.mutable_inputs(0)->mutable_parameters())["binary_data_size"].set_int64_param(15);
  ExpectError(raw, "a binary_data_size of 15, and 16 bytes in raw_input_contents");
  raw.mutable_inputs(0)->clear_parameters();
  raw.set_raw_input_contents(0, "abc");
  ExpectError(raw, "the input 'x' has 3 bytes, and FP32 of shape [2,2] has 16");
}

TEST_F(GrpcApiTest, VersionsAndModels) {
  ModelInferRequest request = Sum();
  request.set_model_version("1");
  EXPECT_EQ(Infer(request).outputs_size(), 2);
  request.set_model_version("2");
  EXPECT_EQ(Error("ModelInfer", request).code(), absl::StatusCode::kNotFound);
  request.set_model_version("");
  request.set_model_name("gone");
  EXPECT_EQ(Error("ModelInfer", request).code(), absl::StatusCode::kNotFound);
  request.set_model_name("broken");
  EXPECT_EQ(Error("ModelInfer", request).code(), absl::StatusCode::kUnavailable);
  ModelInferRequest late;
  late.set_model_name("embed");
  AddInput(late, "text", "BYTES", {1}).mutable_contents()->add_bytes_contents("late");
  EXPECT_EQ(Error("ModelInfer", late).code(), absl::StatusCode::kDeadlineExceeded);
}

// What a message of a few MiB could cost is refused before it is parsed.
TEST_F(GrpcApiTest, Counts) {
  const InferLimits limits = {.values = 10, .tensors = 3, .strings = 4, .string_bytes = 100};
  const auto expect = [&](const ModelInferRequest& request, const std::string& part) {
    const absl::Status status = ParseInferMessage(request.SerializeAsString(), limits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(part));
  };
  const auto ok = [&](const ModelInferRequest& request) {
    return ParseInferMessage(request.SerializeAsString(), limits).ok();
  };
  ModelInferRequest strings, numbers, wide, doubles, tensors, raw, parameters;
  for (int i = 0; i < 4; ++i) AddInput(strings, "s", "BYTES", {}).mutable_contents()->add_bytes_contents("");
  EXPECT_TRUE(ok(strings));
  strings.mutable_inputs(0)->mutable_contents()->add_bytes_contents("");
  expect(strings, "more than 4 strings");
  auto* contents = AddInput(numbers, "n", "INT64", {}).mutable_contents();
  for (int i = 0; i < 10; ++i) contents->add_int64_contents(-1);
  EXPECT_TRUE(ok(numbers)) << "each has ten bytes";
  contents->add_int64_contents(0);
  expect(numbers, "more than 10 numbers; send tensors in raw_input_contents");
  for (int i = 0; i < 11; ++i) AddInput(wide, "n", "FP32", {});
  expect(wide, "more than 6 inputs and outputs");
  contents = AddInput(doubles, "n", "FP64", {}).mutable_contents();
  for (int i = 0; i < 10; ++i) contents->add_fp64_contents(1);
  EXPECT_TRUE(ok(doubles));
  contents->add_fp64_contents(1);
  expect(doubles, "more than 10 numbers");
  for (int i = 0; i < 7; ++i) tensors.add_outputs()->set_name("a");
  expect(tensors, "more than 6 inputs and outputs");
  for (int i = 0; i < 4; ++i) raw.add_raw_input_contents("");
  expect(raw, "more than 3 parameters or raw contents");
  for (int i = 0; i < 4; ++i) (*parameters.mutable_parameters())[absl::StrCat(i)].set_bool_param(true);
  expect(parameters, "more than 3 parameters or raw contents");
  const std::string whole = Sum().SerializeAsString();
  for (const std::string& bytes : {whole.substr(0, whole.size() - 1), std::string("\xff"), std::string("\0", 1),
                                   std::string("\x2a\x7f"), std::string("\x2c")}) {
    EXPECT_THAT(ParseInferMessage(bytes, {}).status().message(), HasSubstr("not a message"));
  }
  EXPECT_TRUE(ParseInferMessage("", limits).ok()) << "a message without fields";
}

template <class T>
void ExpectSame(const std::string& datatype, const std::vector<T>& values) {
  ModelInferRequest request;
  AddInput(request, "t", datatype, {static_cast<int64_t>(values.size())});
  request.add_raw_input_contents(Raw<T>(values));
  const absl::StatusOr<InferRequest> read = InferRequestOf(request, {});
  ASSERT_TRUE(read.ok()) << read.status();
  // Back as contents, and read again.
  request.clear_raw_input_contents();
  const ModelInferResponse response = InferResponseOf(request, read->inputs);
  *request.mutable_inputs(0)->mutable_contents() = response.outputs(0).contents();
  EXPECT_EQ(response.outputs(0).datatype(), datatype);
  const absl::StatusOr<InferRequest> again = InferRequestOf(request, {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(BitEqual(again->inputs[0].array, read->inputs[0].array)) << datatype;
}

template <class T>
std::vector<T> Ends() {
  return {std::numeric_limits<T>::lowest(), 0, 1, std::numeric_limits<T>::max()};
}

TEST(InferMessages, EveryDatatype) {
  ExpectSame<int8_t>("INT8", Ends<int8_t>());
  ExpectSame<uint8_t>("UINT8", Ends<uint8_t>());
  ExpectSame<int16_t>("INT16", Ends<int16_t>());
  ExpectSame<int32_t>("INT32", Ends<int32_t>());
  ExpectSame<uint32_t>("UINT32", Ends<uint32_t>());
  ExpectSame<int64_t>("INT64", Ends<int64_t>());
  ExpectSame<float>("FP32", {-1.5f, std::numeric_limits<float>::infinity()});
  ExpectSame<double>("FP64", {-1.5, 1e300});
  ExpectSame<uint8_t>("BOOL", {0, 1, 1});
  for (const auto& [datatype, value] : std::vector<std::pair<std::string, int32_t>>{{"INT8", 128}, {"INT16", -32769}}) {
    ModelInferRequest request;
    AddInput(request, "t", datatype, {1}).mutable_contents()->add_int_contents(value);
    EXPECT_THAT(InferRequestOf(request, {}).status().message(),
                HasSubstr(absl::StrCat("value 0 is ", value, ", expected ", datatype)));
  }
  // Half floats have only raw contents, in both directions.
  ModelInferRequest half;
  AddInput(half, "t", "FP16", {2});
  half.add_raw_input_contents(Raw<uint16_t>({0x3c00, 0x4000}));
  const absl::StatusOr<InferRequest> read = InferRequestOf(half, {});
  ASSERT_TRUE(read.ok());
  half.clear_raw_input_contents();
  EXPECT_THAT(InferResponseOf(half, read->inputs).raw_output_contents(), ElementsAre(Raw<uint16_t>({0x3c00, 0x4000})));
}

TEST_F(GrpcApiTest, TheServerAndItsModels) {
  EXPECT_TRUE(Call<inference::ServerLiveResponse>("ServerLive", inference::ServerLiveRequest()).live());
  EXPECT_FALSE(Call<inference::ServerReadyResponse>("ServerReady", inference::ServerReadyRequest()).ready())
      << "a model is broken";
  const auto server = Call<inference::ServerMetadataResponse>("ServerMetadata", inference::ServerMetadataRequest());
  EXPECT_EQ(server.name(), "aqt");
  inference::ModelReadyRequest ready;
  ready.set_name("embed");
  EXPECT_TRUE(Call<inference::ModelReadyResponse>("ModelReady", ready).ready());
  ready.set_name("broken");
  EXPECT_FALSE(Call<inference::ModelReadyResponse>("ModelReady", ready).ready());
  ready.set_name("gone");
  EXPECT_EQ(Error("ModelReady", ready).code(), absl::StatusCode::kNotFound);
  inference::ModelMetadataRequest metadata;
  metadata.set_name("tensors");
  const auto model = Call<inference::ModelMetadataResponse>("ModelMetadata", metadata);
  EXPECT_THAT(model.versions(), ElementsAre("1"));
  EXPECT_EQ(model.inputs(0).datatype(), "FP32");
  EXPECT_THAT(model.inputs(0).shape(), ElementsAre(2, -1));
  EXPECT_EQ(model.outputs(1).name(), "n");
  inference::ModelConfigRequest config;
  config.set_name("org/label");
  const auto configured = Call<inference::ModelConfigResponse>("ModelConfig", config).config();
  EXPECT_EQ(configured.input(0).data_type(), inference::TYPE_STRING);
  EXPECT_EQ(configured.parameters().at("labels").string_value(), R"(["low","middle","high"])");
  EXPECT_EQ(Bytes("TraceSetting", "").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Bytes("ModelReady", std::string(100000, '\0')).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FindGrpcMethod("/other.Service/ModelInfer"), nullptr);
}

TEST_F(GrpcApiTest, Statistics) {
  Infer(Sum());
  inference::ModelStatisticsRequest request;
  request.set_name("tensors");
  const auto stats = Call<inference::ModelStatisticsResponse>("ModelStatistics", request).model_stats(0);
  EXPECT_EQ(stats.inference_count(), 1u);
  EXPECT_EQ(stats.inference_stats().success().count(), 1u);
  request.set_name("");
  EXPECT_EQ(Call<inference::ModelStatisticsResponse>("ModelStatistics", request).model_stats_size(), 4);
  request.set_name("gone");
  EXPECT_EQ(Error("ModelStatistics", request).code(), absl::StatusCode::kNotFound);
}

TEST_F(GrpcApiTest, HealthChecks) {
  const GrpcMethod* check = FindGrpcMethod("/grpc.health.v1.Health/Check");
  ASSERT_NE(check, nullptr);
  EXPECT_TRUE(check->traits.anyone) << "probes have no key";
  const auto status = [&](const std::string& service, bool stopping = false) {
    inference::HealthCheckRequest request;
    request.set_service(service);
    inference::HealthCheckResponse response;
    EXPECT_TRUE(response.ParseFromString(check->run(api_.context(), stopping, request.SerializeAsString()).value()));
    return response.status();
  };
  EXPECT_EQ(status("embed"), inference::HealthCheckResponse::SERVING);
  EXPECT_EQ(status("broken"), inference::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(status(""), inference::HealthCheckResponse::NOT_SERVING) << "one of the models is not loaded";
  EXPECT_EQ(status("inference.GRPCInferenceService"), inference::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(status("embed", /*stopping=*/true), inference::HealthCheckResponse::NOT_SERVING);
  inference::HealthCheckRequest request;
  request.set_service("gone");
  EXPECT_EQ(check->run(api_.context(), false, request.SerializeAsString()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(FindGrpcMethod("/grpc.health.v1.Health/Watch"), nullptr);
}

TEST_F(GrpcApiTest, Repository) {
  inference::RepositoryIndexRequest index;
  EXPECT_EQ(Call<inference::RepositoryIndexResponse>("RepositoryIndex", index).models_size(), 5);
  index.set_ready(true);
  EXPECT_EQ(Call<inference::RepositoryIndexResponse>("RepositoryIndex", index).models_size(), 4);
  inference::RepositoryModelRequest triton, kserve;
  triton.set_model_name("embed");
  (*triton.mutable_parameters())["unload_dependents"].set_bool_param(false);
  kserve.set_repository_name("rank");
  for (const auto& request : {triton, kserve}) {
    for (const char* method : {"RepositoryModelUnload", "RepositoryModelLoad"}) {
      EXPECT_TRUE(Call<inference::RepositoryModelResponse>(method, request).done());
    }
  }
  kserve.set_repository_name("broken");
  const absl::Status broken = Error("RepositoryModelLoad", kserve);
  EXPECT_EQ(broken.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(broken.message().find("/secret"), absl::string_view::npos);
  (*triton.mutable_parameters())["config"].set_string_param("{}");
  EXPECT_THAT(Error("RepositoryModelLoad", triton).message(), HasSubstr("\"parameters\" are not supported"));
  triton.clear_parameters();
  triton.set_repository_name("other");
  EXPECT_THAT(Error("RepositoryModelLoad", triton).message(), HasSubstr("there is no repository other"));
  HttpApi fixed(models_, {.model_control = false}, nullptr);
  const GrpcMethod* load = FindGrpcMethod("/inference.GRPCInferenceService/RepositoryModelLoad");
  triton.set_repository_name("");
  EXPECT_THAT(load->run(fixed.context(), false, triton.SerializeAsString()).status().message(),
              HasSubstr("--model-control on"));
}

TEST(PublicStatus, HidesInternalErrors) {
  EXPECT_TRUE(PublicStatus(absl::OkStatus()).ok());
  EXPECT_EQ(PublicStatus(absl::InternalError("/secret")).message(), "the server has an internal error");
  EXPECT_EQ(PublicStatus(absl::NotFoundError("a\nb")).message().find('\n'), absl::string_view::npos);
}

}  // namespace
}  // namespace aqt::serving
