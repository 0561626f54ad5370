#include "serving/http/api/inference_api.h"

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/http/api/api_error.h"
#include "serving/http/api/infer_tensors.h"
#include "serving/http/api/inference.h"
#include "serving/http/api/json_body-inl.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

HttpResponse Refuse(const absl::Status& status) { return ErrorResponse(ErrorForm::kInference, status); }

HttpResponse Answer(const AnswerJson& json) { return {.body = AnswerText(json)}; }

AnswerJson PortsJson(const std::vector<ModelPorts::Port>& ports) {
  AnswerJson list = AnswerJson::array();
  for (const ModelPorts::Port& port : ports) {
    list.push_back({{"name", port.name}, {"datatype", port.datatype}, {"shape", port.shape}});
  }
  return list;
}

AnswerJson ConfigPortsJson(const std::vector<ModelPorts::Port>& ports) {
  AnswerJson list = AnswerJson::array();
  for (const ModelPorts::Port& port : ports) {
    list.push_back({{"name", port.name}, {"data_type", ConfigTypeOf(port.datatype)}, {"dims", port.shape}});
  }
  return list;
}

// KServe's clients repeat the name of the path in the body.
absl::Status CheckSameModel(const InferRequest& request, absl::string_view name) {
  if (request.model_name.value_or(std::string(name)) != name) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"model_name\" is ", io::Printable(*request.model_name, 60), ", and the path is that of ", name));
  }
  return CheckModelVersion(request.model_version.value_or(kModelVersion));
}

absl::StatusOr<InferAnswer> InferOn(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model, context.models.Find(name));
  std::optional<int64_t> json_bytes;
  if (const std::string* field = request.Find("inference-header-content-length"); field != nullptr) {
    json_bytes.emplace();
    if (!absl::c_all_of(*field, absl::ascii_isdigit) || !absl::SimpleAtoi(*field, &*json_bytes)) {
      return absl::InvalidArgumentError("Inference-Header-Content-Length is not one decimal number");
    }
  }
  AQT_ASSIGN_OR_RETURN(const InferRequest infer, ParseInfer(request.body, json_bytes, LimitsOf(context.options)));
  AQT_RETURN_IF_ERROR(CheckSameModel(infer, name));
  AQT_ASSIGN_OR_RETURN(const std::vector<InferTensor> outputs, RunInfer(context, name, *model, infer));
  return InferAnswerOf(name, infer, outputs);
}

AnswerJson DurationJson(const InferStatistics::Duration& duration) {
  return {{"count", duration.count}, {"ns", duration.ns}};
}

// Only what is measured: the time to read inputs and to write outputs is a part of "success" alone.
AnswerJson StatisticsJson(const std::string& name, const InferStatistics& statistics) {
  AnswerJson batches = AnswerJson::array();
  for (const InferStatistics::Batch& batch : statistics.batches) {
    batches.push_back({{"batch_size", batch.size}, {"compute_infer", DurationJson(batch.compute)}});
  }
  return {{"name", name},
          {"version", kModelVersion},
          {"last_inference", statistics.last_ms},
          {"inference_count", statistics.inferences},
          {"execution_count", statistics.executions},
          {"inference_stats",
           {{"success", DurationJson(statistics.success)},
            {"fail", DurationJson(statistics.fail)},
            {"queue", DurationJson(statistics.queue)},
            {"compute_infer", DurationJson(statistics.compute)}}},
          {"batch_stats", std::move(batches)}};
}

// The limit for requests that have a few fields, and are answered between others.
constexpr size_t kMaxControlBytes = 64 << 10;

// The fields of a body that may be empty.
absl::StatusOr<BodyJson> OptionalBody(const HttpRequest& request) {
  if (request.body.empty()) return BodyJson(BodyJson::object());
  if (request.body.size() > kMaxControlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body has ", request.body.size(), " bytes, expected at most ", kMaxControlBytes));
  }
  return ParseBody(request.body);
}

absl::Status CheckControlBody(const ApiContext& context, const HttpRequest& request, absl::string_view what) {
  AQT_RETURN_IF_ERROR(CheckControl(context, what));
  AQT_ASSIGN_OR_RETURN(const BodyJson body, OptionalBody(request));
  FieldReader fields(body);
  const BodyJson* parameters = fields.Get("parameters");
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  // Triton's client sends this one by default.
  if (parameters == nullptr || parameters->empty() || *parameters == BodyJson{{"unload_dependents", false}}) {
    return absl::OkStatus();
  }
  return ControlParametersError();
}

}  // namespace

HttpResponse ServerMetadata() {
  return Answer({{"name", kServerName}, {"version", kVersion}, {"extensions", ServerExtensions()}});
}

HttpResponse ServerLive() { return Answer({{"live", true}}); }

