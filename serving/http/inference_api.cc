#include "serving/http/inference_api.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"
#include "serving/http/api_error.h"
#include "serving/http/infer_tensors.h"
#include "serving/http/json_body-inl.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

constexpr char kTextInput[] = "text";

HttpResponse Refuse(const absl::Status& status) { return ErrorResponse(ErrorForm::kInference, status); }

HttpResponse Answer(const AnswerJson& json) { return {.body = AnswerText(json)}; }

// The tensors of a model as the protocol sees it.
struct Ports {
  struct Port {
    std::string name;
    std::string datatype;
    std::vector<int64_t> shape;
  };
  std::vector<Port> inputs, outputs;
};

const char* TextOutputName(ModelTask task) {
  switch (task) {
    case ModelTask::kEmbedding: return "embedding";
    case ModelTask::kClassification: return "logits";
    default: return "score";
  }
}

Ports PortsOf(const ServedModelInfo& info) {
  Ports ports;
  if (info.task != ModelTask::kTensors) {
    const bool pairs = info.task == ModelTask::kScoring;
    ports.inputs.push_back({kTextInput, "BYTES", pairs ? std::vector<int64_t>{-1, 2} : std::vector<int64_t>{-1}});
    ports.outputs.push_back({TextOutputName(info.task), "FP32", {-1, info.width}});
    return ports;
  }
  const auto convert = [](const std::vector<TensorPort>& from, std::vector<Ports::Port>& to) {
    for (const TensorPort& port : from) to.push_back({port.name, std::string(DatatypeOf(port.dtype)), port.shape});
  };
  convert(info.inputs, ports.inputs);
  convert(info.outputs, ports.outputs);
  return ports;
}

AnswerJson PortsJson(const std::vector<Ports::Port>& ports) {
  AnswerJson list = AnswerJson::array();
  for (const Ports::Port& port : ports) {
    list.push_back({{"name", port.name}, {"datatype", port.datatype}, {"shape", port.shape}});
  }
  return list;
}

// "TYPE_FP32", and "TYPE_STRING" for BYTES.
AnswerJson ConfigPortsJson(const std::vector<Ports::Port>& ports) {
  AnswerJson list = AnswerJson::array();
  for (const Ports::Port& port : ports) {
    list.push_back({{"name", port.name},
                    {"data_type", absl::StrCat("TYPE_", port.datatype == "BYTES" ? "STRING" : port.datatype)},
                    {"dims", port.shape}});
  }
  return list;
}

std::string PortNames(const std::vector<Ports::Port>& ports) {
  return absl::StrJoin(ports, ", ",
                       [](std::string* out, const Ports::Port& p) { absl::StrAppend(out, "'", p.name, "'"); });
}

