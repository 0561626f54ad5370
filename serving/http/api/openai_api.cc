#include "serving/http/api/openai_api.h"

#include <bit>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "serving/http/api/api_error.h"
#include "serving/http/api/json_body-inl.h"

namespace aqt::serving {
namespace {

struct EmbeddingsRequest {
  std::string model;
  std::vector<TextInput> texts;
  bool base64 = false;
  std::optional<int64_t> dimensions;
  bool truncate = false;
};

bool IsIds(const BodyJson& list) {
  return list.is_array() && !list.empty() &&
         absl::c_all_of(list, [](const BodyJson& value) { return value.is_number(); });
}

absl::StatusOr<TextInput> ReadIds(const BodyJson& list, const std::string& where) {
  std::vector<int32_t> ids;
  for (const BodyJson& value : list) {
    const bool valid = value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX;
    if (!valid) return absl::InvalidArgumentError(absl::StrCat(where, " has ", value.dump(), ", expected token ids"));
    ids.push_back(value.get<int32_t>());
  }
  return TextInput{.text = "", .second = {}, .ids = std::move(ids)};
}

// A string, a list of strings, a list of token ids, or a list of such lists.
absl::StatusOr<std::vector<TextInput>> ReadInput(const BodyJson& input, const ApiOptions& options) {
  std::vector<TextInput> texts;
  const auto add = [&](const BodyJson& value, const std::string& where) -> absl::Status {
    if (value.is_string()) {
      const std::string& text = value.get_ref<const std::string&>();
      AQT_RETURN_IF_ERROR(CheckText(options, text, where));
      texts.push_back({.text = text, .second = {}, .ids = {}});
      return absl::OkStatus();
    }
    if (!IsIds(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is ", value.is_array() && value.empty() ? "an empty list" : TypeName(value),
                       ", expected a string, or a list of token ids"));
    }
    if (!options.allow_token_ids) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, " is a list of token ids. They belong to a tokenizer that this model may not have. Send texts (with ",
          "LangChain: check_embedding_ctx_length=False), or start the server with --allow-token-ids"));
    }
    AQT_ASSIGN_OR_RETURN(TextInput ids, ReadIds(value, where));
    texts.push_back(std::move(ids));
    return absl::OkStatus();
  };
  if (!input.is_array() || IsIds(input)) {
    AQT_RETURN_IF_ERROR(add(input, "\"input\""));
    return texts;
  }
  const int64_t count = static_cast<int64_t>(input.size());
  if (count == 0 || count > options.max_texts) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"input\" has ", count, " texts, expected 1 to ", options.max_texts));
  }
  for (int64_t i = 0; i < count; ++i) AQT_RETURN_IF_ERROR(add(input[i], absl::StrCat("\"input[", i, "]\"")));
  return texts;
}

absl::StatusOr<EmbeddingsRequest> ReadRequest(const std::string& body, const ApiOptions& options) {
  AQT_ASSIGN_OR_RETURN(const BodyJson json, ParseBody(body, {.depth = 4, .values = options.max_values}));
  FieldReader fields(json);
  EmbeddingsRequest request;
  AQT_ASSIGN_OR_RETURN(request.model, fields.RequiredString("model"));
  const BodyJson* input = fields.Get("input");
  AQT_ASSIGN_OR_RETURN(const std::optional<std::string> format, fields.String("encoding_format"));
  AQT_ASSIGN_OR_RETURN(request.dimensions, fields.Int("dimensions", 1, INT32_MAX));
  AQT_ASSIGN_OR_RETURN(const std::optional<bool> truncate, fields.Bool("truncate"));
  AQT_RETURN_IF_ERROR(fields.String("user").status());
  AQT_RETURN_IF_ERROR(fields.CheckAllRead());
  if (format.has_value() && *format != "float" && *format != "base64") {
    return fields.Error("encoding_format", "is neither \"float\" nor \"base64\"");
  }
  if (input == nullptr) return fields.Error("input", "is missing");
  AQT_ASSIGN_OR_RETURN(request.texts, ReadInput(*input, options));
  request.base64 = format == "base64";
  request.truncate = truncate.value_or(options.truncate);
  return request;
}

