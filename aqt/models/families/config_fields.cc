#include "aqt/models/families/config_fields.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/printable.h"

namespace aqt::models {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMostOfAnything = int64_t{1} << 31;

// Fields that say where a model comes from, how it is trained, generates text, or names its outputs. None changes the
// hidden states of a given text. Fields of heads are read where there is a head.
constexpr const char* kWithoutEffect[] = {
    "_attn_implementation_autoset", "_name_or_path", "_num_labels", "architectures", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "classifier_activation", "classifier_bias", "classifier_dropout",
    "classifier_pooling", "cls_token_id", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "function_to_apply", "gradient_checkpointing", "id2label", "initializer_cutoff_factor", "initializer_range",
    "is_encoder_decoder", "label2id", "language", "length_penalty", "mask_token_id", "max_length", "min_length",
    "model_max_length", "model_type", "name", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id",
    "prefix", "problem_type", "quantization_config", "remove_invalid_values", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sbert_ce_default_activation_function", "sentence_transformers", "sep_token_id",
    "suppress_tokens", "task_specific_params", "temperature", "tie_encoder_decoder", "tie_weights_",
    "tie_word_embeddings", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version",
    "typical_p", "use_bfloat16", "use_cache",
    // Fields of BERT's first release, of a pooler that nobody has built.
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type"};

bool IsWithoutEffect(const std::string& name) {
  return absl::StrContains(name, "dropout") || absl::c_linear_search(kWithoutEffect, name);
}

}  // namespace

absl::StatusOr<ConfigFields> ConfigFields::Open(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxConfigBytes));
  return Parse(text, io::PrintableLine(path));
}

absl::StatusOr<ConfigFields> ConfigFields::Parse(absl::string_view text, absl::string_view source) {
  absl::StatusOr<io::JsonValue> object = io::ParseJsonValue(text);
  if (!object.ok()) return Annotate(object.status(), source);
  return ConfigFields(*std::move(object), source);
}

bool ConfigFields::IsNull(const std::string& name) {
  fields_.Any(name);
  return !Has(name) && absl::c_any_of(object_->object(), [&](const auto& member) { return member.first == name; });
}

void ConfigFields::NotRead(std::initializer_list<const char*> names) {
  for (const char* name : names) fields_.Any(name);
}

ConfigFields ConfigFields::Object(const std::string& name) {
  const io::JsonValue& value = fields_.Any(name);
  if (!value.is_null() && !value.is_object()) Refuse(name, "an object");
  return ConfigFields(value.is_object() ? value : io::JsonValue(io::JsonValue::Object()),
                      absl::StrCat(source(), ": ", name));
}

std::vector<std::string> ConfigFields::Numbered(const std::string& name) {
  const io::JsonValue& value = fields_.Any(name);
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  for (size_t i = 0; value.is_object() && i < value.size(); ++i) {
    const io::JsonValue& text = value[absl::StrCat(i)];
    if (!text.is_string() && !text.is_number()) break;
    texts.push_back(text.is_string() ? text.text() : text.Shown());
  }
  if (!value.is_object() || texts.size() != value.size()) {
    Refuse(name, R"(an object {"0": ..., "1": ..., ...} of texts)");
  }
  return texts;
}

void ConfigFields::Refuse(const std::string& name, absl::string_view expected) {
  fields_.Fail(name, absl::StrCat("expected ", expected));
}

int64_t ConfigFields::Count(const std::string& name, std::optional<int64_t> otherwise) {
  if (!Has(name) && otherwise.has_value()) {
    fields_.Any(name);
    return *otherwise;
  }
  return fields_.Int(name, 1, kMostOfAnything);
}

int64_t ConfigFields::Layers(const std::string& name) { return fields_.Int(name, 1, 1000); }

int64_t ConfigFields::Index(const std::string& name, int64_t otherwise) {
  return fields_.OptionalInt(name, 0, kMostOfAnything).value_or(otherwise);
}

double ConfigFields::Positive(const std::string& name, double otherwise) {
  const double value = fields_.OptionalNumber(name).value_or(otherwise);
  if (value <= 0) Refuse(name, "a number above 0");
  return value;
}

double ConfigFields::NotNegative(const std::string& name, double otherwise) {
  const double value = fields_.OptionalNumber(name).value_or(otherwise);
  if (value < 0) Refuse(name, "a number from 0 on");
  return value;
}

std::string ConfigFields::Text(const std::string& name, const std::string& otherwise) {
  return fields_.Text(name, otherwise);
}

std::vector<std::string> ConfigFields::Texts(const std::string& name) {
  const io::JsonValue& value = fields_.Any(name);
  if (value.is_string()) return {value.text()};
  if (value.is_null() || value.is_array()) return fields_.Texts(name);
  Refuse(name, "a string or a list of strings");
  return {};
}

bool ConfigFields::Flag(const std::string& name, bool otherwise) { return fields_.Bool(name, otherwise); }

void ConfigFields::Only(const std::string& name, std::initializer_list<const char*> values) {
  const io::JsonValue& value = fields_.Any(name);
  if (value.is_null()) return;
  const auto is_value = [&](const char* allowed) {
    const auto json = io::ParseJsonValue(absl::StrCat(R"({"value": )", allowed, "}"));
    return json.ok() && value == (*json)["value"];
  };
  if (absl::c_any_of(values, is_value)) return;
  Refuse(name, absl::StrCat(absl::StrJoin(values, " or "), "; other cases are not computed"));
}

absl::Status ConfigFields::Finish() const {
  AQT_RETURN_IF_ERROR(status());
  std::vector<std::string> unknown;
  for (const std::string& name : fields_.Unread()) {
    if (!IsWithoutEffect(name)) unknown.push_back(io::Printable(name));
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(source(), ": ", absl::StrJoin(unknown, ", "), unknown.size() == 1 ? " is" : " are",
                   " not known for this model, and may change its results; remove what has no effect"));
}

}  // namespace aqt::models
