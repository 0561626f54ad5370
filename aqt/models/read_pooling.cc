#include "aqt/models/read_pooling.h"

#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/json.h"
#include "aqt/io/json_value.h"
#include "aqt/io/printable.h"
#include "aqt/models/families/config_fields.h"

namespace aqt::models {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;

struct Module {
  std::string type;    // the name of its class
  std::string folder;  // relative to the model's; empty for the model itself
};

// `source` names the text in messages.
absl::StatusOr<std::vector<Module>> ParseModules(const std::string& text, const std::string& source) {
  const auto wrong = [&](const auto&... parts) { return absl::DataLossError(absl::StrCat(source, ": ", parts...)); };
  const absl::StatusOr<io::JsonValue> object = io::ParseJsonValue(absl::StrCat("{\"modules\":", text, "}"));
  if (!object.ok()) return Annotate(object.status(), source);
  const io::JsonValue& list = (*object)["modules"];
  if (!list.is_array() || list.size() == 0) return wrong("expected a list of modules");
  std::vector<Module> modules;
  for (const io::JsonValue& item : list.array()) {
    if (!item["type"].is_string() || !item["path"].is_string()) {
      return wrong("module ", modules.size(), " has no type or no path");
    }
    const std::vector<std::string> names = absl::StrSplit(item["type"].text(), '.');
    modules.push_back({names.back(), item["path"].text()});
    const std::string& folder = modules.back().folder;
    if (absl::StrContains(folder, "..") || absl::StartsWith(folder, "/")) {
      return wrong("the path ", io::QuoteForMessage(folder), " of module ", modules.size() - 1,
                   " leaves the model's folder");
    }
  }
  if (modules[0].type != "Transformer") {
    return absl::UnimplementedError(
        absl::StrCat(source, ": the first module is ", io::QuoteForMessage(modules[0].type), ", expected Transformer"));
  }
  if (!modules[0].folder.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(source, ": the path of the model is ", io::QuoteForMessage(modules[0].folder),
                     "; move its files to the folder of modules.json, and make the path \"\""));
  }
  modules.erase(modules.begin());
  return modules;
}

