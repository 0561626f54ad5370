#include "serving/grpc/grpc_api.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/grpc/infer_messages.h"
#include "serving/grpc/open_inference.pb.h"
#include "serving/http/api/inference.h"
#include "serving/http/models/served_model.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

constexpr char kService[] = "/inference.GRPCInferenceService/";
// The limit for requests of all methods but ModelInfer: they hold a few names.
constexpr size_t kMaxControlBytes = 64 << 10;

absl::Status CheckVersion(absl::string_view version) {
  return version.empty() ? absl::OkStatus() : CheckModelVersion(version);
}

template <class Request>
absl::StatusOr<std::shared_ptr<const ServedModel>> Model(const ApiContext& context, const Request& request) {
  AQT_RETURN_IF_ERROR(CheckVersion(request.version()));
  return context.models.Find(request.name());
}

// Makes a function of messages one of bytes.
template <class Request, class Response, absl::Status (*fn)(const ApiContext&, bool, const Request&, Response&)>
absl::StatusOr<std::string> Run(const ApiContext& context, bool stopping, absl::string_view bytes) {
  Request request;
  if (bytes.size() > kMaxControlBytes || !request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request of ", bytes.size(), " bytes is not a ", Request::descriptor()->name()));
  }
  Response response;
  AQT_RETURN_IF_ERROR(fn(context, stopping, request, response));
  return response.SerializeAsString();
}

absl::Status ServerLive(const ApiContext&, bool, const inference::ServerLiveRequest&,
                        inference::ServerLiveResponse& response) {
  response.set_live(true);
  return absl::OkStatus();
}

absl::Status ServerReady(const ApiContext& context, bool stopping, const inference::ServerReadyRequest&,
                         inference::ServerReadyResponse& response) {
  response.set_ready(!stopping && context.models.all_ready());
  return absl::OkStatus();
}

absl::Status ModelReady(const ApiContext& context, bool, const inference::ModelReadyRequest& request,
                        inference::ModelReadyResponse& response) {
  const auto model = Model(context, request);
  if (absl::IsNotFound(model.status())) return model.status();
  response.set_ready(model.ok());
  return absl::OkStatus();
}

absl::Status ServerMetadata(const ApiContext&, bool, const inference::ServerMetadataRequest&,
                            inference::ServerMetadataResponse& response) {
  response.set_name(kServerName);
  response.set_version(kVersion);
  for (const std::string& extension : ServerExtensions()) {
    if (extension != "binary_tensor_data") response.add_extensions(extension);  // it is one of REST
  }
  return absl::OkStatus();
}

absl::Status ModelMetadata(const ApiContext& context, bool, const inference::ModelMetadataRequest& request,
                           inference::ModelMetadataResponse& response) {
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model, Model(context, request));
  response.set_name(request.name());
  response.add_versions(kModelVersion);
  response.set_platform(kServerName);
  const ModelPorts ports = PortsOf(model->info());
  const auto add = [](const ModelPorts::Port& port, inference::ModelMetadataResponse::TensorMetadata& tensor) {
    tensor.set_name(port.name);
    tensor.set_datatype(port.datatype);
    for (const int64_t extent : port.shape) tensor.add_shape(extent);
  };
  for (const ModelPorts::Port& port : ports.inputs) add(port, *response.add_inputs());
  for (const ModelPorts::Port& port : ports.outputs) add(port, *response.add_outputs());
  return absl::OkStatus();
}

absl::Status ModelConfig(const ApiContext& context, bool, const inference::ModelConfigRequest& request,
                         inference::ModelConfigResponse& response) {
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model, Model(context, request));
  inference::ModelConfig& config = *response.mutable_config();
  config.set_name(request.name());
  config.set_platform(kServerName);
  config.set_backend(kServerName);
  config.mutable_version_policy()->mutable_latest()->set_num_versions(1);
  const ModelPorts ports = PortsOf(model->info());
  const auto add = [](const ModelPorts::Port& port, auto& tensor) {
    inference::DataType type = inference::TYPE_INVALID;
    inference::DataType_Parse(ConfigTypeOf(port.datatype), &type);
    tensor.set_name(port.name);
    tensor.set_data_type(type);
    for (const int64_t extent : port.shape) tensor.add_dims(extent);
  };
  for (const ModelPorts::Port& port : ports.inputs) add(port, *config.add_input());
  for (const ModelPorts::Port& port : ports.outputs) add(port, *config.add_output());
  for (const auto& [name, value] : ConfigParameters(model->info())) {
    (*config.mutable_parameters())[name].set_string_value(value);
  }
  return absl::OkStatus();
}