absl::Status CheckOutputs(const InferRequest& request, const Ports& ports) {
  for (const InferRequest::Output& output : request.outputs) {
    if (absl::c_any_of(ports.outputs, [&](const auto& port) { return port.name == output.name; })) continue;
    return absl::InvalidArgumentError(absl::StrCat("the model has no output '", io::Printable(output.name, 60),
                                                   "'; it has ", PortNames(ports.outputs)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TextInput>> TextsOf(const ApiContext& context, const InferRequest& request, bool pairs) {
  if (request.inputs.size() != 1 || request.inputs[0].name != kTextInput || !request.inputs[0].is_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request has ", request.inputs.size(), " inputs, expected one: '", kTextInput, "' of BYTES"));
  }
  const InferTensor& tensor = request.inputs[0];
  const std::vector<int64_t>& shape = tensor.shape;
  const bool right =
      pairs ? shape.size() == 2 && shape[1] == 2 : shape.size() == 1 || (shape.size() == 2 && shape[1] == 1);
  if (!right || tensor.strings.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the input 'text' has the shape [", absl::StrJoin(shape, ","),
                                                   "], expected ", pairs ? "[n, 2]" : "[n] or [n, 1]", " with n > 0"));
  }
  std::vector<TextInput> texts;
  for (size_t i = 0; i < tensor.strings.size(); ++i) {
    AQT_RETURN_IF_ERROR(CheckText(context.options, tensor.strings[i], absl::StrCat("string ", i, " of 'text'")));
    if (pairs && i % 2 == 1) {
      texts.back().second = tensor.strings[i];
    } else {
      texts.push_back({.text = tensor.strings[i], .second = {}, .ids = {}});
    }
  }
  return texts;
}

absl::StatusOr<std::vector<InferTensor>> InferTexts(const ApiContext& context, const std::string& name,
                                                    const ServedModel& model, const InferRequest& request) {
  const ServedModelInfo& info = model.info();
  AQT_ASSIGN_OR_RETURN(const std::vector<TextInput> texts, TextsOf(context, request, info.task == ModelTask::kScoring));
  AQT_ASSIGN_OR_RETURN(const std::vector<TextOutput> rows,
                       RunTexts(context, name, model, texts, context.options.truncate));
  std::vector<float> values;
  for (const TextOutput& row : rows) values.insert(values.end(), row.values.begin(), row.values.end());
  InferTensor output;
  output.name = TextOutputName(info.task);
  output.shape = {static_cast<int64_t>(rows.size()), info.width};
  output.array = Array::FromSpan(absl::MakeConstSpan(values), Shape(output.shape));
  return std::vector<InferTensor>{std::move(output)};
}

absl::StatusOr<std::vector<InferTensor>> InferArrays(const ApiContext& context, const std::string& name,
                                                     const ServedModel& model, const InferRequest& request,
                                                     const Ports& ports) {
  std::vector<NamedTensor> inputs;
  for (const InferTensor& tensor : request.inputs) {
    const auto port = absl::c_find_if(ports.inputs, [&](const auto& p) { return p.name == tensor.name; });
    if (port == ports.inputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no input '", io::Printable(tensor.name, 60),
                                                     "'; it has ", PortNames(ports.inputs)));
    }
    if (tensor.is_bytes || DatatypeOf(tensor.array.dtype()) != port->datatype) {
      return absl::InvalidArgumentError(absl::StrCat("the input '", tensor.name, "' is ",
                                                     tensor.is_bytes ? "BYTES" : DatatypeOf(tensor.array.dtype()),
                                                     ", expected ", port->datatype));
    }
    inputs.push_back({tensor.name, tensor.array});
  }
  for (const Ports::Port& port : ports.inputs) {
    if (absl::c_any_of(inputs, [&](const NamedTensor& tensor) { return tensor.name == port.name; })) continue;
    return absl::InvalidArgumentError(absl::StrCat("the input '", port.name, "' is missing"));
  }
  AQT_ASSIGN_OR_RETURN(const std::vector<NamedTensor> arrays, RunTensors(context, name, model, inputs));
  std::vector<InferTensor> outputs;
  for (const NamedTensor& array : arrays) {
    const bool wanted = request.outputs.empty() ||
                        absl::c_any_of(request.outputs, [&](const auto& output) { return output.name == array.name; });
    if (!wanted) continue;
    InferTensor& tensor = outputs.emplace_back();
    tensor.name = array.name;
    tensor.array = array.array;
    tensor.shape.assign(array.array.shape().begin(), array.array.shape().end());
  }
  return outputs;
}

absl::StatusOr<InferAnswer> InferOn(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model, context.models.Find(name));
  std::optional<int64_t> json_bytes;
  if (const std::string* field = request.Find("inference-header-content-length"); field != nullptr) {
    json_bytes.emplace();
    if (!absl::SimpleAtoi(*field, &*json_bytes)) {
      return absl::InvalidArgumentError("Inference-Header-Content-Length is not a number");
    }
  }
  const InferLimits limits = {.values = context.options.max_values,
                              .strings = 2 * context.options.max_texts,
                              .string_bytes = context.options.max_text_bytes};
  AQT_ASSIGN_OR_RETURN(const InferRequest infer, ParseInfer(request.body, json_bytes, limits));
  const Ports ports = PortsOf(model->info());
  AQT_RETURN_IF_ERROR(CheckOutputs(infer, ports));
  const bool tensors = model->info().task == ModelTask::kTensors;
  AQT_ASSIGN_OR_RETURN(const std::vector<InferTensor> outputs, tensors
                                                                   ? InferArrays(context, name, *model, infer, ports)
                                                                   : InferTexts(context, name, *model, infer));
  return InferAnswerOf(name, infer, outputs);
}

AnswerJson CountJson(int64_t count, double seconds) {
  return {{"count", count}, {"ns", static_cast<int64_t>(seconds * 1e9)}};
}

