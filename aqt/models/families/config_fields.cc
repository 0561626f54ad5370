#include "aqt/models/families/config_fields.h"

#include <cmath>
#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/printable.h"
#include "nlohmann/json.hpp"

namespace aqt::models {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int kMaxDepth = 32;

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

struct ConfigFields::Parsed {
  nlohmann::json json;

  // Null if missing.
  const nlohmann::json* Find(const std::string& name) const {
    const auto it = json.find(name);
    return it == json.end() || it->is_null() ? nullptr : &*it;
  }
};

absl::StatusOr<ConfigFields> ConfigFields::Open(const io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(fs, path, kMaxConfigBytes));
  return Parse(text, io::PrintableLine(path));
}

absl::StatusOr<ConfigFields> ConfigFields::Parse(absl::string_view text, absl::string_view source) {
  const absl::StatusOr<io::JsonObjectText> object = io::ScanJsonObject(text, kMaxDepth);
  if (!object.ok()) return Annotate(object.status(), source);
  nlohmann::json json = nlohmann::json::parse(object->standard, nullptr, /*allow_exceptions=*/false);
  return ConfigFields(std::make_shared<const Parsed>(Parsed{std::move(json)}), source);
}

bool ConfigFields::Has(const std::string& name) const { return object_->Find(name) != nullptr; }

bool ConfigFields::IsNull(const std::string& name) {
  read_.insert(name);
  return object_->json.contains(name) && !Has(name);
}

void ConfigFields::NotRead(std::initializer_list<const char*> names) { read_.insert(names.begin(), names.end()); }

ConfigFields ConfigFields::Object(const std::string& name) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  nlohmann::json json = nlohmann::json::object();
  if (value != nullptr && value->is_object()) {
    json = *value;
  } else if (value != nullptr) {
    Refuse(name, "an object");
  }
  return ConfigFields(std::make_shared<const Parsed>(Parsed{std::move(json)}), absl::StrCat(source_, ": ", name));
}

std::vector<std::string> ConfigFields::Numbered(const std::string& name) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  std::vector<std::string> texts;
  if (value == nullptr) return texts;
  for (size_t i = 0; value->is_object() && i < value->size(); ++i) {
    const auto it = value->find(absl::StrCat(i));
    if (it == value->end() || !(it->is_string() || it->is_number())) break;
    texts.push_back(it->is_string() ? it->get<std::string>() : it->dump());
  }
  if (!value->is_object() || texts.size() != value->size()) {
    Refuse(name, R"(an object {"0": ..., "1": ..., ...} of texts)");
  }
  return texts;
}

void ConfigFields::Refuse(const std::string& name, absl::string_view expected) {
  const auto it = object_->json.find(name);
  const std::string found = it == object_->json.end() ? "missing" : io::QuoteForMessage(it->dump(-1, ' ', true));
  status_.Update(absl::InvalidArgumentError(absl::StrCat(source_, ": ", name, " is ", found, ", expected ", expected)));
}

int64_t ConfigFields::Count(const std::string& name, std::optional<int64_t> otherwise) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr && otherwise.has_value()) return *otherwise;
  constexpr int64_t kMost = int64_t{1} << 31;
  if (value != nullptr && value->is_number_unsigned() && *value >= 1 && *value <= kMost) return value->get<int64_t>();
  Refuse(name, "a number from 1 on");
  return 1;
}

int64_t ConfigFields::Layers(const std::string& name) {
  constexpr int64_t kMost = 1000;
  const int64_t layers = Count(name);
  if (layers <= kMost) return layers;
  Refuse(name, absl::StrCat("at most ", kMost));
  return 1;
}

int64_t ConfigFields::Index(const std::string& name, int64_t otherwise) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return otherwise;
  constexpr int64_t kMost = int64_t{1} << 31;
  if (value->is_number_unsigned() && *value <= kMost) return value->get<int64_t>();
  Refuse(name, "a number from 0 on");
  return otherwise;
}

double ConfigFields::Positive(const std::string& name, double otherwise) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_number() && value->get<double>() > 0 && std::isfinite(value->get<double>()))
    return value->get<double>();
  Refuse(name, "a number above 0");
  return otherwise;
}

double ConfigFields::NotNegative(const std::string& name, double otherwise) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_number() && value->get<double>() >= 0 && std::isfinite(value->get<double>())) {
    return value->get<double>();
  }
  Refuse(name, "a number from 0 on");
  return otherwise;
}

std::string ConfigFields::Text(const std::string& name, const std::string& otherwise) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  Refuse(name, "a string");
  return otherwise;
}

std::vector<std::string> ConfigFields::Texts(const std::string& name) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> texts;
  if (value->is_array()) {
    for (const nlohmann::json& item : *value) {
      if (item.is_string()) texts.push_back(item.get<std::string>());
    }
  }
  if (!value->is_array() || texts.size() != value->size()) Refuse(name, "a string or a list of strings");
  return texts;
}

bool ConfigFields::Flag(const std::string& name, bool otherwise) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Refuse(name, "true or false");
  return otherwise;
}

void ConfigFields::Only(const std::string& name, std::initializer_list<const char*> values) {
  read_.insert(name);
  const nlohmann::json* value = object_->Find(name);
  if (value == nullptr) return;
  const std::string text = value->dump(-1, ' ', true);
  if (absl::c_any_of(values, [&](const char* allowed) { return text == allowed; })) return;
  Refuse(name, absl::StrCat(absl::StrJoin(values, " or "), "; other cases are not computed"));
}

absl::Status ConfigFields::Finish() const {
  AQT_RETURN_IF_ERROR(status_);
  std::vector<std::string> unknown;
  for (const auto& [name, value] : object_->json.items()) {
    if (!read_.contains(name) && !IsWithoutEffect(name)) unknown.push_back(io::Printable(name));
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(source_, ": ", absl::StrJoin(unknown, ", "), unknown.size() == 1 ? " is" : " are",
                   " not known for this model, and may change its results; remove what has no effect"));
}

}  // namespace aqt::models