void Set(const InferStatistics::Duration& duration, inference::StatisticDuration& message) {
  message.set_count(static_cast<uint64_t>(duration.count));
  message.set_ns(static_cast<uint64_t>(duration.ns));
}

absl::Status ModelStatistics(const ApiContext& context, bool, const inference::ModelStatisticsRequest& request,
                             inference::ModelStatisticsResponse& response) {
  AQT_RETURN_IF_ERROR(CheckVersion(request.version()));
  AQT_ASSIGN_OR_RETURN(const auto rows, LoadedRows(context, request.name()));
  for (const ModelRepository::Row& row : rows) {
    const InferStatistics statistics = StatisticsOf(context, row);
    inference::ModelStatistics& stats = *response.add_model_stats();
    stats.set_name(row.name);
    stats.set_version(kModelVersion);
    stats.set_last_inference(static_cast<uint64_t>(statistics.last_ms));
    stats.set_inference_count(static_cast<uint64_t>(statistics.inferences));
    stats.set_execution_count(static_cast<uint64_t>(statistics.executions));
    Set(statistics.success, *stats.mutable_inference_stats()->mutable_success());
    Set(statistics.fail, *stats.mutable_inference_stats()->mutable_fail());
    Set(statistics.queue, *stats.mutable_inference_stats()->mutable_queue());
    Set(statistics.compute, *stats.mutable_inference_stats()->mutable_compute_infer());
    for (const InferStatistics::Batch& batch : statistics.batches) {
      inference::InferBatchStatistics& of_batch = *stats.add_batch_stats();
      of_batch.set_batch_size(static_cast<uint64_t>(batch.size));
      Set(batch.compute, *of_batch.mutable_compute_infer());
    }
  }
  return absl::OkStatus();
}

absl::Status RepositoryIndex(const ApiContext& context, bool, const inference::RepositoryIndexRequest& request,
                             inference::RepositoryIndexResponse& response) {
  for (const IndexLine& line : IndexOf(context, request.ready())) {
    auto& model = *response.add_models();
    model.set_name(line.name);
    model.set_version(kModelVersion);
    model.set_state(line.state);
    model.set_reason(line.reason);
  }
  return absl::OkStatus();
}

// The model that is to be loaded or unloaded.
absl::StatusOr<std::string> ControlledModel(const ApiContext& context, const inference::RepositoryModelRequest& request,
                                            absl::string_view what) {
  AQT_RETURN_IF_ERROR(CheckControl(context, what));
  for (const auto& [name, value] : request.parameters()) {
    // Triton's client sends this one by default.
    if (name != "unload_dependents" || value.bool_param()) return ControlParametersError();
  }
  if (request.model_name().empty()) return request.repository_name();  // KServe's field
  if (request.repository_name().empty()) return request.model_name();
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no repository ", io::Printable(request.repository_name(), 60), "; leave repository_name empty"));
}

absl::Status RepositoryModelLoad(const ApiContext& context, bool, const inference::RepositoryModelRequest& request,
                                 inference::RepositoryModelResponse& response) {
  AQT_ASSIGN_OR_RETURN(const std::string name, ControlledModel(context, request, "loading"));
  const absl::Status status = context.models.Load(name);
  // The message of a load has no path, and is meant for clients.
  if (absl::IsInternal(status)) return absl::AbortedError(status.message());
  AQT_RETURN_IF_ERROR(status);
  response.set_model_name(name);
  response.set_done(true);
  return absl::OkStatus();
}

absl::Status RepositoryModelUnload(const ApiContext& context, bool, const inference::RepositoryModelRequest& request,
                                   inference::RepositoryModelResponse& response) {
  AQT_ASSIGN_OR_RETURN(const std::string name, ControlledModel(context, request, "unloading"));
  AQT_RETURN_IF_ERROR(context.models.Unload(name));
  response.set_model_name(name);
  response.set_done(true);
  return absl::OkStatus();
}