// The first numbers of an embedding, with length 1. Zeros stay zeros.
void CutAndNormalize(int64_t dimensions, std::vector<float>& values) {
  values.resize(static_cast<size_t>(dimensions));
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  if (sum == 0) return;
  const double scale = 1 / std::sqrt(sum);
  for (float& x : values) x = static_cast<float>(x * scale);
}

// The little-endian bytes of f32 values.
std::string Base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
}

absl::Status AppendEmbedding(const std::vector<float>& values, bool base64, std::string* out) {
  if (base64) {
    absl::StrAppend(out, "\"", Base64(values), "\"");
    return absl::OkStatus();
  }
  out->push_back('[');
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return absl::InternalError("an embedding has a value that is not finite");
    if (i > 0) out->push_back(',');
    AppendFloat(values[i], out);
  }
  out->push_back(']');
  return absl::OkStatus();
}

absl::StatusOr<std::string> Embed(const ApiContext& context, const std::string& body) {
  AQT_ASSIGN_OR_RETURN(const EmbeddingsRequest request, ReadRequest(body, context.options));
  AQT_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedModel> model,
                       FindModel(context, request.model, ModelTask::kEmbedding));
  const int64_t width = model->info().width;
  if (request.dimensions.has_value() && *request.dimensions > width) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"dimensions\" is ", *request.dimensions, ", and the model ", request.model, " has ", width));
  }
  AQT_ASSIGN_OR_RETURN(std::vector<TextOutput> outputs,
                       RunTexts(context, request.model, *model, request.texts, request.truncate));
  std::string text = "{\"object\":\"list\",\"data\":[";
  int64_t tokens = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    tokens += outputs[i].tokens;
    if (request.dimensions.has_value()) CutAndNormalize(*request.dimensions, outputs[i].values);
    absl::StrAppend(&text, i > 0 ? "," : "", "{\"object\":\"embedding\",\"index\":", i, ",\"embedding\":");
    AQT_RETURN_IF_ERROR(AppendEmbedding(outputs[i].values, request.base64, &text));
    text.push_back('}');
  }
  absl::StrAppend(&text, "],\"model\":", AnswerText(AnswerJson(request.model)),
                  ",\"usage\":{\"prompt_tokens\":", tokens, ",\"total_tokens\":", tokens, "}}");
  return text;
}

AnswerJson ModelJson(const ModelRepository::Row& row) {
  return {{"id", row.name}, {"object", "model"}, {"created", row.loaded_at}, {"owned_by", "aqt"}};
}

}  // namespace

HttpResponse Embeddings(const ApiContext& context, const HttpRequest& request) {
  absl::StatusOr<std::string> answer = Embed(context, request.body);
  if (!answer.ok()) return ErrorResponse(ErrorForm::kOpenAi, answer.status());
  return {.body = *std::move(answer)};
}

HttpResponse ListModels(const ApiContext& context) {
  AnswerJson data = AnswerJson::array();
  for (const ModelRepository::Row& row : context.models.List()) {
    if (row.model != nullptr) data.push_back(ModelJson(row));
  }
  return {.body = AnswerText({{"object", "list"}, {"data", std::move(data)}})};
}

HttpResponse ShowModel(const ApiContext& context, const std::string& name) {
  if (const auto model = context.models.Find(name); !model.ok()) {
    return ErrorResponse(ErrorForm::kOpenAi, model.status());
  }
  for (const ModelRepository::Row& row : context.models.List()) {
    if (row.name == name) return {.body = AnswerText(ModelJson(row))};
  }
  return ErrorResponse(ErrorForm::kOpenAi, 404, "the model was unloaded");
}

}  // namespace aqt::serving