HttpResponse ServerReady(const ApiContext& context, bool stopping) {
  const bool ready = !stopping && context.models.all_ready();
  HttpResponse response = Answer({{"ready", ready}});
  response.status = ready ? 200 : 503;
  return response;
}

HttpResponse ListInferModels(const ApiContext& context) {
  AnswerJson names = AnswerJson::array();
  for (const ModelRepository::Row& row : context.models.List()) names.push_back(row.name);
  return Answer({{"models", std::move(names)}});
}

HttpResponse ModelMetadata(const ApiContext& context, const std::string& name) {
  const auto model = context.models.Find(name);
  if (!model.ok()) return Refuse(model.status());
  const ModelPorts ports = PortsOf((*model)->info());
  return Answer({{"name", name},
                 {"versions", {kModelVersion}},
                 {"platform", "aqt"},
                 {"inputs", PortsJson(ports.inputs)},
                 {"outputs", PortsJson(ports.outputs)}});
}

HttpResponse ModelReady(const ApiContext& context, const std::string& name) {
  const auto model = context.models.Find(name);
  if (absl::IsNotFound(model.status())) return Refuse(model.status());
  HttpResponse response = Answer({{"name", name}, {"ready", model.ok()}});
  response.status = model.ok() ? 200 : 503;
  return response;
}

HttpResponse ModelConfig(const ApiContext& context, const std::string& name) {
  const auto model = context.models.Find(name);
  if (!model.ok()) return Refuse(model.status());
  const ServedModelInfo& info = (*model)->info();
  const ModelPorts ports = PortsOf(info);
  AnswerJson parameters = AnswerJson::object();
  for (auto& [key, value] : ConfigParameters(info)) parameters[key] = {{"string_value", std::move(value)}};
  return Answer({{"name", name},
                 {"platform", "aqt"},
                 {"backend", "aqt"},
                 {"version_policy", {{"latest", {{"num_versions", 1}}}}},
                 {"max_batch_size", 0},
                 {"input", ConfigPortsJson(ports.inputs)},
                 {"output", ConfigPortsJson(ports.outputs)},
                 {"parameters", std::move(parameters)}});
}

HttpResponse ModelStatistics(const ApiContext& context, const std::string& name) {
  const auto rows = LoadedRows(context, name);
  if (!rows.ok()) return Refuse(rows.status());
  AnswerJson list = AnswerJson::array();
  for (const ModelRepository::Row& row : *rows) list.push_back(StatisticsJson(row.name, StatisticsOf(context, row)));
  return Answer({{"model_stats", std::move(list)}});
}

HttpResponse Infer(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  absl::StatusOr<InferAnswer> answer = InferOn(context, request, name);
  if (!answer.ok()) return Refuse(answer.status());
  HttpResponse response = {.body = std::move(answer->body)};
  if (answer->json_bytes.has_value()) {
    response.content_type = "application/octet-stream";
    response.fields.emplace_back("Inference-Header-Content-Length", absl::StrCat(*answer->json_bytes));
  }
  return response;
}

HttpResponse RepositoryIndex(const ApiContext& context, const HttpRequest& request) {
  const auto only_ready = [&]() -> absl::StatusOr<bool> {
    AQT_ASSIGN_OR_RETURN(const BodyJson body, OptionalBody(request));
    FieldReader fields(body);
    AQT_ASSIGN_OR_RETURN(const auto ready, fields.Bool("ready"));
    AQT_RETURN_IF_ERROR(fields.CheckAllRead());
    return ready.value_or(false);
  }();
  if (!only_ready.ok()) return Refuse(only_ready.status());
  AnswerJson list = AnswerJson::array();
  for (const IndexLine& line : IndexOf(context, *only_ready)) {
    AnswerJson item = {{"name", line.name}, {"version", kModelVersion}, {"state", line.state}};
    if (!line.reason.empty()) item["reason"] = line.reason;
    list.push_back(std::move(item));
  }
  return Answer(list);
}

HttpResponse LoadModel(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  if (const absl::Status status = CheckControlBody(context, request, "loading"); !status.ok()) return Refuse(status);
  const absl::Status status = context.models.Load(name);
  // The message of a load has no path, and is meant for clients.
  if (absl::IsInternal(status)) return ErrorResponse(ErrorForm::kInference, 500, status.message());
  return status.ok() ? HttpResponse{.body = "{}"} : Refuse(status);
}

HttpResponse UnloadModel(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  if (const absl::Status status = CheckControlBody(context, request, "unloading"); !status.ok()) return Refuse(status);
  const absl::Status status = context.models.Unload(name);
  return status.ok() ? HttpResponse{.body = "{}"} : Refuse(status);
}

}  // namespace aqt::serving