struct NamedMode {
  const char* name;
  const char* flag;  // the same mode before version 5.5 of sentence-transformers
  PoolMode mode;
};
// In the order in which flags concatenate.
constexpr NamedMode kModes[] = {{"cls", "pooling_mode_cls_token", PoolMode::kFirst},
                                {"max", "pooling_mode_max_tokens", PoolMode::kMax},
                                {"mean", "pooling_mode_mean_tokens", PoolMode::kMean},
                                {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", PoolMode::kRoot},
                                {"weightedmean", "pooling_mode_weightedmean_tokens", PoolMode::kWeightedMean},
                                {"lasttoken", "pooling_mode_lasttoken", PoolMode::kLast}};

absl::StatusOr<PoolTokens> ReadPoolTokens(const io::FileSystem& fs, const std::string& path, Pooling& pooling) {
  AQT_ASSIGN_OR_RETURN(ConfigFields fields, ConfigFields::Open(fs, path));
  for (const char* name : {"embedding_dimension", "word_embedding_dimension"}) {
    if (fields.Count(name, pooling.width) != pooling.width) {
      fields.Refuse(name, absl::StrCat("the width ", pooling.width, " of the model"));
    }
  }
  PoolTokens pool;
  for (const std::string& text : fields.Texts("pooling_mode")) {
    const auto* mode = absl::c_find_if(kModes, [&](const NamedMode& named) { return text == named.name; });
    if (mode == std::end(kModes)) {
      fields.Refuse("pooling_mode", "cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken");
      break;
    }
    pool.modes.push_back(mode->mode);
  }
  for (const NamedMode& named : kModes) {
    if (fields.Flag(named.flag, false)) pool.modes.push_back(named.mode);
  }
  pooling.pools_prompt = fields.Flag("include_prompt", true);
  AQT_RETURN_IF_ERROR(fields.Finish());
  if (!pool.modes.empty()) return pool;
  return absl::InvalidArgumentError(absl::StrCat(fields.source(), ": no pooling mode is chosen, expected one"));
}

// Steps that work on something other than the vector of a text are not computed.
void OnlyOnEmbedding(ConfigFields& fields) {
  fields.Only("module_input_name", {R"("sentence_embedding")"});
  fields.Only("module_output_name", {R"("sentence_embedding")"});
}

absl::Status CheckNormalize(const io::FileSystem& fs, const std::string& path) {
  absl::StatusOr<ConfigFields> fields = ConfigFields::Open(fs, path);
  if (absl::IsNotFound(fields.status())) return absl::OkStatus();  // the usual case
  AQT_RETURN_IF_ERROR(fields.status());
  OnlyOnEmbedding(*fields);
  return fields->Finish();
}

// The field has a class of torch, such as torch.nn.modules.activation.Tanh.
void ReadDenseActivation(ConfigFields& fields, DenseStep& dense) {
  constexpr std::pair<absl::string_view, Activation> kClasses[] = {
      {".GELU", Activation::kGelu},       {".ReLU", Activation::kRelu}, {".SiLU", Activation::kSilu},
      {".Sigmoid", Activation::kSigmoid}, {".Tanh", Activation::kTanh},
  };
  const std::string name = fields.Text("activation_function", "torch.nn.modules.activation.Tanh");
  for (const auto& [suffix, activation] : kClasses) {
    if (absl::EndsWith(name, suffix)) dense.activation = activation;
  }
  if (!dense.activation.has_value() && !absl::EndsWith(name, ".Identity")) {
    fields.Refuse("activation_function",
                  "torch.nn.modules.activation.{GELU, ReLU, SiLU, Sigmoid or Tanh} or "
                  "torch.nn.modules.linear.Identity");
  }
}

absl::StatusOr<DenseStep> ReadDense(const io::FileSystem& fs, const std::string& path, int64_t width) {
  AQT_ASSIGN_OR_RETURN(ConfigFields fields, ConfigFields::Open(fs, path));
  DenseStep dense;
  dense.in = fields.Count("in_features");
  dense.out = fields.Count("out_features");
  dense.bias = fields.Flag("bias", true);
  ReadDenseActivation(fields, dense);
  OnlyOnEmbedding(fields);
  if (dense.in != width) {
    fields.Refuse("in_features", absl::StrCat("the width ", width, " of the step before it"));
  }
  AQT_RETURN_IF_ERROR(fields.Finish());
  return dense;
}

// The longest text by model_max_length of tokenizer_config.json; 0 if it is missing, or a number that means "any".
absl::StatusOr<int64_t> TokenizerMaxLength(const io::FileSystem& fs, absl::string_view folder) {
  absl::StatusOr<ConfigFields> fields = ConfigFields::Open(fs, io::JoinPath(folder, "tokenizer_config.json"));
  if (absl::IsNotFound(fields.status())) return 0;
  AQT_RETURN_IF_ERROR(fields.status());
  constexpr double kAny = int64_t{1} << 31;
  const double length = fields->Positive("model_max_length", kAny);
  AQT_RETURN_IF_ERROR(fields->status());
  return length < kAny ? static_cast<int64_t>(length) : 0;
}

absl::Status ReadLimits(const io::FileSystem& fs, absl::string_view folder, Pooling& pooling) {
  absl::StatusOr<ConfigFields> fields = ConfigFields::Open(fs, io::JoinPath(folder, "sentence_bert_config.json"));
  if (fields.ok()) {
    pooling.max_length = fields->Has("max_seq_length") ? fields->Count("max_seq_length") : 0;
    pooling.lower_case = fields->Flag("do_lower_case", false);
    // Since version 6: which class of transformers is loaded, and which of its outputs is taken.
    fields->Only("transformer_task", {R"("feature-extraction")", R"("sequence-classification")"});
    fields->Only("modality_config", {R"({"text":{"method":"forward","method_output_name":"last_hidden_state"}})",
                                     R"({"text":{"method":"forward","method_output_name":"logits"}})"});
    fields->Only("module_output_name", {R"("token_embeddings")", R"("scores")"});
    for (const char* name : {"query_length", "document_length", "query_expansion"}) fields->Only(name, {"null"});
    fields->Only("processing_kwargs", {"{}"});
    fields->NotRead({"max_seq_length", "unpad_inputs"});
    AQT_RETURN_IF_ERROR(fields->Finish());
  } else if (!absl::IsNotFound(fields.status())) {
    return fields.status();
  }
  if (pooling.max_length > 0) return absl::OkStatus();
  AQT_ASSIGN_OR_RETURN(pooling.max_length, TokenizerMaxLength(fs, folder));
  return absl::OkStatus();
}

// The text that sentence-transformers puts before each text.
absl::Status ReadPrompt(const io::FileSystem& fs, absl::string_view folder, Pooling& pooling) {
  absl::StatusOr<ConfigFields> fields =
      ConfigFields::Open(fs, io::JoinPath(folder, "config_sentence_transformers.json"));
  if (absl::IsNotFound(fields.status())) return absl::OkStatus();
  AQT_RETURN_IF_ERROR(fields.status());
  const std::string name = fields->Text("default_prompt_name", "");
  AQT_RETURN_IF_ERROR(fields->status());
  if (name.empty()) return absl::OkStatus();
  ConfigFields prompts = fields->Object("prompts");
  AQT_RETURN_IF_ERROR(fields->status());
  if (!prompts.Has(name)) prompts.Refuse(name, "the text of the default prompt");
  pooling.prompt = prompts.Text(name, "");
  AQT_RETURN_IF_ERROR(prompts.status());
  if (pooling.pools_prompt || pooling.prompt.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      fields->source(), ": default_prompt_name is ", io::QuoteForMessage(name),
      ", and include_prompt of the pooling is false; expected true, because tokens of a prompt are always pooled"));
}