// What is not measured apart is in compute_infer.
AnswerJson StatisticsJson(const ApiContext& context, const ModelRepository::Row& row) {
  const ModelCounts counts = context.metrics.OfModel(row.name);
  const int64_t ok = counts.latency.count;
  const ServedModelStats stats = row.model->stats();
  int64_t batches = 0;
  AnswerJson batch_stats = AnswerJson::array();
  for (size_t n = 1; n < stats.batches.size(); ++n) {
    if (stats.batches[n] == 0) continue;
    batches += stats.batches[n];
    batch_stats.push_back({{"batch_size", n},
                           {"compute_input", CountJson(stats.batches[n], 0)},
                           {"compute_infer", CountJson(stats.batches[n], 0)},
                           {"compute_output", CountJson(stats.batches[n], 0)}});
  }
  return {{"name", row.name},
          {"version", "1"},
          {"last_inference", counts.last_ms},
          {"inference_count", counts.rows},
          {"execution_count", stats.batches.empty() ? counts.rows : batches},
          {"inference_stats",
           {{"success", CountJson(ok, counts.latency.sum)},
            {"fail", CountJson(counts.failed, counts.failed_seconds)},
            {"queue", CountJson(ok, 0)},
            {"compute_input", CountJson(ok, 0)},
            {"compute_infer", CountJson(ok, counts.latency.sum)},
            {"compute_output", CountJson(ok, 0)},
            {"cache_hit", CountJson(0, 0)},
            {"cache_miss", CountJson(0, 0)}}},
          {"batch_stats", std::move(batch_stats)}};
}

const char* StateName(ModelState state) {
  switch (state) {
    case ModelState::kReady: return "READY";
    case ModelState::kLoading: return "LOADING";
    default: return "UNAVAILABLE";
  }
}

// The fields of a body that may be empty.
absl::StatusOr<BodyJson> OptionalBody(const HttpRequest& request) {
  if (request.body.empty()) return BodyJson(BodyJson::object());
  return ParseBody(request.body);
}

absl::Status CheckControl(const ApiContext& context, const HttpRequest& request, absl::string_view what) {
  if (!context.options.model_control) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of models is turned off; start the server with --model-control on"));
  }
  AQT_ASSIGN_OR_RETURN(const BodyJson body, OptionalBody(request));
  FieldReader fields(body);
  const BodyJson* parameters = fields.Get("parameters");
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  // Triton's client sends this one by default.
  if (parameters == nullptr || parameters->empty() || *parameters == BodyJson{{"unload_dependents", false}}) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("\"parameters\" are not supported; models are what the server was started with");
}

}  // namespace

HttpResponse ServerMetadata() {
  return Answer(
      {{"name", "aqt"},
       {"version", kVersion},
       {"extensions", {"binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"}}});
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
  const Ports ports = PortsOf((*model)->info());
  return Answer({{"name", name},
                 {"versions", {"1"}},
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
  const Ports ports = PortsOf(info);
  AnswerJson parameters = AnswerJson::object();
  const auto add = [&](const char* key, std::string value) { parameters[key] = {{"string_value", std::move(value)}}; };
  if (info.max_length > 0) add("max_length", absl::StrCat(info.max_length));
  if (!info.labels.empty()) add("labels", AnswerText(AnswerJson(info.labels)));
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
  if (!name.empty()) {
    if (const auto model = context.models.Find(name); !model.ok()) return Refuse(model.status());
  }
  AnswerJson list = AnswerJson::array();
  for (const ModelRepository::Row& row : context.models.List()) {
    if (row.model != nullptr && (name.empty() || row.name == name)) list.push_back(StatisticsJson(context, row));
  }
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
  for (const ModelRepository::Row& row : context.models.List()) {
    if (*only_ready && row.model == nullptr) continue;
    AnswerJson item = {{"name", row.name}, {"version", "1"}, {"state", StateName(row.state)}};
    if (row.state == ModelState::kUnloaded) item["reason"] = "unloaded";
    if (row.state == ModelState::kFailed) item["reason"] = "failed to load";
    list.push_back(std::move(item));
  }
  return Answer(list);
}

HttpResponse LoadModel(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  if (const absl::Status status = CheckControl(context, request, "loading"); !status.ok()) return Refuse(status);
  const absl::Status status = context.models.Load(name);
  // The message of a load has no path, and is meant for clients.
  if (absl::IsInternal(status)) return ErrorResponse(ErrorForm::kInference, 500, status.message());
  return status.ok() ? HttpResponse{.body = "{}"} : Refuse(status);
}

HttpResponse UnloadModel(const ApiContext& context, const HttpRequest& request, const std::string& name) {
  if (const absl::Status status = CheckControl(context, request, "unloading"); !status.ok()) return Refuse(status);
  const absl::Status status = context.models.Unload(name);
  return status.ok() ? HttpResponse{.body = "{}"} : Refuse(status);
}

}  // namespace aqt::serving
