#include "serving/http/api/inference.h"

#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {
namespace {

constexpr char kTextInput[] = "text";

const char* TextOutputName(ModelTask task) {
  switch (task) {
    case ModelTask::kEmbedding: return "embedding";
    case ModelTask::kClassification: return "logits";
    default: return "score";
  }
}

std::string PortNames(const std::vector<ModelPorts::Port>& ports) {
  return absl::StrJoin(ports, ", ",
                       [](std::string* out, const ModelPorts::Port& p) { absl::StrAppend(out, "'", p.name, "'"); });
}

absl::Status CheckOutputs(const InferRequest& request, const ModelPorts& ports) {
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
    const std::string where = absl::StrCat("string ", i, " of 'text'");
    AQT_RETURN_IF_ERROR(CheckText(context.options, tensor.strings[i], where));
    // Tensors of bytes can hold anything.
    if (!io::JsonQuote(tensor.strings[i]).ok()) return absl::InvalidArgumentError(where + " is not UTF-8");
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
                                                     const ModelPorts& ports) {
  std::vector<NamedTensor> inputs;
  for (const InferTensor& tensor : request.inputs) {
    const auto port = absl::c_find_if(ports.inputs, [&](const auto& p) { return p.name == tensor.name; });
    if (port == ports.inputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the model has no input '", io::Printable(tensor.name, 60),
                                                     "'; it has ", PortNames(ports.inputs)));
    }
    if (DatatypeOf(tensor) != port->datatype) {
      return absl::InvalidArgumentError(
          absl::StrCat("the input '", tensor.name, "' is ", DatatypeOf(tensor), ", expected ", port->datatype));
    }
    inputs.push_back({tensor.name, tensor.array});
  }
  for (const ModelPorts::Port& port : ports.inputs) {
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

const char* StateName(ModelState state) {
  switch (state) {
    case ModelState::kReady: return "READY";
    case ModelState::kLoading: return "LOADING";
    default: return "UNAVAILABLE";
  }
}

int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

std::vector<std::string> ServerExtensions() {
  return {"binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"};
}

ModelPorts PortsOf(const ServedModelInfo& info) {
  ModelPorts ports;
  if (info.task != ModelTask::kTensors) {
    const bool pairs = info.task == ModelTask::kScoring;
    ports.inputs.push_back({kTextInput, "BYTES", pairs ? std::vector<int64_t>{-1, 2} : std::vector<int64_t>{-1}});
    ports.outputs.push_back({TextOutputName(info.task), "FP32", {-1, info.width}});
    return ports;
  }
  const auto convert = [](const std::vector<TensorPort>& from, std::vector<ModelPorts::Port>& to) {
    for (const TensorPort& port : from) to.push_back({port.name, std::string(DatatypeOf(port.dtype)), port.shape});
  };
  convert(info.inputs, ports.inputs);
  convert(info.outputs, ports.outputs);
  return ports;
}

std::string ConfigTypeOf(absl::string_view datatype) {
  return absl::StrCat("TYPE_", datatype == "BYTES" ? "STRING" : datatype);
}

std::vector<std::pair<std::string, std::string>> ConfigParameters(const ServedModelInfo& info) {
  std::vector<std::pair<std::string, std::string>> parameters;
  if (info.max_length > 0) parameters.emplace_back("max_length", absl::StrCat(info.max_length));
  if (!info.labels.empty()) parameters.emplace_back("labels", AnswerText(AnswerJson(info.labels)));
  return parameters;
}

InferLimits LimitsOf(const ApiOptions& options) {
  return {.values = options.max_values, .strings = 2 * options.max_texts, .string_bytes = options.max_text_bytes};
}

absl::StatusOr<std::vector<InferTensor>> RunInfer(const ApiContext& context, const std::string& name,
                                                  const ServedModel& model, const InferRequest& request) {
  const ModelPorts ports = PortsOf(model.info());
  AQT_RETURN_IF_ERROR(CheckOutputs(request, ports));
  if (model.info().task != ModelTask::kTensors) return InferTexts(context, name, model, request);
  return InferArrays(context, name, model, request, ports);
}

InferStatistics StatisticsOf(const ApiContext& context, const ModelRepository::Row& row) {
  const ModelCounts counts = context.metrics.OfModel(row.name);
  const ServedModelStats stats = row.model->stats();
  InferStatistics statistics;
  statistics.last_ms = counts.last_ms;
  statistics.inferences = counts.rows;
  statistics.success = {counts.latency.count, Nanoseconds(counts.latency.sum)};
  statistics.fail = {counts.failed, Nanoseconds(counts.failed_seconds)};
  statistics.queue = {stats.answered, Nanoseconds(stats.queue_sum)};
  statistics.compute = {stats.answered, Nanoseconds(stats.latency_sum - stats.queue_sum)};
  for (size_t n = 1; n < stats.batches.size(); ++n) {
    if (stats.batches[n] == 0) continue;
    statistics.executions += stats.batches[n];
    statistics.batches.push_back({static_cast<int64_t>(n), {stats.batches[n], Nanoseconds(stats.batch_sums[n])}});
  }
  return statistics;
}

absl::StatusOr<std::vector<ModelRepository::Row>> LoadedRows(const ApiContext& context, const std::string& name) {
  if (!name.empty()) AQT_RETURN_IF_ERROR(context.models.Find(name).status());
  std::vector<ModelRepository::Row> rows;
  for (ModelRepository::Row& row : context.models.List()) {
    if (row.model != nullptr && (name.empty() || row.name == name)) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<IndexLine> IndexOf(const ApiContext& context, bool only_ready) {
  std::vector<IndexLine> lines;
  for (const ModelRepository::Row& row : context.models.List()) {
    if (only_ready && row.model == nullptr) continue;
    lines.push_back({row.name, StateName(row.state),
                     row.state == ModelState::kUnloaded ? "unloaded"
                     : row.state == ModelState::kFailed ? "failed to load"
                                                        : ""});
  }
  return lines;
}

absl::Status CheckControl(const ApiContext& context, absl::string_view what) {
  if (context.options.model_control) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of models is turned off; start the server with --model-control on"));
}

absl::Status ControlParametersError() {
  return absl::InvalidArgumentError("\"parameters\" are not supported; models are what the server was started with");
}

}  // namespace aqt::serving