// Adds the steps of modules.json.
absl::Status ReadSteps(const io::FileSystem& fs, absl::string_view folder, Pooling& pooling) {
  const std::string path = io::JoinPath(folder, "modules.json");
  const absl::StatusOr<std::string> text = io::ReadFile(fs, path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  AQT_RETURN_IF_ERROR(text.status());
  AQT_ASSIGN_OR_RETURN(const std::vector<Module> modules, ParseModules(*text, io::PrintableLine(path)));
  for (const Module& module : modules) {
    const bool is_first = pooling.steps.empty();
    const std::string config = io::JoinPath(io::JoinPath(folder, module.folder), "config.json");
    if (module.type == "Pooling" && is_first) {
      AQT_ASSIGN_OR_RETURN(const PoolTokens pool, ReadPoolTokens(fs, config, pooling));
      pooling.width *= static_cast<int64_t>(pool.modes.size());
      pooling.steps.emplace_back(pool);
    } else if (module.type == "Dense" && !is_first) {
      AQT_ASSIGN_OR_RETURN(DenseStep dense, ReadDense(fs, config, pooling.width));
      dense.folder = module.folder;
      dense.scope = absl::StrCat("dense", pooling.steps.size());
      pooling.width = dense.out;
      pooling.steps.emplace_back(std::move(dense));
    } else if (module.type == "Normalize" && !is_first) {
      AQT_RETURN_IF_ERROR(CheckNormalize(fs, config));
      pooling.steps.emplace_back(Normalize());
    } else {
      return absl::UnimplementedError(absl::StrCat(
          io::PrintableLine(path), ": module ", io::QuoteForMessage(module.type), " at position ",
          pooling.steps.size() + 1, "; expected Transformer, then Pooling, then any of Dense and Normalize"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Pooling> ReadPooling(const io::FileSystem& fs, absl::string_view folder, int64_t width) {
  Pooling pooling;
  pooling.width = width;
  AQT_RETURN_IF_ERROR(ReadSteps(fs, folder, pooling));
  pooling.given = !pooling.steps.empty();
  if (!pooling.given) pooling.steps.emplace_back(PoolTokens{{PoolMode::kMean}});
  AQT_RETURN_IF_ERROR(ReadLimits(fs, folder, pooling));
  AQT_RETURN_IF_ERROR(ReadPrompt(fs, folder, pooling));
  return pooling;
}

}  // namespace aqt::models
