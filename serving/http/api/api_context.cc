#include "serving/http/api/api_context.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "aqt/core/status_macros.h"

namespace aqt::serving {
namespace {

CallOptions WithTimeout(const ApiContext& context, absl::Time begin) {
  CallOptions call = context.call;
  call.deadline = std::min(call.deadline, begin + context.options.timeout);
  return call;
}

}  // namespace

void ApiContext::Record(const AnsweredRequest& request) const {
  const double seconds = absl::ToDoubleSeconds(request.duration);
  if (request.grpc_code.empty()) {
    const bool known = request.method == "GET" || request.method == "POST" || request.method == "HEAD";
    metrics.CountRequest(request.route, known ? request.method : "other", request.status, seconds);
  } else {
    metrics.CountGrpcRequest(request.route, request.grpc_code, seconds);
  }
  if (log != nullptr && !log->Write(LogLine(request))) metrics.CountDroppedLogLine();
}

absl::StatusOr<std::vector<TextOutput>> RunTexts(const ApiContext& context, const std::string& name,
                                                 const ServedModel& model, const std::vector<TextInput>& texts,
                                                 bool truncate) {
  const absl::Time begin = absl::Now();
  absl::StatusOr<std::vector<TextOutput>> outputs =
      model.RunTexts(texts, {.truncate = truncate, .call = WithTimeout(context, begin)});
  int64_t tokens = 0;
  if (outputs.ok()) {
    for (const TextOutput& output : *outputs) tokens += output.tokens;
  }
  context.metrics.CountInference(name, outputs.ok(), static_cast<int64_t>(texts.size()), tokens,
                                 absl::ToDoubleSeconds(absl::Now() - begin));
  return outputs;
}

absl::StatusOr<std::vector<NamedTensor>> RunTensors(const ApiContext& context, const std::string& name,
                                                    const ServedModel& model, const std::vector<NamedTensor>& inputs) {
  const absl::Time begin = absl::Now();
  absl::StatusOr<std::vector<NamedTensor>> outputs = model.RunTensors(inputs, WithTimeout(context, begin));
  context.metrics.CountInference(name, outputs.ok(), /*rows=*/1, /*tokens=*/0,
                                 absl::ToDoubleSeconds(absl::Now() - begin));
  return outputs;
}

absl::Status CheckText(const ApiOptions& options, absl::string_view text, absl::string_view where) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(where, " is empty, expected a text"));
  const int64_t bytes = static_cast<int64_t>(text.size());
  if (bytes <= options.max_text_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, " has ", bytes, " bytes, expected at most ", options.max_text_bytes));
}

absl::string_view TaskText(ModelTask task) {
  switch (task) {
    case ModelTask::kEmbedding: return "embeddings (/v1/embeddings)";
    case ModelTask::kClassification: return "labels (/classify)";
    case ModelTask::kScoring: return "scores of pairs (/rerank)";
    case ModelTask::kTensors: return "tensors (/v2/models/NAME/infer)";
  }
  return "";
}

absl::StatusOr<std::shared_ptr<const ServedModel>> FindModel(const ApiContext& context, absl::string_view name,
                                                             ModelTask task) {
  AQT_ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model, context.models.Find(name));
  if (model->info().task == task) return model;
  return absl::InvalidArgumentError(absl::StrCat("the model ", name, " computes ", TaskText(model->info().task),
                                                 ", and this request is for ", TaskText(task)));
}

absl::StatusOr<std::string> OnlyModel(const ApiContext& context, ModelTask task) {
  std::vector<std::string> names;
  for (const ModelRepository::Row& row : context.models.List()) {
    if (row.model != nullptr && row.model->info().task == task) names.push_back(row.name);
  }
  if (names.size() == 1) return names[0];
  return absl::InvalidArgumentError(absl::StrCat("\"model\" is missing, and ", names.size(), " models compute ",
                                                 TaskText(task), "; name one of them"));
}

}  // namespace aqt::serving