absl::Status HealthCheck(const ApiContext& context, bool stopping, const inference::HealthCheckRequest& request,
                         inference::HealthCheckResponse& response) {
  bool serving = context.models.all_ready();
  if (!request.service().empty() && absl::StrCat("/", request.service(), "/") != kService) {
    const auto model = context.models.Find(request.service());
    if (absl::IsNotFound(model.status())) return model.status();
    serving = model.ok();
  }
  response.set_status(serving && !stopping ? inference::HealthCheckResponse::SERVING
                                           : inference::HealthCheckResponse::NOT_SERVING);
  return absl::OkStatus();
}

absl::StatusOr<inference::ModelInferResponse> Infer(const ApiContext& context, absl::string_view bytes) {
  const InferLimits limits = LimitsOf(context.options);
  AQT_ASSIGN_OR_RETURN(const inference::ModelInferRequest message, ParseInferMessage(bytes, limits));
  AQT_RETURN_IF_ERROR(CheckVersion(message.model_version()));
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model, context.models.Find(message.model_name()));
  AQT_ASSIGN_OR_RETURN(const InferRequest request, InferRequestOf(message, limits));
  AQT_ASSIGN_OR_RETURN(const std::vector<InferTensor> outputs,
                       RunInfer(context, message.model_name(), *model, request));
  return InferResponseOf(message, outputs);
}

absl::StatusOr<std::string> ModelInfer(const ApiContext& context, bool, absl::string_view bytes) {
  AQT_ASSIGN_OR_RETURN(const inference::ModelInferResponse response, Infer(context, bytes));
  return response.SerializeAsString();
}

absl::StatusOr<std::string> ModelStreamInfer(const ApiContext& context, bool, absl::string_view bytes) {
  inference::ModelStreamInferResponse response;
  AQT_ASSIGN_OR_RETURN(*response.mutable_infer_response(), Infer(context, bytes));
  return response.SerializeAsString();
}

// clang-format off
constexpr GrpcMethod kMethods[] = {
    {"ServerLive", Run<inference::ServerLiveRequest, inference::ServerLiveResponse, ServerLive>,
     {.anyone = true, .quick = true}},
    {"ServerReady", Run<inference::ServerReadyRequest, inference::ServerReadyResponse, ServerReady>,
     {.anyone = true, .quick = true}},
    {"ModelReady", Run<inference::ModelReadyRequest, inference::ModelReadyResponse, ModelReady>, {.quick = true}},
    {"ServerMetadata", Run<inference::ServerMetadataRequest, inference::ServerMetadataResponse, ServerMetadata>,
     {.quick = true}},
    {"ModelMetadata", Run<inference::ModelMetadataRequest, inference::ModelMetadataResponse, ModelMetadata>,
     {.quick = true}},
    {"ModelInfer", ModelInfer, {}},
    {"ModelStreamInfer", ModelStreamInfer, {.stream = true}},
    {"ModelConfig", Run<inference::ModelConfigRequest, inference::ModelConfigResponse, ModelConfig>, {.quick = true}},
    {"ModelStatistics", Run<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse, ModelStatistics>,
     {.quick = true}},
    {"RepositoryIndex", Run<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse, RepositoryIndex>,
     {.quick = true}},
    {"RepositoryModelLoad",
     Run<inference::RepositoryModelRequest, inference::RepositoryModelResponse, RepositoryModelLoad>, {}},
    {"RepositoryModelUnload",
     Run<inference::RepositoryModelRequest, inference::RepositoryModelResponse, RepositoryModelUnload>, {}},
};
constexpr GrpcMethod kHealthCheck = {
    "HealthCheck", Run<inference::HealthCheckRequest, inference::HealthCheckResponse, HealthCheck>,
    {.anyone = true, .quick = true}};
// clang-format on

}  // namespace

const GrpcMethod* FindGrpcMethod(absl::string_view path) {
  if (path == "/grpc.health.v1.Health/Check") return &kHealthCheck;
  if (!absl::ConsumePrefix(&path, kService)) return nullptr;
  for (const GrpcMethod& method : kMethods) {
    if (path == method.name) return &method;
  }
  return nullptr;
}

absl::Status PublicStatus(const absl::Status& status) {
  if (status.ok()) return status;
  const bool hidden = absl::IsInternal(status) || absl::IsUnknown(status) || absl::IsDataLoss(status);
  return absl::Status(status.code(), hidden ? "the server has an internal error" : io::PrintableLine(status.message()));
}

std::string StreamError(const absl::Status& status) {
  inference::ModelStreamInferResponse response;
  response.set_error_message(std::string(PublicStatus(status).message()));
  return response.SerializeAsString();
}

}  // namespace aqt::serving
