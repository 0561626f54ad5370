#include "serving/http/api/scores_api.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "serving/http/api/api_error.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {
namespace {

// "model", or the only one of this task.
absl::StatusOr<std::string> ModelName(const ApiContext& context, FieldReader& fields, ModelTask task) {
  AQT_ASSIGN_OR_RETURN(std::optional<std::string> name, fields.String("model"));
  if (name.has_value()) return *std::move(name);
  return OnlyModel(context, task);
}

// A list of strings; with `objects`, also {"text": "..."}.
absl::StatusOr<std::vector<std::string>> ReadTexts(const ApiOptions& options, const BodyJson& list,
                                                   absl::string_view name, bool objects) {
  const int64_t count = static_cast<int64_t>(list.size());
  if (!list.is_array() || count == 0 || count > options.max_texts) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" ",
                     list.is_array() ? absl::StrCat("has ", count, " texts") : absl::StrCat("is ", TypeName(list)),
                     ", expected a list of 1 to ", options.max_texts));
  }
  std::vector<std::string> texts;
  for (int64_t i = 0; i < count; ++i) {
    const BodyJson* value = &list[static_cast<size_t>(i)];
    const std::string where = absl::StrCat("\"", name, "[", i, "]\"");
    if (objects && value->is_object() && value->contains("text")) value = &(*value)["text"];
    if (!value->is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(where, " is ", TypeName(*value), ", expected a string",
                                                     objects ? ", or an object with a string \"text\"" : ""));
    }
    texts.push_back(value->get<std::string>());
    AQT_RETURN_IF_ERROR(CheckText(options, texts.back(), where));
  }
  return texts;
}

struct RerankRequest {
  bool tei = false;  // the form of text-embeddings-inference
  std::string model, query;
  std::vector<std::string> documents;
  std::vector<AnswerJson> objects;  // the documents as objects, if they are asked for
  std::optional<int64_t> top_n;
  bool return_documents = false, raw_scores = false, truncate = false;
};

absl::StatusOr<RerankRequest> ReadRerank(const ApiContext& context, const std::string& body) {
  AQT_ASSIGN_OR_RETURN(const BodyJson json, ParseBody(body, {.depth = 4, .values = context.options.max_values}));
  FieldReader fields(json);
  RerankRequest request;
  request.tei = json.contains("texts");
  AQT_ASSIGN_OR_RETURN(request.model, ModelName(context, fields, ModelTask::kScoring));
  AQT_ASSIGN_OR_RETURN(request.query, fields.RequiredString("query"));
  AQT_RETURN_IF_ERROR(CheckText(context.options, request.query, "\"query\""));
  const char* name = request.tei ? "texts" : "documents";
  const BodyJson* documents = fields.Get(name);
  if (documents == nullptr) return fields.Error(name, "is missing");
  AQT_ASSIGN_OR_RETURN(request.documents, ReadTexts(context.options, *documents, name, !request.tei));
  AQT_ASSIGN_OR_RETURN(request.top_n, fields.Int("top_n", 1, INT32_MAX));
  AQT_ASSIGN_OR_RETURN(const auto with_documents, fields.Bool(request.tei ? "return_text" : "return_documents"));
  AQT_ASSIGN_OR_RETURN(const auto raw, fields.Bool("raw_scores"));
  AQT_ASSIGN_OR_RETURN(const auto truncate, fields.Bool("truncate"));
  AQT_RETURN_IF_ERROR(fields.String("user").status());
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  request.return_documents = with_documents.value_or(false);
  for (const BodyJson& document : *documents) {
    if (!request.return_documents || request.tei) break;
    request.objects.push_back(document.is_object() ? AnswerJson(document) : AnswerJson{{"text", document}});
  }
  request.raw_scores = raw.value_or(false);
  request.truncate = truncate.value_or(context.options.truncate);
  return request;
}

absl::Status CheckFinite(absl::Span<const TextOutput> outputs) {
  for (const TextOutput& output : outputs) {
    if (!absl::c_all_of(output.values, [](float x) { return std::isfinite(x); })) {
      return absl::InternalError("a score is not finite");
    }
  }
  return absl::OkStatus();
}

// The scores of an answer.
std::vector<float> ScoresOf(const ServedModelInfo& info, const std::vector<float>& logits, bool raw) {
  if (raw) return logits;
  const auto usual = logits.size() == 1 ? models::ScoreFunction::kSigmoid : models::ScoreFunction::kSoftmax;
  return models::Scores(logits, info.scores.value_or(usual));
}

absl::StatusOr<AnswerJson> RerankAnswer(const ApiContext& context, const std::string& body) {
  AQT_ASSIGN_OR_RETURN(const RerankRequest request, ReadRerank(context, body));
  AQT_ASSIGN_OR_RETURN(const auto model, FindModel(context, request.model, ModelTask::kScoring));
  std::vector<TextInput> pairs;
  for (const std::string& document : request.documents) {
    pairs.push_back({.text = request.query, .second = document, .ids = {}});
  }
  AQT_ASSIGN_OR_RETURN(const std::vector<TextOutput> outputs,
                       RunTexts(context, request.model, *model, pairs, request.truncate));
  AQT_RETURN_IF_ERROR(CheckFinite(outputs));
  std::vector<size_t> order(outputs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::c_stable_sort(order, [&](size_t a, size_t b) { return outputs[a].values[0] > outputs[b].values[0]; });
  const size_t count = std::min(order.size(), static_cast<size_t>(request.top_n.value_or(INT32_MAX)));
  int64_t tokens = 0;
  for (const TextOutput& output : outputs) tokens += output.tokens;
  AnswerJson results = AnswerJson::array();
  for (const size_t i : absl::MakeConstSpan(order).subspan(0, count)) {
    const float score = ScoresOf(model->info(), outputs[i].values, request.raw_scores)[0];
    AnswerJson result = {{"index", i}, {request.tei ? "score" : "relevance_score", score}};
    if (request.return_documents && request.tei) result["text"] = request.documents[i];
    if (request.return_documents && !request.tei) result["document"] = request.objects[i];
    results.push_back(std::move(result));
  }
  if (request.tei) return results;
  return AnswerJson{{"model", request.model},
                    {"results", std::move(results)},
                    {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
}

struct ClassifyRequest {
  bool tei = false, single = false;
  std::string model;
  std::vector<TextInput> texts;
  bool raw_scores = false, truncate = false;
};

// A text or a pair of texts, as text-embeddings-inference has them: ["a"], ["a", "b"].
absl::StatusOr<TextInput> ReadSequence(const ApiOptions& options, const BodyJson& list, const std::string& name) {
  if (!list.is_array() || list.size() > 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name, "\" ",
        list.is_array() ? absl::StrCat("has ", list.size(), " texts") : absl::StrCat("is ", TypeName(list)),
        ", expected a list of a text or of a pair; several texts are lists in a list: [[\"a\"], [\"b\"]]"));
  }
  AQT_ASSIGN_OR_RETURN(std::vector<std::string> texts, ReadTexts(options, list, name, /*objects=*/false));
  TextInput input = {.text = std::move(texts[0]), .second = {}, .ids = {}};
  if (texts.size() == 2) input.second = std::move(texts[1]);
  return input;
}

// The texts to classify. `pairs`: a list of strings is one text or pair, as text-embeddings-inference has it.
absl::Status ReadInputs(const ApiOptions& options, const BodyJson& input, const std::string& name, bool pairs,
                        ClassifyRequest& request) {
  if (request.tei && input.is_array() && !input.empty() && input[0].is_array()) {
    if (static_cast<int64_t>(input.size()) > options.max_texts) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" has ", input.size(), " texts, expected at most ", options.max_texts));
    }
    for (size_t i = 0; i < input.size(); ++i) {
      AQT_ASSIGN_OR_RETURN(TextInput sequence, ReadSequence(options, input[i], absl::StrCat(name, "[", i, "]")));
      request.texts.push_back(std::move(sequence));
    }
    return absl::OkStatus();
  }
  request.single = input.is_string() || (pairs && input.is_array());
  if (request.single && input.is_array()) {
    AQT_ASSIGN_OR_RETURN(TextInput sequence, ReadSequence(options, input, name));
    request.texts.push_back(std::move(sequence));
    return absl::OkStatus();
  }
  AQT_ASSIGN_OR_RETURN(std::vector<std::string> texts,
                       ReadTexts(options, input.is_string() ? BodyJson::array({input}) : input, name, false));
  for (std::string& text : texts) request.texts.push_back({.text = std::move(text), .second = {}, .ids = {}});
  return absl::OkStatus();
}

absl::StatusOr<ClassifyRequest> ReadClassify(const ApiContext& context, const std::string& body, bool pairs) {
  AQT_ASSIGN_OR_RETURN(const BodyJson json, ParseBody(body, {.depth = 4, .values = context.options.max_values}));
  FieldReader fields(json);
  ClassifyRequest request;
  request.tei = json.contains("inputs");
  AQT_ASSIGN_OR_RETURN(request.model, ModelName(context, fields, ModelTask::kClassification));
  const char* name = request.tei ? "inputs" : "input";
  const BodyJson* input = fields.Get(name);
  if (input == nullptr) return fields.Error(name, "is missing");
  AQT_RETURN_IF_ERROR(ReadInputs(context.options, *input, name, pairs && request.tei, request));
  AQT_ASSIGN_OR_RETURN(const auto raw, fields.Bool("raw_scores"));
  AQT_ASSIGN_OR_RETURN(const auto truncate, fields.Bool("truncate"));
  AQT_RETURN_IF_ERROR(fields.String("user").status());
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  request.raw_scores = raw.value_or(false);
  request.truncate = truncate.value_or(context.options.truncate);
  return request;
}

// [{"score", "label"}], the best first.
AnswerJson TeiLabels(const std::vector<float>& scores, const std::vector<std::string>& labels) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  absl::c_stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  AnswerJson row = AnswerJson::array();
  for (const size_t i : order) row.push_back({{"score", scores[i]}, {"label", labels[i]}});
  return row;
}

absl::StatusOr<AnswerJson> ClassifyAnswer(const ApiContext& context, const std::string& body, bool pairs) {
  AQT_ASSIGN_OR_RETURN(const ClassifyRequest request, ReadClassify(context, body, pairs));
  AQT_ASSIGN_OR_RETURN(const auto model, FindModel(context, request.model, ModelTask::kClassification));
  AQT_ASSIGN_OR_RETURN(const std::vector<TextOutput> outputs,
                       RunTexts(context, request.model, *model, request.texts, request.truncate));
  AQT_RETURN_IF_ERROR(CheckFinite(outputs));
  const std::vector<std::string>& labels = model->info().labels;
  int64_t tokens = 0;
  AnswerJson data = AnswerJson::array();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<float> scores = ScoresOf(model->info(), outputs[i].values, request.raw_scores);
    tokens += outputs[i].tokens;
    if (request.tei) {
      data.push_back(TeiLabels(scores, labels));
      continue;
    }
    const size_t best = absl::c_max_element(scores) - scores.begin();
    data.push_back({{"index", i}, {"label", labels[best]}, {"probs", scores}, {"num_classes", scores.size()}});
  }
  if (request.tei) return request.single ? AnswerJson(data[0]) : data;
  return AnswerJson{{"object", "list"},
                    {"model", request.model},
                    {"data", std::move(data)},
                    {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}};
}

HttpResponse Answer(const HttpRequest& request, const absl::StatusOr<AnswerJson>& answer) {
  if (!answer.ok()) return ErrorResponse(ErrorFormOf(request.path_text()), answer.status());
  return {.body = AnswerText(*answer)};
}

}  // namespace

HttpResponse Rerank(const ApiContext& context, const HttpRequest& request) {
  return Answer(request, RerankAnswer(context, request.body));
}

HttpResponse Classify(const ApiContext& context, const HttpRequest& request) {
  const bool pairs = request.path.front() == "predict";
  return Answer(request, ClassifyAnswer(context, request.body, pairs));
}

}  // namespace aqt::serving
